"""The limit of collectives other than the all-reduce: a lower bound on the time of any plan for given demands.

**Rate.** For a set S of sites, whatever a site in S has and a site outside S needs must leave S. So the rate is at most
(capacity out of S) / (shares that must leave S), for every S. Candidates are single members, all but one member, zones,
and for every target the weakest S that excludes it: a source that offers every site its share is joined with the
target by a maximum flow, and the cut that limits it gives the next guess of the rate (Dinkelbach).

**Exact**, where links alone limit: packings of arborescences (Edmonds, Tutte) reach the weakest cut of a broadcast and
of an all-gather among all sites, and a maximum flow reaches that of a gather. With NIC caps and trunks, and for an
all-to-all, it is an upper bound on the rate that need not be reachable.

**Time.** What crosses a link with latency l must leave by T - l, so over the links out of S the sum of
capacity x (T - l) is at least the bits that must cross; and T is at least the least latency from a source to a target.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from tradewind.network import Matrix, Network
from tradewind.planning.bound import Bound, capacity_bps, earliest_s, zone_splits
from tradewind.planning.collective import Collective, demands_of
from tradewind.planning.hops import hop_rate_bps
from tradewind.planning.partition import minimum_cut
from tradewind.units import format_duration, format_rate

Side = npt.NDArray[np.bool_]

_NOTABLE = 0.02
_MAX_STEPS = 32
_CUT_WORK = 5_000_000
_PAIRED_SITES = 24
"""Up to this many members the minimum cuts of an all-to-all are computed for all pairs."""


def demand_bound(network: Network, members: tuple[str, ...], nbytes: int, collective: Collective) -> Bound:
    """The limit of a collective other than the all-reduce."""
    leave = "leave"
    if collective.is_mirrored:
        network, collective, leave = network.reversed(), collective.mirror, "reach"
    elif collective.kind == "scatter":  # the reverse of a gather: its cuts are found from the one target
        network, collective, leave = network.reversed(), Collective("gather", collective.root), "reach"
    problem = _Demands(network, members, collective)
    sides = list(problem.sides())
    rates = [problem.rate_bps(side) for side in sides]
    weakest = int(np.argmin(rates))
    rate_bps, side, bits = rates[weakest], sides[weakest], 8.0 * nbytes
    timed = [(problem.seconds(side, bits), f"what must {leave} {problem.shown(side)}") for side in sides]
    timed.append(problem.farthest())
    seconds, decided_by = max(timed)
    latency_argument = ""
    if seconds > bits / rate_bps * (1 + _NOTABLE):
        latency_argument = f"{decided_by} needs {format_duration(seconds)}; for larger tensors, "
    whole = len(members) == len(network) or collective.kind == "gather"
    exact = whole and not network.has_shared_capacity and collective.kind != "all-to-all"
    inside = tuple(name for name, is_in in zip(network.names, side, strict=True) if is_in)
    outside = tuple(name for name in network.names if name not in inside)
    leaving = f"{100 * problem.leaving(side):.3g}% of the tensor must {leave} {problem.shown(side)}"
    reason = f"{leaving}, which its links carry at {format_rate(rate_bps)} of the tensor"
    proof = "exact, a packing of trees reaches it" if exact else "an upper bound, not known to be reachable"
    return Bound(
        seconds=seconds,
        rate_bps=rate_bps,
        exact=exact,
        argument=f"{latency_argument}{reason}; {proof}",
        parts=(inside, outside),
        latency_argument=latency_argument,
    )


class _Demands:
    """The demands of a collective against the rows of a network."""

    def __init__(self, network: Network, members: tuple[str, ...], collective: Collective) -> None:
        self.network, self.collective = network, collective
        self.rate: Matrix = hop_rate_bps(network)
        self.rows = np.array([network.index[name] for name in members])
        demands = demands_of(collective, members)
        self.source = np.array([network.index[demand.source] for demand in demands])
        self.share = np.array([demand.share for demand in demands])
        self.needs = np.zeros((len(demands), len(network)), dtype=bool)
        for number, demand in enumerate(demands):
            self.needs[number, [network.index[name] for name in demand.targets]] = True

    def leaving(self, side: Side) -> float:
        """The shares of the tensor that must leave a set of sites."""
        needed = side[self.source] & (self.needs & ~side).any(axis=1)
        return float(self.share[needed].sum())

    def rate_bps(self, side: Side) -> float:
        """The highest rate that a set of sites allows; infinite if nothing must leave it."""
        leaving = self.leaving(side)
        return capacity_bps(self.network, self.rate, np.outer(side, ~side)) / leaving if leaving else np.inf

    def seconds(self, side: Side, bits: float) -> float:
        """The least time in which what must leave a set of sites can leave it."""
        crossing = np.outer(side, ~side) & (self.rate > 0)
        leaving, latency_s = self.leaving(side) * bits, self.network.latency_s[crossing]
        if not leaving:
            return 0.0
        shared_s = leaving / capacity_bps(self.network, self.rate, crossing) + float(latency_s.min())
        return max(shared_s, earliest_s(latency_s, self.rate[crossing], leaving))

    def farthest(self) -> tuple[float, str]:
        """The longest least latency from a source to a target, and the two."""
        src, dst = np.nonzero(self.network.bandwidth_bps)
        graph = csr_array((self.network.latency_s[src, dst], (src, dst)), shape=self.rate.shape)
        away = np.where(self.needs, np.atleast_2d(dijkstra(graph, indices=self.source)), 0.0)
        demand, target = divmod(int(away.argmax()), len(self.network))
        names = self.network.names
        return float(away.max()), f"what {names[self.source[demand]]} sends to {names[target]}"

    def shown(self, side: Side) -> str:
        """A set of sites in words."""
        inside = [name for name, is_in in zip(self.network.names, side, strict=True) if is_in]
        outside = [name for name, is_in in zip(self.network.names, side, strict=True) if not is_in]
        if len(inside) <= 4:
            return ", ".join(inside)
        return f"all but {', '.join(outside)}" if len(outside) <= 4 else f"a set of {len(inside)} sites"

    def sides(self) -> Iterator[Side]:
        """Sets of sites that something must leave."""
        return (side for side in self._candidates() if self.leaving(side) > 0)

    def _candidates(self) -> Iterator[Side]:
        sites = np.arange(len(self.network))
        for row in self.rows:
            yield sites == row
            yield sites != row
        for labels in zone_splits(self.network, self.rows):
            if labels.max() == 1:
                yield labels == 0
                yield labels == 1
        if len(self.rows) * self.network.link_count > _CUT_WORK:
            return
        if self.collective.kind == "all-to-all":
            rows = self.rows.tolist()
            for src in rows if len(rows) <= _PAIRED_SITES else rows[:1]:
                for dst in rows:
                    if src != dst:
                        yield minimum_cut(self.rate, src, dst)
                        yield ~minimum_cut(self.rate, dst, src)
            return
        for target in np.flatnonzero(self.needs.any(axis=0)).tolist():
            yield self._weakest_without(target)

    def _weakest_without(self, target: int) -> Side:
        """The set of sites without a target that allows it the lowest rate."""
        n = len(self.network)
        offered = np.zeros(n)
        np.add.at(offered, self.source, np.where(self.needs[:, target], self.share, 0.0))
        side: Side = np.arange(n) != target
        rate_bps = self.rate_bps(side)
        for _ in range(_MAX_STEPS):
            graph = np.zeros((n + 1, n + 1))
            graph[:n, :n] = self.rate
            graph[n, :n] = rate_bps * offered
            found = minimum_cut(graph, n, target)[:n]
            found_bps = self.rate_bps(found)
            if not found.any() or found_bps >= rate_bps * (1 - 1e-9):
                break
            side, rate_bps = found, found_bps
        return side
