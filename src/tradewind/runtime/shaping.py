"""Data connections shaped to any network: rates, latencies, NIC limits, trunks, changes and cuts, without privileges.

All ranks run in one process and share a `ShapedNetwork`, or each has its own process and `ShapedNetwork`
(`shape_alone`). A sender reserves every capacity that its frame uses, waits until the frame would have left at that
rate, and passes it to a delay line that delivers it one latency later. Frames queue for a capacity in the order in
which they request it, so capacities are shared frame by frame. Packet loss, and TCP's reaction to it, are not imitated.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable

from tradewind.network import Network
from tradewind.planning.cost import NetworkCapacities, resources_of
from tradewind.runtime.sockets import send_all
from tradewind.runtime.threads import start_thread
from tradewind.wire.frames import HEADER_BYTES

UNUSED_LINK_BPS = 1e9
"""The rate for acknowledgements in the direction of a link that does not exist."""
SLACK_S = 5e-3
"""A sender that is up to this late loses no capacity: on a real link its frame would have waited in the kernel."""


class ShapedNetwork:
    """The capacities of an imitated network, and until when each is reserved."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._capacities = NetworkCapacities(network)
        self._free_s: dict[object, float] = {}
        self._cut: set[frozenset[str]] = set()
        self._cutters: dict[frozenset[str], list[weakref.WeakMethod[Callable[[], None]]]] = {}
        """What closes each connection; connections that have ended are not kept."""
        self._lock = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """The sites, in order."""
        return self._network.names

    def reserve(self, src: str, dst: str, nbytes: int) -> tuple[float, float]:
        """Reserve capacity for a frame; returns when it has left and when it arrives, on the monotonic clock."""
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
        """Change rates and latencies from now on; the sites must be the same."""
        with self._lock:
            self._network, self._capacities = network, NetworkCapacities(network)

    def watch(self, a: str, b: str, cut: Callable[[], None]) -> None:
        """Call `cut`, a method of a connection, when the link between two sites is cut, or now if it is."""
        with self._lock:
            known = [cutter for cutter in self._cutters.get(frozenset((a, b)), ()) if cutter() is not None]
            self._cutters[frozenset((a, b))] = [*known, weakref.WeakMethod(cut)]
            is_cut = frozenset((a, b)) in self._cut
        if is_cut:
            cut()

    def is_cut(self, a: str, b: str) -> bool:
        """Whether the link between two sites is cut."""
        with self._lock:
            return frozenset((a, b)) in self._cut

    def heal(self, a: str, b: str) -> None:
        """Let two sites connect again after a cut."""
        with self._lock:
            self._cut.discard(frozenset((a, b)))
            self._cutters.pop(frozenset((a, b)), None)

    def cut(self, a: str, b: str) -> None:
        """Close all connections between two sites and prevent new ones until `heal`."""
        with self._lock:
            self._cut.add(frozenset((a, b)))
            cutters = [cutter() for cutter in self._cutters.get(frozenset((a, b)), ())]
        for cut in cutters:
            if cut is not None:
                cut()


class ShapedSender:
    """The sending side of one connection on a shaped network."""

    def __init__(self, shape: ShapedNetwork, src: str, dst: str, sock: socket.socket) -> None:
        self._shape, self._src, self._dst, self._sock = shape, src, dst, sock
        self._line: queue.SimpleQueue[tuple[float, bytes, bytes]] | None = None
        """The delay line: frames that have left and not arrived; created with the first frame that has a latency."""
        self._broken: OSError | None = None
        self._left_s = 0.0

    def send(self, head: bytes, body: memoryview) -> None:
        """Send a frame; returns when it has left, and raises the error of an earlier frame.

        With a delay line it returns when the previous frame has left: one frame waits, as in a socket's buffer, so that
        the link does not idle if the sender's thread is late.
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
