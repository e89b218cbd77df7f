"""Faults of what carries a run: bytes that change on the way, lost packets, expired certificates, clocks that jump.

Drills with real processes have the same faults (`tests/drills`). Two of theirs have none here, because the code that
they meet is outside the simulated part: a full disk for traces, and connections of strangers.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tradewind.sim.chunks.storm import StormRun

DURATIONS_S = (0.5, 3.0, 8.0)
"""Upper ends of the times that such a fault lasts: shorter and longer than a patience of 3 s."""
LOSS = 0.05
JUMP_S = 3600.0


class Carriers:
    """The faults of one storm. Each returns whether it was possible."""

    def __init__(self, run: StormRun) -> None:
        self._run = run

    def corrupt(self) -> bool:
        """A byte of the next payload on a link is changed."""
        return self._run.pairs.change(self._pair(), int(self._run.random.integers(2)))

    def lose(self) -> bool:
        """A link loses packets for a while."""
        return self._run.pairs.lose(self._pair(), LOSS, self._seconds())

    def expire(self) -> bool:
        """The certificate of a rank expires: connections stay, one breaks, and none is made until it is renewed."""
        ends = self._pair()
        self._run.pairs.refuse(ends[int(self._run.random.integers(2))], self._seconds())
        return self._run.pairs.break_link(ends)

    def jump(self) -> bool:
        """The clock of a rank is set forward or back."""
        names = sorted(self._run.trainers)
        trainer = self._run.trainers[self._run.one(names)]
        trainer.clock_ahead_s += JUMP_S * float(self._run.random.choice([-1.0, 1.0]))
        return True

    def _seconds(self) -> float:
        return float(self._run.random.choice(DURATIONS_S)) * float(self._run.random.random())

    def _pair(self) -> tuple[str, str]:
        pairs = list(combinations(self._run.names, 2))
        return pairs[int(self._run.random.integers(len(pairs)))]
