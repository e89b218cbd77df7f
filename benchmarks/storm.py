"""Two hours of kills, stops and cuts among eight real processes: does anything grow, hang or diverge?

Many sites for a thousand rounds without faults are another benchmark: [soak](soak.md). Here eight ranks on loopback
average an array of 160 kB again and again, with two controllers of which each is the standby of the other. Every 5 s on
average a rank is killed, stopped (SIGSTOP), continued or restarted, a link is cut or healed, or a controller is killed
or restarted (`tests/support/live_storm.py`, which also tests use). All members of a round must have the same bytes,
inputs must not change, no process may end by itself, and after the last fault all eight ranks must average again. Two
ranks and a controller are never killed: memory, threads and open files of each are read every 10 s. `SECONDS=` is how
long the faults go on; the default is two hours. What was read until then is in `build/storm.json` at any time, so that
a soak that is stopped or fails is not lost.

Memory rises at first and then levels off: each connection has threads of its own, each thread takes memory from one of
the C library's arenas (eight a core), and what ended threads give back stays there for the next ones.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

if TYPE_CHECKING:
    from live_storm import StormReport

SECONDS = 7200.0
WORLD, SPARED = 8, 2
GAP_S, PAUSE_S = 5.0, 0.5
SEED = 20
KINDS = ("memory_bytes", "threads", "files")
KEPT = Path("build") / "storm.json"


def soak(seconds: float) -> StormReport:
    """Run the storm."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    from live_storm import Weather, live_storm

    weather = Weather(GAP_S, PAUSE_S, SPARED, stops=True)
    with tempfile.TemporaryDirectory() as folder, live_storm(Path(folder), WORLD, SEED, weather) as storm:
        storm.noted = keep
        try:
            return storm.run(seconds=seconds)
        finally:
            print(storm.report, file=sys.stderr, flush=True)


def as_data(report: StormReport) -> dict[str, Any]:
    """The report as it is stored."""
    return {**asdict(replace(report, events=Counter())), "events": dict(report.events)}


def keep(report: StormReport) -> None:
    """Store the report so far."""
    KEPT.parent.mkdir(exist_ok=True)
    half = KEPT.with_suffix(".half")
    half.write_text(json.dumps(as_data(report)))
    half.replace(KEPT)


def quarters(samples: list[dict[str, Any]], kind: str) -> list[float]:
    """One kind of use: before the faults, the medians of each quarter of them, and after them."""
    values = [float(sample[kind]) for sample in samples]
    parts = np.array_split(np.array(values[1:-1]), 4)
    return [values[0], *(statistics.median(part) if len(part) else values[0] for part in parts), values[-1]]


def tables(report: dict[str, Any]) -> str:
    """The page's text and table, from a report as it is stored."""
    from tradewind.units import format_duration, format_size

    events = ", ".join(f"{count} x {kind}" for kind, count in sorted(report["events"].items()))
    text = (
        f"{format_duration(report['seconds'])} with {sum(report['events'].values())} events: {events}. "
        f"{report['rounds']} rounds of several ranks in {report['terms']} terms of controllers, all members of each "
        f"with the same bytes. Of {report['steps']} steps of ranks {report['repaired']} were repaired and "
        f"{report['alone']} ended alone; {report['fetched']} ranks received the model of a member when they joined. "
        f"No process ended by itself. Load before: {report['load']:.1f} on {os.cpu_count()} cores.\n\n"
        "| process | of it | before | 1st quarter, median | 2nd | 3rd | 4th | after |\n"
        "|---|---|---:|---:|---:|---:|---:|---:|\n"
    )
    for name, samples in report["use"].items():
        for kind in KINDS:
            shown = quarters(samples, kind)
            cells = [format_size(v) if kind == "memory_bytes" else f"{v:g}" for v in shown]
            text += f"| {name} | {kind.removesuffix('_bytes')} | {' | '.join(cells)} |\n"
    return text


def run(out: TextIO) -> dict[str, Any]:
    """Run the soak, write its tables, and return all samples."""
    load = os.getloadavg()[0]
    found = {**as_data(soak(float(os.environ.get("SECONDS", SECONDS)))), "load": load}
    out.write(tables(found))
    return found
