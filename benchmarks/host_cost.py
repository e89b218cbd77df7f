"""Processor time of a rank for a frame and for a byte.

Two processes all-reduce 40 MB over TCP on loopback, with chunks of different sizes: with threads for each connection,
as on fast networks, and with one polling thread, as on slow ones. The sum of all frames sent and received by a rank and
its processor time give the constants of `tradewind.planning.host`. The cost of a byte is that of the largest chunks.
Processor time does not depend on what else the machine does, apart from caches.

A second table compares what one, two and four connections carry with what `cost` predicts for them: on two ranks that
share this machine's cores, with the cost of a byte from the first table and a link without limit.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any, TextIO

import numpy as np

NBYTES = 40_000_000
ROUNDS = 7
LINKS = ("threads", "polled")
CHUNKS = (4 * 2**20, 256 * 1024, 64 * 1024, 16 * 1024, 4 * 1024)
CONNECTIONS = (1, 2, 4)
MANY_BYTES = 200_000_000


def run(out: TextIO) -> dict[str, Any]:
    """Measure every chunk size, and write one table."""
    from tradewind.experiments.contests.loopback import ask_ranks
    from tradewind.units import format_size

    out.write(f"{NBYTES / 1e6:g} MB, mean of {ROUNDS} rounds; load at the start: {os.getloadavg()[0]:.1f}.\n\n")
    out.write("| connections | chunk | frames handled | processor time | each byte | each frame beyond its bytes |\n")
    out.write("|---|---:|---:|---:|---:|---:|\n")
    found = {}
    for links in LINKS:
        rows = [ask_ranks("benchmarks.host_cost", 2, 1, [str(NBYTES), str(chunk), links, "0"]) for chunk in CHUNKS]
        byte_s = rows[0]["cpu_s"] / rows[0]["bytes"]
        for chunk, row in zip(CHUNKS, rows, strict=True):
            row["frame_s"] = (row["cpu_s"] - byte_s * row["bytes"]) / row["frames"]
            frame = f"{1e6 * row['frame_s']:.0f} µs" if chunk != CHUNKS[0] else ""
            out.write(
                f"| {links} | {format_size(chunk)} | {row['frames']:.0f} | {1e3 * row['cpu_s']:.1f} ms "
                f"| {1e9 * row['cpu_s'] / row['bytes']:.2f} ns | {frame} |\n"
            )
        found[links] = rows
    carried = _connections(out, found["threads"][0])
    return {"chunks": CHUNKS, "rows": found, "connections": CONNECTIONS, "carried": carried}


def _connections(out: TextIO, largest: dict[str, float]) -> list[dict[str, float]]:
    """Measure what a number of connections carries, and write the table beside what is predicted."""
    from tradewind.experiments.contests.loopback import ask_ranks

    cores, byte_s = float(os.cpu_count() or 1), largest["cpu_s"] / largest["bytes"]
    out.write(f"\n{MANY_BYTES / 1e6:g} MB over TCP with threads, {cores:g} cores for both ranks.\n\n")
    out.write("| connections | live | each way | predicted | live over predicted | limited by |\n")
    out.write("|---:|---:|---:|---:|---:|---|\n")
    rows = []
    for count in CONNECTIONS:
        asked = [str(MANY_BYTES), str(CHUNKS[0]), "threads", str(count)]
        row = ask_ranks("benchmarks.host_cost", 2, 1, asked)
        predicted_s, limit = _predicted(cores, byte_s, count)
        rows.append({**row, "predicted_s": predicted_s})
        out.write(
            f"| {count} | {1e3 * row['wall_s']:.0f} ms | {8e-9 * MANY_BYTES / row['wall_s']:.1f} Gbit/s "
            f"| {1e3 * predicted_s:.0f} ms | {row['wall_s'] / predicted_s:.2f} | {limit} |\n"
        )
    return rows


def _predicted(cores: float, byte_s: float, connections: int) -> tuple[float, str]:
    """The predicted time of two ranks on a machine, and what limits it."""
    from tradewind import HostCost, Network, Site, make_plan
    from tradewind.planning.cost import PipelinedCost

    network = Network("loopback", [Site("a"), Site("b")], 1e12 * (1 - np.eye(2)))
    host = HostCost(byte_s=byte_s, cores=cores, rank_cores=max(1.0, cores / 2), connections=connections)
    plan = make_plan("multi-star", network, MANY_BYTES)
    spent = PipelinedCost(plan, network, host).at([CHUNKS[0]] * len(plan.shards))
    return spent.seconds, spent.bottleneck


def rank_of_two(rank: int, port: str, world: int, nbytes: int, chunk_bytes: int, links: str, connections: int) -> None:
    """One process: rank 0 prints its processor time, frames and bytes for each round, and its median time."""
    from tradewind import Network, RunOptions, Site, Transport, connect

    transport = Transport(inline_bytes=0, chunk_bytes=chunk_bytes, local_sockets=False, connections=connections or None)
    slow = Network("slow", [Site("a"), Site("b")], 1e9 * (1 - np.eye(2))) if links == "polled" else None
    options = RunOptions(planner="multi-star", network=slow, transport=transport)
    group = connect(f"127.0.0.1:{port}", rank, world, options)
    array = np.ones(nbytes // 4, np.float32)
    for _ in range(2):
        group.all_reduce(array, out=array)
    group.barrier()
    before, start_s, took = _moved(group), time.process_time(), []
    for _ in range(ROUNDS):
        begun_s = time.perf_counter()
        group.all_reduce(array, out=array)
        took.append(time.perf_counter() - begun_s)
    cpu_s, moved = time.process_time() - start_s, _moved(group) - before
    group.barrier()
    group.close()
    if rank == 0:
        found = {"cpu_s": cpu_s, "frames": float(moved[0]), "bytes": float(moved[1])}
        each = {name: value / ROUNDS for name, value in found.items()}
        print(json.dumps({**each, "wall_s": statistics.median(took)}))


def _moved(group: Any) -> np.ndarray[Any, Any]:
    peers = group.stats().peers
    moved = [(p.sent_frames + p.received_frames, p.sent_bytes + p.received_bytes) for p in peers]
    total: np.ndarray[Any, Any] = np.array(moved, dtype=float).sum(axis=0)
    return total


if __name__ == "__main__":
    rank, port, world, nbytes, chunk_bytes, links, connections = sys.argv[1:]
    rank_of_two(int(rank), port, int(world), int(nbytes), int(chunk_bytes), links, int(connections))
