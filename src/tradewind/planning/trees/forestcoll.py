"""`forestcoll`: ForestColl's construction of optimal broadcast forests (Zhao et al.), for comparison with `optimal`.

The published mechanism, for an all-gather in which each of N members broadcasts an equal share on k trees:

1. **Throughput.** Every set S of members must send what its members own to the rest, so the rate of a root is at most
   x* = min over S of (capacity out of S) / |S|. A source that offers each member k units can send N k units to every
   member (a maximum flow for each) exactly if k trees a root fit. A binary search finds the least scale U for which
   this holds when each link carries floor(U x bandwidth) trees; then k / U is the rate of a root.
2. **Edge splitting** replaces switches by links between members. There are none here: a plan uses links between
   members only, and sites that are not members are left out.
3. **Packing.** Trees grow from their roots, link by link. A link (x, y) extends a tree by y as often as all trees can
   still be completed: at most as often as the link has trees left and the tree has copies, and at most the maximum
   flow from x to y, in the graph with a node for each other unfinished tree, less the copies of these. If that is
   fewer than the tree's copies, the tree is split in two.

The paper's bandwidths are whole numbers, which give an exact k. Measured ones are not, so k is given (`trees_per_root`;
the paper's fixed-k variant) or the least power of two within `gap` of the rate of many trees.

**All-reduce** is, as in the paper, a reduce-scatter and an all-gather. The reduce trees are the broadcast trees of the
network with all links turned around; where the network is symmetric, both are the same trees. Each root owns the same
share of the tensor. That is optimal for an all-gather, where each member has its own data to send, but not for an
all-reduce, whose roots may be chosen: `optimal` gives slow sites smaller shares. Both phases run at once here and share
the links. NICs and trunks are not part of the model; rates are scaled down to what they carry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, maximum_flow

from tradewind.errors import InfeasiblePlan, InternalError
from tradewind.network import Matrix, Network
from tradewind.planning.cost import cost
from tradewind.planning.plan import Plan, Shard, default_chunk_bytes
from tradewind.planning.trees.tree_sources import TreePair, tree_shard
from tradewind.units import format_count, format_rate

Counts = npt.NDArray[np.int32]
"""How many trees each link carries, by source and destination."""

_MANY = 256
"""Trees a root with which the rate of any number of trees is estimated, to within 1%."""
_STEPS = 16
"""Halvings of the binary search, which starts within a factor of two: a precision of 1.5e-5."""
_DEFAULT_MOST = 16


@dataclass(frozen=True)
class ForestCollOptions:
    """How many trees each member is the root of."""

    trees_per_root: int | None = None
    """Trees of each root (k); by default the least power of two up to 16 that comes within `gap` of many trees."""
    gap: float = 0.02
    """The share of the rate of many trees that may be lost."""

    def __post_init__(self) -> None:
        if self.trees_per_root is not None and not 1 <= self.trees_per_root <= _MANY:
            raise ValueError(f"trees_per_root must be in [1, {_MANY}], got {self.trees_per_root}")
        if not 0 <= self.gap < 1:
            raise ValueError(f"gap must be in [0, 1), got {self.gap}")


def plan_forestcoll(network: Network, members: tuple[str, ...], nbytes: int, options: ForestCollOptions) -> Plan:
    """ForestColl's forests: k trees a member, each with an equal share, packed by maximum flows."""
    rows = [network.index[name] for name in members]
    bandwidth = network.bandwidth_bps[np.ix_(rows, rows)]
    if connected_components(csr_array(bandwidth), directed=True, connection="strong")[0] > 1:
        raise InfeasiblePlan(
            f"the members cannot reach each other without sites of {network.name!r} that are not members, which "
            "forestcoll does not use. Use the planner optimal."
        )
    is_symmetric = bool(np.array_equal(bandwidth, bandwidth.T))
    broadcast = _forest(bandwidth, options)
    reduce = broadcast if is_symmetric else _forest(bandwidth.T, options)
    shards = []
    for root in range(len(members)):
        for share, down, up in _refined(broadcast.of_root(root), reduce.of_root(root)):
            pair = TreePair(root, _parents(up, len(members), root), _parents(down, len(members), root))
            fraction = share / len(members)
            chunk_bytes = default_chunk_bytes(fraction * nbytes)
            shards.append(replace(tree_shard(members, pair, 0.0), fraction=fraction, chunk_bytes=chunk_bytes))
    return _rated(Plan("forestcoll", network.name, members, nbytes, tuple(shards)), network, broadcast, reduce)


def _rated(plan: Plan, network: Network, broadcast: _Forest, reduce: _Forest) -> Plan:
    unrated: tuple[Shard, ...] = tuple(replace(shard, rate_bps=None) for shard in plan.shards)
    plan = replace(plan, shards=unrated)
    rate_bps = cost(plan, network).steady_rate_bps
    rated = tuple(replace(shard, rate_bps=rate_bps * shard.fraction) for shard in plan.shards)
    members = len(plan.members)
    broadcasts, reduces = (
        f"{format_count(forest.k, 'tree')} a member at {format_rate(members * forest.root_rate_bps)}"
        for forest in (broadcast, reduce)
    )
    reason = f"alone, broadcast by {broadcasts} and reduce by {reduces}; both together at {format_rate(rate_bps)}"
    return replace(plan, shards=rated, reason=reason)


@dataclass(frozen=True)
class _Tree:
    """A tree that grows away from a root: who received it so far, over which links, and how many copies there are."""

    root: int
    reached: frozenset[int]
    links: tuple[tuple[int, int], ...]
    copies: int


@dataclass(frozen=True)
class _Forest:
    trees: list[_Tree]
    k: int
    root_rate_bps: float

    def of_root(self, root: int) -> list[tuple[float, tuple[tuple[int, int], ...]]]:
        """The trees of a root with their shares of its data."""
        return [(tree.copies / self.k, tree.links) for tree in self.trees if tree.root == root]


def _forest(bandwidth: Matrix, options: ForestCollOptions) -> _Forest:
    """The packed broadcast trees of every member."""
    k = options.trees_per_root
    if k is None:
        enough_bps = (1 - options.gap) * _MANY / _least_scale(bandwidth, _MANY)
        k = 1
        while k < _DEFAULT_MOST and k / _least_scale(bandwidth, k) < enough_bps:
            k *= 2
    scale = _least_scale(bandwidth, k)
    return _Forest(_packed(_counts(bandwidth, scale, k), k), k, k / scale)


def _counts(bandwidth: Matrix, scale: float, k: int) -> Counts:
    """How many trees each link carries; never more than there are."""
    return np.minimum(np.floor(bandwidth * scale * (1 + 1e-12)), k * len(bandwidth)).astype(np.int32)


def _least_scale(bandwidth: Matrix, k: int) -> float:
    """The least U, in trees a bit/s, for which k trees of every member fit."""
    sites = len(bandwidth)
    low = k * (sites - 1) / float(bandwidth.sum(axis=0).min())  # each member receives the trees of all others
    high = low
    while not _fits(_counts(bandwidth, high, k), k):
        low, high = high, 2 * high
    for _ in range(_STEPS if high > low else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if _fits(_counts(bandwidth, middle, k), k) else (middle, high)
    return high


def _fits(counts: Counts, k: int) -> bool:
    """Whether k trees of every member fit: a source with k units for each can send all of them to every member."""
    sites = len(counts)
    if (counts.sum(axis=0) < k * (sites - 1)).any():
        return False
    with_source = np.zeros((sites + 1, sites + 1), dtype=np.int32)
    with_source[:sites, :sites] = counts
    with_source[sites, :sites] = k
    graph = csr_array(with_source)
    return all(maximum_flow(graph, sites, member).flow_value == k * sites for member in range(sites))


def _packed(counts: Counts, k: int) -> list[_Tree]:
    """Spanning trees, k copies for every member as root, that use no link more often than it counts."""
    sites = len(counts)
    left = counts.copy()
    growing = [_Tree(root, frozenset([root]), (), k) for root in range(sites)]
    finished: list[_Tree] = []
    while growing:
        tree = growing.pop()
        if len(tree.reached) == sites:
            finished.append(tree)
            continue
        candidates = ((src, dst, _most(tree, growing, left, src, dst)) for src, dst in _extensions(tree, left))
        found = next((candidate for candidate in candidates if candidate[2]), None)
        if found is None:
            raise InternalError("no link extends a tree of the packing, which theory excludes.")
        src, dst, copies = found
        left[src, dst] -= copies
        if copies < tree.copies:
            growing.append(replace(tree, copies=tree.copies - copies))
        growing.append(_Tree(tree.root, tree.reached | {dst}, (*tree.links, (src, dst)), copies))
    return finished


def _extensions(tree: _Tree, left: Counts) -> Iterator[tuple[int, int]]:
    """Links that lead out of the tree, those near the root first, then those with most left."""
    outside = np.array([site for site in range(len(left)) if site not in tree.reached])
    for src in (tree.root, *(dst for _, dst in tree.links)):  # in the order of growth
        for place in np.argsort(-left[src, outside], kind="stable").tolist():
            if left[src, outside[place]] > 0:
                yield src, int(outside[place])


def _most(tree: _Tree, growing: list[_Tree], left: Counts, src: int, dst: int) -> int:
    """How many copies of the tree a link may extend so that the rest can still be completed."""
    sites, others = len(left), [other for other in growing if len(other.reached) < len(left)]
    size = sites + len(others)
    graph = np.zeros((size, size), dtype=np.int32)
    graph[:sites, :sites] = left
    waiting = sum(other.copies for other in others)
    for node, other in enumerate(others, start=sites):
        graph[src, node] = other.copies
        graph[node, list(other.reached)] = waiting + int(left.sum())
    spare = maximum_flow(csr_array(graph), src, dst).flow_value - waiting
    return max(0, min(int(left[src, dst]), tree.copies, int(spare)))


def _refined(
    down: list[tuple[float, tuple[tuple[int, int], ...]]], up: list[tuple[float, tuple[tuple[int, int], ...]]]
) -> Iterator[tuple[float, tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]]:
    """Pair trees of two lists whose shares both add up to one; a tree may be in several pairs."""
    places = [0, 0]
    rest = [down[0][0], up[0][0]]
    while places[0] < len(down) and places[1] < len(up):
        share = min(rest)
        yield share, down[places[0]][1], up[places[1]][1]
        for side, trees in enumerate((down, up)):
            rest[side] -= share
            if rest[side] < 1e-12:
                places[side] += 1
                rest[side] = trees[places[side]][0] if places[side] < len(trees) else 0.0


def _parents(links: tuple[tuple[int, int], ...], sites: int, root: int) -> npt.NDArray[np.int64]:
    parent = np.full(sites, -1, dtype=np.int64)
    parent[root] = root
    for above, below in links:
        parent[below] = above
    return parent
