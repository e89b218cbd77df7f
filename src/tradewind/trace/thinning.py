"""Which rounds a trace records one by one, so that it grows by at most a given rate. No I/O and no clock.

A run of 20 rounds a second is alike for minutes, and an operator looks at few of its rounds: those that were slow, the
first ones of each plan, and some of the others as examples. All others are summed up (`Totals`).
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tradewind.trace.records import Record

FIRST_ROUNDS = 20
"""The first rounds of a size under a plan are recorded."""
SLOW_FACTOR = 1.5
"""Rounds that take this many times as long as usual are recorded."""
LEAST_DELAY_S = 0.005
"""Rounds are slow if they take at least this much longer than usual: less is noise of any scheduler."""
BASELINE = 20
"""Earlier rounds that say what is usual; the median counts."""
REFRESH = 10
"""Rounds after which the median is made again."""
SAVED_S = 60.0
"""Rounds that are worth it may use what was not spent in this time."""
REGULAR_SHARE = 0.75
"""The share of the rate that regular examples use; the rest is saved for rounds that are worth it."""
WEIGHT = 0.2
"""The weight of the latest second in means of costs and paces."""
LIKELY_BYTES = 1.0
"""What a taken item is thought to need until one was written."""


class Sampler:
    """Takes every Nth item, as often as a rate of bytes allows, and others that are worth it while bytes are saved.

    N is a power of two, so that processes with different ones take the same rounds, and a round that one of them takes
    is in all others that take at least as many.

    >>> sampler = Sampler(bytes_per_s=100.0)
    >>> for second in range(20):
    ...     for number in range(10 * second, 10 * second + 10):
    ...         if sampler.takes(number):
    ...             sampler.spent(50.0)
    ...     sampler.passed(1.0)
    >>> sampler.every
    8
    """

    def __init__(self, bytes_per_s: float | None, most_per_s: float = math.inf) -> None:
        """`bytes_per_s`: the mean rate; None: everything is taken. `most_per_s`: the most regular items a second."""
        self.every = 1
        self._most_per_s = most_per_s
        self._rate = bytes_per_s
        self._most = self._saved = math.inf if bytes_per_s is None else SAVED_S * bytes_per_s
        self._cost_bytes: float | None = None
        self._pace: float | None = None
        """Items a second."""
        self._seen = self._taken = 0
        self._spent = self._reserved = 0.0

    def takes(self, number: int, is_special: bool = False) -> bool:
        """Whether the item is recorded; one that is special is, while bytes are saved.

        Items may be written later, up to the next `passed`: until then they count with what such items usually need.
        """
        self._seen += 1
        if not (is_special or number % self.every == 0) or self._saved <= self._reserved:
            return False
        self._taken += 1
        self._reserved += LIKELY_BYTES if self._cost_bytes is None else self._cost_bytes
        return True

    def spent(self, nbytes: float) -> None:
        """Note how many bytes a taken item needed."""
        self._spent += nbytes

    def passed(self, seconds: float) -> None:
        """Note that time has passed, and choose N by what items cost and how many there are."""
        if self._rate is None or seconds <= 0:
            return
        self._saved = min(self._most, self._saved - self._spent + self._rate * seconds)
        self._pace = _mean(self._pace, self._seen / seconds)
        if self._taken:
            self._cost_bytes = _mean(self._cost_bytes, self._spent / self._taken)
        self._seen = self._taken = 0
        self._spent = self._reserved = 0.0
        needed = self._pace * max((self._cost_bytes or 0.0) / (REGULAR_SHARE * self._rate), 1.0 / self._most_per_s)
        if needed > self.every or needed < 0.4 * self.every:  # not back and forth between two
            self.every = 2 ** max(0, math.ceil(math.log2(needed))) if needed > 0 else 1


def _mean(before: float | None, now: float) -> float:
    return now if before is None else (1 - WEIGHT) * before + WEIGHT * now


class Interest:
    """Which rounds are worth recording whatever N is: slow ones, and the first of each plan.

    >>> interest = Interest()
    >>> [interest.of(8, 1.0 + (number == 30), plan=3) for number in range(32)].count(True)
    21
    """

    def __init__(self) -> None:
        self._known: dict[float, _Usual] = defaultdict(_Usual)
        self._plan: int | None = None

    def of(self, nbytes: float, seconds: float, plan: int | None) -> bool:
        """Whether a round of this size, duration and plan version is worth it."""
        if plan != self._plan:
            self._plan = plan
            for other in self._known.values():
                other.rounds = 0
        usual = self._known[nbytes]
        is_slow = seconds >= usual.slow_s
        usual.rounds += 1
        usual.last_s.append(seconds)
        usual.unseen += 1
        if usual.unseen >= REFRESH or len(usual.last_s) < BASELINE:
            usual.refresh()
        return is_slow or usual.rounds <= FIRST_ROUNDS


@dataclass(slots=True)
class _Usual:
    """How long rounds of a size take; a median costs more than a round, so it is made again after some of them."""

    last_s: deque[float] = field(default_factory=lambda: deque(maxlen=BASELINE))
    rounds: int = 0
    """Of the present plan."""
    slow_s: float = math.inf
    """Rounds that take so long are slow."""
    unseen: int = 0

    def refresh(self) -> None:
        self.unseen = 0
        if len(self.last_s) == BASELINE:
            usual_s = statistics.median(self.last_s)
            self.slow_s = usual_s + max(LEAST_DELAY_S, (SLOW_FACTOR - 1.0) * usual_s)


@dataclass(slots=True)
class Sum:
    """How many activities, flows or rounds there were, and how long and large all of them together."""

    count: int = 0
    seconds: float = 0.0
    nbytes: float = 0

    def add(self, seconds: float, nbytes: float = 0, count: int = 1) -> None:
        """Add one, or several."""
        self.count += count
        self.seconds += seconds
        self.nbytes += nbytes


class Totals:
    """Sums of what is not recorded one by one, as `total` records.

    >>> totals = Totals()
    >>> for _ in range(3):
    ...     totals.of("sync", "a").add(0.5)
    >>> [(record.phase, record.count, record.spent_s) for record in totals.take(0.0, 10.0)]
    [('sync', 3, 1.5)]
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str, str], Sum] = defaultdict(Sum)

    def of(self, what: str, site: str, peer: str = "", outcome: str = "") -> Sum:
        """The sum of an activity, of flows or of rounds; it may be kept."""
        return self._sums[what, site, peer, outcome]

    def take(self, since_s: float, now_s: float) -> Iterator[Record]:
        """One record for each sum, which begins again."""
        for (what, site, peer, outcome), summed in self._sums.items():
            if not summed.count:
                continue
            spent = {"count": summed.count, "spent_s": round(summed.seconds, 6), "sent_bytes": summed.nbytes}
            yield Record("total", since_s, now_s, site, peer, phase=what, outcome=outcome, **spent)  # type: ignore[arg-type]
            summed.count, summed.seconds, summed.nbytes = 0, 0.0, 0
