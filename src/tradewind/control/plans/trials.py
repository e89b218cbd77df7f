"""Whether a new plan has kept its promise: rounds by it against rounds by the plan before.

Theory of operation. A plan is changed because estimates say that rounds will end sooner. Estimates can be wrong, and
what rounds take is known, so every switch is on trial. Rounds since are compared with the last ones before, each with
those of its own size, since a small array takes longer for a byte. Where rounds overlap, one takes from the end of the
round before it, not from its start, when it had to wait. Only rounds of the last `confirm_s` before the switch count,
or the last one, and those that end after it: a link that became slower did so before that, and what rounds took on a
faster network is no measure. The middle of the ratios says better or worse as soon as it is off by more than rounds
scatter by themselves; after MOST_ROUNDS nobody can tell, and the plan stays.

A plan that is worse is taken back, and the next look at plans waits twice as long, and so on, until a switch has
proven a gain. Taking back is a switch as well, and on trial: if it was the network that became slower at that moment,
rounds by the old plan are slower still, and the new one returns.

A second switch during a trial begins another, against the rounds since the first: the network may have changed in
between, and what rounds took before is no measure then. Where no round has ended since, the first trial goes on.
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
"""Less is nothing to act on, however steady rounds are."""
DOUBT = 3.0
"""So many times the scatter of rounds, over the root of their number, may be chance."""

Verdict = Literal["better", "worse", "same", "open"]
Rounds = list[tuple[int, float]]
"""Size and seconds of each."""


@dataclass(slots=True)
class Trial:
    """Of a new plan."""

    before: Plan
    """What to go back to."""
    version: int
    """Of that plan: rounds by it may still be under way."""
    reference: Rounds
    since: Rounds = field(default_factory=list)
    is_return: bool = False
    """Of a plan that was there before: that it is better than what it replaced is no gain."""

    def verdict(self) -> Verdict:
        """What rounds say so far.

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
        doubt = MARGIN + DOUBT * mean(scatter) / math.sqrt(min(len(ratios), len(self.reference)))
        if middle > 1.0 + doubt:
            return "worse"
        if middle < 1.0 - doubt:
            return "better"
        return "open" if len(ratios) < MOST_ROUNDS else "same"


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of a trial."""

    proven: bool
    """A gain."""
    back_to: Plan | None
    """The plan to use again; None: the new one stays."""


class Trials:
    """Of the plans for one kind of round."""

    def __init__(self, confirm_s: float) -> None:
        self.trial: Trial | None = None
        self._confirm_s = confirm_s
        self._last: deque[tuple[float, int, float]] = deque(maxlen=MOST_ROUNDS)
        """Rounds by the plan that is used now: when they ended, their size and their seconds."""

    @property
    def seconds_per_byte(self) -> float:
        """Of the longer of the last two rounds; infinite: there was none."""
        last = list(self._last)[-2:]
        return max((seconds / nbytes for _, nbytes, seconds in last), default=math.inf)

    def switched(self, before: Plan, version: int, now_s: float) -> None:
        """Another plan is used from now on."""
        if self._last:
            since_s = min(now_s - self._confirm_s, self._last[-1][0])
            counted = [(nbytes, seconds) for at_s, nbytes, seconds in self._last if at_s >= since_s]
            self.trial = Trial(before, version, counted)
        self._last.clear()

    def ended_late(self, nbytes: int, seconds: float, version: int) -> None:
        """A round has ended by a plan that is not used any more; perhaps by the one that a new one is compared with."""
        if self.trial is not None and self.trial.version == version:
            self.trial.reference.append((nbytes, seconds))

    def ended(self, nbytes: int, seconds: float, current: Plan, version: int, now_s: float) -> Ended | None:
        """A round by the current plan has ended: what came of a trial, if that ends one."""
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
