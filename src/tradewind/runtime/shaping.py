"""Our own transport, shaped to any network: rates, latencies, NIC caps, trunks, changes and cuts, without privilege.

All ranks live in one process and share a `ShapedNetwork`, or each has a process and one of its own (`shape_alone`). A
sender reserves every capacity that its frame uses, waits until the frame has left at that pace, and hands it to a delay
line that lets it arrive a latency later. Frames queue for a capacity in the order in which they ask for it, so what is
shared is shared frame by frame. What this does not have: TCP's behaviour on a lossy path, and loss.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable

from tradewind.network import Network
from tradewind.planning.cost import NetworkCapacities, resources_of
from tradewind.runtime.sockets import send_all
from tradewind.runtime.threads import start_thread
from tradewind.wire.frames import HEADER_BYTES

UNUSED_LINK_BPS = 1e9
"""For acknowledgements on the way back of a link that exists one way only."""
SLACK_S = 5e-3
"""A sender that wakes up so late was waiting, on a real link, in the kernel's queue: the link has lost nothing."""


class ShapedNetwork:
    """The capacities of a network and when each is free again."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._capacities = NetworkCapacities(network)
        self._free_s: dict[object, float] = {}
        self._cut: set[frozenset[str]] = set()
        self._cutters: dict[frozenset[str], list[Callable[[], None]]] = {}
        self._lock = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """The sites, in order."""
        return self._network.names

    def reserve(self, src: str, dst: str, nbytes: int) -> tuple[float, float]:
        """When a frame that is sent now has left, and when it arrives, on the monotonic clock."""
        with self._lock:
            network, now_s = self._network, time.monotonic()
            i, j = network.index[src], network.index[dst]
            if not network.bandwidth_bps[i, j]:
                leaves_s = now_s + 8.0 * nbytes / UNUSED_LINK_BPS
                return leaves_s, leaves_s + float(network.latency_s[j, i])
            leaves_s = now_s
            for resource in resources_of(network, i, j):
                free_s = self._free_s.get(resource, 0.0)
                free_s = (free_s if now_s - free_s < SLACK_S else now_s) + 8.0 * nbytes / self._capacities[resource]
                self._free_s[resource] = free_s
                leaves_s = max(leaves_s, free_s)
            return leaves_s, leaves_s + float(network.latency_s[i, j])

    def change(self, network: Network) -> None:
        """Other rates and latencies from now on, for the same sites."""
        with self._lock:
            self._network, self._capacities = network, NetworkCapacities(network)

    def watch(self, a: str, b: str, cut: Callable[[], None]) -> None:
        """Have `cut` called when the two are cut off from each other, or now if they are."""
        with self._lock:
            self._cutters.setdefault(frozenset((a, b)), []).append(cut)
            is_cut = frozenset((a, b)) in self._cut
        if is_cut:
            cut()

    def is_cut(self, a: str, b: str) -> bool:
        """Whether nothing gets through between the two."""
        with self._lock:
            return frozenset((a, b)) in self._cut

    def heal(self, a: str, b: str) -> None:
        """Let the two connect again."""
        with self._lock:
            self._cut.discard(frozenset((a, b)))
            self._cutters.pop(frozenset((a, b)), None)

    def cut(self, a: str, b: str) -> None:
        """End all connections between two sites, and all that they will make."""
        with self._lock:
            self._cut.add(frozenset((a, b)))
            cutters = list(self._cutters.get(frozenset((a, b)), ()))
        for cut in cutters:
            cut()


class ShapedSender:
    """The sending side of one connection on a shaped network."""

    def __init__(self, shape: ShapedNetwork, src: str, dst: str, sock: socket.socket) -> None:
        self._shape, self._src, self._dst, self._sock = shape, src, dst, sock
        self._line: queue.SimpleQueue[tuple[float, bytes, bytes]] | None = None
        """Of frames that have left and not arrived: made with the first that takes its time."""
        self._broken: OSError | None = None
        self._left_s = 0.0

    def send(self, head: bytes, body: memoryview) -> None:
        """Returns when the frame has left; raises what went wrong with an earlier one.

        Where there is a line, the frame before it is enough: one waits there, as in a socket's buffer, so that the link
        does not idle when its sender's thread is late.
        """
        if self._broken is not None:
            raise self._broken
        leaves_s, arrives_s = self._shape.reserve(self._src, self._dst, HEADER_BYTES + len(body))
        if self._line is None and arrives_s > leaves_s:
            self._line = queue.SimpleQueue()
            name = f"tradewind-delay-{self._src}-{self._dst}"
            start_thread(self._deliver, self._line, name=name)
        if self._line is not None:
            self._line.put((arrives_s, head, bytes(body)))
            _sleep_until(self._left_s)
            self._left_s = leaves_s
        else:
            _sleep_until(leaves_s)
            send_all(self._sock, [head, body] if len(body) else [head])

    def close(self) -> None:
        """End the delay line."""
        if self._line is not None:
            self._line.put((0.0, b"", b""))

    def _deliver(self, line: queue.SimpleQueue[tuple[float, bytes, bytes]]) -> None:
        try:
            while (frame := line.get())[1]:
                arrives_s, head, body = frame
                _sleep_until(arrives_s)
                send_all(self._sock, [head, memoryview(body)] if body else [head])
        except OSError as error:
            self._broken = error


def _sleep_until(due_s: float) -> None:
    left_s = due_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)
