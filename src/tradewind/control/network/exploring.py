"""Active probes: which links are probed during a run, and how many bytes that may cost.

A link that carries nothing is never measured. So each site spends a small share of the bytes that it sends in rounds,
encoded where they are, on trains of probes, first on links that seemed faster once (a plan that underestimates a link
gives it too little traffic to show more), then on those that were not measured for the longest time. A train is sent
when the site has saved its bytes: where rounds are small, after many. No site sends or receives two trains at a time.

Two cases justify more than that share. If the network is unknown and slow by the measurements so far, or has changed as
a whole (`network_shift`), every link without a valid estimate is probed at once, and in the second case those that seem
slower twice. The cost is then a debt of the sites that send: they probe nothing else until the share has paid for it.
Probes go after all other frames on their link, so they hardly slow rounds down.
"""

from __future__ import annotations

from math import prod

from tradewind.control.awareness import Awareness
from tradewind.control.network.view import NetworkView
from tradewind.planning.hops import link_shares
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m

MOST_SAVED_BYTES = 2**20
"""Largest unused budget of a site that is carried over, and its largest debt, in bytes."""
REMEMBERED = 64
"""Number of plan versions of which it is remembered what each site sends."""

Train = tuple[str, m.Explore]
"""A rank, and the train of probes that it is to send."""


class Exploring:
    """Chooses the links of one run to probe, within a budget of bytes."""

    def __init__(self, view: NetworkView, options: Awareness, now_s: float) -> None:
        self._view, self._options = view, options
        self._budget_bytes: dict[str, float] = {}
        """What each site may spend."""
        self._shares: dict[int, dict[str, float]] = {}
        """What each site sends to others by a plan version, relative to the size of the array."""
        self._trains = 0
        self._explored_s = now_s
        self._once: set[tuple[str, str]] = set()
        """Links that were probed once without a valid estimate."""
        self._again: set[tuple[str, str]] = set()
        """Links that were probed a second time, because they seemed slower."""

    def moved(self, version: int, plan: Plan, nbytes: int) -> None:
        """Add the share of what each site sent in a round of so many bytes on the wire, by this plan, to its budget."""
        if version not in self._shares:
            if len(self._shares) >= REMEMBERED:
                self._shares.clear()
            self._shares[version] = self._sent_shares(plan)
        for site, share in self._shares[version].items():
            self._pay(site, -self._options.explore_share * share * nbytes)

    def _sent_shares(self, plan: Plan) -> dict[str, float]:
        found: dict[str, float] = {}
        for (src, dst), share in link_shares(plan).items():
            site = self._view.site_of(src)
            if site != self._view.site_of(dst):
                found[site] = found.get(site, 0.0) + share
        return found

    def _pay(self, site: str, nbytes: float) -> None:
        left_bytes = self._budget_bytes.get(site, 0.0) - nbytes
        self._budget_bytes[site] = max(-MOST_SAVED_BYTES, min(MOST_SAVED_BYTES, left_bytes))

    def forget(self) -> None:
        """Allow probing all links again, because all estimates were invalidated."""
        self._once.clear()
        self._again.clear()

    def trains(self, now_s: float, is_network_shift: bool) -> list[Train]:
        """Return the trains to send now, within the budget."""
        view, options = self._view, self._options
        unknown = []
        if view.is_discovering:
            unknown = self._explore_new(view.stale_links(float("inf"), now_s), self._once)
        elif options.explore_share:
            unknown = self._explore_new(view.unseen_links(now_s), self._once) if is_network_shift else []
            unknown = unknown or self._explore_new(view.low_links(now_s), self._again)
        if unknown or view.is_discovering or now_s < self._explored_s + options.update_time_s:
            return unknown
        if max(self._budget_bytes.values(), default=0.0) < prod(options.train(0.0)):
            return []
        self._explored_s = now_s
        return self._disjoint(view.stale_links(2 * options.update_time_s, now_s), on_credit=False)

    def _explore_new(self, links: list[tuple[str, str]], explored: set[tuple[str, str]]) -> list[Train]:
        trains = self._disjoint([link for link in links if link not in explored], on_credit=True)
        explored.update((src, explore.peer) for src, explore in trains)
        return trains

    def _disjoint(self, links: list[tuple[str, str]], on_credit: bool) -> list[Train]:
        """Return trains for the first links that share no sender and no receiver, paid by the sites that send them."""
        found: list[Train] = []
        sending: set[str] = set()
        receiving: set[str] = set()
        for src, dst in links:
            chunks, chunk_bytes = self._options.train(self._view.link_bps(src, dst))
            nbytes, site = chunks * chunk_bytes, self._view.site_of(src)
            has_saved = on_credit or self._budget_bytes.get(site, 0.0) >= nbytes
            if src in sending or dst in receiving or not has_saved:
                continue
            sending.add(src)
            receiving.add(dst)
            self._pay(site, nbytes)
            self._trains += 1
            found.append((src, m.Explore(dst, self._trains, chunks, chunk_bytes)))
        return found
