"""What `asp` and `ssp` share: each worker exchanges with a server that keeps the shared model.

Both come from parameter servers and have no collective form: an exchange concerns one worker and a site that serves
whenever asked. The server is a site of the network. By default it is the live worker with the best links to the
others, as CREW V-A places its parameter server; that one reads the model on its own machine and just trains on.
"""

from __future__ import annotations

from abc import abstractmethod

from tradewind.network import Network
from tradewind.policy.bandwidth import mean_link_bps
from tradewind.policy.machine import Machine


class ServerMachine(Machine):
    """A policy in which workers exchange with a server, one by one."""

    def __init__(
        self, network: Network, workers: tuple[str, ...], server: str | None, *, seed: int, now_s: float
    ) -> None:
        super().__init__(network, workers, seed=seed, now_s=now_s)
        self.server = self._best_connected() if server is None else network.site(server).name

    @abstractmethod
    def may_exchange(self, worker: str) -> bool:
        """Whether a ready worker need not wait."""

    @abstractmethod
    def reason(self, worker: str) -> str:
        """Why it need not."""

    def decide(self) -> None:
        """Let everybody exchange who may."""
        if self.server in self.roster.workers and not self.roster.is_live(self.server) and self.roster.live_count:
            self._replace_server()
        for worker in self.roster.queue:
            if not self.may_exchange(worker):
                continue
            if worker == self.server:
                self.proceed(worker, f"{self.reason(worker)}, and the server is on its own site")
            else:
                self.start((worker,), self.reason(worker), "server", plan_hint="star", server=self.server)

    def note(self) -> str:
        """Where the server is."""
        return f"server at {self.server}"

    def _replace_server(self) -> None:
        """What the lost server had not answered is asked of the next one, which starts from its own model."""
        lost, self.server = self.server, self._best_connected()
        for number in sorted(self.roster.running):
            self.abandon(number, f"its server {lost} was lost; {self.server} takes over")

    def _best_connected(self) -> str:
        live = self.roster.live
        return max(live, key=lambda name: mean_link_bps(self.network.bandwidth_bps, self.network.index, name, live))
