"""The cost of watching a run: page, metrics and trace together, and how long an hour of a trace takes to load.

Three groups of eight processes on loopback; one of them has `dashboard=` and `trace=`, and the two others are alike.
Each reduces 400 kB 20 times a second, in short blocks that take turns, in an order that changes with every turn. Given
are medians over turns of the ratio of the watched group to the mean of the two others, with the 95% interval of that
median; and, as what the machine's noise alone makes, the same for the two others, one to the other. Processor time is
the sum over all processes of a group, with the threads that serve and write; what those threads alone add is given too,
because noise hardly affects it. In the second case five clients read the page's events all the time. Measurement is off
in all groups, so that they keep the same plan. Bytes are those of a further minute without pauses: of all files of the
trace, of the messages that ranks send for the page, of one open page (compressed, as browsers ask for it), and of
metrics that are asked for every 15 s. The trace that is loaded is an hour of simulated training at 62 sites
(`skyplane`).
"""

from __future__ import annotations

import contextlib
import json
import math
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
ROUNDS = 10
GROUPS = 3
WATCHED = 0
"""The group that is watched."""
TURNS = int(os.environ.get("TURNS", "90"))
WARM_UP_TURNS = 3
WATCHING = ("tradewind-trace", "tradewind-activity", "tradewind-live", "tradewind-page")
"""Names of threads that do nothing else."""
STILL = Awareness(measure=False)
LONGEST_S = 600
MINUTE_S = float(os.environ.get("MINUTE_S", "60"))
SCRAPE_S = 15.0
"""Interval of Prometheus."""
HOUR = ["skyplane", "--scheme", "bsp-optimal", "--bytes", "100MB", "--compute", "2s", "--seconds", "3600"]


def run(out: TextIO) -> dict[str, Any]:
    """Measure both cases and loading, write two tables, and return all numbers."""
    out.write(f"Load at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n\n")
    out.write("| open pages | | a round | ratio | 95% interval | of two alike | 95% interval |\n")
    out.write("|---:|---|---:|---:|---|---:|---|\n")
    found = {str(clients): measure(clients) for clients in (0, 5)}
    for clients, (turns, _) in found.items():
        taken = np.array(turns)  # by turn and group: seconds, processor seconds, those of threads that watch
        for column, what in enumerate(("time", "processor time")):
            watched, *others = np.moveaxis(taken[:, :, column], 1, 0)
            ratio, alike = median_ratio(watched / np.mean(others, axis=0)), median_ratio(others[0] / others[1])
            out.write(
                f"| {clients} | {what} | {1e3 * float(np.median(others)):.2f} ms | {ratio[1]:.3f} "
                f"| {ratio[0]:.3f} to {ratio[2]:.3f} | {alike[1]:.3f} | {alike[0]:.3f} to {alike[2]:.3f} |\n"
            )
        share = float(np.mean(taken[:, WATCHED, 2]) / np.mean(taken[:, 1:, 1]))
        out.write(f"| {clients} | processor time of threads that watch | | {1 + share:.3f} | | | |\n")
    grown = found["0"][1]
    parts = ", ".join(f"{name} {nbytes / 1e6:.3f} MB" for name, nbytes in grown.items())
    out.write(f"\nBytes in a minute: {parts}; together {sum(grown.values()) / 1e6:.2f} MB.\n")
    records, nbytes, seconds = load_an_hour()
    out.write(f"\nAn hour of 62 sites, {records:,} records, {nbytes / 1e6:.1f} MB: loaded in {seconds:.2f} s.\n")
    return {"cases": found, "hour": {"records": records, "bytes": nbytes, "seconds": seconds}}


def median_ratio(ratios: Any) -> tuple[float, float, float]:
    """The median of ratios, between the ends of its 95% interval, which order statistics give for any distribution.

    >>> median_ratio([1.0 + 0.01 * number for number in range(-10, 11)])
    (0.95, 1.0, 1.05)
    """
    ordered, half = sorted(float(ratio) for ratio in ratios), (len(ratios) - 1) / 2
    off = 0.98 * len(ratios) ** 0.5
    low, high = max(0, math.floor(half - off)), min(len(ordered) - 1, math.ceil(half + off))
    return round(ordered[low], 4), round(statistics.median(ordered), 4), round(ordered[high], 4)


def measure(clients: int) -> tuple[list[list[list[float]]], dict[str, int]]:
    """Times of every turn with so many open pages; without any, also the bytes of a minute."""
    with listen_on(LOOPBACK, 0) as probe:
        port = probe.getsockname()[1]
    ended = threading.Event()
    for _ in range(clients):
        threading.Thread(target=_read_events, args=(port, ended), daemon=True).start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            given = [folder, str(port), str(0 if clients else MINUTE_S)]
            turns, grown = ask_ranks(__name__, GROUPS * PROCESSES, 1 + GROUPS, given)
    finally:
        ended.set()
    return turns, grown


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


def _watching_s() -> float:
    """Processor seconds of the threads of this process that only watch."""
    ids = [thread.native_id for thread in threading.enumerate() if thread.name in WATCHING]
    return sum(int(Path(f"/proc/self/task/{n}/schedstat").read_text().split()[0]) for n in ids) / 1e9


def _block(group: Group, array: Any, out: Any) -> Any:
    """Seconds of a round; processor seconds of all processes of the group, and of their threads that only watch."""
    group.barrier()
    took_s, start_watching_s, start_cpu_s = 0.0, _watching_s(), time.process_time()
    next_s = time.perf_counter()
    for _ in range(ROUNDS):
        begin_s = time.perf_counter()
        group.all_reduce(array, out=out)
        took_s += time.perf_counter() - begin_s
        next_s += ROUND_EVERY_S
        time.sleep(max(0.0, next_s - time.perf_counter()))
    cpu_s = time.process_time() - start_cpu_s
    spent = [took_s / group.world, cpu_s, _watching_s() - start_watching_s]
    return group.all_reduce(np.array(spent)) / ROUNDS


def _worker(number: int, ports: list[str], processes: int, folder: str, page: str, minute_s: float) -> None:
    """One process of any group; a group of all, which is used between blocks only, lets them take turns."""
    array, world = np.ones(NBYTES // 4, np.float32), processes // GROUPS
    out = np.empty_like(array)
    rank, mine = number % world, number // world
    watched: dict[str, Any] = {"trace": folder, "dashboard": f"{LOOPBACK}:{page}"} if mine == WATCHED else {}
    with (
        connect(f"{LOOPBACK}:{ports[0]}", number, processes, awareness=STILL, run="turns") as turns,
        connect(f"{LOOPBACK}:{ports[1 + mine]}", rank, world, awareness=STILL, **watched) as group,
    ):
        found = []
        for turn in range(-WARM_UP_TURNS, TURNS):
            spent = np.zeros((GROUPS, 3))
            for other in np.random.default_rng(WARM_UP_TURNS + turn).permutation(GROUPS):
                turns.barrier()
                if other == mine:
                    spent[mine] = _block(group, array, out)
            together = turns.all_reduce(spent) / world
            if turn >= 0:
                found.append(together.tolist())
        turns.barrier()
        grown = {}
        if mine == WATCHED and minute_s:
            grown = _bytes_of_a_minute(group, lambda: _block(group, array, out), folder, page, minute_s)
        if number == 0:
            print(json.dumps([found, grown]))
        turns.barrier()


if __name__ == "__main__":
    given = sys.argv[1:]
    last = given[2 + GROUPS :]
    _worker(int(given[0]), given[1 : 2 + GROUPS], int(last[0]), last[1], last[2], float(last[3]))
