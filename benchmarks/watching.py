"""The cost of watching a run: page, metrics and trace together, and how long an hour of a trace takes to load.

Three groups of eight processes on loopback; one of them has `dashboard=` and `trace=`, and the two others are alike.
Each reduces 400 kB 20 times a second, in blocks that take turns, in an order that changes with every turn. Turns come
in pairs: in one, five clients read the page's events, compressed as browsers ask for them; in the other, no page is
open. Which turn of a pair is first, is drawn. The clients run in a process of their own, which has to share the cores
with all groups; what it uses is given, and is no part of what is compared.

Two groups that are alike differ by a few per cent for as long as they live, so that everything is started several
times, and the watched group is another one each time. Given are means over starts of the median over turns, with the
95% interval (Student's t) over starts: the watched group to the mean of the two others, while no page is open; one of
these others to the second one, which is what chance alone makes; and open pages to none, side by side in the same
group, once for the watched group and once for the others, for which nothing but the use of the cores changes. Processor
time is the sum over all processes of a group, with the threads that serve and write; what those threads alone add is
given too, because noise hardly affects it. Measurement is off in all groups, so that they keep the same plan.

Bytes are those of a further minute without pauses: of all files of the trace, of the messages that ranks send for the
page, of one open page, and of metrics that are asked for every 15 s. The trace that is loaded is an hour of simulated
training at 62 sites (`skyplane`).
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

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
ROUNDS = 20
GROUPS = 3
PAGES = 5
STARTS = int(os.environ.get("STARTS", "5"))
PAIRS = int(os.environ.get("PAIRS", "6"))
"""Pairs of turns of each start."""
WARM_UP_PAIRS = 1
LEFT_S = 2.5
"""After this time the server has noticed closed pages, which it does when it sends them changes."""
WATCHING = ("tradewind-trace", "tradewind-activity", "tradewind-live", "tradewind-page")
"""Names of threads that do nothing else."""
STILL = Awareness(measure=False)
LONGEST_S = 600
MINUTE_S = float(os.environ.get("MINUTE_S", "60"))
SCRAPE_S = 15.0
"""Interval of Prometheus."""
HOUR = ["skyplane", "--scheme", "bsp-optimal", "--bytes", "100MB", "--compute", "2s", "--seconds", "3600"]

Floats = npt.NDArray[np.float64]


def run(out: TextIO) -> dict[str, Any]:
    """Measure several starts and loading, write two tables, and return all numbers."""
    out.write(f"Load at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n\n")
    starts, clients_share = [], []
    grown: dict[str, int] = {}
    for number in range(STARTS):
        found = measure(number, MINUTE_S if number == 0 else 0.0)
        starts.append(found["turns"])
        clients_share.append(found["clients_s"] / found["open_s"])
        grown = found["bytes"] or grown
    taken = np.array(starts)  # by start, pair, open or not, group, and what: see _block
    out.write("| compared | what | a round | ratio | 95% interval |\n|---|---|---:|---:|---|\n")
    ratios = {}
    for column, what in enumerate(("time", "processor time")):
        usual_ms = 1e3 * float(np.median(taken[:, :, 0, 1:, column]))
        for compared, each in ratios_of(taken[..., column]).items():
            low, mean, high = ratios[f"{compared}: {what}"] = over_starts(each)
            out.write(f"| {compared} | {what} | {usual_ms:.2f} ms | {mean:.3f} | {low:.3f} to {high:.3f} |\n")
    out.write("\n| processor time that watching alone uses | of that of a group |\n|---|---:|\n")
    for is_open, pages in enumerate(("no page open", f"{PAGES} pages open")):
        share = float(taken[:, :, is_open, 0, 2].mean() / taken[:, :, is_open, 1:, 1].mean())
        out.write(f"| threads of the run that watch, {pages} | {share:.2%} |\n")
    out.write(f"\nThe {PAGES} clients themselves used {np.mean(clients_share):.2%} of a core.\n")
    parts = ", ".join(f"{name} {nbytes / 1e6:.3f} MB" for name, nbytes in grown.items())
    out.write(f"\nBytes in a minute: {parts}; together {sum(grown.values()) / 1e6:.2f} MB.\n")
    records, nbytes, seconds = load_an_hour()
    out.write(f"\nAn hour of 62 sites, {records:,} records, {nbytes / 1e6:.1f} MB: loaded in {seconds:.2f} s.\n")
    hour = {"records": records, "bytes": nbytes, "seconds": seconds}
    return {"ratios": ratios, "turns": starts, "clients": clients_share, "bytes": grown, "hour": hour}


def ratios_of(taken: Floats) -> dict[str, list[float]]:
    """What is compared, as a ratio for each start; the watched group is the first one, and `taken` is by start, pair,
    open pages or none, and group."""
    closed, opened = taken[:, :, 0], taken[:, :, 1]
    compared = {
        "watched to not, no page open": closed[..., 0] / closed[..., 1:].mean(axis=-1),
        "two that are not watched": closed[..., 1] / closed[..., 2],
        f"{PAGES} pages open to none, watched": opened[..., 0] / closed[..., 0],
        f"{PAGES} pages open to none, not watched": opened[..., 1:].mean(axis=-1) / closed[..., 1:].mean(axis=-1),
    }
    return {name: [float(each) for each in np.median(ratios, axis=1)] for name, ratios in compared.items()}


def over_starts(each: Sequence[float]) -> tuple[float, float, float]:
    """The mean over starts, between the ends of its 95% interval.

    >>> over_starts([0.9, 1.0, 1.1])
    (0.7516, 1.0, 1.2484)
    """
    mean, off = statistics.mean(each), float("nan")
    if len(each) > 1:
        off = float(student.ppf(0.975, len(each) - 1)) * statistics.stdev(each) / len(each) ** 0.5
    return round(mean - off, 4), round(mean, 4), round(mean + off, 4)


def measure(start: int, minute_s: float) -> dict[str, Any]:
    """One start: the times of every turn, with the watched group first; what clients used while pages were open; and
    the bytes of a minute, if one is asked for."""
    with listen_on(LOOPBACK, 0) as probe:
        page = str(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        given = [str(start), folder, page, str(minute_s)]
        found: dict[str, Any] = ask_ranks(__name__, GROUPS * PROCESSES, 1 + GROUPS, given)
    return found


class Clients:
    """Clients that read the page's events, as browsers do, in a process of their own."""

    def __init__(self, page: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__ if __name__ != "__main__" else "benchmarks.watching", "clients", page],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def set_open(self, pages: int) -> float:
        """Open or close pages until there are so many, and wait until each has read the run's state; returns the
        processor seconds that all of them have used so far."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(pages, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _clients(page: str) -> None:
    """The process of the clients: opens as many pages as each line of its input says, and answers when they are."""
    pages: list[tuple[socket.socket, threading.Thread]] = []
    for line in sys.stdin:
        left = 0.0
        while len(pages) < int(line):
            pages.append(_open_page(int(page)))
        while len(pages) > int(line):
            connection, thread = pages.pop()
            connection.shutdown(socket.SHUT_RDWR)
            thread.join()
            connection.close()
            left = LEFT_S
        time.sleep(left)
        print(time.process_time(), flush=True)


def _open_page(port: int) -> tuple[socket.socket, threading.Thread]:
    """A connection that has read the whole state of the run, and the thread that reads its changes."""
    connection = socket.create_connection((LOOPBACK, port))
    asked = f"GET /events?since=0 HTTP/1.1\r\nHost: {LOOPBACK}\r\nAccept-Encoding: gzip\r\n\r\n"
    connection.sendall(asked.encode())
    head, _, packed = connection.recv(1 << 16).partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0], head
    unpacked, said = zlib.decompressobj(wbits=31), b""
    while not (said := said + unpacked.decompress(packed)).endswith(b"\n\n"):
        packed = connection.recv(1 << 16)

    def read() -> None:
        while data := connection.recv(1 << 16):
            unpacked.decompress(data)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return connection, thread


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


def _worker(number: int, ports: list[str], processes: int, start: int, folder: str, page: str, minute_s: float) -> None:
    """One process of any group; a group of all, which is used between blocks only, lets them take turns.

    Group 0 is the watched one. Which processes are in it, changes with the start.
    """
    array, world = np.ones(NBYTES // 4, np.float32), processes // GROUPS
    out = np.empty_like(array)
    rank, mine = number % world, (number // world + start) % GROUPS
    watched: dict[str, Any] = {"trace": folder, "dashboard": f"{LOOPBACK}:{page}"} if mine == 0 else {}
    with (
        connect(f"{LOOPBACK}:{ports[0]}", number, processes, awareness=STILL, run="turns") as turns,
        connect(f"{LOOPBACK}:{ports[1 + mine]}", rank, world, awareness=STILL, **watched) as group,
    ):
        turns.barrier()
        clients = Clients(page) if number == 0 else None
        rng, found = np.random.default_rng(start), []
        open_s = clients_s = 0.0
        for pair in range(-WARM_UP_PAIRS, PAIRS):
            spent = np.zeros((2, GROUPS, 3))
            for is_open in rng.permutation(2):
                before_s = clients.set_open(PAGES * int(is_open)) if clients else 0.0
                begin_s = time.perf_counter()
                for other in rng.permutation(GROUPS):
                    turns.barrier()
                    if other == mine:
                        spent[is_open, mine] = _block(group, array, out)
                turns.barrier()
                if clients and is_open:
                    open_s += time.perf_counter() - begin_s
                    clients_s += clients.set_open(PAGES) - before_s
            together = turns.all_reduce(spent) / world
            if pair >= 0:
                found.append(together.tolist())
        if clients:
            clients.close()
        grown = {}
        if mine == 0 and minute_s:
            grown = _bytes_of_a_minute(group, lambda: _block(group, array, out), folder, page, minute_s)
        if number == 0:
            print(json.dumps({"turns": found, "open_s": open_s, "clients_s": clients_s, "bytes": grown}))
        turns.barrier()


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[0] == "clients":
        _clients(given[1])
    else:
        last = given[2 + GROUPS :]
        _worker(int(given[0]), given[1 : 2 + GROUPS], int(last[0]), int(last[1]), last[2], last[3], float(last[4]))
