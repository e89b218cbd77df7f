"""Asynchronous: no barrier at all."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.network import Network
from tradewind.policy.server import ServerMachine


@dataclass(frozen=True)
class AspOptions:
    """Where the shared model is kept; by default at the best connected worker."""

    server: str | None = None


class Asp(ServerMachine):
    """Each worker exchanges with a server after every step and waits for nobody.

    The fastest pace and no bound on staleness: DS-Sync II-B2 shows it losing accuracy. A baseline.
    """

    name = "asp"

    def __init__(
        self, network: Network, workers: tuple[str, ...], options: AspOptions, *, seed: int, now_s: float
    ) -> None:
        super().__init__(network, workers, options.server, seed=seed, now_s=now_s)

    def may_exchange(self, worker: str) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def reason(self, worker: str) -> str:
        """Nobody waits."""
        return f"{worker} is ready and nobody waits"
