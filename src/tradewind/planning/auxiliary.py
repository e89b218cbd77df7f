"""Auxiliary paths beside the fastest one, for chunks that would otherwise wait (NetStorm VI, Algorithm 3).

The fastest path of a pair of sites is its primary path. Without its links, the fastest remaining path is the first
auxiliary path, and so on until no path is left: each path is slower than the one before and shares no link with any of
them.

As published, the links that any pair used are removed for all pairs; that leaves almost no auxiliary path (1.0 to 1.4
paths per pair, the primary path included). Removing them only for the pair that used them leaves 2.3 to 13, and is the
default here.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Literal

import numpy as np

from tradewind.network import Matrix, Network
from tradewind.planning.plan import Route
from tradewind.planning.trees.fastest_paths import FastestPaths, Indices, next_hops_to, transfer_delay

Exclusion = Literal["pair", "global"]
Pair = tuple[str, str]


def auxiliary_paths(
    network: Network,
    pairs: Iterable[Pair] | None = None,
    exclusion: Exclusion = "pair",
    limit: int | None = None,
) -> dict[Pair, tuple[Route, ...]]:
    """The paths of each pair of sites, the primary one first, then by increasing delay.

    `pairs` defaults to all pairs, which is fast enough for small networks; an engine passes the edges of its plan.
    `limit` is the largest number of paths per pair. Pairs without a path get an empty tuple.

    Mechanism: NetStorm VI-B Algorithm 3, disjoint auxiliary paths by delay (live: netstorm/fig17)
    """
    wanted = _wanted(network, pairs)
    delay = transfer_delay(network)
    if exclusion == "pair":
        found = {(src, dst): _disjoint_paths(delay, src, dst, limit) for src, dst in wanted}
    else:
        found = _globally_disjoint_paths(delay, wanted, limit)
    names = network.names
    return {
        (names[src], names[dst]): tuple(tuple(names[site] for site in path) for path in paths)
        for (src, dst), paths in found.items()
    }


def _wanted(network: Network, pairs: Iterable[Pair] | None) -> list[tuple[int, int]]:
    if pairs is None:
        sites = range(len(network))
        return [(i, j) for i in sites for j in sites if i != j]
    rows = network.index
    return [(rows[network.site(src).name], rows[network.site(dst).name]) for src, dst in pairs if src != dst]


def _disjoint_paths(delay: Matrix, src: int, dst: int, limit: int | None) -> list[list[int]]:
    left = delay.copy()
    paths: list[list[int]] = []
    while limit is None or len(paths) < limit:
        path = _follow(next_hops_to(left, dst), src, dst)
        if not path:
            break
        paths.append(path)
        _remove(left, path)
    return paths


def _globally_disjoint_paths(
    delay: Matrix, wanted: list[tuple[int, int]], limit: int | None
) -> dict[tuple[int, int], list[list[int]]]:
    """Algorithm 3 as published: in each round all pairs find their path, then all links that were used are removed.

    Mechanism: NetStorm VI-B Algorithm 3 as published, links excluded globally
    """
    n = len(delay)
    left = delay.copy()
    found: dict[tuple[int, int], list[list[int]]] = {pair: [] for pair in wanted}
    while np.isfinite(left).any():
        paths = FastestPaths(left)
        used: list[list[int]] = []
        for dst in range(n):
            hops = paths.next_hops(dst)
            for src in range(n):
                path = _follow(hops, src, dst)
                if not path:
                    continue
                used.append(path)
                known = found.get((src, dst))
                if known is not None and (limit is None or len(known) < limit):
                    known.append(path)
        for path in used:
            _remove(left, path)
    return found


def _follow(hops: Indices, src: int, dst: int) -> list[int]:
    """The path along next hops; empty if there is none, or nothing to cross."""
    if hops[src] < 0:
        return []
    path = [src]
    while path[-1] != dst:
        path.append(int(hops[path[-1]]))
    return path


def _remove(delay: Matrix, path: list[int]) -> None:
    for src, dst in pairwise(path):
        delay[src, dst] = np.inf
