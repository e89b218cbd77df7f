"""Which rounds a trace records one by one, so that it grows by at most a given rate. No I/O and no clock.

A run of 20 rounds a second is alike for minutes, and an operator looks at few of its rounds: those that were slow, the
first ones of each plan, and some of the others as examples. All others are summed up (`Totals`).
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Iterator

from tradewind.trace.records import Record

FIRST_ROUNDS = 20
"""The first rounds of a size under a plan are recorded."""
SLOW_FACTOR = 1.5
"""Rounds that take this many times as long as usual are recorded."""
LEAST_DELAY_S = 0.005
"""Rounds are slow if they take at least this much longer than usual: less is noise of any scheduler."""
BASELINE = 20
"""Earlier rounds that say what is usual; the median counts."""
SAVED_S = 60.0
"""Rounds that are worth it may use what was not spent in this time."""
REGULAR_SHARE = 0.75
"""The share of the rate that regular examples use; the rest is saved for rounds that are worth it."""
WEIGHT = 0.2
"""The weight of the latest second in means of costs and paces."""


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

    def __init__(self, bytes_per_s: float | None) -> None:
        """`bytes_per_s`: the mean rate; None: everything is taken."""
        self.every = 1
        self._rate = bytes_per_s
        self._most = self._saved = math.inf if bytes_per_s is None else SAVED_S * bytes_per_s
        self._cost_bytes: float | None = None
        self._pace: float | None = None
        """Items a second."""
        self._seen = self._taken = 0
        self._spent = 0.0

    def takes(self, number: int, is_special: bool = False) -> bool:
        """Whether the item is recorded; one that is special is, while bytes are saved."""
        self._seen += 1
        taken = self._saved > 0 and (is_special or number % self.every == 0)
        self._taken += taken
        return taken

    def spent(self, nbytes: float) -> None:
        """Note how many bytes a taken item needed."""
        self._saved -= nbytes
        self._spent += nbytes

    def passed(self, seconds: float) -> None:
        """Note that time has passed, and choose N by what items cost and how many there are."""
        if self._rate is None or seconds <= 0:
            return
        self._saved = min(self._most, self._saved + self._rate * seconds)
        self._pace = _mean(self._pace, self._seen / seconds)
        if self._taken:
            self._cost_bytes = _mean(self._cost_bytes, self._spent / self._taken)
        self._seen = self._taken = 0
        self._spent = 0.0
        needed = self._pace * (self._cost_bytes or 0.0) / (REGULAR_SHARE * self._rate)
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
        self._usual_s: dict[float, deque[float]] = defaultdict(lambda: deque(maxlen=BASELINE))
        self._plan: int | None = None
        self._first: dict[float, int] = defaultdict(int)

    def of(self, nbytes: float, seconds: float, plan: int | None) -> bool:
        """Whether a round of this size, duration and plan version is worth it."""
        if plan != self._plan:
            self._plan = plan
            self._first.clear()
        usual_s = self._usual_s[nbytes]
        longer_s = seconds - statistics.median(usual_s) if len(usual_s) == BASELINE else 0.0
        usual_s.append(seconds)
        self._first[nbytes] += 1
        is_slow = longer_s >= max(LEAST_DELAY_S, (SLOW_FACTOR - 1.0) * (seconds - longer_s))
        return is_slow or self._first[nbytes] <= FIRST_ROUNDS


class Totals:
    """Sums of what is not recorded one by one, as `total` records.

    >>> totals = Totals()
    >>> for _ in range(3):
    ...     totals.add("sync", "a", seconds=0.5)
    >>> [(record.phase, record.count, record.spent_s) for record in totals.take(0.0, 10.0)]
    [('sync', 3, 1.5)]
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str, str], list[float]] = {}

    def add(
        self,
        what: str,
        site: str,
        peer: str = "",
        outcome: str = "",
        *,
        count: int = 1,
        seconds: float = 0,
        nbytes: float = 0,
    ) -> None:
        """Add an activity, a flow or a round, or several of them."""
        sums = self._sums.setdefault((what, site, peer, outcome), [0, 0.0, 0])
        sums[0] += count
        sums[1] += seconds
        sums[2] += nbytes

    def take(self, since_s: float, now_s: float) -> Iterator[Record]:
        """One record for each sum, which begins again."""
        sums, self._sums = self._sums, {}
        for (what, site, peer, outcome), (count, seconds, nbytes) in sums.items():
            spent = {"count": int(count), "spent_s": round(seconds, 6), "sent_bytes": nbytes}
            yield Record("total", since_s, now_s, site, peer, phase=what, outcome=outcome, **spent)  # type: ignore[arg-type]
