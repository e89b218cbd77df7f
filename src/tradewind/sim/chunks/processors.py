"""The processors of ranks: when a frame has been handled that is sent or received now.

Two queues, both in order of arrival. A rank handles one frame after another: `frame_s` for each, because its threads
share an interpreter, and `byte_s` for each byte, divided by its threads. Ranks that share a machine have another queue,
in which a frame takes its whole time divided by the cores. A frame is handled when both are through with it, and no
sooner than one thread can. Frames without payload cost nothing: `frame_s` is measured with their share in it.
"""

from __future__ import annotations

from tradewind.network import Network
from tradewind.planning.connections import busy_threads
from tradewind.planning.host import HostCost
from tradewind.wire.frames import HEADER_BYTES


class Processors:
    """The processors of all ranks."""

    def __init__(self, network: Network, host: HostCost) -> None:
        self._host = host
        self._threads = busy_threads(network, host, network.bandwidth_bps).tolist()
        self._free_s = [0.0] * len(network)
        """When each rank has handled everything so far."""
        self._cores_free_s = 0.0

    def handled_s(self, rank: int, frame_bytes: int, now_s: float) -> float:
        """When a rank has handled a frame that it starts to send or to read now; `frame_bytes` counts the header."""
        nbytes = frame_bytes - HEADER_BYTES
        if self._host.is_free or nbytes <= 0:
            return now_s
        frame_s, bytes_s = self._host.frame_s, self._host.byte_s * nbytes
        alone_s = frame_s + bytes_s
        self._free_s[rank] = max(now_s, self._free_s[rank]) + frame_s + bytes_s / self._threads[rank]
        self._cores_free_s = max(now_s, self._cores_free_s) + alone_s / self._host.cores
        return max(now_s + alone_s, self._free_s[rank], self._cores_free_s)
