"""Detects TCP connections that no longer reach the other machine, from the kernel's `TCP_INFO`.

A link that drops all packets sends no reset, so a rank that waits for chunks on it would wait for ever. Therefore every
connection carries periodic keepalive frames, and the test is whether the *kernel* at the other end acknowledges them.
That kernel answers however busy, slow or stopped its process is, so a slow rank is not mistaken for a cut link. Silent
processes are detected separately, with the longer `silence_s` of the run.

A connection is unanswered if either holds:

- data was retransmitted after a timeout (`retransmits`), and none of it has been acknowledged since;
- the peer's window is closed, or the local queue drops packets, and at least two probes in a row were not answered
  (`probes`). A live peer with a closed window answers each probe.

Not `TCP_USER_TIMEOUT`: Linux applies it to a closed window, too, so that a connection to a process that reads nothing
for that long is ended although each probe was answered. Not `SO_KEEPALIVE`: it counts in whole seconds, its probes
are not repeated when one is lost, and a connection with unacknowledged data sends none.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import NamedTuple

from tradewind.runtime.sockets import SharedSocket

_TCP_INFO = getattr(socket, "TCP_INFO", 0)
_INFO_BYTES = 148
"""The length of the structure up to `tcpi_notsent_bytes`, which Linux has since 4.6."""
_RETRANSMITS_AT, _PROBES_AT = 2, 3
_UNACKED_AT, _LAST_DATA_AT, _ACKED_BYTES_AT, _NOT_SENT_AT = 24, 52, 120, 144
UNANSWERED_PROBES = 2


class Silence(NamedTuple):
    """How long a connection has been silent, in two respects."""

    unanswered_s: float
    """Seconds since the other machine last acknowledged something, while packets are unanswered; 0 if it answers, or
    if that is unknown: on Unix sockets, which cross no network, and on kernels without this information."""
    quiet_s: float
    """Seconds since the other process last sent something, including keepalives."""


class Liveness:
    """The silence of one connection. `silence` must be called periodically: it compares successive readings."""

    def __init__(self, shared: SharedSocket) -> None:
        self._shared = shared
        self._acknowledged_bytes = -1
        self._heard_s = self._progress_s = time.monotonic()
        """`_progress_s`: when nothing was outstanding, or new data was acknowledged."""

    def received(self) -> None:
        """Note that a frame has arrived."""
        self._heard_s = time.monotonic()

    def silence(self, now_s: float) -> Silence:
        """How long the connection has been silent at `now_s`."""
        info = self._shared.option(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES) if _TCP_INFO else b""
        quiet_s = now_s - self._heard_s
        if len(info) < _INFO_BYTES:
            return Silence(0.0, quiet_s)
        (acknowledged_bytes,) = struct.unpack_from("=Q", info, _ACKED_BYTES_AT)
        (unacknowledged,) = struct.unpack_from("=I", info, _UNACKED_AT)
        (not_sent_bytes,) = struct.unpack_from("=I", info, _NOT_SENT_AT)
        (last_data_ms,) = struct.unpack_from("=I", info, _LAST_DATA_AT)
        quiet_s = min(quiet_s, last_data_ms / 1e3)  # a large chunk on a slow link takes long
        if acknowledged_bytes != self._acknowledged_bytes or not (unacknowledged or not_sent_bytes):
            self._acknowledged_bytes, self._progress_s = acknowledged_bytes, now_s
        is_unanswered = info[_RETRANSMITS_AT] > 0 or info[_PROBES_AT] >= UNANSWERED_PROBES
        return Silence(now_s - self._progress_s if is_unanswered else 0.0, quiet_s)
