"""The number of TCP connections to a peer: at the start by what is known, then by what the kernel measures.

What is known are the link and the cores (`planning.connections`, which predicts with the same numbers). Send buffers
are too small for a long and fast link: there, connections are added one by one while the kernel reports that sending
waits for the buffer, and as long as that makes the link faster (`Growth`). Unix sockets need fewer than TCP: on 16
cores two processes carry 27.9, 52.3 and 72.0 Gbit/s with one, two and four, with 0.90, 0.95 and 1.04 s of processor
time a GB.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tradewind.network import Network
from tradewind.planning.connections import connections_by_cores, connections_needed, is_slow
from tradewind.planning.host import Machine
from tradewind.runtime.sockets import UNPACED, SharedSocket

_MOST_NEAR = 2
"""Connections to a peer of this machine at the start."""
QUEUE_S = 0.01
LEAST_QUEUE_BYTES, MOST_QUEUE_BYTES = 16 * 1024, 128 * 1024
"""Unsent bytes in the kernel, as seconds of the link's rate: enough to keep it busy, few enough that the node's order
of chunks takes effect. (16 sites with 5 to 39 Mbps, 10 MB: 0.58 s a round with 128 KiB, 0.54 s with 32 or 16.)"""
PACE_GAIN = 1.25
"""The most that the kernel sends on a slow link, in multiples of its known rate. Without a limit TCP fills the queue of
the link with all that a round has for it; the queue outlasts TCP's timer, which sends again what was never lost, and
the connection starts over (decision 22)."""
FASTER = 1.1
"""A link that carries this many times its known rate is not paced any more: what is known of it is wrong."""
LIMITED_SHARE = 0.25
"""A connection is added if sending waits for the buffer for this part of the time. Waiting for the peer's window does
not count: the kernel enlarges that by itself, and a slow reader closes it."""
LEAST_GAIN = 1.1
"""A connection is added again if the last one made the link faster by this factor."""
_LEAST_BUSY_S = 0.1
_LEAST_ROUND_TRIP_S = 0.002
"""On shorter links the buffer is never the limit."""
_TCP_INFO = getattr(socket, "TCP_INFO", 0)
_INFO_BYTES = 192
"""The length of the structure up to `tcpi_sndbuf_limited`, which Linux has since 4.10."""
_ROUND_TRIP_AT, _RETRANSMITTED_AT, _ACKED_BYTES_AT, _BUSY_AT = 68, 100, 120, 168
"""The busy time is followed by the times limited by the peer's window and by the send buffer; all in microseconds."""


def this_machine() -> Machine:
    """The processors of this machine, and those of them that this process may run on."""
    cores = os.cpu_count() or 1
    return Machine(cores, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores)


@dataclass(frozen=True, slots=True)
class ConnectionCounts:
    """How many connections a rank makes to each peer."""

    site: str
    """The name of this rank."""
    network: Network | None = None
    asked: int | None = None
    """The number that the caller asked for; None: by what is known and measured."""

    @property
    def may_grow(self) -> bool:
        """Whether connections are added where the send buffer limits."""
        return self.asked is None

    def at_start(self, peer: str, ranks_here: int, peers: int, is_near: bool) -> int:
        """The number of connections to begin with; `ranks_here` ranks share this machine, and a near peer is one."""
        if self.asked is not None:
            return self.asked
        by_cores = connections_by_cores(this_machine().rank_cores(ranks_here), peers)
        if is_near:
            return min(by_cores, _MOST_NEAR)
        if self.network is None or (link := self._link_to(peer)) is None:
            return by_cores
        i, j = link
        rate_bps, latency_s = self.network.bandwidth_bps, self.network.latency_s
        by_delay = max(connections_needed(float(rate_bps[e]), float(latency_s[e])) for e in ((i, j), (j, i)))
        return by_delay if is_slow(self.network) else max(by_cores, by_delay)

    def queue_bytes(self, peer: str) -> int:
        """The unsent bytes that the kernel may hold for a peer."""
        bps = self.known_bps(peer)
        return (
            MOST_QUEUE_BYTES if bps is None else int(min(MOST_QUEUE_BYTES, max(LEAST_QUEUE_BYTES, bps / 8 * QUEUE_S)))
        )

    def known_bps(self, peer: str) -> float | None:
        """The rate of the link to a peer in the given network; None if it is not known."""
        if self.network is None or (link := self._link_to(peer)) is None:
            return None
        bps = float(self.network.bandwidth_bps[link])
        return bps if bps > 0 else None

    def _link_to(self, peer: str) -> tuple[int, int] | None:
        """The rows of this rank's site and of the peer's; None if the network has no such link."""
        assert self.network is not None
        here, there = self.network.site_of(self.site), self.network.site_of(peer)
        if here is None or there is None or here == there:
            return None
        return self.network.index[here], self.network.index[there]


class Use(NamedTuple):
    """The use of one connection in an interval."""

    round_trip_s: float
    busy_s: float
    """Seconds with data to send or unacknowledged data."""
    limited_s: float
    """Of these, seconds in which sending waited for the send buffer."""
    acked_bytes: int


class BufferUse:
    """The use of one TCP connection between successive readings."""

    def __init__(self, shared: SharedSocket) -> None:
        self._shared = shared
        self._last = (0, 0, 0)

    def read(self) -> Use | None:
        """The use since the last call; None where it is unknown (Unix sockets, other systems than Linux)."""
        info = self._shared.option(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES) if _TCP_INFO else b""
        if len(info) < _INFO_BYTES:
            return None
        (round_trip_us,) = struct.unpack_from("=I", info, _ROUND_TRIP_AT)
        (acked,) = struct.unpack_from("=Q", info, _ACKED_BYTES_AT)
        busy_us, _, buffer_us = struct.unpack_from("=QQQ", info, _BUSY_AT)
        now = busy_us, buffer_us, acked
        busy, limited, acked_bytes = (a - b for a, b in zip(now, self._last, strict=True))
        self._last = now
        return Use(round_trip_us / 1e6, busy / 1e6, limited / 1e6, acked_bytes)

    def retransmits(self) -> int:
        """TCP segments that were sent again since the connection was opened; 0 where it is unknown."""
        info = self._shared.option(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES) if _TCP_INFO else b""
        return int(struct.unpack_from("=I", info, _RETRANSMITTED_AT)[0]) if len(info) >= _INFO_BYTES else 0


class Pacing:
    """Whether the connections to a peer are paced: as long as nothing shows that the link is faster than known.

    >>> pacing = Pacing(8e6)
    >>> pacing.bytes_per_s, pacing.ends([Use(0.01, 1.0, 0.0, 1_000_000)]), pacing.ends([Use(0.01, 1.0, 0.0, 1_200_000)])
    (1250000, False, True)
    >>> pacing.bytes_per_s == UNPACED
    True
    """

    def __init__(self, known_bps: float | None) -> None:
        self._known_bps = known_bps

    @property
    def bytes_per_s(self) -> int:
        """The most bytes that the kernel may send in a second; `UNPACED` for no limit."""
        return UNPACED if self._known_bps is None else int(PACE_GAIN * self._known_bps / 8)

    def ends(self, uses: Sequence[Use]) -> bool:
        """Whether pacing ends after an interval with these uses: the link is faster, or has several connections."""
        if self._known_bps is None:
            return False
        faster = any(
            use.busy_s > _LEAST_BUSY_S and 8 * use.acked_bytes > FASTER * self._known_bps * use.busy_s for use in uses
        )
        if faster or len(uses) > 1:
            self._known_bps = None
        return self._known_bps is None


class Growth:
    """Decides when a connection to a peer is added, from the use of each one in successive intervals.

    >>> limited = [Use(0.1, 1.0, 0.5, 10_000_000)]
    >>> growth = Growth()
    >>> growth.is_due(limited), growth.is_due(limited), growth.is_due(limited)  # the second reading is not used
    (True, False, False)
    """

    def __init__(self) -> None:
        self._rate_before = 0.0
        self._settling = self._ended = False

    def is_due(self, uses: Sequence[Use]) -> bool:
        """Whether to add a connection after an interval with these uses."""
        used = [use for use in uses if use.busy_s > _LEAST_BUSY_S and use.round_trip_s > _LEAST_ROUND_TRIP_S]
        if self._ended or not any(use.limited_s > LIMITED_SHARE * use.busy_s for use in used):
            return False
        if self._settling:  # an interval in which a connection was added says little
            self._settling = False
            return False
        rate = sum(use.acked_bytes for use in used) / max(use.busy_s for use in used)
        if rate < LEAST_GAIN * self._rate_before:
            self._ended = True
            return False
        self._rate_before, self._settling = rate, True
        return True
