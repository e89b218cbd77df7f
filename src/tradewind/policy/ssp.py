"""Stale synchronous: a bounded lead."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.errors import BadOption
from tradewind.network import Network
from tradewind.policy.events import Event, WorkerJoined, WorkerLost, WorkerReady
from tradewind.policy.server import ServerMachine


@dataclass(frozen=True)
class SspOptions:
    """How far the fastest may be ahead, in steps, and where the shared model is kept."""

    k: int = 3
    """How many steps a worker may be ahead of the slowest."""
    server: str | None = None
    """The site that keeps the shared model; None: the best connected worker."""

    def __post_init__(self) -> None:
        if self.k < 0:
            raise BadOption(f"policy 'ssp': k is {self.k}; a worker cannot be ahead by less than 0 steps.")


class Ssp(ServerMachine):
    """Each worker exchanges with a server, and waits when it is more than k steps ahead of the slowest.

    Selective Reduce II-E: k = 0 is a barrier after every step, k without bound is `asp`. A worker waits before its
    exchange rather than after it, so that it comes back with the newest model. A baseline.
    """

    name = "ssp"

    def __init__(
        self, network: Network, workers: tuple[str, ...], options: SspOptions, *, seed: int, now_s: float
    ) -> None:
        super().__init__(network, workers, options.server, seed=seed, now_s=now_s)
        self.k = options.k
        self._steps = dict.fromkeys(workers, 0)

    def observe(self, event: Event) -> None:
        """Count steps."""
        match event:
            case WorkerReady(worker, _):
                self._steps[worker] += 1
            case WorkerLost(worker, _):
                del self._steps[worker]
            case WorkerJoined(worker):
                # A newcomer starts level with the slowest: with a count of its own it would stop everybody.
                self._steps[worker] = min(self._steps.values(), default=0)

    def may_exchange(self, worker: str) -> bool:
        """Whether it is at most k steps ahead."""
        return self._lead(worker) <= self.k

    def reason(self, worker: str) -> str:
        """How far ahead it is."""
        return f"{worker} is {self._lead(worker)} steps ahead of the slowest, at most {self.k} are allowed"

    def _lead(self, worker: str) -> int:
        return self._steps[worker] - min(self._steps.values())
