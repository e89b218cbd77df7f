"""Cheapest trees in a directed graph: the pricing step of `optimal`.

Costs are dense matrices, `cost[parent, child]`, infinite where there is no link. A tree is the array of parents, with
the root its own parent. For trees towards a root, transpose the costs.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tradewind.network import Matrix

Parents = npt.NDArray[np.int64]

_ONE = np.zeros((1, 1))


def cheapest_arborescence(cost: Matrix, root: int) -> Parents:
    """The spanning tree out of `root` with the least total cost (Chu-Liu and Edmonds).

    Every site but the root takes its cheapest parent. Where these choices run in cycles, each cycle becomes one
    site, entered at the price of undoing one choice, and the smaller problem is solved the same way. Every site
    must be reachable.

    >>> inf = np.inf
    >>> cheapest_arborescence(np.array([[inf, 5, 9], [inf, inf, 1], [inf, 1, inf]]), 0)
    array([0, 0, 1])
    """
    cost = cost.copy()
    np.fill_diagonal(cost, np.inf)
    n = len(cost)
    parent: Parents = cost.argmin(axis=0)
    parent[root] = root
    group, cycles = _cycles(parent, root)
    if not cycles:
        return parent
    paid = np.zeros(n)
    in_cycle = group < cycles
    paid[in_cycle] = cost[parent[in_cycle], np.flatnonzero(in_cycle)]
    entry = cost - paid[None, :]
    entry[group[:, None] == group[None, :]] = np.inf
    order = np.argsort(group, kind="stable")
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    smaller = np.minimum.reduceat(np.minimum.reduceat(entry[np.ix_(order, order)], first, axis=0), first, axis=1)
    above = cheapest_arborescence(smaller, int(group[root]))
    bounds = [*first.tolist(), n]
    members = [order[start:end] for start, end in pairwise(bounds)]
    for part, source in enumerate(above.tolist()):
        if part == source:
            continue
        sources, sites = members[source], members[part]
        into = entry[sources[:, None], sites] if len(sources) + len(sites) > 2 else _ONE
        src, dst = divmod(int(into.argmin()), len(sites))
        parent[sites[dst]] = sources[src]
    return parent


def _cycles(parent: Parents, root: int) -> tuple[Parents, int]:
    """Number the sites so that each cycle of parents shares one number, the cycles first; returns also their count."""
    above = parent.tolist()
    seen_by = [0] * len(above)  # the walk that saw a site; 0: none yet
    seen_by[root] = -1
    group = [-1] * len(above)
    cycles = 0
    for start in range(len(above)):
        site = start
        while seen_by[site] == 0:
            seen_by[site] = start + 1
            site = above[site]
        if seen_by[site] == start + 1:  # this walk met itself: a cycle, all of it new
            while group[site] < 0:
                group[site] = cycles
                site = above[site]
            cycles += 1
    numbered = np.array(group)
    alone = numbered < 0
    numbered[alone] = cycles + np.arange(int(alone.sum()))
    return numbered, cycles


def grown_tree(cost: Matrix, length: Matrix, root: int, max_height: float) -> Parents | None:
    """A cheap tree out of `root` in which no site is farther than `max_height`; None if there is none.

    Finding the cheapest is NP-hard. This grows the tree by the cheapest link that keeps the limit (Prim); when no link
    does, it takes the shortest path to a site that is left, moving the sites on it nearer to the root, which
    never lengthens anything else. It fails only if some site is too far from the root by any path.
    """
    n = len(cost)
    parent = np.full(n, -1, dtype=np.int64)
    parent[root] = root
    distance = np.full(n, np.inf)
    distance[root] = 0.0
    best = np.where(length[root] <= max_height, cost[root], np.inf)
    via = np.full(n, root, dtype=np.int64)
    best[root] = np.inf
    shortest: Parents | None = None
    for _ in range(n - 1):
        child = int(best.argmin())
        if np.isinf(best[child]):
            shortest = shortest_path_tree(length, root) if shortest is None else shortest
            child = int(np.flatnonzero(parent < 0)[0])
            if not _take_shortest_path(child, shortest, length, parent, distance, max_height):
                return None
            if (parent >= 0).all():
                return parent
            best, via = _frontier(cost, length, parent, distance, max_height)
            continue
        parent[child] = via[child]
        distance[child] = distance[parent[child]] + length[parent[child], child]
        best[child] = np.inf
        better = (cost[child] < best) & (parent < 0) & (distance[child] + length[child] <= max_height)
        best[better] = cost[child][better]
        via[better] = child
        if (parent >= 0).all():
            return parent
    return parent


def shortest_path_tree(length: Matrix, root: int) -> Parents:
    """Parents on the shortest paths out of `root`; -1 where there is no path (Dijkstra on a dense matrix)."""
    n = len(length)
    distance = np.full(n, np.inf)
    distance[root] = 0.0
    parent = np.full(n, -1, dtype=np.int64)
    parent[root] = root
    left = np.ones(n, dtype=bool)
    for _ in range(n):
        site = int(np.where(left, distance, np.inf).argmin())
        if np.isinf(distance[site]) or not left[site]:
            break
        left[site] = False
        nearer = distance[site] + length[site] < distance
        distance[nearer] = distance[site] + length[site][nearer]
        parent[nearer] = site
    return parent


def _take_shortest_path(
    site: int, shortest: Parents, length: Matrix, parent: Parents, distance: Matrix, max_height: float
) -> bool:
    path = [site]
    while shortest[path[-1]] != path[-1]:
        if shortest[path[-1]] < 0:
            return False
        path.append(int(shortest[path[-1]]))
    for below, above in zip(path[-2::-1], path[:0:-1], strict=True):
        reached = distance[above] + length[above, below]
        if reached > max_height * (1 + 1e-12):
            return False
        if reached < distance[below]:
            parent[below] = above
            _shift(parent, distance, below, reached)
    return True


def _shift(parent: Parents, distance: Matrix, site: int, reached: float) -> None:
    """Move a site and its subtree nearer to the root."""
    saved = distance[site] - reached
    distance[site] = reached
    if not np.isfinite(saved):
        return
    below = [site]
    while below:
        above = below.pop()
        children = [int(c) for c in np.flatnonzero(parent == above) if c != above]
        distance[children] -= saved
        below.extend(children)


def _frontier(
    cost: Matrix, length: Matrix, parent: Parents, distance: Matrix, max_height: float
) -> tuple[Matrix, Parents]:
    """For every site outside the tree, its cheapest link that keeps the limit."""
    inside = parent >= 0
    allowed = np.where(inside[:, None] & (distance[:, None] + length <= max_height), cost, np.inf)
    allowed[:, inside] = np.inf
    return allowed.min(axis=0), allowed.argmin(axis=0).astype(np.int64)


def reroot(parent: Parents, root: int) -> Parents:
    """The same undirected tree with another root."""
    turned = parent.copy()
    site, above = root, int(parent[root])
    turned[root] = root
    while above != site:
        turned[above], site, above = site, above, int(parent[above])
    return turned
