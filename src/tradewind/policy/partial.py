"""Partial reduce: rounds of the first p ready ranks."""

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
"""The fraction of all ranks in a round if p is not given, as in Selective Reduce IV-A."""


@dataclass(frozen=True)
class PartialOptions:
    """Options of `partial`."""

    p: int | None = None
    """The number of ready ranks that start a round (CREW's p); None: 0.3 of the ranks, at least two."""
    weights: WeightRule = "uniform"
    """uniform, or staleness: a model s steps behind counts 1 / (1 + s) as much."""


def resolve_scale(policy: str, p: int | None, workers: int) -> int:
    """The least number of members p of a round: as given, or 0.3 of the ranks, and at least two.

    Raises BadOption if p is not between 2 and the number of ranks.

    >>> resolve_scale("partial", None, 10), resolve_scale("partial", 4, 10), resolve_scale("partial", None, 3)
    (3, 4, 2)
    """
    if p is None:
        return max(2, math.ceil(DEFAULT_SHARE * workers))
    if not 2 <= p <= max(2, workers):
        raise BadOption(f"policy {policy!r}: p must be between 2 and {max(2, workers)} with {workers} ranks, got {p}.")
    return p


class Partial(Machine):
    """The first p ready ranks average, without waiting for stragglers (partial reduce).

    CREW III: a queue of ready ranks, from which p are taken whenever it holds as many. Stragglers are in a later round.
    With fewer than p live ranks, a round has all of them.

    Mechanism: CREW III, queue of ready workers: the first p start (live: tradewind/stragglers)
    """

    name = "partial"

    def __init__(
        self, network: Network, workers: tuple[str, ...], options: PartialOptions, *, seed: int, now_s: float
    ) -> None:
        super().__init__(network, workers, seed=seed, now_s=now_s)
        self.p = resolve_scale(self.name, options.p, len(workers))
        self.weights = options.weights

    def decide(self) -> None:
        """Start a round of the first p ranks while the queue holds as many.

        Mechanism: Selective Reduce II-C, partial reduce with fewer than p workers left
        """
        if self.proceed_if_alone():
            return
        scale = min(self.p, self.roster.live_count)
        while scale >= 2 and self.roster.queue_length >= scale:
            first = self.roster.queue[:scale]
            self.start(first, f"the first {scale} ranks are ready", weights=self.weigh(first))

    def weigh(self, members: tuple[str, ...]) -> tuple[float, ...] | None:
        """The weights in the order of the sorted members; None: uniform."""
        if self.weights == "uniform":
            return None
        return staleness_weights([self.roster.workers[name].progress for name in sorted(members)])

    def note(self) -> str:
        """The length of the queue."""
        return f"{self.roster.queue_length} ready, a round takes {min(self.p, self.roster.live_count)}"
