"""Two-level all-reduce along groups found by measuring (PLINK, as MTREE compares with it).

PLINK probes a data center to find out which machines are close to each other, and aggregates inside these groups and
then between them. MTREE's comparison (IV.A) adds only that a pair of sites counts with the average bandwidth on its
path of least latency. Our interpretation: the distance of two sites is the round-trip time of a probe of one chunk;
groups come from average-linkage clustering of these distances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform

from tradewind.errors import BadOption
from tradewind.network import Matrix, Network
from tradewind.planning.baselines.two_level import Inter, plan_two_level
from tradewind.planning.plan import DEFAULT_CHUNK_BYTES, Plan
from tradewind.planning.routes import Routes


@dataclass(frozen=True)
class PlinkOptions:
    """The number of groups, and how their leaders all-reduce."""

    groups: int | None = None
    """By default as many as the measurements suggest, at most the square root of the number of members."""
    inter: Inter = "star"
    """How the groups' leaders all-reduce among themselves."""


def plan_plink(network: Network, members: tuple[str, ...], nbytes: int, options: PlinkOptions) -> Plan:
    """Two-level all-reduce over groups of members that measure as close to each other (PLINK)."""
    if options.groups is not None and not 1 <= options.groups <= len(members):
        raise BadOption(f"plink: {options.groups} groups of {len(members)} members; give 1 to {len(members)}.")
    routes = Routes(network)
    rows = [network.index[name] for name in members]
    merges = linkage(squareform(_probe_s(routes)[np.ix_(rows, rows)]), method="average")
    count = options.groups or _natural_count(merges[:, 2])
    label = cut_tree(merges, n_clusters=count)[:, 0]
    groups: dict[int, list[str]] = {}
    for name, group in zip(members, label, strict=True):
        groups.setdefault(int(group), []).append(name)
    return plan_two_level("plink", routes, members, nbytes, list(groups.values()), options.inter)


def _probe_s(routes: Routes) -> Matrix:
    """The round-trip time in s of one chunk between each pair of sites; 0 on the diagonal."""
    bandwidth = routes.mean_bandwidth_bps()
    sending = np.divide(8.0 * DEFAULT_CHUNK_BYTES, bandwidth, out=np.zeros_like(bandwidth), where=bandwidth > 0)
    one_way = routes.distance_s + sending
    there_and_back: Matrix = one_way + one_way.T
    return there_and_back


def _natural_count(merged_at_s: npt.NDArray[np.float64]) -> int:
    """The number of groups before the largest relative step in merge distance.

    More groups than the square root of the members would make the upper level wider than the lower one. The fewest
    groups win among equals.
    """
    n = len(merged_at_s) + 1
    counts = range(2, min(n, math.ceil(math.sqrt(n))) + 1)
    growth = {k: merged_at_s[n - k] / merged_at_s[n - k - 1] if k < n else 1.0 for k in counts}
    return max(counts, key=lambda k: growth[k])
