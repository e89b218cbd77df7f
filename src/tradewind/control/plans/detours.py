"""Auxiliary paths for the workers of a plan, and when each pays.

A detour takes as long as the sum of its hops. While one chunk takes it, the link itself carries as many as fit into
that time: only if more than so many wait is a chunk better off on the detour. NetStorm uses one bound for all paths,
which here is the least.
"""

from __future__ import annotations

import math
from itertools import pairwise

from tradewind.network import Network
from tradewind.planning.auxiliary import auxiliary_paths
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m

MOST_PATHS = 4
"""A pair of sites, its own link included: later ones are slow."""
WORST_DETOUR = 16.0
"""A detour so many times slower than the link never pays."""


def detours(plan: Plan, network: Network, busy_bound: int) -> dict[str, tuple[m.AuxiliaryPath, ...]]:
    """For each site that sends, its auxiliary paths, those that take the least time first."""
    edges = {(route[0], route[-1]) for s in plan.shards for route in (*s.reduce, *s.broadcast) if len(route) == 2}
    found = auxiliary_paths(network, sorted(edges), limit=MOST_PATHS)
    by_site: dict[str, list[tuple[float, m.AuxiliaryPath]]] = {}
    for (src, dst), paths in sorted(found.items()):
        direct = _slowness(network, (src, dst))
        for path in paths:
            times = _slowness(network, path) / direct
            if len(path) > 2 and times <= WORST_DETOUR:
                bound = max(busy_bound, math.ceil(times))
                by_site.setdefault(src, []).append((times, m.AuxiliaryPath(path, bound)))
    return {
        src: tuple(path for _, path in sorted(paths, key=lambda item: (item[0], item[1].sites)))
        for src, paths in by_site.items()
    }


def _slowness(network: Network, path: tuple[str, ...]) -> float:
    """Seconds a bit, store-and-forward."""
    rows = [network.index[name] for name in path]
    return float(sum(1.0 / network.bandwidth_bps[i, j] for i, j in pairwise(rows)))
