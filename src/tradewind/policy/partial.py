"""Partial reduce: whoever is ready first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tradewind.errors import BadOption
from tradewind.network import Network
from tradewind.policy.machine import Machine
from tradewind.policy.weights import staleness_weights

WeightRule = Literal["uniform", "staleness"]

DEFAULT_SHARE = 0.3
"""Of all workers in a round where p is not given: what Selective Reduce IV-A uses."""


@dataclass(frozen=True)
class PartialOptions:
    """How many start a round, and how their models are weighed."""

    p: int | None = None
    """How many ready workers start a round; None: 0.3 of the workers, at least two."""
    weights: WeightRule = "uniform"
    """uniform, or staleness: a model s steps behind counts 1 / (1 + s) as much."""


def resolve_scale(policy: str, p: int | None, workers: int) -> int:
    """The smallest scale p of a round: as given, or 0.3 of the workers, and at least two.

    >>> resolve_scale("partial", None, 10), resolve_scale("partial", 4, 10), resolve_scale("partial", None, 3)
    (3, 4, 2)
    """
    if p is None:
        return max(2, math.ceil(DEFAULT_SHARE * workers))
    if not 2 <= p <= max(2, workers):
        raise BadOption(f"policy {policy!r}: p is {p}; with {workers} workers it must be between 2 and {workers}.")
    return p


class Partial(Machine):
    """The first p ready workers average, and nobody waits for stragglers (partial reduce).

    CREW III: a queue of ready workers, popped whenever it holds p. Stragglers meet in a later round. With fewer than p
    live workers, all of them make a round.
    """

    name = "partial"

    def __init__(
        self, network: Network, workers: tuple[str, ...], options: PartialOptions, *, seed: int, now_s: float
    ) -> None:
        super().__init__(network, workers, seed=seed, now_s=now_s)
        self.p = resolve_scale(self.name, options.p, len(workers))
        self.weights = options.weights

    def decide(self) -> None:
        """Pop p from the queue while it holds as many."""
        if self.proceed_if_alone():
            return
        scale = min(self.p, self.roster.live_count)
        while scale >= 2 and len(self.roster.queue) >= scale:
            first = self.roster.queue[:scale]
            self.start(first, f"the first {scale} are ready", weights=self.weigh(first))

    def weigh(self, members: tuple[str, ...]) -> tuple[float, ...] | None:
        """Weights in the members' sorted order; None for uniform ones."""
        if self.weights == "uniform":
            return None
        return staleness_weights([self.roster.workers[name].progress for name in sorted(members)])

    def note(self) -> str:
        """How long the queue is."""
        return f"{len(self.roster.queue)} ready, a round takes {min(self.p, self.roster.live_count)}"
