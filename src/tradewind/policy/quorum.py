"""Rounds of all ranks that are ready when a quorum and a grace window have passed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tradewind.errors import BadOption
from tradewind.network import Network
from tradewind.policy.events import Event, TimerFired
from tradewind.policy.machine import Machine

TIMER = "grace"


@dataclass(frozen=True)
class QuorumOptions:
    """Options of `quorum`."""

    quorum: float = 1.0
    """The fraction of the live ranks that must be ready before a round starts, above 0.5: 1.0 waits for all."""
    grace_s: float = 0.0
    """How long a round then waits for the ranks that are not ready, in seconds."""


class Quorum(Machine):
    """All ranks that are ready average, when enough are and the others have had time.

    A round starts when all live ranks are ready, or `grace_s` after `quorum` of them are, with those that are ready. A
    late rank takes part in the next round, or, where ranks number their models (outer optimizers), is told that it has
    missed one. One round runs at a time, and more than half of the live ranks are in it: so no model is continued by
    two groups of ranks, even where a new controller does not know how far the others are.
    """

    name = "quorum"

    def __init__(
        self, network: Network, workers: tuple[str, ...], options: QuorumOptions, *, seed: int, now_s: float
    ) -> None:
        super().__init__(network, workers, seed=seed, now_s=now_s)
        if not 0.5 < options.quorum <= 1 or not 0 <= options.grace_s < math.inf:
            raise BadOption(
                "policy 'quorum': quorum must be above 0.5 and at most 1, and grace_s finite and at least 0, got "
                f"quorum={options.quorum}, grace_s={options.grace_s}."
            )
        self.options = options
        self._waits, self._is_over = False, False

    @property
    def needed(self) -> int:
        """The number of ready ranks that is a quorum, of two or more live ranks."""
        return max(2, math.ceil(self.options.quorum * self.roster.live_count - 1e-9))

    def observe(self, event: Event) -> None:
        """Note that the grace window has ended."""
        if isinstance(event, TimerFired) and event.timer == TIMER:
            self._waits, self._is_over = False, True

    def decide(self) -> None:
        """Start a round when all are ready, or a quorum is and the grace window has ended."""
        ready, live = self.roster.queue_length, self.roster.live_count
        if self.proceed_if_alone() or self.roster.running or ready < self.needed:
            self._stop_waiting("there is no quorum")
        elif ready == live or self._is_over or not self.options.grace_s:
            self._stop_waiting("the round starts")
            self.start(self.roster.queue, f"{ready} of {live} live ranks are ready")
        elif not self._waits:
            self._waits = True
            self.set_timer(TIMER, self.now_s + self.options.grace_s, f"{ready} of {live} are ready: a quorum")

    def note(self) -> str:
        """The number of ready ranks."""
        return f"{self.roster.queue_length} of {self.roster.live_count} ready, {self.needed} are a quorum"

    def _stop_waiting(self, reason: str) -> None:
        self._waits, self._is_over = False, False
        self.cancel_timer(TIMER, reason)
