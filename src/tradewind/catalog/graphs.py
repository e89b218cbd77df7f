"""Published topologies: nodes with coordinates and undirected edges, some with a bandwidth or a latency.

Missing bandwidths are uniform, with a value that the caller may choose; missing latencies are those of light in fibre
along the great circle (`tradewind.geography`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from tradewind.catalog import datafiles
from tradewind.formats.graph import Edge, Graph, network_from_graph
from tradewind.network import Network


class GraphInfo(NamedTuple):
    """The catalog's description of a topology."""

    description: str
    source: str
    has_bandwidth: bool


@lru_cache
def graph_infos() -> dict[str, GraphInfo]:
    """All topologies by name, in catalog order."""
    return {
        row["network"]: GraphInfo(row["description"], row["source"], row["has_bandwidth"] == "yes")
        for row in datafiles.rows("graphs.csv")
    }


def load_graph(name: str, default_bandwidth_bps: float | None = None) -> Network:
    """The topology of that name; the default bandwidth is for topologies without bandwidths."""
    graph = Graph()
    for site in datafiles.rows("graph_sites.csv", of=name):
        graph.nodes[site["id"]] = site
    for link in datafiles.rows("graph_links.csv", of=name):
        graph.edges.append(Edge(link["a"], link["b"], directed=False, attributes=link))
    return network_from_graph(graph, name, f"catalog {name}", default_bandwidth_bps)
