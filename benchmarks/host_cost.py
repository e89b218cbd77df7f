"""Processor time of a rank for a frame and for a byte.

Two processes all-reduce 40 MB over TCP on loopback, with chunks of different sizes: with threads for each connection,
as on fast networks, and with one polling thread, as on slow ones. The sum of all frames sent and received by a rank and
its processor time give the constants of `tradewind.planning.host`. The cost of a byte is that of the largest chunks.
Processor time does not depend on what else the machine does, apart from caches.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, TextIO

import numpy as np

NBYTES = 40_000_000
ROUNDS = 7
LINKS = ("threads", "polled")
CHUNKS = (4 * 2**20, 256 * 1024, 64 * 1024, 16 * 1024, 4 * 1024)


def run(out: TextIO) -> dict[str, Any]:
    """Measure every chunk size, and write one table."""
    from tradewind.experiments.contests.loopback import ask_ranks
    from tradewind.units import format_size

    out.write(f"{NBYTES / 1e6:g} MB, mean of {ROUNDS} rounds; load at the start: {os.getloadavg()[0]:.1f}.\n\n")
    out.write("| connections | chunk | frames handled | processor time | each byte | each frame beyond its bytes |\n")
    out.write("|---|---:|---:|---:|---:|---:|\n")
    found = {}
    for links in LINKS:
        rows = [ask_ranks("benchmarks.host_cost", 2, 1, [str(chunk), links]) for chunk in CHUNKS]
        byte_s = rows[0]["cpu_s"] / rows[0]["bytes"]
        for chunk, row in zip(CHUNKS, rows, strict=True):
            row["frame_s"] = (row["cpu_s"] - byte_s * row["bytes"]) / row["frames"]
            frame = f"{1e6 * row['frame_s']:.0f} µs" if chunk != CHUNKS[0] else ""
            out.write(
                f"| {links} | {format_size(chunk)} | {row['frames']:.0f} | {1e3 * row['cpu_s']:.1f} ms "
                f"| {1e9 * row['cpu_s'] / row['bytes']:.2f} ns | {frame} |\n"
            )
        found[links] = rows
    return {"chunks": CHUNKS, "rows": found}


def rank_of_two(rank: int, port: str, world: int, chunk_bytes: int, links: str) -> None:
    """One process: rank 0 prints its processor time, frames and bytes for each round."""
    from tradewind import Network, RunOptions, Site, Transport, connect

    transport = Transport(inline_bytes=0, chunk_bytes=chunk_bytes, local_sockets=False)
    slow = Network("slow", [Site("a"), Site("b")], 1e9 * (1 - np.eye(2))) if links == "polled" else None
    options = RunOptions(planner="multi-star", network=slow, transport=transport)
    group = connect(f"127.0.0.1:{port}", rank, world, options)
    array = np.ones(NBYTES // 4, np.float32)
    for _ in range(2):
        group.all_reduce(array, out=array)
    group.barrier()
    before, start_s = _moved(group), time.process_time()
    for _ in range(ROUNDS):
        group.all_reduce(array, out=array)
    cpu_s, moved = time.process_time() - start_s, _moved(group) - before
    group.barrier()
    group.close()
    if rank == 0:
        found = {"cpu_s": cpu_s, "frames": float(moved[0]), "bytes": float(moved[1])}
        print(json.dumps({name: value / ROUNDS for name, value in found.items()}))


def _moved(group: Any) -> np.ndarray[Any, Any]:
    peers = group.stats().peers
    moved = [(p.sent_frames + p.received_frames, p.sent_bytes + p.received_bytes) for p in peers]
    total: np.ndarray[Any, Any] = np.array(moved, dtype=float).sum(axis=0)
    return total


if __name__ == "__main__":
    rank_of_two(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
