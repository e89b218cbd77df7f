"""Detects contention from the durations of rounds (DS-Sync III-A, adjustGroups).

A slow round shows that one of its members was slow, not which. But patterns shuffle: every other member soon has a
round without the slow one. So a rank (or a rack's uplink) is contended if *all* of its last rounds were slow compared
with the fastest recent round of the same scope and size. Only equal scopes and sizes are compared, because the growth
of time with size depends on the planner; old rounds are dropped, so that a permanently slower network becomes the new
reference.

The cost is that a small group around a slow rank may have nothing to be compared with and appear normal. Then the slow
rank returns to the large group, is detected again, and stays in the small one twice as long each time: contention that
has ended is detected soon, and lasting contention causes ever fewer trials.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

REFERENCE_ROUNDS = 400
"""The number of recent rounds of a scope and size of which the fastest is the reference."""

MAX_HOLD_CHECKS = 64
"""The most checks for which a rank stays flagged before it gets another trial."""


@dataclass(slots=True)
class _Record:
    ratios: deque[float]
    flagged: bool = False
    hold_checks: int = 0
    next_hold_checks: int = 1
    calm_checks: int = 0


class ContentionSense:
    """Detects ranks, or racks, by name that were slow in all recent rounds.

    A round is slow if it took more than `contended` times its reference; `window` is the number of recent rounds.
    """

    def __init__(self, contended: float, window: int) -> None:
        self._contended = contended
        self._window = window
        self._reference: dict[tuple[str, int], deque[float]] = {}
        self._records: dict[str, _Record] = {}

    def timed(self, scope: str, size: int, seconds: float, suspects: Iterable[str]) -> None:
        """Note the duration of a round of that scope and size with the `suspects` as members.

        >>> sense = ContentionSense(contended=1.5, window=2)
        >>> for other in "abcabc":
        ...     sense.timed("pair", 2, 4.0 if other == "c" else 1.0, [other, "x"])
        >>> sense.check()
        frozenset({'c'})
        """
        recent = self._reference.setdefault((scope, size), deque(maxlen=REFERENCE_ROUNDS))
        recent.append(seconds)
        best_s = min(recent)
        for name in suspects:
            record = self._records.setdefault(name, _Record(deque(maxlen=self._window)))
            record.ratios.append(seconds / best_s if best_s > 0 else 1.0)

    def check(self) -> frozenset[str]:
        """The names that are contended now; to be called at regular intervals."""
        for record in self._records.values():
            slow = len(record.ratios) == self._window and min(record.ratios) > self._contended
            if record.flagged:
                record.hold_checks -= 1
                record.flagged = slow or record.hold_checks > 0
            elif slow:
                record.flagged, record.calm_checks = True, 0
                record.hold_checks = record.next_hold_checks
                record.next_hold_checks = min(2 * record.hold_checks, MAX_HOLD_CHECKS)
            else:
                record.calm_checks += 1
                if record.calm_checks > record.next_hold_checks:
                    record.next_hold_checks = 1
        return frozenset(name for name, record in self._records.items() if record.flagged)

    def forget(self, name: str) -> None:
        """Drop the record of a lost rank; if it rejoins, it starts with an empty one."""
        self._records.pop(name, None)
