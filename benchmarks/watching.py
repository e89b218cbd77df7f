"""The cost of watching a run: page, metrics and trace together, and how long an hour of a trace takes to load.

Two groups of eight processes on loopback, one of them with `dashboard=` and `trace=`. Both reduce 400 kB 20 times a
second, in blocks that take turns; the order of the two changes with every pair of blocks. Given are medians over pairs
of blocks, and the middle half of the ratio. Processor time is the sum over all processes of a group, with the threads
that serve and write. In the second case five clients read the page's events all the time. Measurement is off in both
groups, so that both keep the same plan. Bytes are those of a further minute without pauses: of all files of the trace,
of the messages that ranks send for the page, of one open page (compressed, as browsers ask for it), and of metrics that
are asked for every 15 s. The trace that is loaded is an hour of simulated training at 62 sites (`skyplane`).
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
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from tradewind.control.awareness import Awareness
from tradewind.experiments.contests.loopback import ask_ranks
from tradewind.runtime.activity import ACTIVITY_S
from tradewind.runtime.addresses import LOOPBACK, listen_on
from tradewind.runtime.group import Group, connect
from tradewind.wire import messages as m
from tradewind.wire.messages import encode_message

PROCESSES = 8
NBYTES = 400_000
ROUND_EVERY_S = 0.05
ROUNDS = 30
PAIRS = int(os.environ.get("PAIRS", "10"))
STILL = Awareness(measure=False)
LONGEST_S = 600
MINUTE_S = float(os.environ.get("MINUTE_S", "60"))
SCRAPE_S = 15.0
"""Interval of Prometheus."""
HOUR = ["skyplane", "--scheme", "bsp-optimal", "--bytes", "100MB", "--compute", "2s", "--seconds", "3600"]


def run(out: TextIO) -> dict[str, Any]:
    """Measure both cases and loading, write two tables, and return all numbers."""
    out.write(f"Load at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n\n")
    out.write("| open pages | a round | watched | ratio | middle half | processor time | ratio | middle half |\n")
    out.write("|---:|---:|---:|---:|---|---:|---:|---|\n")
    found = {str(clients): measure(clients) for clients in (0, 5)}
    for clients, (pairs, _) in found.items():
        plain_s, watched_s, plain_cpu_s, _ = (statistics.median(column) for column in zip(*pairs, strict=True))
        wall = statistics.quantiles([watched / plain for plain, watched, _, _ in pairs], n=4)
        processor = statistics.quantiles([watched / plain for _, _, plain, watched in pairs], n=4)
        out.write(
            f"| {clients} | {1e3 * plain_s:.2f} ms | {1e3 * watched_s:.2f} ms | {wall[1]:.3f} "
            f"| {wall[0]:.3f} to {wall[2]:.3f} | {1e3 * plain_cpu_s:.2f} ms | {processor[1]:.3f} "
            f"| {processor[0]:.3f} to {processor[2]:.3f} |\n"
        )
    grown = found["0"][1]
    parts = ", ".join(f"{name} {nbytes / 1e6:.3f} MB" for name, nbytes in grown.items())
    out.write(f"\nBytes in a minute: {parts}; together {sum(grown.values()) / 1e6:.2f} MB.\n")
    records, nbytes, seconds = load_an_hour()
    out.write(f"\nAn hour of 62 sites, {records:,} records, {nbytes / 1e6:.1f} MB: loaded in {seconds:.2f} s.\n")
    return {"cases": found, "hour": {"records": records, "bytes": nbytes, "seconds": seconds}}


def measure(clients: int) -> tuple[list[list[float]], dict[str, int]]:
    """Times of pairs of blocks with so many open pages; without any, also the bytes of a minute."""
    with listen_on(LOOPBACK, 0) as probe:
        port = probe.getsockname()[1]
    ended = threading.Event()
    for _ in range(clients):
        threading.Thread(target=_read_events, args=(port, ended), daemon=True).start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            pairs, grown = ask_ranks(__name__, 2 * PROCESSES, 3, [folder, str(port), str(0 if clients else MINUTE_S)])
    finally:
        ended.set()
    return pairs, grown


def _read_events(port: int, ended: threading.Event) -> None:
    """Read the page's events until the run ends; try again while it has not begun."""
    while not ended.wait(0.2):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{LOOPBACK}:{port}/events?since=0") as page:
            while page.read1() and not ended.is_set():
                pass


def _count_page(port: int, ended: threading.Event, counted: dict[str, int]) -> None:
    """Read the page as a browser does and metrics as Prometheus does, and count their bytes until the end."""
    url = f"http://{LOOPBACK}:{port}"

    def scrape() -> None:
        while not ended.wait(SCRAPE_S):
            with urllib.request.urlopen(f"{url}/metrics") as answer:
                counted["metrics"] += len(answer.read())

    threading.Thread(target=scrape, daemon=True).start()
    asked = urllib.request.Request(f"{url}/events?since=0", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(asked) as page:
        while not ended.is_set() and (data := page.read1()):
            counted["page"] += len(data)


def _bytes_of_a_minute(group: Group, work: Callable[[], object], folder: str, page: str, minute_s: float) -> Any:
    """The bytes of trace, messages, page and metrics while rounds go on; only rank 0 counts."""
    ended, counted = threading.Event(), {"trace": 0, "messages": 0, "page": 0, "metrics": 0}
    if group.rank == 0:
        threading.Thread(target=_count_page, args=(int(page), ended, counted), daemon=True).start()
        counted["trace"] = -_folder_bytes(folder)
    for _ in range(round(minute_s / (ROUNDS * ROUND_EVERY_S))):
        work()
    ended.set()
    if group.rank == 0:
        counted["trace"] += _folder_bytes(folder)
        sent = tuple((peer.name, peer.sent_bytes, 0) for peer in group.stats().peers)
        said = len(encode_message(m.Activity(sent, load=0.5, other_bps=1e6), 0))
        counted["messages"] = round(said * PROCESSES * minute_s / ACTIVITY_S)
    return counted


def _folder_bytes(folder: str) -> int:
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


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
    """Wall seconds and processor seconds of a round, the latter of all processes of the group."""
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


def _worker(number: int, ports: tuple[str, str, str], processes: int, folder: str, page: str, minute_s: float) -> None:
    """One process of either group; a group of all, which is used between blocks only, lets them take turns."""
    array, world = np.ones(NBYTES // 4, np.float32), processes // 2
    out = np.empty_like(array)
    rank, is_watched = number % world, number < world
    watched: dict[str, Any] = {"trace": folder, "dashboard": f"{LOOPBACK}:{page}"} if is_watched else {}
    with (
        connect(f"{LOOPBACK}:{ports[0]}", number, processes, awareness=STILL, run="turns") as turns,
        connect(f"{LOOPBACK}:{ports[1 + is_watched]}", rank, world, awareness=STILL, **watched) as group,
    ):
        found = []
        for pair in range(-1, PAIRS):
            spent = np.zeros((2, 2))
            for turn in (is_watched, not is_watched) if pair % 2 else (not is_watched, is_watched):
                turns.barrier()
                if turn:
                    spent[int(is_watched)] = _block(group, array, out)
            both = turns.all_reduce(spent) / world
            if pair >= 0:
                found.append([both[0, 0], both[1, 0], both[0, 1], both[1, 1]])
        turns.barrier()
        grown = {}
        if is_watched and minute_s:
            grown = _bytes_of_a_minute(group, lambda: _block(group, array, out), folder, page, minute_s)
        if number == 0:
            print(json.dumps([found, grown]))
        turns.barrier()


if __name__ == "__main__":
    given = sys.argv[1:]
    _worker(int(given[0]), (given[1], given[2], given[3]), int(given[4]), given[5], given[6], float(given[7]))
