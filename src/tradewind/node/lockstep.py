"""Whether a rank takes a step: all members of an elastic run take the same steps from the same state, or none does.

Beside their gradients, members average a few numbers about their states: the version (the number of steps taken), a
word of the history of these steps, and the squares of both. Mean and mean square show whether all members had the same.
Every member of a round sees the same numbers, so all of them take the step or none does. Whatever made a rank miss a
step that others took, or take one that they did not, it sees that in its next round, and fetches the state of others.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from tradewind.node.actions import Outcome

VERSION, VERSION_SQUARE, HISTORY, HISTORY_SQUARE, WEIGHT = range(5)
"""Items of the averaged numbers."""
_BITS = 20
"""Bits of versions and histories that are compared: so few that the squares of 4096 ranks add up exactly in float64."""


class Verdict(enum.Enum):
    """What a rank does after a round."""

    TAKE = "take the step"
    REPEAT = "repeat the round: a member was lost, and may be in a part of the result"
    WAIT = "repeat it later: this rank has no controller, and others may go on without it"
    BEHIND = "fetch the state of a newer version, if others have one, and repeat the step"
    SPLIT = "fetch the state of the first contributor: there are different states of one version"


@dataclass(slots=True)
class Lockstep:
    """The version and history of a rank's state.

    >>> a, b = Lockstep(3, 7), Lockstep(3, 7)
    >>> alone = Outcome(("a",), (1.0,), (0,), 0)
    >>> a.judge([alone], a.status(4), present=1).name, a.judge([alone], b.status(4), present=2).name
    ('TAKE', 'WAIT')
    """

    version: int = -1
    """Number of steps taken; negative: there is no state yet."""
    history: int = 0
    """A word that depends on all steps so far."""

    def status(self, weight: float) -> list[float]:
        """The numbers to be averaged with those of the other members; `weight` is the number of samples."""
        version, history = float(self.version % 2**_BITS), float(self.history)
        return [version, version**2, history, history**2, weight]

    def judge(self, outcomes: Sequence[Outcome], status: Sequence[float], present: int) -> Verdict:
        """What to do after a round, given the outcomes of its parts, the averaged numbers, and the ranks present."""
        first = outcomes[0]
        if first.alone and present > 1:
            return Verdict.WAIT
        own = self.status(0.0)
        if list(status[:HISTORY]) != own[:HISTORY]:
            return Verdict.BEHIND
        if list(status[HISTORY:WEIGHT]) != own[HISTORY:WEIGHT]:
            return Verdict.SPLIT
        if any(part.contributors != first.contributors or part.repaired for part in outcomes):
            return Verdict.REPEAT
        return Verdict.TAKE

    def taken(self, outcome: Outcome) -> None:
        """Count a step that was taken."""
        about = f"{self.history} {self.version} {outcome.round} {' '.join(sorted(outcome.contributors))}"
        self.version += 1
        self.history = zlib.crc32(about.encode()) >> (32 - _BITS)
