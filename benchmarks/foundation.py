"""Times of basic operations: starting, planning, comparing, predicting.

Each row is run in turn with all others, so that a busy moment of the machine affects all alike. Commands are whole
processes; the last column is the ratio to a bare `python -c pass`. Calls run in this process, after a first one that is
not counted.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TextIO

REPEATS = 9
BARE = "python -c pass"


def run(out: TextIO) -> None:
    """Measure everything, and write one table."""
    out.write(f"Load at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n\n")
    rows = {**commands(), **calls()}
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for work in rows.values():
        work()
    for _ in range(REPEATS):
        for name, work in rows.items():
            start_s = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start_s)
    bare_s = statistics.median(seconds[BARE])
    out.write("| what | median | fastest | slowest | x bare start |\n|---|---:|---:|---:|---:|\n")
    for name, measured in seconds.items():
        median_s = statistics.median(measured)
        times = (f"{1e3 * s:.1f} ms" for s in (median_s, min(measured), max(measured)))
        out.write(f"| {_shown(name)} | {' | '.join(times)} | {median_s / bare_s:.2f} |\n")


def _shown(name: str) -> str:
    return f"`{name}`" if name in commands() else name


def commands() -> dict[str, Callable[[], object]]:
    """Whole processes."""
    tradewind = "from tradewind.cli import main; main()"
    return {
        BARE: _process("pass"),
        'python -c "import tradewind"': _process("import tradewind"),
        "tradewind --help": _process(tradewind, "--help"),
        "tradewind plan netstorm9 --planner ring": _process(tradewind, "plan", "netstorm9", "--planner", "ring"),
        "tradewind compare gscale --bytes 1GB": _process(tradewind, "compare", "gscale", "--bytes", "1GB"),
    }


def _process(code: str, *arguments: str) -> Callable[[], object]:
    command = [sys.executable, "-c", code, *arguments]
    return lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def calls() -> dict[str, Callable[[], object]]:
    """Work inside this process."""
    from tradewind.catalog import load_network
    from tradewind.planning import make_plan
    from tradewind.planning.bound import bound
    from tradewind.planning.check import check
    from tradewind.planning.cost import cost

    mesh, gscale = load_network("crew-n1"), load_network("gscale")
    plan = make_plan("multi-star", mesh, 180_000_000)
    assert (len(plan.shards), len(mesh)) == (60, 60)
    return {
        "`cost`: 60 shards on a mesh of 60 sites": lambda: cost(plan, mesh),
        "`check`: 60 shards on a mesh of 60 sites": lambda: check(plan, mesh),
        "`bound`: 12 sites of gscale": lambda: bound(gscale, gscale.names, 10**9),
    }
