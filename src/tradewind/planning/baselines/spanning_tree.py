"""The spanning tree of the widest links, as TSEngine builds it (MST in NetStorm's comparison).

Among all spanning trees the maximum spanning tree has the widest bottleneck. Every link that is not in the tree stays
unused, which packing several trees improves.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, dijkstra, minimum_spanning_tree

from tradewind.network import Matrix, Network
from tradewind.planning import NoOptions
from tradewind.planning.plan import Plan
from tradewind.planning.routes import Routes, tree_shard
from tradewind.units import format_rate

_SAME_HEIGHT_DIGITS = 9
"""Heights are compared to the nanosecond, so that the order of summing does not decide between equals."""


def plan_spanning_tree(
    network: Network,
    members: tuple[str, ...],
    nbytes: int,
    options: NoOptions,  # noqa: ARG001 - all planners take options
) -> Plan:
    """Maximum-bandwidth spanning tree, rooted where it is lowest (TSEngine's MST).

    A pair counts with the slower of its two directions, because sums go up and results come down. The tree is made of
    links between members where those connect them all, and of routed pairs where they do not. Its root is the
    member from which the farthest member is nearest, in latency both ways, then in hops.
    """
    routes = Routes(network)
    rows = np.array([network.index[name] for name in members])
    grid = np.ix_(rows, rows)
    one_way = routes.bandwidth_bps()[grid]
    width_bps = np.minimum(one_way, one_way.T)
    linked = (network.bandwidth_bps[grid] > 0) & (network.bandwidth_bps[grid] > 0).T
    tree = _widest_tree(width_bps, linked)
    edges = tree.tocoo()
    round_trip_s = (routes.distance_s + routes.distance_s.T)[grid]
    root = _lowest_root(edges, round_trip_s)
    _, above = breadth_first_order(tree, root, directed=False)
    parent = {members[k]: members[above[k]] for k in range(len(members)) if k != root}
    shard = tree_shard(routes, nbytes, 1.0, members[root], parent, parent)
    bottleneck = format_rate(float(width_bps[edges.row, edges.col].min()))
    reason = f"the widest tree: its slowest edge has {bottleneck} each way"
    return Plan("spanning-tree", network.name, members, nbytes, (shard,), reason=reason)


def _widest_tree(width_bps: Matrix, linked: npt.NDArray[np.bool_]) -> csr_array:
    """The maximum spanning tree over links, or over all pairs where links do not connect the members.

    Pairs are ranked by width, then links before routes, then by order: with a rank as its weight no two pairs are
    equal, so there is exactly one such tree.
    """
    n = len(width_bps)
    parts, _ = connected_components(csr_array(linked), directed=False)
    i, j = np.nonzero(np.triu(linked if parts == 1 else np.ones_like(linked), 1))
    rank = np.empty(len(i))
    rank[np.lexsort((j, i, ~linked[i, j], -width_bps[i, j]))] = np.arange(1, len(i) + 1)
    return minimum_spanning_tree(csr_array((rank, (i, j)), shape=(n, n)))


def _lowest_root(edges: coo_array, length_s: Matrix) -> int:
    n = edges.shape[0]
    lengths = csr_array((length_s[edges.row, edges.col], (edges.row, edges.col)), shape=(n, n))
    height_s = np.round(dijkstra(lengths, directed=False).max(axis=1), _SAME_HEIGHT_DIGITS)
    hops = dijkstra(lengths, directed=False, unweighted=True).max(axis=1)
    return int(np.lexsort((hops, height_s))[0])
