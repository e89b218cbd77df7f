"""Conversion of a graph (nodes and edges with text attributes, from GraphML or GML) to a Network.

Graph files have no common names and units, so the accepted attribute names are listed here, with the unit of a plain
number. A value may also have a unit (`10Gbps`, `5ms`). Attribute names are compared without case.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tradewind.errors import BadNetwork, BadOption, BadQuantity
from tradewind.formats.text import to_bandwidth_bps, to_latency_ms, to_number
from tradewind.geography import fibre_latency_ms
from tradewind.network import Link, Network, Site

# The first match is used: names with a unit precede those without.
BANDWIDTH_UNITS = {
    "bandwidth_bps": "bps",
    "bandwidth_mbps": "Mbps",
    "bandwidth_gbps": "Gbps",
    "capacity_mbps": "Mbps",
    "capacity_gbps": "Gbps",
    "linkspeedraw": "bps",  # Internet Topology Zoo
    "bandwidth": "Mbps",
    "capacity": "Mbps",
}
LATENCY_NAMES = ("latency_ms", "delay_ms", "latency", "delay")
NAME_NAMES = ("label", "name")
LAT_NAMES = ("lat", "latitude")
LON_NAMES = ("lon", "lng", "long", "longitude")

Attributes = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge between two node ids; an undirected edge becomes a link in each direction."""

    src: str
    dst: str
    directed: bool
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes by id and edges in the order of the file. Attribute names are lower case, values are text."""

    nodes: dict[str, Attributes] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)


def network_from_graph(graph: Graph, name: str, source: str, default_bandwidth_bps: float | None = None) -> Network:
    """The network of a graph; `source` names it in errors.

    Parallel edges become one link with their total bandwidth and their highest latency and loss. Missing latencies are
    derived from the coordinates (`fibre_latency_ms`). Raises `BadNetwork` if the graph is not a valid network.
    """
    if default_bandwidth_bps is not None and not 0 < default_bandwidth_bps < math.inf:
        raise BadOption(
            f"{source}: the default bandwidth must be finite and above 0, got {default_bandwidth_bps} bit/s."
        )
    try:
        names = unique_names(graph.nodes)
        sites = [_site(names[node], attributes) for node, attributes in graph.nodes.items()]
        return Network.from_links(name, sites, _links(graph, names, sites, default_bandwidth_bps))
    except (BadNetwork, BadQuantity) as error:
        raise BadNetwork(f"{source}: {error}") from error


def unique_names(nodes: Mapping[str, Attributes]) -> dict[str, str]:
    """A site name for each node id: its label, or `label#id` where several nodes share one, or its id if it has none.

    >>> unique_names({"0": {"label": "Rome"}, "1": {"label": "Oslo"}, "2": {"label": "Rome"}, "3": {}})
    {'0': 'Rome#0', '1': 'Oslo', '2': 'Rome#2', '3': '3'}
    """
    labels = {node: (_first(attributes, NAME_NAMES) or node) for node, attributes in nodes.items()}
    uses = Counter(labels.values())
    return {node: label if uses[label] == 1 else f"{label}#{node}" for node, label in labels.items()}


def _site(name: str, attributes: Attributes) -> Site:
    numbers = {}
    for what, spellings in (("lat", LAT_NAMES), ("lon", LON_NAMES)):
        text = _first(attributes, spellings)
        numbers[what] = None if text is None else _convert(to_number, text, f"site {name!r}, {what}")
    caps = {}
    for what in ("egress", "ingress"):
        text = attributes.get(f"{what}_mbps")
        caps[what] = math.inf if not text else _convert(to_bandwidth_bps, text, f"site {name!r}, {what}_mbps")
    zone, provider = attributes.get("zone") or None, attributes.get("provider") or None
    return Site(name, zone, provider, numbers["lat"], numbers["lon"], caps["egress"], caps["ingress"])


def _links(graph: Graph, names: Mapping[str, str], sites: list[Site], default_bps: float | None) -> list[Link]:
    row = {node: i for i, node in enumerate(graph.nodes)}
    bandwidth_bps: dict[tuple[int, int], float] = {}
    latency_ms: dict[tuple[int, int], float | None] = {}
    loss: dict[tuple[int, int], float] = {}
    for edge in graph.edges:
        for end in (edge.src, edge.dst):
            if end not in row:
                raise BadNetwork(
                    f"edge {edge.src}-{edge.dst} refers to node {end!r}, which is not in the file. "
                    "Add the node, or remove the edge."
                )
        where = f"edge {names[edge.src]}-{names[edge.dst]}"
        bps = _bandwidth_bps(edge.attributes, default_bps, where)
        latency_text, loss_text = _first(edge.attributes, LATENCY_NAMES), edge.attributes.get("loss")
        ms = None if latency_text is None else _convert(to_latency_ms, latency_text, f"{where}, latency")
        lost = _convert(to_number, loss_text, f"{where}, loss") if loss_text else 0.0
        ways = [(row[edge.src], row[edge.dst])]
        ways += [] if edge.directed else [(row[edge.dst], row[edge.src])]
        for way in ways:
            bandwidth_bps[way] = bandwidth_bps.get(way, 0.0) + bps
            known = [x for x in (ms, latency_ms.get(way)) if x is not None]
            latency_ms[way] = max(known, default=None)
            loss[way] = max(lost, loss.get(way, lost))
    filled = fibre_latency_ms(sites, list(latency_ms), list(latency_ms.values()))
    return [
        Link(sites[i].name, sites[j].name, bandwidth_bps[i, j], ms / 1e3, loss[i, j])
        for (i, j), ms in zip(bandwidth_bps, filled, strict=True)
    ]


def _bandwidth_bps(attributes: Attributes, default_bps: float | None, where: str) -> float:
    for name, unit in BANDWIDTH_UNITS.items():
        text = attributes.get(name)
        if text:
            return _convert(partial(to_bandwidth_bps, plain_unit=unit), text, f"{where}, {name}")
    if default_bps is None:
        raise BadNetwork(
            f"{where} has no bandwidth (looked for {', '.join(BANDWIDTH_UNITS)}). Add one, or pass a default bandwidth."
        )
    return default_bps


def _first(attributes: Attributes, names: tuple[str, ...]) -> str | None:
    return next((attributes[name] for name in names if attributes.get(name)), None)


def _convert(convert: Callable[[str], float], text: str, where: str) -> float:
    try:
        return convert(text)
    except BadQuantity as error:
        raise BadQuantity(f"{where}: {error}") from error
