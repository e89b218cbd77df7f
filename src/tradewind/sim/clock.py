"""Virtual time: a heap of (time, priority, sequence) and the calls that are due then.

Nothing here looks at a wall clock. What is due at the same time runs by priority, then in the order in which it was
asked for, so that one seed gives one history.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from tradewind.errors import InternalError

MAX_CALLS_AT_ONE_TIME = 1_000_000
"""More than this without time moving on is a loop: somebody answers an event with its own cause."""


class Priority(IntEnum):
    """What goes first among things that are due at the same time."""

    FAULT = 0
    """The network changes before anything is sent on it."""
    ARRIVAL = 1
    READY = 2
    """Workers that are ready at a time all count before a timer of that time asks who is ready."""
    TIMER = 3


class Clock:
    """The one clock of a simulation.

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
        """How many calls have been made: the work of a simulation."""
        self._heap: list[tuple[float, int, int, Callable[[Any], object], Any]] = []
        self._cancelled: set[int] = set()
        self._sequence = 0
        self._stopped = False

    def at(self, time_s: float, priority: int, call: Callable[[Any], object], argument: Any) -> int:
        """Have `call(argument)` made at that time, or now if it has passed; returns the number to cancel it with."""
        self._sequence += 1
        heapq.heappush(self._heap, (max(time_s, self.now_s), priority, self._sequence, call, argument))
        return self._sequence

    def cancel(self, number: int) -> None:
        """Forget a call that has not been made yet."""
        self._cancelled.add(number)

    def stop(self) -> None:
        """Make no more calls; the clock stands where it is."""
        self._stopped = True

    def run(self, until_s: float) -> None:
        """Make every call that is due before `until_s`, then stand at `until_s`; stay where `stop` was called."""
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
