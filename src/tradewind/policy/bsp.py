"""Bulk synchronous: everybody, every round."""

from __future__ import annotations

from tradewind.network import Network
from tradewind.policy.machine import Machine
from tradewind.registry import NoOptions


class Bsp(Machine):
    """All live workers average after every step.

    The reference that all others are measured against: the best progress a step, and the pace of the slowest.
    """

    name = "bsp"

    def __init__(
        self,
        network: Network,
        workers: tuple[str, ...],
        options: NoOptions,  # noqa: ARG002  (there is nothing to choose)
        *,
        seed: int,
        now_s: float,
    ) -> None:
        super().__init__(network, workers, seed=seed, now_s=now_s)

    def decide(self) -> None:
        """Start when nobody is missing."""
        live = self.roster.live_count
        if self.proceed_if_alone() or not live or len(self.roster.queue) < live:
            return
        self.start(self.roster.live, f"all {live} live workers are ready")

    def note(self) -> str:
        """How many are missing."""
        return f"{len(self.roster.queue)} of {self.roster.live_count} ready"
