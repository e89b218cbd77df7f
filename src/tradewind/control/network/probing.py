"""Probing of all links before the first round, without probes that interfere with each other.

Theory of operation. Sites are probed in pairs, by a tournament in which each site meets every other site once and is in
one pair per turn, so that no NIC carries two measurements in one direction. The two sites of a pair send trains of
probes to each other, each twice as long as the one before, because TCP starts slowly and a short train measures its
start, not the link. When two trains in a row agree, or the time of the pair is up, the last one is used, and the next
turn starts. A train is never longer than fits into the remaining time, so a slow link takes no more time than a fast
one. Where the results show no zones, `rack_probing` looks for racks behind shared uplinks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tradewind.control.awareness import Awareness
from tradewind.control.network.rack_probing import GRACE, MOST_CHUNKS, LinkProbed, Pair, RackProbing, tournament
from tradewind.wire import messages as m

AGREEMENT = 0.1
"""Relative difference below which two trains in a row agree."""
FIRST_CHUNK_BYTES = 16 * 1024
"""Chunk size of the first train, when the speed of the link is unknown."""


@dataclass(slots=True)
class _Probed:
    """A link that is being measured."""

    train: int
    nbytes: int
    bandwidth_bps: float | None = None
    latency_s: float | None = None
    done: bool = False


class Probing:
    """Probes all links of a run, turn by turn, and then for racks.

    `start`, `measured` and `tick` return trains to send, each with the rank that sends it.
    """

    def __init__(self, sites: Sequence[str], links: Iterable[Pair], options: Awareness) -> None:
        self.results: list[LinkProbed] = []
        self.done = False
        self.wake_at_s = float("inf")
        self._options = options
        self._sites, self._links = tuple(sites), frozenset(links)
        self._racks: RackProbing | None = None
        self._turns = tournament(sites)
        self._turn: dict[Pair, _Probed] = {}
        self._ends_s = float("inf")
        self._train = 0

    def start(self, now_s: float) -> list[tuple[str, m.Explore]]:
        """Start the first turn."""
        return self._next_turn(now_s)

    def measured(self, worker: str, message: m.Measured, now_s: float) -> list[tuple[str, m.Explore]]:
        """Handle the measurement of a train."""
        if self._racks is not None:
            return self._continued(self._racks.measured(worker, message, now_s))
        link = (message.peer, worker)
        probed = self._turn.get(link)
        if probed is None or message.train != probed.train or probed.done:
            return []
        before_bps, probed.bandwidth_bps = probed.bandwidth_bps, message.bandwidth_bps
        if message.latency_s is not None:
            probed.latency_s = min(
                message.latency_s, message.latency_s if probed.latency_s is None else probed.latency_s
            )
        agrees = before_bps is not None and abs(before_bps - message.bandwidth_bps) < AGREEMENT * before_bps
        fitting_bytes = int(message.bandwidth_bps / 8 * (self._ends_s - now_s))
        if agrees or fitting_bytes < probed.nbytes:
            probed.done = True
            return self._next_turn(now_s) if all(other.done for other in self._turn.values()) else []
        probed.nbytes = min(2 * probed.nbytes, fitting_bytes)
        return [self._send(link, probed)]

    def tick(self, now_s: float) -> list[tuple[str, m.Explore]]:
        """Start the next turn if the current one has timed out."""
        if self._racks is not None:
            return self._continued(self._racks.tick(now_s))
        return self._next_turn(now_s) if not self.done and now_s >= self.wake_at_s else []

    def _next_turn(self, now_s: float) -> list[tuple[str, m.Explore]]:
        for (src, dst), probed in sorted(self._turn.items()):
            if probed.bandwidth_bps is not None:
                self.results.append(LinkProbed(src, dst, probed.bandwidth_bps, probed.latency_s))
        self._turn = {}
        while self._turns and not self._turn:
            for a, b in self._turns.pop(0):
                for link in ((a, b), (b, a)):
                    if link in self._links:
                        self._turn[link] = _Probed(0, (self._options.probe_chunks + 1) * FIRST_CHUNK_BYTES)
        if not self._turn and RackProbing.is_worthwhile(self._sites, self.results):
            self._racks = RackProbing(self._sites, self.results, self._options)
            return self._continued(self._racks.start(now_s))
        self.done = not self._turn
        self._ends_s = now_s + self._options.probe_s
        self.wake_at_s = float("inf") if self.done else now_s + GRACE * self._options.probe_s
        return [self._send(link, probed) for link, probed in sorted(self._turn.items())]

    def _continued(self, trains: list[tuple[str, m.Explore]]) -> list[tuple[str, m.Explore]]:
        assert self._racks is not None
        self.done, self.wake_at_s = self._racks.done, self._racks.wake_at_s
        if self.done:
            self.results = self._racks.add_to(self.results)
        return trains

    def _send(self, link: Pair, probed: _Probed) -> tuple[str, m.Explore]:
        self._train += 1
        probed.train = self._train
        least = self._options.probe_chunks + 1
        large = self._options.probe_chunk_bytes
        chunk_bytes = large if probed.nbytes >= least * large else min(FIRST_CHUNK_BYTES, large)
        chunks = max(least, min(MOST_CHUNKS, probed.nbytes // chunk_bytes))
        return link[0], m.Explore(link[1], probed.train, chunks, chunk_bytes)
