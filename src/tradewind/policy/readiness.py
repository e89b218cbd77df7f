"""The probability that a training rank becomes ready soon, from the distribution of step times.

Selective Reduce III-D1. The distribution is known in advance (warm start: any object with a `cdf`, such as the
catalog's compute times), or learnt from the observed steps (cold start).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from typing import Literal, Protocol, runtime_checkable

ProbabilityForm = Literal["conditional", "printed"]


@runtime_checkable
class ReadinessModel(Protocol):
    """A distribution of the duration of a local step."""

    def cdf(self, t_s: float, /) -> float:
        """The fraction of steps that take at most `t_s` seconds (the paper's F)."""
        ...


class LearntReadiness:
    """The distribution of the last `window` observed steps of all ranks.

    Before the first step `cdf` is 0, so a policy expects no rank to become ready and does not wait.

    >>> seen = LearntReadiness()
    >>> seen.cdf(1.0)
    0.0
    >>> for step_s in (0.4, 0.6, 0.5, 0.9):
    ...     seen.observe(step_s)
    >>> seen.cdf(0.6)
    0.75

    Mechanism: Selective Reduce III-D1, distribution of steps learnt from a cold start (live: selective/training)
    """

    def __init__(self, window: int = 2000) -> None:
        self._window = window
        self._in_order: deque[float] = deque()
        self._sorted: list[float] = []

    def observe(self, step_s: float) -> None:
        """Add the duration of a step; the oldest one beyond the window is dropped."""
        self._in_order.append(step_s)
        insort(self._sorted, step_s)
        if len(self._in_order) > self._window:
            oldest = self._in_order.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]

    def cdf(self, t_s: float, /) -> float:
        """The fraction of observed steps that took at most `t_s` seconds."""
        return bisect_right(self._sorted, t_s) / len(self._sorted) if self._sorted else 0.0


def ready_soon(model: ReadinessModel, elapsed_s: float, horizon_s: float, form: ProbabilityForm) -> float:
    """The probability that a rank that has trained for `elapsed_s` (t) is ready within `horizon_s` (dt).

    `conditional` is what Eq. (4) is meant to compute, (F(t + dt) - F(t)) / (1 - F(t)). `printed` is its printed result,
    F(t + dt), which considers stragglers nearly done and so waits more. Beyond the longest known step, the conditional
    form is 0: there is no evidence that the rank is about to finish.

    >>> seen = LearntReadiness()
    >>> for step_s in (1.0, 2.0, 3.0, 3.0, 13.0):
    ...     seen.observe(step_s)
    >>> round(ready_soon(seen, 2.0, 1.0, "conditional"), 3), ready_soon(seen, 2.0, 1.0, "printed")
    (0.667, 0.8)

    Mechanism: Selective Reduce III-D1 Eq. (4), probability to be ready soon (live: selective/training)
    """
    soon = float(model.cdf(elapsed_s + horizon_s))
    if form == "printed":
        return soon
    already = float(model.cdf(elapsed_s))
    return max(0.0, (soon - already) / (1.0 - already)) if already < 1.0 else 0.0
