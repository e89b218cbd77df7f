"""The available bandwidth of each rank, estimated from the network and from measurements.

Selective Reduce III-A models ranks behind a non-blocking core, each with an available bandwidth b, the smaller of its
uplink and downlink. That is the NIC limit of a site. If a site has none (a mesh of independent links), it is the mean
of its links, since its traffic spreads over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from tradewind.network import Matrix, Network


def mean_link_bps(bandwidth_bps: Matrix, index: Mapping[str, int], worker: str, others: Iterable[str]) -> float:
    """The smaller of the mean bandwidths of a rank's links to and from others; 0 if it has none in one direction."""
    i = index[worker]
    rows = [index[other] for other in others if other != worker]
    means = [ends[ends > 0].mean() if ends.any() else 0.0 for ends in (bandwidth_bps[i, rows], bandwidth_bps[rows, i])]
    return float(min(means))


class WorkerBandwidth:
    """The available bandwidth of each rank, from the network and later measurements.

    Mechanism: Selective Reduce III-A, bandwidth of a worker: its NIC, or the mean of its links
    """

    def __init__(self, network: Network, workers: Iterable[str]) -> None:
        self._index = network.index
        self._names = network.names
        self._workers = set(workers)
        self._nic_bps = np.minimum(network.egress_bps, network.ingress_bps)
        self._link_bps = np.array(network.bandwidth_bps)
        self._measured = np.zeros(network.bandwidth_bps.shape, dtype=np.bool_)
        self._known: dict[str, float] = {}

    def measured(self, src: str, dst: str, bandwidth_bps: float) -> None:
        """Note that a link was measured, or lost (0); a lost link does not change the estimate of NICs at its ends."""
        i, j = self._index[src], self._index[dst]
        self._link_bps[i, j] = bandwidth_bps
        self._measured[i, j] = bandwidth_bps > 0
        self._known.pop(src, None)
        self._known.pop(dst, None)

    def joined(self, worker: str) -> None:
        """Add a rank, which adds a link to every other rank."""
        if worker not in self._workers:
            self._workers.add(worker)
            self._known.clear()

    def of(self, worker: str) -> float:
        """The available bandwidth of a rank in bits per second; at least 1, also for a rank that cannot be reached."""
        if worker not in self._known:
            self._known[worker] = max(1.0, self._estimate(worker))
        return self._known[worker]

    def _estimate(self, worker: str) -> float:
        i = self._index[worker]
        nic_bps = float(self._nic_bps[i])
        if math.isinf(nic_bps):
            return mean_link_bps(self._link_bps, self._index, worker, self._workers)
        # A path is as fast as the slower of its two ends, so one slow path does not tell which end is slow. When most
        # of a rank's paths have been measured, the fastest of them shows the bandwidth of its own NIC.
        others = [self._index[other] for other in self._workers if other != worker]
        for links, seen in (
            (self._link_bps[i, others], self._measured[i, others]),
            (self._link_bps[others, i], self._measured[others, i]),
        ):
            if 2 * np.count_nonzero(seen) > len(others):
                nic_bps = min(nic_bps, float(links[seen].max()))
        return nic_bps
