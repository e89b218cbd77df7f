"""The controller's view of the network: the given network, corrected by measurements.

Plans are made with a snapshot of the estimates (`take`), not with the latest measurement, so that all decisions between
two updates use the same network.

Estimates are those of links between sites. Ranks that share a site share them: what they measure at the same time on
one link is added up (`SharedRates`), and the networks that plans are made with have a row for each present rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from tradewind.control.network.estimates import CONFIRM_S, LinkEstimate, LinkEstimates
from tradewind.control.network.rack_probing import LinkProbed
from tradewind.network import LOCAL_BPS, Matrix, Network, Site, site_named_by
from tradewind.planning.connections import FAST_BPS
from tradewind.planning.zones import Zones, detect_racks, detect_zones
from tradewind.units import format_rate

UNKNOWN_BPS = 10e9
ENOUGH_MEASURED = 0.75
"""Share of links of an unknown network that must be measured before planning; the others get the median."""
UNSEEN_QUANTILE = 0.25
"""Quantile of measured rates that an unmeasured link gets after a network shift. It is low because a plan fills every
link, so overestimating a link costs more than underestimating it."""


SAME_TIME_S = 1.0
"""Measurements of ranks on one link between sites add up if they are no further apart than this."""


def unknown_network(workers: Iterable[str]) -> Network:
    """Return a full mesh of equal links, for ranks whose network is unknown; ranks SITE/NUMBER share a site."""
    names = tuple(dict.fromkeys(site_named_by(name) or name for name in workers))
    return Network("unknown", [Site(name) for name in names], UNKNOWN_BPS * (1 - np.eye(len(names))))


class SharedRates:
    """The rates of links between sites, from what several ranks measure on each at the same time."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], dict[tuple[str, str], tuple[float, float]]] = {}
        """For each link between sites, the last measurement of each pair of ranks: when, and its rate."""

    def measured(self, link: tuple[int, int], ranks: tuple[str, str], bandwidth_bps: float, now_s: float) -> float:
        """Take in what one pair of ranks measured; return the rate of all of them."""
        seen = self._last.setdefault(link, {})
        seen[ranks] = now_s, bandwidth_bps
        for old in [pair for pair, (at_s, _) in seen.items() if at_s < now_s - SAME_TIME_S]:
            del seen[old]
        return sum(rate_bps for _, rate_bps in seen.values())


class NetworkView:
    """The estimates of all directed links between sites, and the network that plans are made with."""

    def __init__(self, network: Network, is_guess: bool = False, confirm_s: float | None = CONFIRM_S) -> None:
        """`network` may have a row for each rank (`Network.with_ranks`) or for each site."""
        self._present = frozenset(network.names)
        self._seen: frozenset[str] = frozenset()
        """All ranks that ever were present."""
        network = network.sites_only()
        self._given, self._confirm_s = network, confirm_s
        self.is_guess = is_guess
        """Whether the network was neither given nor measured yet."""
        self.estimates = LinkEstimates(network, is_guess, confirm_s)
        self._planned_bps: Matrix = network.bandwidth_bps.copy()
        self.last_change = ""
        """The link that the last snapshot changed most, in words; empty if none, or if it was not known before."""
        self._planned_latency_s: Matrix = network.latency_s.copy()
        self._shared = SharedRates()
        self._cut: dict[frozenset[str], str] = {}
        """Pairs of ranks whose link is lost, with the reported reason."""
        self.generation = 0
        """Number that grows whenever all plans must be made again."""
        self.snapshots = 0
        """Number of snapshots taken so far."""
        self._known: dict[str, tuple[tuple[int, int], Network]] = {}
        """Cached networks, each with the generation and snapshot that it was built for."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the present ranks in the order of the network, which is also the order of summation."""
        return self.unbroken.names if self._present else ()

    @property
    def network(self) -> Network:
        """The network to plan with: present ranks and working links."""
        return self._built("working", lambda: self._without_cuts(self.unbroken))

    @property
    def unbroken(self) -> Network:
        """The same network including lost links."""
        return self._built("unbroken", lambda: self._planned.with_ranks(sorted(self._present)))

    def _without_cuts(self, network: Network) -> Network:
        cut = [pair for pair in self._cut if pair <= network.index.keys()]
        if not cut:
            return network
        bandwidth_bps = network.bandwidth_bps.copy()
        for a, b in map(tuple, cut):
            i, j = network.index[a], network.index[b]
            bandwidth_bps[i, j] = bandwidth_bps[j, i] = 0.0
        return network.with_bandwidth(bandwidth_bps)

    @property
    def whole(self) -> Network:
        """All ranks that ever were present, and the given sites without any, with the rates of the last snapshot."""

        def build() -> Network:
            seen = self._seen | self._present
            inhabited = {self._given.site_of(name) for name in seen}
            return self._planned.with_ranks([*sorted(seen), *(n for n in self._given.names if n not in inhabited)])

        return self._built("whole", build)

    @property
    def _planned(self) -> Network:
        """The network between sites with the link rates of the last snapshot."""
        return self._built("planned", lambda: self._with_rates(self._planned_bps))

    def site_of(self, rank: str) -> str:
        """The name of a rank's site."""
        return self._given.names[self._row(rank)]

    def _row(self, rank: str) -> int:
        """The row of a rank's site."""
        site = self._given.site_of(rank)
        return self._given.index[rank if site is None else site]

    @property
    def _speaker(self) -> dict[str, str]:
        """The rank that stands for each site that has any: the first present one."""
        found: dict[str, str] = {}
        for name in self.names:
            found.setdefault(self.site_of(name), name)
        return found

    def _built(self, what: str, build: Callable[[], Network]) -> Network:
        """Return a cached network, built again after a change."""
        now, known = (self.generation, self.snapshots), self._known.get(what)
        if known is None or known[0] != now:
            known = self._known[what] = now, build()
        return known[1]

    def _with_rates(self, bandwidth_bps: Matrix) -> Network:
        given = self._given
        rest = self._planned_latency_s, given.loss, given.trunks, given.usd_per_gb
        return Network(given.name, given.sites, bandwidth_bps, *rest)

    def give(self, network: Network) -> None:
        """Replace the network by one with the same sites; all plans are made again unless nothing differs."""
        network = network.sites_only()
        differs = network != self._planned
        self._given = network
        self.estimates = LinkEstimates(network, self.is_guess, self._confirm_s)
        self._planned_bps, self._planned_latency_s = network.bandwidth_bps.copy(), network.latency_s.copy()
        if differs:
            self.generation += 1
            self.snapshots += 1

    def correct(self, network: Network) -> None:
        """Take this network's rates as estimates; plans follow when they are reviewed."""
        self.estimates.bandwidth_bps[:] = network.sites_only().bandwidth_bps

    def grow(self, worker: str) -> None:
        """Add a rank to the ranks of its site, or, if the network is unknown, its site; then all links are measured."""
        if self._given.site_of(worker) is None:
            names = (*self._given.names, worker)
            cut, generation, seen = self._cut, self.generation, self._seen | self._present
            self.__init__(unknown_network(names), True, self._confirm_s)  # type: ignore[misc]
            self._cut, self.generation, self._seen, self._present = cut, generation, seen, seen
        self._seen |= {worker}
        self.generation += 1

    def set_present(self, sites: Iterable[str]) -> None:
        """Set the present sites; plans leave out the others."""
        present = frozenset(sites)
        if present != self._present:
            self._seen, self._present = self._seen | present, present
            self.generation += 1

    def set_cut(self, a: str, b: str, reason: str | None) -> bool:
        """Mark the link between two sites as lost for a reason, or as working (None); return whether that is new."""
        pair = frozenset((a, b))
        if (reason is not None) == (pair in self._cut):
            return False
        if reason is None:
            del self._cut[pair]
        else:
            self._cut[pair] = reason
        self.generation += 1
        return True

    def is_cut(self, a: str, b: str) -> bool:
        """Whether the link between two sites is lost."""
        return frozenset((a, b)) in self._cut

    def forget_cuts(self, site: str) -> None:
        """Take the links of a site that is lost as working: its peers do not watch them, and it may come back."""
        kept = {pair: reason for pair, reason in self._cut.items() if site not in pair}
        if len(kept) < len(self._cut):
            self._cut = kept
            self.generation += 1

    def cut_off(self, trainers: Iterable[str]) -> frozenset[str]:
        """Return the ranks among `trainers` that working links do not connect with most of them.

        If parts are equal in number, the one with the first rank of the network stays.
        """
        counted, index = frozenset(trainers), {name: place for place, name in enumerate(self.names)}
        if not any(pair <= self._present for pair in self._cut):
            return frozenset()
        count, part_of = connected_components(self.network.bandwidth_bps > 0, directed=True, connection="strong")
        if count == 1:
            return frozenset()
        sizes = Counter(int(part_of[place]) for name, place in index.items() if name in counted)
        core = max(sizes, key=lambda part: sizes[part])  # the first of equal ones, in the order of the network
        return frozenset(name for name, place in index.items() if name in counted and part_of[place] != core)

    def is_connected_without(self, a: str, b: str) -> bool:
        """Whether working links connect two sites if the one between them is left out."""
        network = self.network
        works: NDArray[np.bool_] = network.bandwidth_bps > 0
        i, j = network.index[a], network.index[b]
        works[i, j] = works[j, i] = False
        _, part_of = connected_components(works, directed=True, connection="strong")
        return bool(part_of[i] == part_of[j])

    @property
    def lost_links(self) -> str:
        """The lost links and reasons as sentences; empty if all links work."""
        said = sorted((sorted(pair), reason) for pair, reason in self._cut.items() if pair <= self._present)
        return " ".join(f"The link between {a!r} and {b!r} is lost: {why.rstrip('.')}." for (a, b), why in said)

    def link_bps(self, src: str, dst: str) -> float:
        """Return the rate of a link in the last snapshot, even if it is lost; 0: there is no such link."""
        i, j = self._row(src), self._row(dst)
        return LOCAL_BPS if i == j else float(self._planned_bps[i, j])

    def measured(
        self,
        src: str,
        dst: str,
        bandwidth_bps: float,
        now_s: float,
        full: bool = True,
        latency_s: float | None = None,
        active: bool = False,
    ) -> None:
        """Take in a measurement of a link; links that the network does not have are ignored, and those within sites."""
        i, j = self._row(src), self._row(dst)
        if i == j:
            return
        if not active:
            bandwidth_bps = self._shared.measured((i, j), (src, dst), bandwidth_bps, now_s)
        self.estimates.measured(i, j, bandwidth_bps, now_s, full, active)
        if latency_s is not None:
            self.estimates.measured_latency(i, j, latency_s)

    def probed(self, results: Sequence[LinkProbed], now_s: float) -> None:
        """Take the results of probing all links as the network; derive zones from them if no site has one."""
        for result in results:
            i, j = self._row(result.src), self._row(result.dst)
            self.estimates.probed(i, j, result.bandwidth_bps, now_s)
            if result.latency_s is not None:
                self.estimates.measured_latency(i, j, result.latency_s)
        self.take()
        if self.estimates.count.any():
            self.is_guess = False
        if not any(site.zone for site in self._given.sites):
            pairwise = detect_zones(self.seen)
            zone_of = (pairwise if pairwise.are_groups else self._racks(results) or pairwise).zone_of
            sites = [replace(site, zone=zone_of.get(site.name)) for site in self._given.sites]
            given = self._given
            rest = given.latency_s, given.loss, given.trunks, given.usd_per_gb
            self._given = Network(given.name, sites, given.bandwidth_bps, *rest)
        self.generation += 1

    def _racks(self, results: Sequence[LinkProbed]) -> Zones | None:
        """The racks that rates together show; None without any."""
        sites = self._given.sites
        alone_bps = np.zeros((len(sites), len(sites)))
        together_bps = np.full_like(alone_bps, np.inf)
        for result in results:
            link = self._row(result.src), self._row(result.dst)
            alone_bps[link], together_bps[link] = result.bandwidth_bps, result.together_bps
        found = detect_racks([site.name for site in sites], alone_bps, together_bps)
        return found if found.zones else None

    def estimate(self, src: str, dst: str, now_s: float) -> LinkEstimate:
        """Return the estimate of one link."""
        i, j = self._row(src), self._row(dst)
        return LinkEstimate(LOCAL_BPS, 0.0, "given", 0, np.inf, 0.0) if i == j else self.estimates.of(i, j, now_s)

    @property
    def seen(self) -> Network:
        """The network by the current estimates.

        In an unknown network, a link that was never measured gets the median of the others. After a network shift, a
        link that was not measured since gets at most the lower quartile of those that were.
        """
        bandwidth_bps = self.estimates.bandwidth_bps.copy()
        measured = self.estimates.count > 0
        if self.is_guess and measured.any():
            bandwidth_bps[~measured & (bandwidth_bps > 0)] = float(np.median(bandwidth_bps[measured]))
        unseen = self.estimates.unseen
        known = measured & ~unseen
        if unseen.any() and known.any():
            low_bps = float(np.quantile(bandwidth_bps[known], UNSEEN_QUANTILE))
            bandwidth_bps[unseen] = np.minimum(bandwidth_bps[unseen], low_bps)
        given = self._given
        return Network(given.name, given.sites, bandwidth_bps, self.estimates.latency_s, given.loss, given.trunks)

    @property
    def is_discovering(self) -> bool:
        """Whether the network is unknown, and slow enough by the measurements so far that measuring it pays.

        If the median link is fast, measurements are limited by processors, and planning gains nothing.
        """
        measured = self.estimates.count > 0
        return self.is_guess and bool(measured.any() and np.median(self.estimates.bandwidth_bps[measured]) < FAST_BPS)

    @property
    def is_useful(self) -> bool:
        """Whether the estimates suffice for planning: in an unknown network, most links must be measured."""
        if not self.is_guess:
            return True
        measured = self.estimates.count > 0
        return self.is_discovering and bool(measured.sum() >= ENOUGH_MEASURED * self._has_link.sum())

    @property
    def change(self) -> float:
        """The largest relative change of a link since the snapshot, compared with the median change.

        If all links are slower by the same factor, the best plan stays the best: that is no change.
        """
        return float(np.max(self._changes, initial=0.0))

    def changed_share(self, by: float) -> float:
        """Return the share of links that have changed by more than `by` since the snapshot."""
        return float(np.mean(self._changes > by)) if self._changes.size else 0.0

    @property
    def _changes(self) -> Matrix:
        links = self._has_link
        ratio = self.seen.bandwidth_bps[links] / self._planned_bps[links]
        changes: Matrix = np.abs(ratio / np.median(ratio) - 1.0) if ratio.size else ratio
        return changes

    @property
    def noise(self) -> float:
        """Median deviation of the measurements of a link; a smaller gain is not significant."""
        measured = self.estimates.count > 1
        return float(np.median(self.estimates.spread[measured])) if measured.any() else 0.0

    def take(self) -> None:
        """Take a snapshot: plan with the current estimates from now on."""
        self.snapshots += 1
        seen = self.seen
        self.last_change = "" if self.is_guess else self._largest_change()
        self._planned_bps, self._planned_latency_s = seen.bandwidth_bps, seen.latency_s
        if self.is_useful:
            self.is_guess = False

    def _largest_change(self) -> str:
        links = self._has_link
        ratio = self.seen.bandwidth_bps[links] / self._planned_bps[links]
        if not ratio.size or np.all(ratio == 1.0):
            return ""
        i, j = np.argwhere(links)[int(np.argmax(np.abs(np.log(ratio))))].tolist()
        before_bps, now_bps = float(self._planned_bps[i, j]), float(self.seen.bandwidth_bps[i, j])
        how, names = "rose" if now_bps > before_bps else "fell", self._given.names
        return f"{names[i]} -> {names[j]} {how} from {format_rate(before_bps)} to {format_rate(now_bps)}"

    def stale_links(self, older_than_s: float, now_s: float) -> list[tuple[str, str]]:
        """Return links to probe: not measured for this long, or never, or seen faster only once; the oldest first."""
        age_s = np.where(self.estimates.promising, np.inf, now_s - self.estimates.measured_s)
        return self._links(age_s, age_s >= older_than_s)

    def unseen_links(self, now_s: float) -> list[tuple[str, str]]:
        """Return links to probe because of a network shift, the oldest first."""
        return self._links(now_s - self.estimates.measured_s, self.estimates.unseen)

    @property
    def touched_links(self) -> list[tuple[str, str]]:
        """Links of which something was measured, and those that are lost, by name; for a site, its first rank's."""
        names, speaker = self._given.names, self._speaker
        measured = np.argwhere((self.estimates.count > 0) | self.estimates.raised).tolist()
        lost = {way for pair in self._cut for way in permutations(sorted(pair)) if pair <= self._present}
        known = {(names[i], names[j]) for i, j in measured}
        found = {(speaker[a], speaker[b]) for a, b in known if {a, b} <= speaker.keys()} | lost
        return sorted((a, b) for a, b in found if self.link_bps(a, b))

    def low_links(self, now_s: float) -> list[tuple[str, str]]:
        """Return links to probe again after `confirm_s`, because their first probe since the network shift was slow."""
        age_s = now_s - self.estimates.measured_s
        return self._links(age_s, self.estimates.may_be_low & (age_s >= (self._confirm_s or 0.0)))

    def _links(self, age_s: Matrix, wanted: NDArray[np.bool_]) -> list[tuple[str, str]]:
        """Return the wanted links that work, the oldest first; for sites, those of their first ranks."""
        names, speaker = self._given.names, self._speaker
        found = [(-age_s[i, j], int(i), int(j)) for i, j in zip(*np.nonzero(wanted & self._has_link), strict=True)]
        links = [(names[i], names[j]) for _, i, j in sorted(found)]
        return [(speaker[a], speaker[b]) for a, b in links if {a, b} <= speaker.keys()]

    @property
    def probed_ranks(self) -> tuple[str, ...]:
        """The ranks that probe for their sites."""
        return tuple(self._speaker.values())

    @property
    def _has_link(self) -> NDArray[np.bool_]:
        """Links between sites that the network has and that work for the ranks that stand for the sites."""
        works: NDArray[np.bool_] = self._given.bandwidth_bps > 0
        speakers = set(self._speaker.values()) if self._cut else set()
        for pair in self._cut:
            if pair <= speakers:
                i, j = (self._row(name) for name in pair)
                works[i, j] = works[j, i] = False
        return works
