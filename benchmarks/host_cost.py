"""Processor time of a rank for a frame and for a byte.

Two processes all-reduce 40 MB over TCP on loopback, with chunks of different sizes: with threads for each connection,
as on fast networks, and with one polling thread, as on slow ones. The sum of all frames sent and received by a rank and
its processor time give the constants of `tradewind.planning.host`. The cost of a byte is that of the largest chunks.
Processor time does not depend on what else the machine does, apart from caches. `tradewind bench host` prints the
constants of another machine.

A second table compares what one, two and four connections carry with what `cost` predicts for them: on two ranks that
share this machine's cores, with the cost of a byte from the first table and a link without limit.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

if TYPE_CHECKING:
    from tradewind.experiments.contests.host_cost import Moved

ROUNDS = 7
CHUNKS = (4 * 2**20, 256 * 1024, 64 * 1024, 16 * 1024, 4 * 1024)
CONNECTIONS = (1, 2, 4)
MANY_BYTES = 200_000_000


def run(out: TextIO) -> dict[str, Any]:
    """Measure every chunk size, and write one table."""
    from tradewind.experiments.contests.host_cost import NBYTES, POLLED, THREADS, move
    from tradewind.units import format_size

    out.write(f"{NBYTES / 1e6:g} MB, mean of {ROUNDS} rounds; load at the start: {os.getloadavg()[0]:.1f}.\n\n")
    out.write("| connections | chunk | frames handled | processor time | each byte | each frame beyond its bytes |\n")
    out.write("|---|---:|---:|---:|---:|---:|\n")
    found = {}
    for links in (THREADS, POLLED):
        rows = [move(NBYTES, chunk, links, ROUNDS) for chunk in CHUNKS]
        for chunk, row in zip(CHUNKS, rows, strict=True):
            frame = f"{1e6 * row.frame_s(rows[0].byte_s):.0f} µs" if chunk != CHUNKS[0] else ""
            out.write(
                f"| {links} | {format_size(chunk)} | {row.frames:.0f} | {1e3 * row.cpu_s:.1f} ms "
                f"| {1e9 * row.byte_s:.2f} ns | {frame} |\n"
            )
        found[links] = rows
    carried = _connections(out, found[THREADS][0])
    kept = {links: [asdict(row) for row in rows] for links, rows in found.items()}
    return {"chunks": CHUNKS, "rows": kept, "connections": CONNECTIONS, "carried": carried}


def _connections(out: TextIO, largest: Moved) -> list[dict[str, float]]:
    """Measure what a number of connections carries, and write the table beside what is predicted."""
    from tradewind.experiments.contests.host_cost import THREADS, move

    cores = float(os.cpu_count() or 1)
    out.write(f"\n{MANY_BYTES / 1e6:g} MB over TCP with threads, {cores:g} cores for both ranks.\n\n")
    out.write("| connections | live | each way | predicted | live over predicted | limited by |\n")
    out.write("|---:|---:|---:|---:|---:|---|\n")
    rows = []
    for count in CONNECTIONS:
        row = move(MANY_BYTES, CHUNKS[0], THREADS, ROUNDS, count)
        predicted_s, limit = _predicted(cores, largest.byte_s, count)
        rows.append({**asdict(row), "predicted_s": predicted_s})
        out.write(
            f"| {count} | {1e3 * row.wall_s:.0f} ms | {8e-9 * MANY_BYTES / row.wall_s:.1f} Gbit/s "
            f"| {1e3 * predicted_s:.0f} ms | {row.wall_s / predicted_s:.2f} | {limit} |\n"
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
