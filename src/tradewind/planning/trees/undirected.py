"""The undirected view of a network that the tree planners share, and trees on it.

MTREE, BLINK and TOPOADOPT send a sum up a tree and its result down the same links, so a tree needs the same rate in
both directions: they plan on the lower bandwidth of the two directions (`Network.symmetric`), and a link that exists in
one direction only does not exist for them.

A tree is the sorted tuple of its edges' numbers: hashable, comparable, and the same wherever it is rooted. It becomes
a `RootedTree` once its root is chosen.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from tradewind.errors import InfeasiblePlan
from tradewind.network import Network
from tradewind.units import format_rate

Tree = tuple[int, ...]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class UndirectedGraph:
    """Sites by number, and edges by number: ends, capacity each way and latency."""

    names: tuple[str, ...]
    is_member: npt.NDArray[np.bool_]
    ends: Indices
    """One row (a, b) per edge, a < b."""
    capacity_bps: Floats
    latency_s: Floats

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def neighbours(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each site, its (neighbour, edge) pairs in order."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.names]
        for edge, (a, b) in enumerate(self.ends.tolist()):
            found[a].append((b, edge))
            found[b].append((a, edge))
        return tuple(tuple(pairs) for pairs in found)

    def adjacency(self, weight: Floats, edges: npt.NDArray[np.bool_] | None = None) -> csr_array:
        """The chosen edges (all by default) as scipy's graph functions take them; weights of zero are kept."""
        chosen = np.flatnonzero(np.ones(len(self.ends), dtype=bool) if edges is None else edges)
        a, b = self.ends[chosen].T
        return csr_array((weight[chosen], (a, b)), shape=(len(self), len(self)))


def undirected_view(network: Network, members: tuple[str, ...], min_rate_bps: float = 0.0) -> UndirectedGraph:
    """The view of tree planners: links of at least `min_rate_bps` in both directions, on as few sites as needed.

    These are the members alone where their own links connect them. Otherwise every site takes part that can be reached,
    and `pruned` removes the branches that end in sites which are not members.

    Mechanism: MTREE III-A, undirected links with the lower bandwidth of both directions (live: tradewind/stragglers)
    """
    view = network.symmetric()
    usable = (view.bandwidth_bps > 0) & (view.bandwidth_bps >= min_rate_bps)
    rows = np.array([network.index[name] for name in members])
    _, label = connected_components(csr_array(usable), directed=False)
    apart = np.flatnonzero(label[rows] != label[rows[0]])
    if len(apart):
        raise InfeasiblePlan(
            f"no links of {format_rate(min_rate_bps) if min_rate_bps else 'any rate'} both ways connect "
            f"{members[0]!r} with {members[apart[0]]!r} in network {network.name!r}, and a tree needs both ways. "
            + ("Allow a lower rate with --min-rate-mbps, or add links." if min_rate_bps else "Add links.")
        )
    if connected_components(csr_array(usable[np.ix_(rows, rows)]), directed=False)[0] > 1:
        rows = np.flatnonzero(label == label[rows[0]])
    grid = np.ix_(rows, rows)
    ends = np.argwhere(np.triu(usable[grid]))
    a, b = ends.T
    chosen = set(members)
    names = tuple(network.names[i] for i in rows)
    return UndirectedGraph(
        names=names,
        is_member=np.array([name in chosen for name in names]),
        ends=ends.astype(np.int64),
        capacity_bps=view.bandwidth_bps[grid][a, b],
        latency_s=view.latency_s[grid][a, b],
    )


@dataclass(frozen=True, slots=True)
class RootedTree:
    """A tree with its root: links as (parent, child, edge), every parent before its children."""

    tree: Tree
    root: int
    links: tuple[tuple[int, int, int], ...]

    def depths(self, length: Floats) -> dict[int, float]:
        """The distance of each site from the root."""
        depth = {self.root: 0.0}
        for parent, child, edge in self.links:
            depth[child] = depth[parent] + float(length[edge])
        return depth

    def height(self, length: Floats) -> float:
        """The distance of the farthest site from the root."""
        return max(self.depths(length).values())

    def deepest_path(self, length: Floats) -> list[int]:
        """The edges from the farthest site up to the root; more edges win among equals."""
        above = {child: (parent, edge) for parent, child, edge in self.links}
        depth, hops = self.depths(length), self.depths(np.ones(len(length)))
        site = max(depth, key=lambda s: (depth[s], hops[s], -s))
        path = []
        while site != self.root:
            site, edge = above[site]
            path.append(edge)
        return path

    @property
    def max_fan_out(self) -> int:
        """The largest number of children of a site."""
        return max(Counter(parent for parent, _, _ in self.links).values())


def hang(graph: UndirectedGraph, tree: Tree, root: int) -> RootedTree:
    """The tree with that root."""
    inside = set(tree)
    links: list[tuple[int, int, int]] = []
    seen, queue = {root}, deque([root])
    while queue:
        parent = queue.popleft()
        for child, edge in graph.neighbours[parent]:
            if edge in inside and child not in seen:
                seen.add(child)
                queue.append(child)
                links.append((parent, child, edge))
    return RootedTree(tree, root, tuple(links))


def hang_from_centre(graph: UndirectedGraph, tree: Tree, length: Floats) -> RootedTree:
    """The tree with the root that minimises its height.

    A tree's centre lies on its longest path, which two sweeps find: the farthest site from anywhere is one end.

    Mechanism: MTREE III-A, trees hang from their centre (live: tradewind/stragglers)
    """
    one_end = _farthest(hang(graph, tree, int(graph.ends[tree[0], 0])).depths(length))
    swept = hang(graph, tree, one_end)
    depth = swept.depths(length)
    other_end = _farthest(depth)
    above = {child: parent for parent, child, _ in swept.links}
    path = [other_end]
    while path[-1] != one_end:
        path.append(above[path[-1]])
    centre = min(path, key=lambda site: (max(depth[site], depth[other_end] - depth[site]), site))
    return hang(graph, tree, centre)


def _farthest(depth: dict[int, float]) -> int:
    return max(depth, key=lambda site: (depth[site], -site))


def pruned(graph: UndirectedGraph, tree: Tree) -> Tree:
    """The tree without the branches that end in sites which are not members: those carry nothing."""
    left = set(tree)
    touching: dict[int, set[int]] = {}
    for edge in tree:
        for site in graph.ends[edge].tolist():
            touching.setdefault(site, set()).add(edge)
    bare = [site for site, edges in touching.items() if len(edges) == 1 and not graph.is_member[site]]
    while bare:
        site = bare.pop()
        edge = touching[site].pop()
        left.discard(edge)
        other = int(graph.ends[edge].sum()) - site
        touching[other].discard(edge)
        if len(touching[other]) == 1 and not graph.is_member[other]:
            bare.append(other)
    return tuple(sorted(left))


def spanning_tree(graph: UndirectedGraph, order: Iterable[int]) -> Tree:
    """The spanning tree that takes edges in this order and leaves out those that would close a cycle (Kruskal)."""
    leader = list(range(len(graph)))

    def find(site: int) -> int:
        while leader[site] != site:
            leader[site] = leader[leader[site]]
            site = leader[site]
        return site

    taken: list[int] = []
    ends = graph.ends.tolist()
    for edge in order:
        a, b = (find(site) for site in ends[edge])
        if a != b:
            leader[a] = b
            taken.append(int(edge))
            if len(taken) == len(leader) - 1:
                break
    return tuple(sorted(taken))
