"""The cost of a trace: rounds of a group that is traced, compared with rounds of one that is not, in turn.

Four processes on loopback, each in two groups, one of them with `trace=`. Blocks of rounds by either take turns, and
the order of the two changes with every pair of blocks. Processor time is the sum over all processes, including threads
that write; on a busy machine it is more meaningful than wall time. Given are medians over pairs of blocks, and the
middle half of the ratio. Measurement is off in both groups, so that both keep the same plan. *Equal shares* is the
default without a network; *many frames* has 16 KiB chunks, which is the most tracing work per byte.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any, TextIO

import numpy as np

from tradewind.control.awareness import Awareness
from tradewind.experiments.contests.loopback import ask_ranks
from tradewind.runtime.addresses import LOOPBACK
from tradewind.runtime.group import Group, connect
from tradewind.runtime.options import Transport

PROCESSES = 4
PAIRS = 16
STILL = Awareness(measure=False)
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "4 KB inline": (4_000, 100, {}),
    "4 MB, equal shares": (4_000_000, 20, {}),
    "40 MB, equal shares": (40_000_000, 4, {}),
    "4 MB, many frames": (4_000_000, 20, {"transport": Transport(chunk_bytes=16 * 1024)}),
}
"""Bytes, rounds in a block, and options."""


def run(out: TextIO) -> None:
    """Measure all cases, and write the table."""
    print(f"Load at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n", file=out)
    print("| case | a round | traced | processor time | traced | ratio | middle half | records dropped |", file=out)
    print("|---|---:|---:|---:|---:|---:|---:|---:|", file=out)
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            pairs, dropped = ask_ranks(__name__, PROCESSES, 2, [name, folder])
        plain_s, traced_s, plain_cpu_s, traced_cpu_s = (
            statistics.median(column) for column in zip(*pairs, strict=True)
        )
        lower, ratio, upper = statistics.quantiles([traced / plain for _, _, plain, traced in pairs], n=4)
        times = " | ".join(f"{1e3 * s:.2f} ms" for s in (plain_s, traced_s, plain_cpu_s, traced_cpu_s))
        print(f"| {name} | {times} | {ratio:.2f} | {lower:.2f} to {upper:.2f} | {dropped} |", file=out, flush=True)


def _block(group: Group, array: Any, out: Any, rounds: int) -> tuple[float, float]:
    """Wall seconds and processor seconds of a round, the latter of all processes."""
    group.barrier()
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        group.all_reduce(array, out=out)
    spent = np.array([time.perf_counter() - start_s, time.process_time() - start_cpu_s]) / rounds
    return float(spent[0]), float(group.all_reduce(spent[1:])[0])


def _worker(rank: int, plain_port: str, traced_port: str, world: int, case: str, folder: str) -> None:
    nbytes, rounds, options = CASES[case]
    array = np.ones(nbytes // 4, np.float32)
    out = np.empty_like(array)
    with (
        connect(f"{LOOPBACK}:{plain_port}", rank, world, awareness=STILL, **options) as plain,
        connect(f"{LOOPBACK}:{traced_port}", rank, world, trace=folder, awareness=STILL, **options) as traced,
    ):
        found = []
        for number in range(-1, PAIRS):
            order = (plain, traced) if number % 2 else (traced, plain)
            spent = {group is traced: _block(group, array, out, rounds) for group in order}
            if number >= 0:
                found.append([spent[False][0], spent[True][0], spent[False][1], spent[True][1]])
        stats = traced.stats().trace
        assert stats is not None
        dropped = int(plain.all_reduce(np.array([stats.dropped]))[0])
        if rank == 0:
            print(json.dumps([found, dropped]))
        plain.barrier()


if __name__ == "__main__":
    _worker(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5], sys.argv[6])
