"""Active probes: which links are probed during a run, and how many bytes that may cost.

A link that carries nothing is never measured. So a small share of the bytes that rounds move is spent on trains of
probes, first on links that seemed faster once (a plan that underestimates a link gives it too little traffic to show
more), then on those that were not measured for the longest time. No site sends or receives two trains at a time.

Two cases justify more than that share. If the network is unknown and slow by the measurements so far, or has changed as
a whole (`network_shift`), every link without a valid estimate is probed at once, and in the second case those that seem
slower twice. The cost is then a debt: nothing else is probed until the share has paid for it. Probes go after all other
frames on their link, so they hardly slow rounds down.
"""

from __future__ import annotations

from math import prod

from tradewind.control.awareness import Awareness
from tradewind.control.network.view import NetworkView
from tradewind.wire import messages as m

MOST_SAVED_BYTES = 3 * 2**20
"""Largest unused budget that is carried over, and largest debt, in bytes."""

Train = tuple[str, m.Explore]
"""A rank, and the train of probes that it is to send."""


class Exploring:
    """Chooses the links of one run to probe, within a budget of bytes."""

    def __init__(self, view: NetworkView, options: Awareness, now_s: float) -> None:
        self._view, self._options = view, options
        self._budget_bytes = 0.0
        self._trains = 0
        self._explored_s = now_s
        self._once: set[tuple[str, str]] = set()
        """Links that were probed once without a valid estimate."""
        self._again: set[tuple[str, str]] = set()
        """Links that were probed a second time, because they seemed slower."""

    def moved(self, nbytes: int) -> None:
        """Add the share of the bytes that rounds moved to the budget."""
        self._budget_bytes = min(MOST_SAVED_BYTES, self._budget_bytes + self._options.explore_share * nbytes)

    def forget(self) -> None:
        """Allow probing all links again, because all estimates were invalidated."""
        self._once.clear()
        self._again.clear()

    def trains(self, now_s: float, is_network_shift: bool) -> list[Train]:
        """Return the trains to send now, within the budget."""
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
        """Return trains for the first links that share no sender and no receiver, and the remaining budget."""
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
