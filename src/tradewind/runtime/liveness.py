"""Whether a TCP connection still reaches the other machine, as the kernel knows.

A link that drops everything sends no reset: a rank that waits for chunks on it waits for ever. So every connection
carries a keepalive frame now and then, and what counts is whether the *kernel* at the other end acknowledges what was
sent. That kernel answers however busy, slow or stopped the process above it is: a rank that takes its time does not
look like a link that is cut. The receiving process judges the rank, with the whole patience of the run.

What is asked for in vain (`TCP_INFO`):

- data was sent again after a timeout (`retransmits`), and none of it has been acknowledged since;
- the peer's window is closed, or our own queue drops what is sent, and at least two probes in a row were not answered
  (`probes`). A live peer with a closed window answers each one.

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
"""Up to `tcpi_notsent_bytes`: Linux has had all of that since 4.6."""
_RETRANSMITS_AT, _PROBES_AT = 2, 3
_UNACKED_AT, _LAST_DATA_AT, _ACKED_BYTES_AT, _NOT_SENT_AT = 24, 52, 120, 144
UNANSWERED_PROBES = 2


class Silence(NamedTuple):
    """For how long a connection has been silent, in two respects."""

    unanswered_s: float
    """The other machine has acknowledged nothing although it was asked again; 0 where it does, or where that is not
    known: on Unix sockets, which cross no network, and on kernels that do not say."""
    quiet_s: float
    """The other process has sent nothing, not even a keepalive."""


class Liveness:
    """Of one connection. To be asked now and then, since only a series of answers shows a standstill."""

    def __init__(self, shared: SharedSocket) -> None:
        self._shared = shared
        self._acknowledged_bytes = -1
        self._heard_s = self._progress_s = time.monotonic()
        """When nothing was outstanding, or something was acknowledged that had not been before."""

    def heard(self) -> None:
        """A frame came."""
        self._heard_s = time.monotonic()

    def silence(self, now_s: float) -> Silence:
        """How silent it is now."""
        info = self._shared.option(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES) if _TCP_INFO else b""
        quiet_s = now_s - self._heard_s
        if len(info) < _INFO_BYTES:
            return Silence(0.0, quiet_s)
        (acknowledged_bytes,) = struct.unpack_from("=Q", info, _ACKED_BYTES_AT)
        (unacknowledged,) = struct.unpack_from("=I", info, _UNACKED_AT)
        (not_sent_bytes,) = struct.unpack_from("=I", info, _NOT_SENT_AT)
        (last_data_ms,) = struct.unpack_from("=I", info, _LAST_DATA_AT)
        quiet_s = min(quiet_s, last_data_ms / 1e3)  # a large chunk on a slow link is a long time between two frames
        if acknowledged_bytes != self._acknowledged_bytes or not (unacknowledged or not_sent_bytes):
            self._acknowledged_bytes, self._progress_s = acknowledged_bytes, now_s
        asked_in_vain = info[_RETRANSMITS_AT] > 0 or info[_PROBES_AT] >= UNANSWERED_PROBES
        return Silence(now_s - self._progress_s if asked_in_vain else 0.0, quiet_s)
