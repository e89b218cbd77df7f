"""Operations that somebody waits for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tradewind.arithmetic import Array
from tradewind.engine.effects import Outcome
from tradewind.errors import BadOption, TradewindError
from tradewind.wire.messages import MAX_CARRIED_BYTES

DEFAULT_CARRIED_BYTES = 16 * 1024
"""Arrays up to this size travel in messages, unless somebody says otherwise."""


def check_carried_bytes(nbytes: int) -> int:
    """Refuse what messages cannot hold."""
    if not 0 <= nbytes <= MAX_CARRIED_BYTES:
        raise BadOption(f"arrays of {nbytes} bytes cannot travel in messages: give 0 to {MAX_CARRIED_BYTES}.")
    return nbytes


Ended = Callable[[TradewindError | Outcome], None]
"""Called when an operation ends, with its error or what came of it."""


@dataclass(slots=True)
class Submitted:
    """One of them: its arrays, whom to tell, and when it was asked for."""

    own: Array
    result: Array
    ended: Ended
    asked_s: float
    started_s: float | None = None

    def succeeded(self, outcome: Outcome, array: bytes | None) -> None:
        """The result is there, or `array` is what it is to be."""
        if array is not None:
            self.result.reshape(-1).view(np.uint8)[:] = np.frombuffer(array, np.uint8)
        elif outcome.alone:
            self.result[...] = self.own
        self.ended(self.timed(outcome))

    def timed(self, outcome: Outcome) -> Outcome:
        """The outcome with how long it took, by our clock."""
        now_s = time.monotonic()
        started_s = now_s if self.started_s is None else self.started_s
        return replace(outcome, waited_s=started_s - self.asked_s, seconds=now_s - started_s)
