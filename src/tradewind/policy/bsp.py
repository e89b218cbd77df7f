"""Bulk synchronous parallel (BSP): rounds of all ranks."""

from __future__ import annotations

from tradewind.network import Network
from tradewind.policy.machine import Machine
from tradewind.registry import NoOptions


class Bsp(Machine):
    """All live ranks average after every step.

    The reference for all other policies: the best progress per step, at the speed of the slowest rank.
    """

    name = "bsp"

    def __init__(
        self,
        network: Network,
        workers: tuple[str, ...],
        options: NoOptions,  # noqa: ARG002  (it has no options)
        *,
        seed: int,
        now_s: float,
    ) -> None:
        super().__init__(network, workers, seed=seed, now_s=now_s)

    def decide(self) -> None:
        """Start a round when all live ranks are ready."""
        live = self.roster.live_count
        if self.proceed_if_alone() or not live or self.roster.queue_length < live:
            return
        self.start(self.roster.live, f"all {live} live ranks are ready")

    def note(self) -> str:
        """The number of ready ranks."""
        return f"{self.roster.queue_length} of {self.roster.live_count} ready"
