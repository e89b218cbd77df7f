"""What a rank traces, and reports for the live page: bytes by peer, retransmissions, and how busy its host is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tradewind.runtime.stats import PeerLinks
from tradewind.wire import messages as m

ACTIVITY_S = 1.0
"""Interval at which ranks count what they have sent."""
_PROCESSORS, _INTERFACES = Path("/proc/stat"), Path("/proc/net/dev")


class ActivityMeter:
    """Reads counters of this host and of this rank's connections between successive calls."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()
        self._ticks = _processor_ticks()
        self._moved = _interface_bytes()
        self._own_bytes = 0
        self._said: dict[str, tuple[int, int]] = {}

    def read(self, peers: Mapping[str, PeerLinks]) -> m.Activity:
        """The present counters; peers whose counters have not changed since the last call are left out."""
        now_s, ticks, moved = time.monotonic(), _processor_ticks(), _interface_bytes()
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


def _processor_ticks() -> tuple[int, int]:
    """Ticks of all processors so far, and idle ones among them; zeros where the system does not say."""
    try:
        ticks = [int(field) for field in _PROCESSORS.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return sum(ticks), sum(ticks[3:5])


def _interface_bytes() -> int:
    """Bytes that all interfaces but loopback have received and sent; 0 where the system does not say."""
    try:
        lines = _INTERFACES.read_text().splitlines()[2:]
        fields = [line.partition(":") for line in lines]
        return sum(int(rest.split()[0]) + int(rest.split()[8]) for name, _, rest in fields if name.strip() != "lo")
    except (OSError, ValueError, IndexError):
        return 0
