"""What is known of the network: what was given, corrected by what was measured."""

from __future__ import annotations

import numpy as np

from tradewind.network import Network, Site

EWMA_WEIGHT = 0.3
"""Of a new measurement: one bad second does not turn a plan over, three do."""
REPLAN_CHANGE = 0.2
"""Plans are made anew when a link has moved this far from what they were made with."""
UNKNOWN_BPS = 10e9


def unknown_network(workers: tuple[str, ...]) -> Network:
    """A mesh of equal links, for want of anything better."""
    n = len(workers)
    return Network("unknown", [Site(name) for name in workers], UNKNOWN_BPS * (1 - np.eye(n)))


class NetworkView:
    """An estimate of every directed link, with how often and when it was measured."""

    def __init__(self, network: Network, is_guess: bool = False) -> None:
        self._given = network
        self.is_guess = is_guess
        """Whether nobody has said what the network is like."""
        self._estimate_bps = network.bandwidth_bps.copy()
        self._planned_bps = self._estimate_bps.copy()
        self._count = np.zeros(network.bandwidth_bps.shape, dtype=np.int64)
        self._measured_s = np.full(network.bandwidth_bps.shape, -np.inf)
        self.generation = 0
        """Grows when plans should be made anew."""

    @property
    def network(self) -> Network:
        """The network to plan with."""
        return self._given.with_bandwidth(self._planned_bps)

    def measured(self, src: str, dst: str, bandwidth_bps: float, now_s: float) -> None:
        """A link was seen to carry that much. Links that the network does not have stay out of it."""
        i, j = self._given.index[src], self._given.index[dst]
        if not self._given.bandwidth_bps[i, j]:
            return
        old = self._estimate_bps[i, j]
        first = self._count[i, j] == 0
        self._estimate_bps[i, j] = bandwidth_bps if first else old + EWMA_WEIGHT * (bandwidth_bps - old)
        self._count[i, j] += 1
        self._measured_s[i, j] = now_s
        if abs(self._estimate_bps[i, j] - self._planned_bps[i, j]) > REPLAN_CHANGE * self._planned_bps[i, j]:
            self._planned_bps = self._estimate_bps.copy()
            self.generation += 1

    def confidence(self, src: str, dst: str) -> int:
        """How many measurements an estimate rests on."""
        return int(self._count[self._given.index[src], self._given.index[dst]])

    def age_s(self, src: str, dst: str, now_s: float) -> float:
        """How old the last measurement is; infinite if there is none."""
        return now_s - float(self._measured_s[self._given.index[src], self._given.index[dst]])
