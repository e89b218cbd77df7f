"""Reader of GML, the Topology Zoo's format: `graph [ node [ id 0 label "Rome" ] edge [ source 0 target 1 ] ]`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import PurePath

from tradewind.errors import BadNetwork
from tradewind.formats.graph import Attributes, Edge, Graph, network_from_graph
from tradewind.formats.text import decode
from tradewind.network import Network

MAX_DEPTH = 100

_TOKEN = re.compile(r'(?P<skip>\s+|\#[^\n]*)|"(?P<string>[^"]*)"|(?P<bracket>[\[\]])|(?P<word>[^\s\[\]"]+)')
_KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class Record(list[tuple[str, "str | Record"]]):
    """The key-value pairs of one record in brackets; keys may repeat, so it is not a dict."""

    def attributes(self) -> Attributes:
        return {key.lower(): value for key, value in self if isinstance(value, str)}

    def records(self, key: str) -> list[Record]:
        return [value for k, value in self if k == key and isinstance(value, Record)]


def network_from_gml(
    data: bytes | str,
    source: str = "GML",
    default_bandwidth_bps: float | None = None,
    *,
    name: str | None = None,
) -> Network:
    """The network in GML text. Edges without a bandwidth get the default; without a default they are an error.

    `source` names the text in errors. Raises `BadNetwork` if it is not a valid network.

    >>> network_from_gml('graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 bandwidth "1Gbps" ] ]')
    Network('GML', 2 sites, 2 links, 0 trunks)
    """
    text = decode(data, source)
    try:
        graph = _graph(_parse(text))
    except BadNetwork as error:
        raise BadNetwork(f"{source}: {error}") from error
    return network_from_graph(graph, name or PurePath(source).stem, source, default_bandwidth_bps)


def _graph(document: Record) -> Graph:
    graphs = document.records("graph")
    if len(graphs) != 1:
        raise BadNetwork(f"has {len(graphs)} records `graph [ ... ]`, expected exactly one.")
    directed = graphs[0].attributes().get("directed", "0") == "1"
    graph = Graph()
    for record in graphs[0].records("node"):
        attributes = record.attributes()
        node = _required(attributes, "node", "id")
        if node in graph.nodes:
            raise BadNetwork(f"node {node!r} is defined twice. Remove one of them.")
        graph.nodes[node] = attributes
    for record in graphs[0].records("edge"):
        attributes = record.attributes()
        src, dst = (_required(attributes, "edge", end) for end in ("source", "target"))
        graph.edges.append(Edge(src, dst, directed, attributes))
    return graph


def _required(attributes: Attributes, kind: str, name: str) -> str:
    if not attributes.get(name):
        raise BadNetwork(f"a `{kind} [ ... ]` needs {name!r}.")
    return attributes[name]


def _parse(text: str) -> Record:
    """The records of a file, parsed with a stack instead of recursion, so that `MAX_DEPTH` bounds the depth."""
    open_records = [Record()]
    key: str | None = None
    for kind, value, line in _tokens(text):
        if kind == "bracket" and value == "]":
            if key is not None or len(open_records) == 1:
                raise BadNetwork(f"line {line}: expected a value, or a '[' before this ']'.")
            open_records.pop()
        elif key is None:
            if kind != "word" or not _KEY.fullmatch(value):
                raise BadNetwork(f"line {line}: expected a key, found {value[:40]!r}.")
            key = value
        elif kind == "bracket":
            record = Record()
            open_records[-1].append((key, record))
            open_records.append(record)
            key = None
            if len(open_records) > MAX_DEPTH:
                raise BadNetwork(f"line {line}: records must nest at most {MAX_DEPTH} levels deep.")
        else:
            open_records[-1].append((key, html.unescape(value).strip() if kind == "string" else value))
            key = None
    if key is not None or len(open_records) > 1:
        raise BadNetwork("ends in the middle of a record. Is the file complete?")
    return open_records[0]


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    line, position = 1, 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise BadNetwork(f"line {line}: a quote is not closed. Add the closing quote.")
        kind = found.lastgroup or "skip"
        if kind != "skip":
            yield kind, found[kind], line
        line += found[0].count("\n")
        position = found.end()
