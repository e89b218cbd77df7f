"""Which links are measured on purpose, by trains of probes, and how much that may cost.

A link that carries nothing is never measured. So a small share of what rounds move is spent on trains of probes on the
links that were not measured for the longest time, and before these on those that seemed to be faster once: a plan that
thinks little of a link gives it too little to show more. No site sends or receives two trains at a time.

Two cases are worth more than that share. Where nobody said what the network is like and what was seen of it is slow,
and where the network as a whole has changed (`network_shift`), every link that nobody knows is explored at once, each
once, and in the second case those that seem slower twice. What that costs then is a debt: nothing else is explored
until the share has paid for it. Probes go after everything else on their link, so rounds hardly notice.
"""

from __future__ import annotations

from math import prod

from tradewind.control.awareness import Awareness
from tradewind.control.network.view import NetworkView
from tradewind.wire import messages as m

MOST_SAVED_BYTES = 3 * 2**20
"""What was not needed for exploring is not saved up for long, and debts are forgiven above this."""

Train = tuple[str, m.Explore]
"""Who is to send what."""


class Exploring:
    """One run's."""

    def __init__(self, view: NetworkView, options: Awareness, now_s: float) -> None:
        self._view, self._options = view, options
        self._budget_bytes = 0.0
        self._trains = 0
        self._explored_s = now_s
        self._once: set[tuple[str, str]] = set()
        """Links that were explored since nobody knew them."""
        self._again: set[tuple[str, str]] = set()
        """And those that were so a second time."""

    def moved(self, nbytes: int) -> None:
        """Rounds have moved so many bytes over links."""
        self._budget_bytes = min(MOST_SAVED_BYTES, self._budget_bytes + self._options.explore_share * nbytes)

    def forget(self) -> None:
        """Nobody knows any link any more."""
        self._once.clear()
        self._again.clear()

    def trains(self, now_s: float, is_network_shift: bool) -> list[Train]:
        """To send now, as far as the budget goes."""
        view, options = self._view, self._options
        if view.is_discovering:
            return self._explore_new(view.stale_links(float("inf"), now_s), self._once)
        unknown = []
        if options.explore_share:
            unknown = self._explore_new(view.unseen_links(now_s), self._once) if is_network_shift else []
            unknown = unknown or self._explore_new(view.low_links(now_s), self._again)
        if unknown:
            debt = sum(train.chunks * train.chunk_bytes for _, train in unknown)
            self._budget_bytes = max(-MOST_SAVED_BYTES, self._budget_bytes - debt)
            return unknown
        if now_s < self._explored_s + options.update_time_s or self._budget_bytes < prod(options.train(0.0)):
            return []
        self._explored_s = now_s
        trains, left_bytes = self._disjoint(view.stale_links(2 * options.update_time_s, now_s), self._budget_bytes)
        self._budget_bytes = left_bytes
        return trains

    def _explore_new(self, links: list[tuple[str, str]], explored: set[tuple[str, str]]) -> list[Train]:
        trains, _ = self._disjoint([link for link in links if link not in explored], float("inf"))
        explored.update((src, explore.peer) for src, explore in trains)
        return trains

    def _disjoint(self, links: list[tuple[str, str]], budget_bytes: float) -> tuple[list[Train], float]:
        """Trains for the first links that have no end in common, and what is left of a budget."""
        found: list[Train] = []
        sending: set[str] = set()
        receiving: set[str] = set()
        for src, dst in links:
            chunks, chunk_bytes = self._options.train(self._view.link_bps(src, dst))
            if src in sending or dst in receiving or budget_bytes < chunks * chunk_bytes:
                continue
            sending.add(src)
            receiving.add(dst)
            budget_bytes -= chunks * chunk_bytes
            self._trains += 1
            found.append((src, m.Explore(dst, self._trains, chunks, chunk_bytes)))
        return found, budget_bytes
