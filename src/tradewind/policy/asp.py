"""Asynchronous parallel (ASP): exchanges with a server, without any barrier."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.network import Network
from tradewind.policy.server import ServerMachine


@dataclass(frozen=True)
class AspOptions:
    """Options of `asp`."""

    server: str | None = None
    """The site that keeps the shared model; None: the rank with the best links."""


class Asp(ServerMachine):
    """Each rank exchanges with a server after every step, without waiting for others.

    The fastest policy per step, with unbounded staleness: DS-Sync II-B2 shows that it loses accuracy. A baseline.
    """

    name = "asp"

    def __init__(
        self, network: Network, workers: tuple[str, ...], options: AspOptions, *, seed: int, now_s: float
    ) -> None:
        super().__init__(network, workers, options.server, seed=seed, now_s=now_s)

    def may_exchange(self, worker: str) -> bool:  # noqa: ARG002
        """Always True."""
        return True

    def reason(self, worker: str) -> str:
        """The reason of an exchange."""
        return f"{worker} is ready, and asp has no barrier"
