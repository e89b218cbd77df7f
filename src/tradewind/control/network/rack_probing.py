"""Probing for racks: which sites share an uplink that is slow only when several of them use it.

Theory of operation. `probing` measures pairs by themselves, so an uplink that carries one pair at full rate looks like
any link. Here all sites send at once, in disjoint pairs so that no NIC carries two measurements in one direction, each
a train that takes `TRAIN_S` alone. Pairs inside a rack are as fast as alone; those that cross an uplink together
share it. Pairs change from turn to turn, by a tournament of the sites in random order, several times: a pair that
crossed alone in one of them hardly does in most. `planning.zones.detect_racks` finds the racks from the mean rates.

`Probing` continues with it where its own results show no zones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tradewind.control.awareness import Awareness
from tradewind.network import Matrix, Network, Site
from tradewind.planning.zones import detect_zones
from tradewind.wire import messages as m

Pair = tuple[str, str]

MOST_CHUNKS = 1024
GRACE = 2.0
"""A turn lasts at most this many times the time of a pair, to wait for a train that is in flight when it is up."""
TOURNAMENTS = 4
TRAIN_S = 0.2
"""Duration of a train at the rate of its pair alone."""
FEWEST_SITES, MOST_SITES = 4, 48
"""Beyond, the turns of a tournament take longer than what racks gain."""


def tournament(sites: Sequence[str]) -> list[list[Pair]]:
    """Return turns of pairs: each site meets every other once, and is in one pair per turn (the circle method).

    >>> tournament("abcd")
    [[('a', 'd'), ('b', 'c')], [('a', 'c'), ('b', 'd')], [('a', 'b'), ('c', 'd')]]
    """
    circle: list[str | None] = [*sites, *([None] if len(sites) % 2 else [])]
    place = {name: number for number, name in enumerate(sites)}
    turns = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        facing = zip(circle[:half], reversed(circle[half:]), strict=True)
        met = [(a, b) for a, b in facing if a is not None and b is not None]
        turns.append(sorted(((a, b) if place[a] < place[b] else (b, a) for a, b in met), key=lambda p: place[p[0]]))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return turns


@dataclass(frozen=True, slots=True)
class LinkProbed:
    """The result of probing a link."""

    src: str
    dst: str
    bandwidth_bps: float
    latency_s: float | None
    together_bps: float = float("inf")
    """The mean rate while all other sites were sending, too; infinite if that was not measured."""


class RackProbing:
    """Probes all pairs of sites while all others send, too, turn by turn.

    `start`, `measured` and `tick` return trains to send, each with the rank that sends it.
    """

    def __init__(self, sites: Sequence[str], results: Sequence[LinkProbed], options: Awareness) -> None:
        self._sites, self._options = tuple(sites), options
        self._index = {name: row for row, name in enumerate(sites)}
        self._alone_bps: Matrix = np.zeros((len(sites), len(sites)))
        for found in results:
            self._alone_bps[self._index[found.src], self._index[found.dst]] = found.bandwidth_bps
        self._sum_bps: Matrix = np.zeros_like(self._alone_bps)
        self._count = np.zeros_like(self._alone_bps)
        self._turns = [turn for number in range(TOURNAMENTS) for turn in tournament(self._order(number))]
        self._turn: dict[Pair, int] = {}
        self._train = 1 << 20
        self.done = False
        self.wake_at_s = float("inf")

    def _order(self, number: int) -> list[str]:
        return [self._sites[row] for row in np.random.default_rng(number).permutation(len(self._sites))]

    @staticmethod
    def is_worthwhile(sites: Sequence[str], results: Sequence[LinkProbed]) -> bool:
        """Whether there may be racks to find: enough sites, all pairs measured, and no zones in these measurements."""
        if not FEWEST_SITES <= len(sites) <= MOST_SITES or len(results) < len(sites) * (len(sites) - 1):
            return False
        index = {name: row for row, name in enumerate(sites)}
        bandwidth_bps, latency_s = np.zeros((2, len(sites), len(sites)))
        for found in results:
            link = index[found.src], index[found.dst]
            bandwidth_bps[link], latency_s[link] = found.bandwidth_bps, found.latency_s or 0.0
        probed = Network("probed", [Site(name) for name in sites], bandwidth_bps, latency_s)
        return not detect_zones(probed).are_groups

    def start(self, now_s: float) -> list[tuple[str, m.Explore]]:
        """Start the first turn."""
        return self._next_turn(now_s)

    def measured(self, worker: str, message: m.Measured, now_s: float) -> list[tuple[str, m.Explore]]:
        """Handle the measurement of a train."""
        link = (message.peer, worker)
        if self._turn.get(link) != message.train:
            return []
        del self._turn[link]
        i, j = self._index[link[0]], self._index[link[1]]
        self._sum_bps[i, j] += message.bandwidth_bps
        self._count[i, j] += 1
        return [] if self._turn else self._next_turn(now_s)

    def tick(self, now_s: float) -> list[tuple[str, m.Explore]]:
        """Start the next turn if the current one has timed out."""
        return self._next_turn(now_s) if not self.done and now_s >= self.wake_at_s else []

    def add_to(self, results: Sequence[LinkProbed]) -> list[LinkProbed]:
        """The results of the pairs alone, with their rates together."""
        mean_bps = np.where(self._count > 0, self._sum_bps / np.maximum(self._count, 1), np.inf).tolist()
        return [replace(one, together_bps=mean_bps[self._index[one.src]][self._index[one.dst]]) for one in results]

    def _next_turn(self, now_s: float) -> list[tuple[str, m.Explore]]:
        self._turn = {}
        self.done = not self._turns
        self.wake_at_s = float("inf") if self.done else now_s + GRACE * self._options.probe_s
        pairs = [] if self.done else self._turns.pop(0)
        return [self._send(link) for a, b in pairs for link in ((a, b), (b, a))]

    def _send(self, link: Pair) -> tuple[str, m.Explore]:
        self._train += 1
        self._turn[link] = self._train
        nbytes = int(self._alone_bps[self._index[link[0]], self._index[link[1]]] / 8 * TRAIN_S)
        chunk_bytes = self._options.probe_chunk_bytes
        chunks = max(self._options.probe_chunks + 1, min(MOST_CHUNKS, nbytes // chunk_bytes))
        return link[0], m.Explore(link[1], self._train, chunks, chunk_bytes)
