"""Stale synchronous parallel (SSP): exchanges with a server, with a bounded lead over the slowest rank."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.errors import BadOption
from tradewind.network import Network
from tradewind.policy.events import Event, WorkerJoined, WorkerLost, WorkerReady
from tradewind.policy.server import ServerMachine


@dataclass(frozen=True)
class SspOptions:
    """Options of `ssp`."""

    k: int = 3
    """The most steps that a rank may be ahead of the slowest one (the staleness bound)."""
    server: str | None = None
    """The site that keeps the shared model; None: the rank with the best links."""

    def __post_init__(self) -> None:
        if self.k < 0:
            raise BadOption(f"policy 'ssp': k must be at least 0, got {self.k}.")


class Ssp(ServerMachine):
    """Each rank exchanges with a server, and waits when it is more than k steps ahead of the slowest.

    Selective Reduce II-E: k = 0 is a barrier after every step, unbounded k is `asp`. A rank waits before its exchange
    rather than after it, so that it receives the newest model. A baseline.
    """

    name = "ssp"

    def __init__(
        self, network: Network, workers: tuple[str, ...], options: SspOptions, *, seed: int, now_s: float
    ) -> None:
        super().__init__(network, workers, options.server, seed=seed, now_s=now_s)
        self.k = options.k
        self._steps = dict.fromkeys(workers, 0)

    def observe(self, event: Event) -> None:
        """Count the steps of each rank."""
        super().observe(event)
        match event:
            case WorkerReady(worker):
                self._steps[worker] += 1
            case WorkerLost(worker, _):
                del self._steps[worker]
            case WorkerJoined(worker):
                # A new rank starts with the count of the slowest: with a count of 0 all others would have to wait.
                self._steps[worker] = min(self._steps.values(), default=0)

    def may_exchange(self, worker: str) -> bool:
        """Whether the rank is at most k steps ahead of the slowest."""
        return self._lead(worker) <= self.k

    def reason(self, worker: str) -> str:
        """The reason of an exchange: the lead of the rank."""
        return f"{worker} is {self._lead(worker)} steps ahead of the slowest, at most {self.k} are allowed"

    def _lead(self, worker: str) -> int:
        return self._steps[worker] - min(self._steps.values())
