"""Operations that somebody waits for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tradewind.errors import TradewindError
from tradewind.node.actions import Outcome

Ended = Callable[[TradewindError | Outcome], None]
"""Called when an operation ends, with its error or what came of it."""


@dataclass(slots=True)
class Submitted:
    """An operation under way: whom to tell, and when it was asked for."""

    ended: Ended
    asked_s: float
    started_s: float | None = None

    def start(self) -> None:
        """Its round has begun, for the first time or again."""
        self.started_s = self.started_s or time.monotonic()

    def timed(self, outcome: Outcome) -> Outcome:
        """The outcome with how long it took, by our clock."""
        now_s = time.monotonic()
        started_s = now_s if self.started_s is None else self.started_s
        return replace(outcome, waited_s=started_s - self.asked_s, seconds=now_s - started_s)
