"""The limit: a lower bound on the time of any plan for given members on a network.

**Rate.** Whatever splits the members limits them: everything one side knows must cross to the other, and in k parts
every element crosses at least 2 (k - 1) times (see `partition`). A part's traffic is limited by its links, its
sites' NICs and the trunks it uses. The bound is the weakest split among single sites, minimum cuts between
members, zones, and the weakest partition. It holds for every scheme that reduces element by element.

**Exact** where theory says so: symmetric full-duplex links, every site a member, no NIC caps and no trunks. There a
packing of spanning trees reaches it (Nash-Williams, Tutte), and `optimal` finds that packing. Elsewhere it is an upper
bound on the rate that need not be reachable (`Bound.exact` is False).

**Time.** The last bit leaves the weakest split no sooner than bytes / rate, and then still travels; and no result can
arrive before the farthest member's first bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from tradewind.network import Matrix, Network
from tradewind.planning.hops import hop_rate_bps
from tradewind.planning.partition import Labels, minimum_cut, weakest_partition
from tradewind.units import format_duration, format_rate

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


def bound(network: Network, members: tuple[str, ...], nbytes: int) -> Bound:
    """The limit for an all-reduce of `nbytes` among `members`; other sites may help."""
    rows = np.array([network.index[name] for name in members])
    rate = hop_rate_bps(network)
    weakest = min(_splits(network, rate, rows), key=lambda split: split.rate_bps)
    apart = weakest.labels[:, None] != weakest.labels[None, :]
    last_bit_s = float(network.latency_s[apart & (network.bandwidth_bps > 0)].min())
    least_latency_s = _least_latency_s(network, rows)[:, rows]
    farthest_s = float(least_latency_s.max())
    transfer_s = 8.0 * nbytes / weakest.rate_bps
    latency_argument = ""
    if farthest_s > transfer_s + last_bit_s:
        src, dst = (members[k] for k in divmod(int(least_latency_s.argmax()), len(rows)))
        earliest = format_duration(farthest_s)
        latency_argument = f"what {src} sends reaches {dst} after {earliest} at the earliest; for larger tensors, "
    exact = network.is_symmetric and not network.has_shared_capacity and len(members) == len(network)
    return Bound(
        seconds=max(transfer_s + last_bit_s, farthest_s),
        rate_bps=weakest.rate_bps,
        exact=exact,
        argument=latency_argument + _argument(network, weakest, exact),
        parts=_parts(network, weakest.labels),
        latency_argument=latency_argument,
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
    for labels in _zones(network, rows):
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


def _zones(network: Network, rows: Labels) -> Iterator[Labels]:
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
    limit = _capacity_bps(network, rate, apart) / (2 * (parts - 1))
    if network.has_shared_capacity or parts == 2:
        for part in range(parts):
            inside = labels == part
            limit = min(limit, _capacity_bps(network, rate, apart & inside[:, None]))
            limit = min(limit, _capacity_bps(network, rate, apart & inside[None, :]))
    else:
        crossing = np.where(apart, rate, 0.0)
        limit = min(limit, np.bincount(labels, weights=crossing.sum(axis=1)).min())
        limit = min(limit, np.bincount(labels, weights=crossing.sum(axis=0)).min())
    return float(limit)


def _capacity_bps(network: Network, rate: Matrix, pairs: npt.NDArray[np.bool_]) -> float:
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


def _least_latency_s(network: Network, rows: Labels) -> Matrix:
    """The least latency from each member to each site, relays allowed."""
    src, dst = np.nonzero(network.bandwidth_bps)
    graph = csr_array((network.latency_s[src, dst], (src, dst)), shape=network.latency_s.shape)
    distance: Matrix = dijkstra(graph, indices=rows)
    return distance


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
