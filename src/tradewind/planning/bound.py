"""The limit: a lower bound on the time of any plan for given members on a network.

**Rate.** Whatever splits the members limits them: everything one side knows must cross to the other, and in k parts
every element crosses at least 2 (k - 1) times (see `partition`). A part's traffic is limited by its links, its
sites' NICs and the trunks it uses. The bound is the weakest split among single sites, minimum cuts between
members, zones, and the weakest partition. It holds for every scheme that reduces element by element.

**Exact** where theory says so: symmetric full-duplex links, every site a member, no NIC caps and no trunks. There a
packing of spanning trees reaches it (Nash-Williams, Tutte), and `optimal` finds that packing. Elsewhere it is an upper
bound on the rate that need not be reachable (`Bound.exact` is False).

**Time.** Every link carries only what still arrives in time, and latency keeps parts of a round from overlapping. For
sites u, v let d(u, v) be the least latency between them, in(u) the largest d from a member to u, out(v) the largest d
from v to a member, and T the time of some plan.

1. Any plan: T >= d(i, j) for all members i, j, because what i contributes changes what j receives.
2. Any plan: what crosses a link with latency l must leave by T - l. So over the links that cross a split, the sum of
   capacity (T - l) is at least the bits that must cross.
3. A plan whose shards have roots and broadcasts: an element is complete at its root r only after in(r), and then
   travels for out(r), so T >= min over r of in(r) + out(r). On a link (u, v) partial sums leave by
   T - l - d(v, r) - out(r), which is at most T - l - out(v); results leave after in(r) + d(r, u), which is at least
   in(u), and by T - l. So that link carries partial sums for at most T - l - out(v), results for at most T - l - in(u),
   and both for at most T - l. In k parts every element crosses k - 1 times as a partial sum, and as often as a result.
4. A plan without broadcasts, in which each of m members has trees of its own: every element crosses k parts m (k - 1)
   times, and enters a part once for each of its members.

Every plan is of kind 3 or of kind 4, so the bound is the largest of 1, 2 and the smaller of 3 and 4. The splits are
those of single members and the weakest one. No step uses the order of sending, chunks or hosts.

Other collectives have their own limit (`demand_bound`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from tradewind.network import Matrix, Network
from tradewind.planning.collective import ALL_REDUCE, Collective
from tradewind.planning.hops import hop_rate_bps
from tradewind.planning.partition import Labels, minimum_cut, weakest_partition
from tradewind.units import format_duration, format_rate

Floats = npt.NDArray[np.float64]

_NOTABLE = 0.02
"""Latency is part of the argument where it makes the bound this share longer than bytes / rate."""

_CUT_WORK = 5_000_000
"""The largest links x minimum cuts for which cuts are computed; beyond, only single sites and partitions are used."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time and the highest rate that any plan can reach."""

    seconds: float
    rate_bps: float
    exact: bool
    """Whether some plan is known to reach the rate."""
    argument: str
    """Why no plan can be faster, as a sentence for users."""
    parts: tuple[tuple[str, ...], ...]
    """The certificate: the split of the sites that limits the rate."""
    latency_argument: str = ""
    """Set where latency rather than the rate decides the time, as for small tensors; part of `argument`."""


@dataclass(frozen=True, slots=True)
class _Split:
    rate_bps: float
    kind: str
    labels: Labels


def least_bytes(nbytes: int, sum_sizes: Sequence[float] = ()) -> int:
    """The bytes that a limit may be computed with: of sparse arrays (`Plan.sum_sizes`), those of one contribution.

    Sums have more of them, so the limit holds, and is far from what plans reach.
    """
    return max(1, int(nbytes * min(sum_sizes, default=1.0)))


def bound(network: Network, members: tuple[str, ...], nbytes: int, collective: Collective = ALL_REDUCE) -> Bound:
    """The limit for a collective over `nbytes` among `members`; other sites may help.

    For ranks that share sites, that of an all-reduce is the limit between their sites, or of a machine's NIC.
    """
    if collective != ALL_REDUCE:
        from tradewind.planning.demand_bound import demand_bound

        return demand_bound(network, members, nbytes, collective)
    ranks, network_of_ranks = members, network
    if (network.shares_sites or network.has_machines) and len(sites := network.sites_of(members)) > 1:
        network, members = network.sites_only(), sites
    rows = np.array([network.index[name] for name in members])
    rate = hop_rate_bps(network)
    weakest = min(_splits(network, rate, rows), key=lambda split: split.rate_bps)
    latency = _Latency.of(network, rows)
    transfer_s = 8.0 * nbytes / weakest.rate_bps
    seconds, decided_by = _least_seconds(network, rate, rows, weakest, latency, 8.0 * nbytes)
    latency_argument = ""
    if seconds > transfer_s * (1 + _NOTABLE):
        latency_argument = f"{decided_by} needs {format_duration(seconds)}; for larger tensors, "
    exact = network.is_symmetric and not network.has_shared_capacity and len(members) == len(network)
    found = Bound(
        seconds=seconds,
        rate_bps=weakest.rate_bps,
        exact=exact,
        argument=latency_argument + _argument(network, weakest, exact),
        parts=_parts(network, weakest.labels),
        latency_argument=latency_argument,
    )
    return _within_machines(found, network_of_ranks, ranks, nbytes) if network_of_ranks.has_machines else found


def _within_machines(found: Bound, network: Network, members: tuple[str, ...], nbytes: int) -> Bound:
    """The bound, or that of the slowest NIC of a machine with members: each sends and receives all bytes once."""
    rows = [network.index[name] for name in members]
    nic_bps = np.minimum(network.machine_egress_bps[rows], network.machine_ingress_bps[rows])
    row = rows[int(nic_bps.argmin())]
    machine, rate_bps = network.machines[row], float(nic_bps.min())
    if machine is None or rate_bps >= found.rate_bps:
        return found
    return replace(
        found,
        seconds=max(found.seconds, 8.0 * nbytes / rate_bps),
        rate_bps=rate_bps,
        exact=False,
        argument=f"everything must leave and enter {machine.name} of {network.places[row]} once, whose NIC carries "
        f"{format_rate(rate_bps)}; an upper bound, not known to be reachable",
        parts=_parts(network, network.is_same_machine[row].astype(np.int64)),
    )


def _splits(network: Network, rate: Matrix, rows: Labels) -> Iterator[_Split]:
    """Candidate splits, each with the rate that it allows. Every part of every split contains a member."""
    n = len(network)
    for i in rows:
        alone = (np.arange(n) == i).astype(np.int64)
        yield _Split(split_rate_bps(network, rate, alone), "site", alone)
    for labels in _few_sites_apart(rate, rows, n):
        yield _Split(split_rate_bps(network, rate, labels), "partition", labels)
    if len(rows) == n:
        labels = weakest_partition((rate + rate.T) / 2).labels
        yield _Split(split_rate_bps(network, rate, labels), "partition", labels)
    for labels in zone_splits(network, rows):
        yield _Split(split_rate_bps(network, rate, labels), "zones", labels)
    symmetric_whole = len(rows) == n and network.is_symmetric  # then partitions cover all cuts
    if not symmetric_whole and 2 * len(rows) * network.link_count <= _CUT_WORK:
        for other in rows[1:]:
            for src, dst in ((rows[0], other), (other, rows[0])):
                labels = minimum_cut(rate, int(src), int(dst)).astype(np.int64)
                yield _Split(split_rate_bps(network, rate, labels), "cut", labels)


def _few_sites_apart(rate: Matrix, rows: Labels, n: int) -> Iterator[Labels]:
    """Splits in which the 2, 3, ... least connected members are parts of their own, and all other sites one part."""
    degree = (rate.sum(axis=0) + rate.sum(axis=1))[rows]
    order = rows[np.argsort(degree, kind="stable")]
    for k in range(2, len(rows)):
        labels = np.zeros(n, dtype=np.int64)
        labels[order[:k]] = np.arange(1, k + 1)
        yield labels


def zone_splits(network: Network, rows: Labels) -> Iterator[Labels]:
    """Zones as parts, and each zone against the rest; only where every part contains a member."""
    names = [site.zone or f" {site.name}" for site in network.sites]
    zones = sorted(set(names))
    labels = np.array([zones.index(name) for name in names], dtype=np.int64)
    if 1 < len(zones) < len(network) and set(labels[rows].tolist()) == set(range(len(zones))):
        yield labels
    for zone in sorted(set(labels[rows].tolist())):
        if not (labels[rows] == zone).all():
            yield (labels == zone).astype(np.int64)


def split_rate_bps(network: Network, rate: Matrix, labels: Labels) -> float:
    """The highest rate that a split of the sites allows, where each part contains a member."""
    apart = labels[:, None] != labels[None, :]
    parts = int(labels.max()) + 1
    limit = capacity_bps(network, rate, apart) / (2 * (parts - 1))
    if network.has_shared_capacity or parts == 2:
        for part in range(parts):
            inside = labels == part
            limit = min(limit, capacity_bps(network, rate, apart & inside[:, None]))
            limit = min(limit, capacity_bps(network, rate, apart & inside[None, :]))
    else:
        crossing = np.where(apart, rate, 0.0)
        limit = min(limit, np.bincount(labels, weights=crossing.sum(axis=1)).min())
        limit = min(limit, np.bincount(labels, weights=crossing.sum(axis=0)).min())
    return float(limit)


def capacity_bps(network: Network, rate: Matrix, pairs: npt.NDArray[np.bool_]) -> float:
    """An upper bound on what can cross these pairs of sites at once.

    Each pair is charged to one shared capacity: first to the trunks it crosses, then to a NIC. Charging to the
    sender's or to the receiver's NIC are both valid, so the smaller counts.
    """
    if not network.has_shared_capacity:
        return float(rate[pairs].sum())
    left = np.where(pairs, rate, 0.0)
    through_trunks = 0.0
    for trunk, mask in sorted(
        zip(network.trunks, network.trunk_members, strict=True), key=lambda pair: pair[0].capacity_bps
    ):
        through_trunks += min(trunk.capacity_bps, float(left[mask].sum()))
        left = np.where(mask, 0.0, left)
    whole = np.where(pairs, rate, 0.0)
    return min(
        through_trunks + float(np.minimum(left.sum(axis=1), network.egress_bps).sum()),
        through_trunks + float(np.minimum(left.sum(axis=0), network.ingress_bps).sum()),
        float(np.minimum(whole.sum(axis=1), network.egress_bps).sum()),
        float(np.minimum(whole.sum(axis=0), network.ingress_bps).sum()),
    )


@dataclass(frozen=True, slots=True)
class _Latency:
    """Least latencies between sites in s, relays allowed: `from_members` and `to_members` are the in and out above."""

    farthest_s: float
    farthest: tuple[int, int]
    from_members: Floats
    to_members: Floats

    @classmethod
    def of(cls, network: Network, rows: Labels) -> _Latency:
        src, dst = np.nonzero(network.bandwidth_bps)
        graph = csr_array((network.latency_s[src, dst], (src, dst)), shape=network.latency_s.shape)
        ahead: Matrix = dijkstra(graph, indices=rows)
        back: Matrix = dijkstra(csr_array(graph.T), indices=rows)
        between = ahead[:, rows]
        i, j = divmod(int(between.argmax()), len(rows))
        return cls(float(between.max()), (int(rows[i]), int(rows[j])), ahead.max(axis=0), back.max(axis=0))


def lowest_latency_s(network: Network, members: tuple[str, ...]) -> tuple[float, float]:
    """The least height in latency of a tree both ways, and the least latency up to a root and down again, in s."""
    latency = _Latency.of(network, np.array([network.index[name] for name in members]))
    up, down = latency.from_members, latency.to_members
    return float(np.maximum(up, down).min()), float((up + down).min())


def _least_seconds(
    network: Network, rate: Matrix, rows: Labels, weakest: _Split, latency: _Latency, bits: float
) -> tuple[float, str]:
    """The bound on the time of any plan (see the module), and what decides it."""
    names = network.names
    there_and_back = latency.from_members + latency.to_members
    root = int(there_and_back.argmin())
    apart = weakest.labels[:, None] != weakest.labels[None, :]
    last_bit_s = float(network.latency_s[apart & (rate > 0)].min())
    crossing = "what must cross between the parts"
    always = [
        (bits / weakest.rate_bps + last_bit_s, crossing),
        (latency.farthest_s, f"what {names[latency.farthest[0]]} sends to {names[latency.farthest[1]]}"),
    ]
    rooted = [(float(there_and_back[root]), f"the way to the most central site, {names[root]}, and back")]
    direct: list[tuple[float, str]] = []
    members, parts = len(rows), int(weakest.labels.max()) + 1
    crossings = [(np.nonzero(apart & (rate > 0)), parts - 1.0, members * (parts - 1.0), 2 * (parts - 1.0), crossing)]
    for i in rows.tolist():
        others = (np.flatnonzero(rate[i]), np.flatnonzero(rate[:, i]))
        here = tuple(np.full(len(other), i) for other in others)
        crossings.append(((here[0], others[0]), 0.0, members - 1.0, 1.0, f"what {names[i]} must send"))
        crossings.append(((others[1], here[1]), 0.0, 1.0, 1.0, f"what {names[i]} must receive"))
    for (src, dst), once, without_broadcast, total, text in crossings:
        up, down = latency.from_members[src], latency.to_members[dst]
        links = _Links(rate[src, dst], network.latency_s[src, dst], up, down)
        always.append((links.seconds(total * bits), text))
        direct.append((links.seconds(without_broadcast * bits), text))
        rooted.append((links.seconds_both(total * bits), text))
        if once:
            rooted.append((earliest_s(links.until + links.to_members, links.rate, once * bits), text))
            rooted.append((earliest_s(links.until + links.from_members, links.rate, once * bits), text))
    return max(max(always), min(max(rooted), max(direct)))


@dataclass(frozen=True, slots=True)
class _Links:
    """Links that cross a split: their rates, latencies, and the latencies of the module's windows."""

    rate: Floats
    until: Floats
    from_members: Floats
    to_members: Floats

    def seconds(self, bits: float) -> float:
        """The least T with which the links carry this much, each until T less its latency."""
        return earliest_s(self.until, self.rate, bits)

    def seconds_both(self, bits: float) -> float:
        """As `seconds`, for partial sums and results: T - l, or the sum of both windows where that is less."""
        early, late = np.minimum(self.from_members, self.to_members), np.maximum(self.from_members, self.to_members)
        starts = np.concatenate([self.until + early, self.until + late, self.until + early + late])
        return earliest_s(starts, np.concatenate([self.rate, self.rate, -self.rate]), bits)


def earliest_s(start_s: Floats, rate_bps: Floats, bits: float) -> float:
    """The least T for which capacities that start at these times have carried this much; a negative rate ends one.

    >>> earliest_s(np.array([0.0, 1.0]), np.array([2.0, 2.0]), 6.0)
    2.0
    """
    order = np.argsort(start_s, kind="stable")
    starts, rates = start_s[order], np.cumsum(rate_bps[order])
    carried = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(starts))])
    last = int(np.searchsorted(carried, bits, side="right")) - 1
    return float(starts[last] + (bits - carried[last]) / rates[last])


def _parts(network: Network, labels: Labels) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple(network.names[i] for i in np.flatnonzero(labels == part)) for part in range(int(labels.max()) + 1)
    )


def _argument(network: Network, split: _Split, exact: bool) -> str:
    parts = int(split.labels.max()) + 1
    rate = format_rate(split.rate_bps)
    if parts == 2:
        smaller = min(_parts(network, split.labels), key=len)
        shown = ", ".join(smaller) if len(smaller) <= 4 else f"{len(smaller)} sites"
        reason = f"no more than {rate} can cross between {shown} and the rest"
    else:
        reason = f"in {parts} parts every element crosses {2 * (parts - 1)} times, and their links carry that at {rate}"
    if exact:
        return f"{reason}; exact, a packing of spanning trees reaches it"
    return f"{reason}; an upper bound, not known to be reachable"
