"""`metrics=ADDRESS`: the counters of one rank for Prometheus, at `/metrics` of its own process.

The controller's `/metrics` (`dashboard=`) has what it knows of all ranks. Those of a rank are exact at any moment, have
what only the rank knows, and are there when the controller is not. They are made of `Group.stats()` when they are asked
for, so that they cost a round nothing.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterable

from tradewind.dashboard.metrics import Family, encode_families
from tradewind.dashboard.server import TOKEN_VARIABLE, PageServer
from tradewind.errors import BadOption
from tradewind.runtime.addresses import HostPort
from tradewind.runtime.stats import GroupStats, PeerStats
from tradewind.runtime.threads import start_thread

log = logging.getLogger("tradewind.runtime")

MOST_PORTS = 256
"""How many ports are tried: ranks of one machine, which are given the same one, use one each."""
CLOSE_S = 5.0

_COUNTERS: dict[str, tuple[str, Callable[[GroupStats], float]]] = {
    "rounds": ("Rounds that completed.", lambda s: s.rounds),
    "inline_rounds": ("Of these, those in control messages.", lambda s: s.inline_rounds),
    "repaired_rounds": ("Of these, those that were repaired.", lambda s: s.repaired_rounds),
    "helped_rounds": ("Rounds of others that this rank helped with.", lambda s: s.helped_rounds),
    "alone_operations": ("Operations that ended without others, as without a controller.", lambda s: s.alone),
    "failed_operations": ("Operations that ended with an error.", lambda s: s.failed),
    "halts": ("Times a round was halted.", lambda s: s.halts),
    "array_bytes": ("Bytes of the arrays of its rounds.", lambda s: s.array_bytes),
    "waited_seconds": ("From submitting operations to their start.", lambda s: s.waited_s),
    "synchronised_seconds": ("From the start of operations to their end.", lambda s: s.synchronised_s),
    "lost_links": ("Times a link was reported as lost.", lambda s: s.lost_links),
}
_GAUGES: dict[str, tuple[str, Callable[[GroupStats], float | None]]] = {
    "pending_operations": ("Operations that have not ended.", lambda s: s.pending),
    "members": ("Ranks that are present, as this one knows.", lambda s: len(s.members)),
    "term": ("The term of the controller that it follows.", lambda s: s.term),
    "used_plan_version": ("The plan of its last round.", lambda s: s.plan_version),
    "kept_bytes": ("Memory for chunks that wait.", lambda s: s.kept_bytes),
    "clock_error_seconds": ("Possible error of its clock comparison.", lambda s: s.clock_error_s),
}
_PEER_COUNTERS: dict[str, tuple[str, Callable[[PeerStats], float]]] = {
    "sent_bytes": ("Bytes of payload sent to a peer.", lambda p: p.sent_bytes),
    "received_bytes": ("Bytes of payload received from a peer.", lambda p: p.received_bytes),
    "sent_frames": ("Frames sent to a peer.", lambda p: p.sent_frames),
    "received_frames": ("Frames received from a peer.", lambda p: p.received_frames),
    "corrupt_frames": ("Received frames with a wrong checksum.", lambda p: p.corrupt_frames),
    "broken_connections": ("Times the connections to a peer broke.", lambda p: p.broken),
}
_PEER_GAUGES: dict[str, tuple[str, Callable[[PeerStats], float | None]]] = {
    "connections": ("Open connections to a peer.", lambda p: p.connections),
    "measured_bits_per_second": ("The last bandwidth sample of the link from a peer.", lambda p: p.bandwidth_bps),
    "measured_latency_seconds": ("The last latency sample of the link from a peer.", lambda p: p.latency_s),
}


def rank_families(stats: GroupStats) -> Iterable[Family]:
    """The metrics of a rank."""
    rank, pair = ("rank",), ("rank", "peer")
    for name, (about, value) in _COUNTERS.items():
        yield Family(True, f"rank_{name}", about, rank, [((stats.name,), value(stats))])
    for name, (about, gauge) in _GAUGES.items():
        found = gauge(stats)
        yield Family(False, f"rank_{name}", about, rank, [] if found is None else [((stats.name,), found)])
    for name, (about, count) in _PEER_COUNTERS.items():
        yield Family(
            True, f"rank_{name}", about, pair, [((stats.name, peer.name), count(peer)) for peer in stats.peers]
        )
    for name, (about, seen) in _PEER_GAUGES.items():
        known = [((stats.name, peer.name), seen(peer)) for peer in stats.peers]
        yield Family(
            False, f"rank_{name}", about, pair, [(labels, value) for labels, value in known if value is not None]
        )


class RankMetrics:
    """The HTTP server of one rank's metrics."""

    def __init__(self, address: HostPort, stats: Callable[[], GroupStats]) -> None:
        """Serve at the first free port from that of the address on; raises BadOption if there is none."""
        token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(16)
        self._server = self._first_free(address, token, lambda: encode_families(rank_families(stats())))
        self.url = self._server.url_of("metrics")
        log.warning("the metrics of this rank are at %s", self.url)
        self._thread = start_thread(self._server.serve, name="tradewind-metrics")

    @staticmethod
    def _first_free(address: HostPort, token: str, metrics: Callable[[], tuple[bytes, str]]) -> PageServer:
        last = min(65535, address.port + MOST_PORTS - 1)
        for port in range(address.port, last + 1):
            try:
                return PageServer(address.host, port, None, token, metrics)
            except BadOption:
                if port == last:
                    raise
        raise AssertionError("a range of ports is not empty")

    def close(self) -> None:
        """Stop serving."""
        self._server.close()
        self._thread.join(CLOSE_S)
