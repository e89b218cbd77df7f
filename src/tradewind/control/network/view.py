"""The controller's view of the network: the given network, corrected by measurements.

Plans are made with a snapshot of the estimates (`take`), not with the latest measurement, so that all decisions between
two updates use the same network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from tradewind.control.network.estimates import CONFIRM_S, LinkEstimate, LinkEstimates
from tradewind.control.network.rack_probing import LinkProbed
from tradewind.network import Matrix, Network, Site
from tradewind.planning.zones import Zones, detect_racks, detect_zones

UNKNOWN_BPS = 10e9
FAST_BPS = 2e9
"""If the median link is faster, measurements are limited by processors, and planning gains nothing."""
ENOUGH_MEASURED = 0.75
"""Share of links of an unknown network that must be measured before planning; the others get the median."""
UNSEEN_QUANTILE = 0.25
"""Quantile of measured rates that an unmeasured link gets after a network shift. It is low because a plan fills every
link, so overestimating a link costs more than underestimating it."""


def unknown_network(workers: tuple[str, ...]) -> Network:
    """Return a full mesh of equal links, for ranks whose network is unknown."""
    n = len(workers)
    return Network("unknown", [Site(name) for name in workers], UNKNOWN_BPS * (1 - np.eye(n)))


class NetworkView:
    """The estimates of all directed links, and the network that plans are made with."""

    def __init__(self, network: Network, is_guess: bool = False, confirm_s: float | None = CONFIRM_S) -> None:
        self._given, self._confirm_s = network, confirm_s
        self.is_guess = is_guess
        """Whether the network was neither given nor measured yet."""
        self.estimates = LinkEstimates(network, is_guess, confirm_s)
        self._planned_bps: Matrix = network.bandwidth_bps.copy()
        self._planned_latency_s: Matrix = network.latency_s.copy()
        self._present = frozenset(network.names)
        self._cut: dict[frozenset[str], str] = {}
        """Pairs of sites whose link is lost, with the reported reason."""
        self.generation = 0
        """Number that grows whenever all plans must be made again."""
        self.snapshots = 0
        """Number of snapshots taken so far."""
        self._known: dict[str, tuple[tuple[int, int], Network]] = {}
        """Cached networks, each with the generation and snapshot that it was built for."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the present sites in the order of the network, which is also the order of summation."""
        return tuple(name for name in self._given.names if name in self._present)

    @property
    def network(self) -> Network:
        """The network to plan with: present sites and working links."""
        return self._built("working", lambda: self._present_part(np.where(self._has_link, self._planned_bps, 0.0)))

    @property
    def unbroken(self) -> Network:
        """The same network including lost links."""
        return self._built("unbroken", lambda: self._present_part(self._planned_bps))

    def _present_part(self, bandwidth_bps: Matrix) -> Network:
        whole, there = self._with_rates(bandwidth_bps), self.names
        return whole if len(there) == len(whole) else whole.subnetwork(there)

    @property
    def whole(self) -> Network:
        """All given sites, present or not, with the link rates of the last snapshot."""
        return self._built("whole", lambda: self._with_rates(self._planned_bps))

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
        differs = network != self.whole
        self._given = network
        self.estimates = LinkEstimates(network, self.is_guess, self._confirm_s)
        self._planned_bps, self._planned_latency_s = network.bandwidth_bps.copy(), network.latency_s.copy()
        if differs:
            self.generation += 1
            self.snapshots += 1

    def correct(self, network: Network) -> None:
        """Take this network's rates as estimates; plans follow when they are reviewed."""
        self.estimates.bandwidth_bps[:] = network.bandwidth_bps

    def grow(self, worker: str) -> None:
        """Add a rank to an unknown network; all links are measured again."""
        names = (*self._given.names, worker)
        cut, generation = self._cut, self.generation
        self.__init__(unknown_network(names), True, self._confirm_s)  # type: ignore[misc]
        self._cut, self.generation = cut, generation + 1

    def set_present(self, sites: Iterable[str]) -> None:
        """Set the present sites; plans leave out the others."""
        present = frozenset(sites)
        if present != self._present:
            self._present = present
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

    def forget_cuts(self, site: str) -> None:
        """Take the links of a site that is lost as working: its peers do not watch them, and it may come back."""
        kept = {pair: reason for pair, reason in self._cut.items() if site not in pair}
        if len(kept) < len(self._cut):
            self._cut = kept
            self.generation += 1

    @property
    def lost_links(self) -> str:
        """The lost links and reasons as sentences; empty if all links work."""
        said = sorted((sorted(pair), reason) for pair, reason in self._cut.items() if pair <= self._present)
        return " ".join(f"The link between {a!r} and {b!r} is lost: {why.rstrip('.')}." for (a, b), why in said)

    def link_bps(self, src: str, dst: str) -> float:
        """Return the rate of a link in the last snapshot, even if it is lost; 0: there is no such link."""
        return float(self._planned_bps[self._given.index[src], self._given.index[dst]])

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
        """Take in a measurement of a link; links that the network does not have are ignored."""
        i, j = self._given.index[src], self._given.index[dst]
        self.estimates.measured(i, j, bandwidth_bps, now_s, full, active)
        if latency_s is not None:
            self.estimates.measured_latency(i, j, latency_s)

    def probed(self, results: Sequence[LinkProbed], now_s: float) -> None:
        """Take the results of probing all links as the network; derive zones from them if no site has one."""
        for result in results:
            i, j = self._given.index[result.src], self._given.index[result.dst]
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
        index, sites = self._given.index, self._given.sites
        alone_bps = np.zeros((len(sites), len(sites)))
        together_bps = np.full_like(alone_bps, np.inf)
        for result in results:
            link = index[result.src], index[result.dst]
            alone_bps[link], together_bps[link] = result.bandwidth_bps, result.together_bps
        found = detect_racks([site.name for site in sites], alone_bps, together_bps)
        return found if found.zones else None

    def estimate(self, src: str, dst: str, now_s: float) -> LinkEstimate:
        """Return the estimate of one link."""
        return self.estimates.of(self._given.index[src], self._given.index[dst], now_s)

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
        """Whether the network is unknown, and slow enough by the measurements so far that measuring it pays."""
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
        self._planned_bps, self._planned_latency_s = seen.bandwidth_bps, seen.latency_s
        if self.is_useful:
            self.is_guess = False

    def stale_links(self, older_than_s: float, now_s: float) -> list[tuple[str, str]]:
        """Return links to probe: not measured for this long, or never, or seen faster only once; the oldest first."""
        age_s = np.where(self.estimates.promising, np.inf, now_s - self.estimates.measured_s)
        return self._links(age_s, age_s >= older_than_s)

    def unseen_links(self, now_s: float) -> list[tuple[str, str]]:
        """Return links to probe because of a network shift, the oldest first."""
        return self._links(now_s - self.estimates.measured_s, self.estimates.unseen)

    @property
    def touched_links(self) -> list[tuple[str, str]]:
        """Links of which something was measured, and those that are lost, by name."""
        names = self._given.names
        measured = np.argwhere((self.estimates.count > 0) | self.estimates.raised).tolist()
        lost = {way for pair in self._cut for way in permutations(sorted(pair))}
        found = {(names[i], names[j]) for i, j in measured} | lost
        return sorted((a, b) for a, b in found if {a, b} <= self._present and self.link_bps(a, b))

    def low_links(self, now_s: float) -> list[tuple[str, str]]:
        """Return links to probe again after `confirm_s`, because their first probe since the network shift was slow."""
        age_s = now_s - self.estimates.measured_s
        return self._links(age_s, self.estimates.may_be_low & (age_s >= (self._confirm_s or 0.0)))

    def _links(self, age_s: Matrix, wanted: NDArray[np.bool_]) -> list[tuple[str, str]]:
        """Return the wanted links that work, the oldest first."""
        names = self._given.names
        found = [(-age_s[i, j], int(i), int(j)) for i, j in zip(*np.nonzero(wanted & self._has_link), strict=True)]
        links = [(names[i], names[j]) for _, i, j in sorted(found)]
        return [(a, b) for a, b in links if {a, b} <= self._present]

    @property
    def _has_link(self) -> NDArray[np.bool_]:
        """Links that the network has and that work."""
        works: NDArray[np.bool_] = self._given.bandwidth_bps > 0
        for a, b in map(tuple, self._cut):
            i, j = self._given.index[a], self._given.index[b]
            works[i, j] = works[j, i] = False
        return works
