"""A custom policy: rounds of all live ranks, which leave out ranks that keep a majority waiting too long.

tradewind simulate crew-n2 --policy examples/plugin_policy.py:Majority --policy-option wait_s=0.05 --planner ring
tradewind simulate crew-n2 --scheme bsp-ring,examples/plugin_policy.py:Majority+ring --bytes 10MB --seconds 20
"""

from __future__ import annotations

from dataclasses import dataclass

from tradewind import Network
from tradewind.policy import Machine

TIMER = "majority"


@dataclass(frozen=True)
class MajorityOptions:
    """How long a majority waits for the rest."""

    wait_s: float = 0.1
    """Seconds that a round waits for the other ranks when more than half of them are ready."""

    def __post_init__(self) -> None:
        if not 0 < self.wait_s < 3600:
            raise ValueError(f"wait_s must be above 0 and below 3600, got {self.wait_s}")


class Majority(Machine):
    """All live ranks average, but more than half of them wait no longer than `wait_s` for the others."""

    def __init__(
        self, network: Network, workers: tuple[str, ...], options: MajorityOptions, *, seed: int, now_s: float
    ) -> None:
        super().__init__(network, workers, seed=seed, now_s=now_s)
        self.wait_s = options.wait_s
        self.waits_until_s: float | None = None

    def decide(self) -> None:
        """Start with all ranks, or with the majority when it has waited long enough."""
        if self.proceed_if_alone():
            return
        ready, live = self.roster.queue, self.roster.live_count
        if 2 * len(ready) <= live:
            return
        if self.waits_until_s is None and len(ready) < live:
            self.waits_until_s = self.now_s + self.wait_s
            self.set_timer(TIMER, self.waits_until_s, f"{len(ready)} of {live} are ready")
        elif len(ready) == live or (self.waits_until_s is not None and self.now_s >= self.waits_until_s):
            self.cancel_timer(TIMER, "the round starts")
            self.waits_until_s = None
            self.start(ready, f"{len(ready)} of {live} are ready")
