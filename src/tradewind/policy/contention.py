"""Sensing contention from how long rounds take (DS-Sync III-A, adjustGroups).

A round's time says that somebody in it was slow, not who. But patterns shuffle: everybody else soon has a round
without the slow one. So a worker (or a rack's uplink) is contended if *all* of its last rounds were slow, each against
the best recent round of the same scope and size. Like is compared with like, because how time grows with size depends
on the planner, and old rounds are forgotten, so that a network that became slower for good becomes the new normal.

The price is that a small group around a slow worker may have nothing to be compared with and look fine. Then the slow
worker goes back to the large group, is caught again, and stays in the small one twice as long each time: contention
that is over is noticed soon, and one that stays causes ever fewer trials.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

REFERENCE_ROUNDS = 400
"""How many rounds of a scope and size the best is taken of."""

MAX_HOLD_CHECKS = 64
"""For how many checks a worker stays flagged at most before it gets another trial."""


@dataclass(slots=True)
class _Record:
    ratios: deque[float]
    flagged: bool = False
    hold_checks: int = 0
    next_hold_checks: int = 1
    calm_checks: int = 0


class ContentionSense:
    """Who was slow in all recent rounds: workers, or racks; all it needs is their names."""

    def __init__(self, contended: float, window: int) -> None:
        self._contended = contended
        self._window = window
        self._reference: dict[tuple[str, int], deque[float]] = {}
        self._records: dict[str, _Record] = {}

    def timed(self, scope: str, size: int, seconds: float, suspects: Iterable[str]) -> None:
        """A round of that scope and size took so long, and these took part.

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
        """Who is contended now; to be asked at regular intervals."""
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
        """A worker is gone; if it returns, it starts with a clean record."""
        self._records.pop(name, None)
