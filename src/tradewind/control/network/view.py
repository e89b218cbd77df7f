"""What is known of the network: what was given, corrected by what was measured.

Plans are not made with the very last measurement but with a snapshot (`take`), so that everything that is decided
between two updates is decided for the same network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from tradewind.control.network.estimates import CONFIRM_S, LinkEstimate, LinkEstimates
from tradewind.control.network.probing import LinkProbed
from tradewind.network import Matrix, Network, Site
from tradewind.planning.zones import with_zones

UNKNOWN_BPS = 10e9
FAST_BPS = 2e9
"""Where half of the links carry more, processors are what was measured: nothing is to be gained by planning."""
ENOUGH_MEASURED = 0.75
"""The share of links of an unknown network that must be measured to plan with: the others are taken to be like them."""
UNSEEN_QUANTILE = 0.25
"""A plan fills every link, so one that carries less than was thought costs more than one that could carry more."""


def unknown_network(workers: tuple[str, ...]) -> Network:
    """A mesh of equal links, for want of anything better."""
    n = len(workers)
    return Network("unknown", [Site(name) for name in workers], UNKNOWN_BPS * (1 - np.eye(n)))


class NetworkView:
    """An estimate of every directed link, and the network that plans are made with."""

    def __init__(self, network: Network, is_guess: bool = False, confirm_s: float = CONFIRM_S) -> None:
        self._given, self._confirm_s = network, confirm_s
        self.is_guess = is_guess
        """Whether nobody has said or seen what the network is like."""
        self.estimates = LinkEstimates(network, is_guess, confirm_s)
        self._planned_bps: Matrix = network.bandwidth_bps.copy()
        self._planned_latency_s: Matrix = network.latency_s.copy()
        self._present = frozenset(network.names)
        self._cut: dict[frozenset[str], str] = {}
        """Pairs of sites whose link is lost, and what was said about it."""
        self.generation = 0
        """Grows when plans must be made anew."""
        self.snapshots = 0
        """How often what was measured has been taken to plan with."""
        self._known: dict[str, tuple[tuple[int, int], Network]] = {}
        """Networks that were built, each with the generation and snapshot that it was built for."""

    @property
    def names(self) -> tuple[str, ...]:
        """The sites that are there, in the network's order, which is that of sums."""
        return tuple(name for name in self._given.names if name in self._present)

    @property
    def network(self) -> Network:
        """The network to plan with: the sites that are there, and the links that work."""
        return self._built("working", lambda: self._present_part(np.where(self._has_link, self._planned_bps, 0.0)))

    @property
    def unbroken(self) -> Network:
        """The same with the links that are lost."""
        return self._built("unbroken", lambda: self._present_part(self._planned_bps))

    def _present_part(self, bandwidth_bps: Matrix) -> Network:
        whole, there = self._with_rates(bandwidth_bps), self.names
        return whole if len(there) == len(whole) else whole.subnetwork(there)

    @property
    def whole(self) -> Network:
        """Every site that was given, whether it is there or not, and its links as they were last planned with."""
        return self._built("whole", lambda: self._with_rates(self._planned_bps))

    def _built(self, what: str, build: Callable[[], Network]) -> Network:
        """A network, built once as long as nothing changes."""
        now, known = (self.generation, self.snapshots), self._known.get(what)
        if known is None or known[0] != now:
            known = self._known[what] = now, build()
        return known[1]

    def _with_rates(self, bandwidth_bps: Matrix) -> Network:
        given = self._given
        return Network(given.name, given.sites, bandwidth_bps, self._planned_latency_s, given.loss, given.trunks)

    def give(self, network: Network) -> None:
        """The network is this one now, with the same sites: if that is news, all plans are made anew."""
        is_news = network != self.whole
        self._given = network
        self.estimates = LinkEstimates(network, self.is_guess, self._confirm_s)
        self._planned_bps, self._planned_latency_s = network.bandwidth_bps.copy(), network.latency_s.copy()
        if is_news:
            self.generation += 1
            self.snapshots += 1

    def correct(self, network: Network) -> None:
        """Take this network's rates as estimates; plans follow when they are reviewed."""
        self.estimates.bandwidth_bps[:] = network.bandwidth_bps

    def grow(self, worker: str) -> None:
        """Somebody new, in a run where nobody said what the network is like; what was measured is measured again."""
        names = (*self._given.names, worker)
        cut, generation = self._cut, self.generation
        self.__init__(unknown_network(names), True, self._confirm_s)  # type: ignore[misc]
        self._cut, self.generation = cut, generation + 1

    def set_present(self, sites: Iterable[str]) -> None:
        """Who is there now; plans leave the others out."""
        present = frozenset(sites)
        if present != self._present:
            self._present = present
            self.generation += 1

    def set_cut(self, a: str, b: str, reason: str | None) -> bool:
        """Nothing gets through between two sites, for that reason; None: it does. Returns whether that is news."""
        pair = frozenset((a, b))
        if (reason is not None) == (pair in self._cut):
            return False
        if reason is None:
            del self._cut[pair]
        else:
            self._cut[pair] = reason
        self.generation += 1
        return True

    @property
    def lost_links(self) -> str:
        """Which links are lost and why, as sentences; nothing if all work."""
        said = sorted((sorted(pair), reason) for pair, reason in self._cut.items() if pair <= self._present)
        return " ".join(f"The link between {a!r} and {b!r} is lost: {why.rstrip('.')}." for (a, b), why in said)

    def link_bps(self, src: str, dst: str) -> float:
        """What a link is thought to carry when it works; 0: there is none."""
        return float(self._planned_bps[self._given.index[src], self._given.index[dst]])

    def measured(
        self,
        src: str,
        dst: str,
        bandwidth_bps: float,
        now_s: float,
        full: bool = True,
        latency_s: float | None = None,
        on_purpose: bool = False,
    ) -> None:
        """A link was seen to carry that much. Links that the network does not have stay out of it."""
        i, j = self._given.index[src], self._given.index[dst]
        self.estimates.measured(i, j, bandwidth_bps, now_s, full, on_purpose)
        if latency_s is not None:
            self.estimates.measured_latency(i, j, latency_s)

    def probed(self, results: Iterable[LinkProbed], now_s: float) -> None:
        """Links were measured on purpose: that is the network; its zones are those it shows, if no site names one."""
        for result in results:
            i, j = self._given.index[result.src], self._given.index[result.dst]
            self.estimates.probed(i, j, result.bandwidth_bps, now_s)
            if result.latency_s is not None:
                self.estimates.measured_latency(i, j, result.latency_s)
        self.take()
        if self.estimates.count.any():
            self.is_guess = False
        if not any(site.zone for site in self._given.sites):
            sites = with_zones(self.seen).sites
            given = self._given
            self._given = Network(given.name, sites, given.bandwidth_bps, given.latency_s, given.loss, given.trunks)
        self.generation += 1

    def estimate(self, src: str, dst: str, now_s: float) -> LinkEstimate:
        """What is known of one link."""
        return self.estimates.of(self._given.index[src], self._given.index[dst], now_s)

    @property
    def seen(self) -> Network:
        """The network as it is thought to be right now.

        Where nobody said what it is like, a link that was never measured is taken to be like most of the others; one
        that nobody has looked at since everything changed, to be no better than the worst of those that were.
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
        """Whether nobody said what the network is like, and what was measured so far is slow enough to find out."""
        measured = self.estimates.count > 0
        return self.is_guess and bool(measured.any() and np.median(self.estimates.bandwidth_bps[measured]) < FAST_BPS)

    @property
    def is_useful(self) -> bool:
        """Whether the estimates are worth planning with: of a network that nobody described, most must be measured."""
        if not self.is_guess:
            return True
        measured = self.estimates.count > 0
        return self.is_discovering and bool(measured.sum() >= ENOUGH_MEASURED * self._has_link.sum())

    @property
    def change(self) -> float:
        """The largest change of any link since the snapshot against the others, as a share of what it was.

        When everything is slower by the same factor the best plan stays the best: that is no change.
        """
        return float(np.max(self._changes, initial=0.0))

    def changed_share(self, by: float) -> float:
        """The share of all links that have changed by more than that since the snapshot."""
        return float(np.mean(self._changes > by)) if self._changes.size else 0.0

    @property
    def _changes(self) -> Matrix:
        links = self._has_link
        ratio = self.seen.bandwidth_bps[links] / self._planned_bps[links]
        changes: Matrix = np.abs(ratio / np.median(ratio) - 1.0) if ratio.size else ratio
        return changes

    @property
    def noise(self) -> float:
        """How far measurements of a link usually are from each other: a gain below that may be imagined."""
        measured = self.estimates.count > 1
        return float(np.median(self.estimates.spread[measured])) if measured.any() else 0.0

    def take(self) -> None:
        """Plan with what is known now."""
        self.snapshots += 1
        seen = self.seen
        self._planned_bps, self._planned_latency_s = seen.bandwidth_bps, seen.latency_s
        if self.is_useful:
            self.is_guess = False

    def stale_links(self, older_than_s: float, now_s: float) -> list[tuple[str, str]]:
        """Links to look at: not measured for so long, or never, or seen to be faster only once; the oldest first."""
        age_s = np.where(self.estimates.promising, np.inf, now_s - self.estimates.measured_s)
        return self._links(age_s, age_s >= older_than_s)

    def unseen_links(self, now_s: float) -> list[tuple[str, str]]:
        """Links to look at because everything has changed, the oldest first."""
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
        """Links to look at again, after a while, because they seemed slow on the first look since."""
        age_s = now_s - self.estimates.measured_s
        return self._links(age_s, self.estimates.may_be_low & (age_s >= self._confirm_s))

    def _links(self, age_s: Matrix, wanted: NDArray[np.bool_]) -> list[tuple[str, str]]:
        """Those that work, the oldest first."""
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
