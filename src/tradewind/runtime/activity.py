"""What a rank traces, and reports for the live page: bytes by peer, retransmissions, and how busy its host is."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from tradewind.runtime.stats import PeerLinks
from tradewind.wire import messages as m

ACTIVITY_S = 1.0
"""Interval at which ranks count what they have sent."""
READ_BYTES = 64 * 1024


class ActivityMeter:
    """Reads counters of this host and of this rank's connections between successive calls."""

    def __init__(self) -> None:
        self._processors, self._interfaces = _Counters("/proc/stat"), _Counters("/proc/net/dev")
        self._last_s = time.monotonic()
        self._ticks = _processor_ticks(self._processors.read())
        self._moved = _interface_bytes(self._interfaces.read())
        self._own_bytes = 0
        self._said: dict[str, tuple[int, int]] = {}

    def read(self, peers: Mapping[str, PeerLinks]) -> m.Activity:
        """The present counters; peers whose counters have not changed since the last call are left out."""
        now_s, ticks = time.monotonic(), _processor_ticks(self._processors.read())
        moved = _interface_bytes(self._interfaces.read())
        counts = {name: (links.traffic.sent_bytes, links.traffic.retransmits) for name, links in peers.items()}
        own_bytes = sum(links.traffic.sent_bytes + links.traffic.received_bytes for links in peers.values())
        spent, idle = (now - before for now, before in zip(ticks, self._ticks, strict=True))
        other_bytes = max(0, moved - self._moved - (own_bytes - self._own_bytes))
        changed = {name: counted for name, counted in counts.items() if counted != self._said.get(name, (0, 0))}
        activity = m.Activity(
            tuple((name, *counted) for name, counted in changed.items()),
            load=1.0 - idle / spent if spent > 0 else 0.0,
            other_bps=other_bytes * 8 / max(1e-3, now_s - self._last_s),
        )
        self._last_s, self._ticks, self._moved, self._own_bytes = now_s, ticks, moved, own_bytes
        self._said |= changed
        return activity


class _Counters:
    """A file of the system that stays open, because opening it takes longer than reading it."""

    def __init__(self, path: str) -> None:
        try:
            self._file: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # not Linux
            self._file = None

    def read(self) -> bytes:
        """What it says now; empty where the system does not say."""
        try:
            return b"" if self._file is None else os.pread(self._file, READ_BYTES, 0)
        except OSError:
            return b""

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)


def _processor_ticks(stat: bytes) -> tuple[int, int]:
    """Ticks of all processors so far, and idle ones among them; zeros where the system does not say.

    >>> _processor_ticks(b"cpu  10 0 5 80 5 0 0 0 0 0\\ncpu0 ...")
    (100, 85)
    """
    try:
        ticks = [int(field) for field in stat[: stat.find(b"\n")].split()[1:9]]
    except ValueError:
        return 0, 0
    return sum(ticks), sum(ticks[3:5])


def _interface_bytes(devices: bytes) -> int:
    """Bytes that all interfaces but loopback have received and sent; 0 where the system does not say.

    >>> _interface_bytes(b"head\\nhead\\n  lo: 9 0 0 0 0 0 0 0 9 0\\neth0: 30 0 0 0 0 0 0 0 4 0\\n")
    34
    """
    try:
        fields = [line.partition(b":") for line in devices.splitlines()[2:]]
        counts = [rest.split() for name, _, rest in fields if name.strip() != b"lo"]
        return sum(int(count[0]) + int(count[8]) for count in counts)
    except (ValueError, IndexError):
        return 0
