"""Trials of new plans: rounds by the new plan are compared with rounds by the plan before it.

Theory of operation. A plan is changed because estimates predict shorter rounds. Estimates can be wrong, but the
duration of rounds is known, so every switch is on trial. Rounds since the switch are compared with the last ones before
it, each with those of the same size, since a small array takes more time per byte. Where rounds overlap, the time of a
round counts from the end of the round before it, not from its start, when it had to wait. Only rounds that ended within
`confirm_s` before the switch count, or the last one if there is none, and those that end after it: if a link became
slower, it did so before, and rounds on the faster network are no reference. The median of the ratios gives the verdict
as soon as it differs by more than the scatter of rounds explains; after MOST_ROUNDS without a verdict the plan stays.

A plan that is worse is rolled back, and the time until the next review of plans doubles, until a switch has proven a
gain. A rollback is a switch as well, and on trial: if the network became slower at that moment, rounds by the old plan
are slower still, and the new plan is restored.

A second switch during a trial starts another trial, with the rounds since the first switch as reference: the network
may have changed in between, and earlier rounds are no reference then. If no round has ended since, the first trial
continues.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Literal

from tradewind.planning.plan import Plan

FEWEST_ROUNDS = 3
MOST_ROUNDS = 12
MARGIN = 0.03
"""Smallest relative difference that gives a verdict, however steady rounds are."""
SCATTER_FACTOR = 3.0
"""A difference of up to this many times the scatter of rounds, over the root of their number, may be chance."""

Verdict = Literal["better", "worse", "same", "open"]
Rounds = list[tuple[int, float]]
"""Size in bytes and duration in seconds of each round."""


@dataclass(slots=True)
class Trial:
    """The trial of a new plan."""

    before: Plan
    """The plan to roll back to."""
    version: int
    """The version of that plan; rounds by it may still be running."""
    reference: Rounds
    since: Rounds = field(default_factory=list)
    is_return: bool = False
    """Whether the plan on trial is one that was rolled back to; if it is better, that proves no gain."""

    def verdict(self) -> Verdict:
        """Return the verdict of the rounds so far.

        >>> plan = Plan("ring", "lan", ("a", "b"), 8, ())
        >>> Trial(plan, 1, [(8, 1.0)] * 3, [(8, 1.5)] * 3).verdict()
        'worse'
        >>> Trial(plan, 1, [(8, 1.0), (8, 1.6), (8, 0.9)], [(8, 1.3), (8, 0.8), (8, 1.1)]).verdict()
        'open'
        """
        usual_s = {size: median(s for n, s in self.reference if n == size) for size, _ in self.reference}
        ratios = [seconds / usual_s[size] for size, seconds in self.since if size in usual_s]
        if len(ratios) < FEWEST_ROUNDS:
            return "open" if len(self.since) < MOST_ROUNDS else "same"
        middle = median(ratios)
        scatter = [abs(ratio / middle - 1.0) for ratio in ratios]
        scatter += [abs(seconds / usual_s[size] - 1.0) for size, seconds in self.reference]
        margin = MARGIN + SCATTER_FACTOR * mean(scatter) / math.sqrt(min(len(ratios), len(self.reference)))
        if middle > 1.0 + margin:
            return "worse"
        if middle < 1.0 - margin:
            return "better"
        return "open" if len(ratios) < MOST_ROUNDS else "same"


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a trial."""

    proven: bool
    """Whether the new plan has proven a gain."""
    back_to: Plan | None
    """The plan to roll back to; None: the new one stays."""


class Trials:
    """The trials of the plans for one kind of round."""

    def __init__(self, confirm_s: float) -> None:
        self.trial: Trial | None = None
        self._confirm_s = confirm_s
        self._last: deque[tuple[float, int, float]] = deque(maxlen=MOST_ROUNDS)
        """Rounds by the current plan: end time, size in bytes and duration in seconds."""

    @property
    def seconds_per_byte(self) -> float:
        """Seconds per byte of the slower of the last two rounds; infinite: there was none."""
        last = list(self._last)[-2:]
        return max((seconds / nbytes for _, nbytes, seconds in last), default=math.inf)

    def switched(self, before: Plan, version: int, now_s: float) -> None:
        """Start a trial, because another plan than `before` is used from now on."""
        if self._last:
            since_s = min(now_s - self._confirm_s, self._last[-1][0])
            counted = [(nbytes, seconds) for at_s, nbytes, seconds in self._last if at_s >= since_s]
            self.trial = Trial(before, version, counted)
        self._last.clear()

    def ended_late(self, nbytes: int, seconds: float, version: int) -> None:
        """Record a round that ended by an earlier plan; it counts if that plan is the reference of the trial."""
        if self.trial is not None and self.trial.version == version:
            self.trial.reference.append((nbytes, seconds))

    def ended(self, nbytes: int, seconds: float, current: Plan, version: int, now_s: float) -> Ended | None:
        """Record a round by the current plan; return the result of the trial if this ends it."""
        self._last.append((now_s, nbytes, seconds))
        trial = self.trial
        if trial is None:
            return None
        trial.since.append((nbytes, seconds))
        verdict = trial.verdict()
        if verdict == "open":
            return None
        self.trial = None
        if verdict != "worse":
            return Ended(verdict == "better" and not trial.is_return, None)
        self.trial = Trial(current, version, trial.since[-2 * FEWEST_ROUNDS :], is_return=True)
        self._last.clear()
        return Ended(False, trial.before)
