"""Reader of GraphML: nodes and edges with keyed data, as networkx, Gephi, yEd and the Topology Zoo write them.

The file is parsed as a stream with expat, because only names, labels and numbers are needed. Document type declarations
are refused, because entities can expand a small XML file to gigabytes.
"""

from __future__ import annotations

from pathlib import PurePath
from xml.parsers import expat

from tradewind.errors import BadNetwork
from tradewind.formats.graph import Edge, Graph, network_from_graph
from tradewind.network import Network

MAX_DEPTH = 100


def network_from_graphml(
    data: bytes | str,
    source: str = "GraphML",
    default_bandwidth_bps: float | None = None,
    *,
    name: str | None = None,
) -> Network:
    """The network in GraphML text. Edges without a bandwidth get the default; without a default they are an error.

    `source` names the text in errors. Raises `BadNetwork` if it is not a valid network.

    >>> network_from_graphml('''<graphml><key id="b" for="edge" attr.name="bandwidth"/><graph edgedefault="undirected">
    ... <node id="x"/><node id="y"/><edge source="x" target="y"><data key="b">40</data></edge></graph></graphml>''')
    Network('GraphML', 2 sites, 2 links, 0 trunks)
    """
    reader = _Reader()
    # The declared encoding applies to bytes; text is decoded already, whatever its declaration says.
    encoding, content = ("utf-8", data.encode("utf-8", "replace")) if isinstance(data, str) else (None, data)
    try:
        reader.parse(content, encoding)
    except (expat.ExpatError, LookupError, ValueError) as error:  # the last two: an unknown encoding
        raise BadNetwork(f"{source}: is not valid XML ({error}). Correct it at that place.") from error
    except BadNetwork as error:
        raise BadNetwork(f"{source}: {error}") from error
    if not reader.graphs:
        raise BadNetwork(f"{source}: is not GraphML: expected a <graph> element.")
    return network_from_graph(reader.graph, name or PurePath(source).stem, source, default_bandwidth_bps)


class _Reader:
    """The state of the parser: the graph so far, and the element to which data belong."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.graphs = 0
        self.depth = 0
        self.directed = False
        self.attribute_names: dict[str, str] = {}
        self.defaults: dict[str, dict[str, str]] = {"node": {}, "edge": {}}
        self.key: tuple[str, str] = ("", "")
        self.owner: dict[str, str] | None = None
        self.data_key: str | None = None
        self.text: list[str] = []

    def parse(self, data: bytes, encoding: str | None) -> None:
        parser = expat.ParserCreate(encoding, namespace_separator=" ")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self.text.append
        parser.Parse(data, True)

    @staticmethod
    def _refuse_doctype(*_: object) -> None:
        raise BadNetwork("has a document type declaration, which is not allowed. Remove the <!DOCTYPE ...>.")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise BadNetwork(f"elements must nest at most {MAX_DEPTH} levels deep.")
        self.text.clear()
        match tag.rpartition(" ")[2]:
            case "key":
                self.key = (attributes.get("for", "all"), attributes.get("attr.name", "").lower())
                self.attribute_names[_required(attributes, "key", "id")] = self.key[1]
            case "graph":
                self.graphs += 1
                if self.graphs > 1:
                    raise BadNetwork("has more than one graph. Keep one; nested graphs are not supported.")
                self.directed = attributes.get("edgedefault") == "directed"
            case "node":
                node = _required(attributes, "node", "id")
                if node in self.graph.nodes:
                    raise BadNetwork(f"node {node!r} is defined twice. Remove one of them.")
                self.owner = self.graph.nodes[node] = dict(self.defaults["node"])
            case "edge":
                self.owner = dict(self.defaults["edge"])
                directed = {"true": True, "false": False}.get(attributes.get("directed", ""), self.directed)
                src, dst = (_required(attributes, "edge", end) for end in ("source", "target"))
                self.graph.edges.append(Edge(src, dst, directed, self.owner))
            case "hyperedge":
                raise BadNetwork("has a hyperedge, which is not supported. Use edges.")
            case "data":
                self.data_key = attributes.get("key")

    def _end(self, tag: str) -> None:
        self.depth -= 1
        text = "".join(self.text).strip()
        self.text.clear()
        match tag.rpartition(" ")[2]:
            case "default":
                for kind in self.defaults:
                    if self.key[0] in ("all", kind) and self.key[1]:
                        self.defaults[kind][self.key[1]] = text
            case "data":
                name = self.attribute_names.get(self.data_key or "", "")
                if self.owner is not None and name:
                    self.owner[name] = text
                self.data_key = None
            case "node" | "edge":
                self.owner = None


def _required(attributes: dict[str, str], tag: str, name: str) -> str:
    if not attributes.get(name):
        raise BadNetwork(f"a <{tag}> needs the attribute {name!r}.")
    return attributes[name]
