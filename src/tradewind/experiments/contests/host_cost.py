"""What a frame and a byte cost the processor of this machine: the constants of `tradewind.planning.host`.

Two processes all-reduce an array over TCP on loopback, with chunks of different sizes: with threads for each
connection, as on fast networks, and with one polling thread, as on slow ones. The frames that a rank has sent and
received, and its processor time, give both constants; the cost of a byte is that of the largest chunks. Processor time
does not depend on what else the machine does, apart from caches.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tradewind.experiments.contests.loopback import ask_ranks
from tradewind.network import Network, Site
from tradewind.planning.host import FRAME_S
from tradewind.runtime.group import connect
from tradewind.runtime.options import RunOptions, Transport

if TYPE_CHECKING:
    from tradewind.runtime.group import Group

NBYTES = 40_000_000
LARGEST, SMALL = 4 * 2**20, 16 * 1024
THREADS, POLLED = "threads", "polled"
USUAL_FRAME_S = 22e-6
"""What a frame of `SMALL` costs here, polled, on the machine where `FRAME_S` was measured between frames of slow links.

There a rank sleeps between frames and its caches grow cold, so a frame costs several times what it does on loopback.
"""


@dataclass(frozen=True, slots=True)
class Moved:
    """One rank's share of a round, on average."""

    cpu_s: float
    frames: float
    bytes: float
    wall_s: float
    """Median time of a round."""

    @property
    def byte_s(self) -> float:
        """Processor time for each byte, if frames cost nothing."""
        return self.cpu_s / self.bytes

    def frame_s(self, byte_s: float) -> float:
        """Processor time for each frame beyond its bytes."""
        return max(0.0, self.cpu_s - byte_s * self.bytes) / self.frames


@dataclass(frozen=True, slots=True)
class HostMeasure:
    """The constants of this machine."""

    byte_s: float
    loopback_frame_s: float

    @property
    def frame_s(self) -> float:
        """Processor time of a frame on slow links: the default, as many times as loopback here differs from there."""
        return FRAME_S * self.loopback_frame_s / USUAL_FRAME_S

    @property
    def flags(self) -> str:
        """The constants as flags of `tradewind plan` and `compare`."""
        return f"--frame-s {self.frame_s:.2g} --byte-s {self.byte_s:.2g}"


def measure_host(rounds: int, nbytes: int = NBYTES) -> HostMeasure:
    """Measure the constants of this machine, in some seconds."""
    large, small = (move(nbytes, chunk, POLLED, rounds) for chunk in (LARGEST, SMALL))
    return HostMeasure(large.byte_s, small.frame_s(large.byte_s))


def move(nbytes: int, chunk_bytes: int, links: str, rounds: int, connections: int = 0) -> Moved:
    """What two processes move in a round, and what it costs one of them; 0 connections: as many as they choose."""
    asked = [str(nbytes), str(chunk_bytes), links, str(rounds), str(connections)]
    return Moved(**ask_ranks(__name__, 2, 1, asked))


def _rank(rank: int, port: str, world: int, asked: Sequence[str]) -> None:
    """One process: rank 0 prints what it has moved for each round."""
    nbytes, chunk_bytes, rounds, connections = (int(asked[k]) for k in (0, 1, 3, 4))
    transport = Transport(inline_bytes=0, chunk_bytes=chunk_bytes, local_sockets=False, connections=connections or None)
    slow = Network("slow", [Site("a"), Site("b")], 1e9 * (1 - np.eye(2))) if asked[2] == POLLED else None
    group = connect(
        f"127.0.0.1:{port}", rank, world, RunOptions(planner="multi-star", network=slow, transport=transport)
    )
    array = np.ones(nbytes // 4, np.float32)
    for _ in range(2):
        group.all_reduce(array, out=array)
    group.barrier()
    before, start_s, took = _counts(group), time.process_time(), []
    for _ in range(rounds):
        begun_s = time.perf_counter()
        group.all_reduce(array, out=array)
        took.append(time.perf_counter() - begun_s)
    cpu_s, (frames, moved) = time.process_time() - start_s, _counts(group) - before
    group.barrier()
    group.close()
    if rank == 0:
        each = {"cpu_s": cpu_s / rounds, "frames": frames / rounds, "bytes": moved / rounds}
        print(json.dumps({**each, "wall_s": statistics.median(took)}))


def _counts(group: Group) -> np.ndarray[Any, Any]:
    peers = group.stats().peers
    moved = [(peer.sent_frames + peer.received_frames, peer.sent_bytes + peer.received_bytes) for peer in peers]
    total: np.ndarray[Any, Any] = np.array(moved, dtype=float).sum(axis=0)
    return total


if __name__ == "__main__":
    _rank(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
