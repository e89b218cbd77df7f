"""Virtual time: a heap of calls, ordered by (time, priority, sequence).

No wall clock is read. Calls that are due at the same time run by priority, then in the order in which they were
scheduled, so that one seed gives one history.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from tradewind.errors import InternalError

MAX_CALLS_AT_ONE_TIME = 1_000_000
"""More calls than this at one time are an endless loop: an event causes itself again."""


class Priority(IntEnum):
    """The order of calls that are due at the same time."""

    FAULT = 0
    """The network changes before anything is sent on it."""
    ARRIVAL = 1
    READY = 2
    """All ranks that become ready at a time are counted before a timer of that time starts a round."""
    TIMER = 3


class Clock:
    """The clock of a simulation.

    >>> clock, seen = Clock(), []
    >>> _ = clock.at(2.0, Priority.TIMER, seen.append, "timer")
    >>> _ = clock.at(2.0, Priority.READY, seen.append, "ready")
    >>> early = clock.at(1.0, Priority.READY, seen.append, "cancelled")
    >>> clock.cancel(early)
    >>> clock.run(until_s=5.0)
    >>> seen, clock.now_s
    (['ready', 'timer'], 5.0)
    """

    __slots__ = ("_cancelled", "_heap", "_sequence", "_stopped", "calls", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls = 0
        """The number of calls made so far, a measure of the work of a simulation."""
        self._heap: list[tuple[float, int, int, Callable[[Any], object], Any]] = []
        self._cancelled: set[int] = set()
        self._sequence = 0
        self._stopped = False

    def at(self, time_s: float, priority: int, call: Callable[[Any], object], argument: Any) -> int:
        """Schedule `call(argument)` at a time in s, or now if it has passed; returns the number for `cancel`."""
        self._sequence += 1
        heapq.heappush(self._heap, (max(time_s, self.now_s), priority, self._sequence, call, argument))
        return self._sequence

    def cancel(self, number: int) -> None:
        """Cancel a call that has not been made yet."""
        self._cancelled.add(number)

    def stop(self) -> None:
        """Make no more calls; the clock stays at the present time."""
        self._stopped = True

    def run(self, until_s: float) -> None:
        """Make every call that is due before `until_s`, then set the time to `until_s`; after `stop`, keep the time."""
        heap, cancelled = self._heap, self._cancelled
        at_this_time = 0
        while heap and heap[0][0] < until_s and not self._stopped:
            time_s, _, number, call, argument = heapq.heappop(heap)
            if number in cancelled:
                cancelled.remove(number)
                continue
            at_this_time = at_this_time + 1 if time_s == self.now_s else 0
            if at_this_time > MAX_CALLS_AT_ONE_TIME:
                raise InternalError(f"the simulation does not get past {time_s} s: {call} keeps being called.")
            self.now_s = time_s
            self.calls += 1
            call(argument)
        if math.isfinite(until_s) and not self._stopped:
            self.now_s = float(until_s)
