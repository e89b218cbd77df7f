"""GOST: spanning trees of bounded height that together use most of the bandwidth (MTREE III-A).

GBST grows one tree after another, like Prim, always along the edge with the most bandwidth left, as long as the tree
can still be hung within the height limit H; then it takes the tree's rate off its edges and starts again. GRTH
keeps the height for every possible root while a tree grows. ITH lowers H as far as the trees' total rate stays
within rho of what the original H gives.

Where the printed algorithms are wrong or silent:

- A tree fits if its *radius* (its height under the best root) is at most H. The printed test, diameter at most 2 H,
  lets weighted trees exceed H.
- GRTH updates the height under root u as well, the end of the new edge that is already in the tree.
- An edge with less than r-bar left cannot be in any further tree, so it does not count as the smallest bandwidth
  left either. Otherwise line 22 could give a tree less than r-bar.
- "Globally smallest" (line 22) and the tree's own bottleneck are both available as the rate r* to take off.
- Printed, the first start from which no tree can be grown ends the algorithm; the text says it ends when no further
  tree can be found. So the other starts are tried too, in the same random order. If even the first tree cannot be
  grown although one exists, it is the tree of shortest paths from the centre.
- ITH searches between the least height that any spanning tree can have and that of the highest tree found: below
  there are no trees, and above the same trees come out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse.csgraph import dijkstra

from tradewind.planning.trees.undirected import Floats, Tree, UndirectedGraph

Reading = Literal["global", "local"]
"""The rate of a tree: the smallest bandwidth left anywhere, or its own bottleneck."""

MAX_CANDIDATES = 128
"""Trees that one call generates at most. The global reading takes off tiny rates where capacities differ by orders
of magnitude, and would go on for thousands of trees that no solver could choose from."""

_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Candidates:
    """Trees (T), the rate taken off for each (R), and the height of the highest."""

    trees: tuple[Tree, ...]
    rates_bps: tuple[float, ...]
    tallest: float

    @property
    def total_bps(self) -> float:
        """The all-reduce rate of all trees together."""
        return sum(self.rates_bps)


@dataclass(frozen=True, slots=True)
class Growing:
    """The problem that GOST solves: constant while it runs."""

    graph: UndirectedGraph
    length: Floats
    """The length of each edge, in the unit of the height: 1 for hops, or its latency."""
    min_rate_bps: float
    reading: Reading
    seed: int


def grow_tree(problem: Growing, left_bps: Floats, max_height: float, start: int) -> tuple[Tree, float] | None:
    """One tree grown from `start` and its radius; None if growing gets stuck (GBST lines 3-20)."""
    growing = _GrowingTree(problem, left_bps, start)
    while len(growing.taken) < len(problem.graph) - 1:
        best = growing.best_arc(max_height)
        if best is None:
            return None
        growing.add(*best)
    return tuple(sorted(growing.taken)), float(growing.height.min())


class _GrowingTree:
    """A tree while it grows, and the arcs (edges with a direction, away from it) that could extend it.

    `distance` is between sites of the tree, `height` (the paper's D, kept by GRTH) that of the tree under each of
    them as the root. Adding an edge (u, v) makes the height under i the larger of what it was and the way to v.
    """

    def __init__(self, problem: Growing, left_bps: Floats, start: int) -> None:
        n = len(problem.graph)
        usable = np.flatnonzero(left_bps >= problem.min_rate_bps)
        ends = problem.graph.ends[usable]
        self.near, self.far = np.concatenate([ends, ends[:, ::-1]]).T
        self.edge = np.concatenate([usable, usable])
        self.bandwidth, self.length = left_bps[self.edge], problem.length[self.edge]
        self.distance, self.height = np.zeros((n, n)), np.zeros(n)
        self.inside = np.arange(n) == start
        self.sites = np.array([start])
        self.taken: list[int] = []

    def best_arc(self, max_height: float) -> tuple[int, Floats] | None:
        """The arc with the most bandwidth, then the least height, that fits; and the heights of `sites` with it.

        A tree with (u, v) fits if some root that fits now is near enough to u: one comparison per arc.

        Mechanism: MTREE III-A GBST, widest edge first (live: tradewind/stragglers)
        Mechanism: MTREE III-A GBST, height limit H by the radius of the tree (live: tradewind/stragglers)
        """
        limit = max_height * _ROUNDING
        roots = self.sites[self.height[self.sites] <= limit]
        room = limit - self.distance[roots].min(axis=0)
        arcs = np.flatnonzero(self.inside[self.near] & ~self.inside[self.far] & (self.length <= room[self.near]))
        if not len(arcs):
            return None
        widest = arcs[self.bandwidth[arcs] == self.bandwidth[arcs].max()]
        u, length = self.near[widest], self.length[widest]
        heights = np.maximum(self.height[self.sites][:, None], self.distance[np.ix_(self.sites, u)] + length)
        under_v = self.height[u] + length
        radius = np.minimum(heights.min(axis=0), under_v)
        diameter = np.maximum(heights.max(axis=0), under_v)
        pick = np.lexsort((diameter, radius))[0]
        return int(widest[pick]), heights[:, pick]

    def add(self, arc: int, heights: Floats) -> None:
        """Take the arc into the tree; `heights` are those of `sites` with it.

        Mechanism: MTREE III-A GRTH, height under every root while a tree grows
        """
        u, v, length = self.near[arc], self.far[arc], self.length[arc]
        self.height[v] = self.height[u] + length
        self.height[self.sites] = heights
        self.distance[v, self.sites] = self.distance[self.sites, v] = self.distance[self.sites, u] + length
        self.inside[v] = True
        self.sites = np.append(self.sites, v)
        self.taken.append(int(self.edge[arc]))


def generate_trees(problem: Growing, max_height: float) -> Candidates:
    """Trees until no further one fits within the height and the bandwidth left (GBST).

    Every call draws the same starts from the seed, so that two height limits are comparable.

    Mechanism: MTREE III-A GBST, the rate of a tree is taken off its edges (live: tradewind/stragglers)
    """
    rng = np.random.default_rng(problem.seed)
    left_bps = problem.graph.capacity_bps.copy()
    trees: list[Tree] = []
    rates_bps: list[float] = []
    tallest = 0.0
    while len(trees) < MAX_CANDIDATES:
        grown = _grow_from_any(problem, left_bps, max_height, rng.permutation(len(problem.graph)).tolist())
        if grown is None and not trees:
            grown = shortest_path_tree(problem, left_bps, max_height)
        if grown is None:
            break
        tree, radius = grown
        edges = list(tree)
        counted = left_bps[edges] if problem.reading == "local" else left_bps[left_bps >= problem.min_rate_bps]
        rate_bps = float(counted.min())
        left_bps[edges] -= rate_bps
        left_bps[left_bps < problem.min_rate_bps] = -math.inf
        trees.append(tree)
        rates_bps.append(rate_bps)
        tallest = max(tallest, radius)
    return Candidates(tuple(trees), tuple(rates_bps), tallest)


def _grow_from_any(
    problem: Growing, left_bps: Floats, max_height: float, starts: list[int]
) -> tuple[Tree, float] | None:
    for attempt, start in enumerate(starts):
        grown = grow_tree(problem, left_bps, max_height, start)
        if grown is not None:
            return grown
        if attempt == 0 and least_height(problem, left_bps) > max_height * _ROUNDING:
            return None  # no start can help
    return None


def _distances(problem: Growing, left_bps: Floats) -> Floats:
    usable = left_bps >= problem.min_rate_bps
    distance: Floats = dijkstra(problem.graph.adjacency(problem.length, usable), directed=False)
    return distance


def least_height(problem: Growing, left_bps: Floats) -> float:
    """The least height that any spanning tree of the usable edges can have; infinite if there is none.

    It is the radius of the graph: the shortest paths from its centre form such a tree.
    """
    return float(_distances(problem, left_bps).max(axis=1).min())


def shortest_path_tree(problem: Growing, left_bps: Floats, max_height: float) -> tuple[Tree, float] | None:
    """The tree of shortest paths from the centre and its height; None if it is too high."""
    reach = _distances(problem, left_bps).max(axis=1)
    centre = int(reach.argmin())
    if reach[centre] > max_height * _ROUNDING:
        return None
    usable = left_bps >= problem.min_rate_bps
    graph = problem.graph
    _, before = dijkstra(
        graph.adjacency(problem.length, usable), directed=False, indices=centre, return_predecessors=True
    )
    edge_of = {frozenset(ends): edge for edge, ends in enumerate(graph.ends.tolist())}
    tree = (edge_of[frozenset((site, int(before[site])))] for site in range(len(graph)) if site != centre)
    return tuple(sorted(tree)), float(reach[centre])


def improve_heights(problem: Growing, max_height: float, rate_kept: float) -> Candidates:
    """Trees under the least H that keeps the total rate at `rate_kept` (rho) of the best or more (ITH).

    Mechanism: MTREE III-A ITH, least height that keeps rho of the rate (live: tradewind/stragglers)
    """
    best = generate_trees(problem, max_height)
    enough_bps = rate_kept * best.total_bps
    low = float(math.ceil(least_height(problem, problem.graph.capacity_bps) / _ROUNDING))
    high = min(max_height, float(math.ceil(best.tallest)))
    while low < high:
        middle = float(math.floor((low + high) / 2))
        found = generate_trees(problem, middle)
        if found.total_bps >= enough_bps:
            high, best = middle, found
        else:
            low = middle + 1
    return best
