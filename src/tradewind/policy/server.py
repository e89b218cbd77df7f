"""The base of `asp` and `ssp`: each rank exchanges with a server that keeps the shared model.

Both come from parameter servers and have no collective form: an exchange involves one rank and a site that serves at
any time. The server is a site of the network. By default it is the live rank with the best links to the others, as CREW
V-A places its parameter server; that rank has the model on its own machine and needs no exchange.
"""

from __future__ import annotations

from abc import abstractmethod

from tradewind.network import Network
from tradewind.policy.bandwidth import mean_link_bps
from tradewind.policy.events import Event, WorkerLost
from tradewind.policy.machine import Machine


class ServerMachine(Machine):
    """A policy in which each rank exchanges with a server by itself."""

    def __init__(
        self, network: Network, workers: tuple[str, ...], server: str | None, *, seed: int, now_s: float
    ) -> None:
        super().__init__(network, workers, seed=seed, now_s=now_s)
        self.server = self._best_connected() if server is None else network.site(server).name
        self._is_lost = False

    def observe(self, event: Event) -> None:
        """Notice the loss of the server; one that takes no steps serves on."""
        if isinstance(event, WorkerLost) and event.worker == self.server:
            self._is_lost = not event.is_present

    @abstractmethod
    def may_exchange(self, worker: str) -> bool:
        """Whether a ready rank may exchange now."""

    @abstractmethod
    def reason(self, worker: str) -> str:
        """Why a rank may exchange now."""

    def decide(self) -> None:
        """Start the exchange of every ready rank that may."""
        if self._is_lost and self.roster.live_count:
            self._replace_server()
        for worker in self.roster.queue:
            if not self.may_exchange(worker):
                continue
            if worker == self.server:
                self.proceed(worker, f"{self.reason(worker)}, and the server is on its own site")
            else:
                self.start((worker,), self.reason(worker), "server", plan_hint="star", server=self.server)

    def note(self) -> str:
        """The site of the server."""
        return f"server at {self.server}"

    def _replace_server(self) -> None:
        """Choose another server, which starts from its own model, and abandon the exchanges with the lost one."""
        lost, self.server, self._is_lost = self.server, self._best_connected(), False
        for number in sorted(self.roster.running):
            self.abandon(number, f"its server {lost} was lost; {self.server} takes over")

    def _best_connected(self) -> str:
        """The live rank with the best links; one that has taken steps, if there is one, since it has the model."""
        live = self.roster.live
        able = [name for name in live if self.roster.workers[name].iteration is not None] or live
        return max(able, key=lambda name: mean_link_bps(self.network.bandwidth_bps, self.network.index, name, live))
