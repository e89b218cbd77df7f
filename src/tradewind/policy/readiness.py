"""When will a training worker be ready? The distribution of step times says how likely `soon` is.

Selective Reduce III-D1. The distribution is known in advance (warm start: anything with a `cdf`, such as the catalog's
compute times), or learnt from the steps seen so far (cold start).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from typing import Literal, Protocol, runtime_checkable

ProbabilityForm = Literal["conditional", "printed"]


@runtime_checkable
class ReadinessModel(Protocol):
    """A distribution of the time that a local step takes."""

    def cdf(self, t_s: float, /) -> float:
        """The share of steps that take at most `t_s` seconds (the paper's F)."""
        ...


class LearntReadiness:
    """The distribution of the last steps seen, of all workers together.

    Before the first step it expects nobody, so a policy that asks it acts as if nothing were worth waiting for.

    >>> seen = LearntReadiness()
    >>> seen.cdf(1.0)
    0.0
    >>> for step_s in (0.4, 0.6, 0.5, 0.9):
    ...     seen.observe(step_s)
    >>> seen.cdf(0.6)
    0.75
    """

    def __init__(self, window: int = 2000) -> None:
        self._window = window
        self._in_order: deque[float] = deque()
        self._sorted: list[float] = []

    def observe(self, step_s: float) -> None:
        """A step took that long; the oldest beyond the window is forgotten."""
        self._in_order.append(step_s)
        insort(self._sorted, step_s)
        if len(self._in_order) > self._window:
            oldest = self._in_order.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]

    def cdf(self, t_s: float, /) -> float:
        """The share of steps that took at most that long."""
        return bisect_right(self._sorted, t_s) / len(self._sorted) if self._sorted else 0.0


def ready_soon(model: ReadinessModel, elapsed_s: float, horizon_s: float, form: ProbabilityForm) -> float:
    """How likely a worker that has trained for `elapsed_s` (t) is ready within `horizon_s` (dt).

    `conditional` is what Eq. (4) sets out to compute, (F(t + dt) - F(t)) / (1 - F(t)). `printed` is what it ends with,
    F(t + dt): it takes stragglers for nearly done and so waits more. Past the longest step known, the conditional form
    says 0: nothing suggests that the worker is about to finish.

    >>> seen = LearntReadiness()
    >>> for step_s in (1.0, 2.0, 3.0, 3.0, 13.0):
    ...     seen.observe(step_s)
    >>> round(ready_soon(seen, 2.0, 1.0, "conditional"), 3), ready_soon(seen, 2.0, 1.0, "printed")
    (0.667, 0.8)
    """
    soon = float(model.cdf(elapsed_s + horizon_s))
    if form == "printed":
        return soon
    already = float(model.cdf(elapsed_s))
    return max(0.0, (soon - already) / (1.0 - already)) if already < 1.0 else 0.0
