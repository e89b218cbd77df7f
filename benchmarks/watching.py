"""The cost of watching a run: page, metrics and trace together, and how long an hour of a trace takes to load.

Eight processes on loopback, each in two groups, one of them with `dashboard=` and `trace=`. Both reduce 400 kB 20 times
a second, in blocks that take turns; the order of the two changes with every pair of blocks. Given are medians over
pairs of blocks, and the middle half of the ratio. Processor time is the sum over all ranks, with the threads that serve
and write. In the second case five clients read the page's events all the time. Measurement is off in both groups, so
that both keep the same plan. The trace that is loaded is an hour of simulated training at 62 sites (`skyplane`).
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from tradewind.control.awareness import Awareness
from tradewind.experiments.contests.loopback import ask_ranks
from tradewind.runtime.addresses import LOOPBACK, listen_on
from tradewind.runtime.group import Group, connect

PROCESSES = 8
NBYTES = 400_000
ROUND_EVERY_S = 0.05
ROUNDS = 30
PAIRS = int(os.environ.get("PAIRS", "10"))
STILL = Awareness(measure=False)
LONGEST_S = 600
HOUR = ["skyplane", "--scheme", "bsp-optimal", "--bytes", "100MB", "--compute", "2s", "--seconds", "3600"]


def run(out: TextIO) -> dict[str, Any]:
    """Measure both cases and loading, write two tables, and return all numbers."""
    out.write(f"Load at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n\n")
    out.write("| open pages | a round | watched | ratio | middle half | processor time | ratio | middle half |")
    out.write(" trace in a minute |\n|---:|---:|---:|---:|---|---:|---:|---|---:|\n")
    found = {str(clients): measure(clients) for clients in (0, 5)}
    for clients, (pairs, bytes_a_minute) in found.items():
        plain_s, watched_s, plain_cpu_s, _ = (statistics.median(column) for column in zip(*pairs, strict=True))
        wall = statistics.quantiles([watched / plain for plain, watched, _, _ in pairs], n=4)
        processor = statistics.quantiles([watched / plain for _, _, plain, watched in pairs], n=4)
        out.write(
            f"| {clients} | {1e3 * plain_s:.2f} ms | {1e3 * watched_s:.2f} ms | {wall[1]:.3f} "
            f"| {wall[0]:.3f} to {wall[2]:.3f} | {1e3 * plain_cpu_s:.2f} ms | {processor[1]:.3f} "
            f"| {processor[0]:.3f} to {processor[2]:.3f} | {bytes_a_minute / 1e6:.2f} MB |\n"
        )
    records, nbytes, seconds = load_an_hour()
    out.write(f"\nAn hour of 62 sites, {records:,} records, {nbytes / 1e6:.1f} MB: loaded in {seconds:.2f} s.\n")
    return {"cases": found, "hour": {"records": records, "bytes": nbytes, "seconds": seconds}}


def measure(clients: int) -> tuple[list[list[float]], float]:
    """Times of pairs of blocks with so many open pages, and the bytes that all traces grow by in a minute."""
    with listen_on(LOOPBACK, 0) as probe:
        port = probe.getsockname()[1]
    ended = threading.Event()
    for _ in range(clients):
        threading.Thread(target=_read_events, args=(port, ended), daemon=True).start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            pairs, seconds = ask_ranks(__name__, PROCESSES, 2, [folder, str(port)])
            written = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    finally:
        ended.set()
    return pairs, written / seconds * 60


def _read_events(port: int, ended: threading.Event) -> None:
    """Read the page's events until the run ends; try again while it has not begun."""
    while not ended.wait(0.2):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{LOOPBACK}:{port}/events?since=0") as page:
            while page.read1() and not ended.is_set():
                pass


def load_an_hour() -> tuple[int, int, float]:
    """Records, bytes and seconds of loading an hour of a simulated run."""
    from tradewind.dashboard.sources import load_model
    from tradewind.trace.files import read_trace

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "hour.jsonl"
        program = [sys.executable, "-m", "tradewind", "simulate", *HOUR, "--trace", str(file), "--json"]
        subprocess.run(program, stdout=subprocess.DEVNULL, check=True, timeout=LONGEST_S)
        start_s = time.perf_counter()
        load_model([file])
        seconds = time.perf_counter() - start_s
        return len(read_trace(file).records), file.stat().st_size, seconds


def _block(group: Group, array: Any, out: Any) -> tuple[float, float]:
    """Wall seconds and processor seconds of a round, the latter of all processes."""
    group.barrier()
    took_s, start_cpu_s = 0.0, time.process_time()
    next_s = time.perf_counter()
    for _ in range(ROUNDS):
        begin_s = time.perf_counter()
        group.all_reduce(array, out=out)
        took_s += time.perf_counter() - begin_s
        next_s += ROUND_EVERY_S
        time.sleep(max(0.0, next_s - time.perf_counter()))
    spent = np.array([took_s, time.process_time() - start_cpu_s]) / ROUNDS
    return float(spent[0]), float(group.all_reduce(spent[1:])[0])


def _worker(rank: int, plain_port: str, watched_port: str, world: int, folder: str, page: str) -> None:
    array = np.ones(NBYTES // 4, np.float32)
    out = np.empty_like(array)
    with (
        connect(f"{LOOPBACK}:{plain_port}", rank, world, awareness=STILL) as plain,
        connect(
            f"{LOOPBACK}:{watched_port}", rank, world, awareness=STILL, trace=folder, dashboard=f"{LOOPBACK}:{page}"
        ) as watched,
    ):
        found, start_s = [], time.perf_counter()
        for number in range(-1, PAIRS):
            order = (plain, watched) if number % 2 else (watched, plain)
            spent = {group is watched: _block(group, array, out) for group in order}
            if number >= 0:
                found.append([spent[False][0], spent[True][0], spent[False][1], spent[True][1]])
        watched_s = (time.perf_counter() - start_s) / 2
        if rank == 0:
            print(json.dumps([found, watched_s]))
        plain.barrier()


if __name__ == "__main__":
    _worker(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5], sys.argv[6])
