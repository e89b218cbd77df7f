"""Hours of faults among real processes: does anything grow, hang or diverge?

Eight ranks on loopback average an array of 160 kB again and again, with two controllers of which each is the standby of
the other. Every 5 s on average a rank is killed, stopped (SIGSTOP), continued or restarted, a link is cut or healed, or
a controller is killed or restarted (`tests/support/live_storm.py`, which also tests use). All members of a round must
have the same bytes, inputs must not change, no process may end by itself, and after the last fault all eight ranks must
average again. Two ranks and a controller are never killed: memory, threads and open files of each are read every 10 s.
`SECONDS=` is how long the faults go on; the default is two hours.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from live_storm import StormReport, Use

SECONDS = 7200.0
WORLD, SPARED = 8, 2
GAP_S, PAUSE_S = 5.0, 0.5
SEED = 20
KINDS = ("memory_bytes", "threads", "files")


def soak(seconds: float) -> StormReport:
    """Run the storm."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    from live_storm import Weather, live_storm

    weather = Weather(GAP_S, PAUSE_S, SPARED, stops=True)
    with tempfile.TemporaryDirectory() as folder, live_storm(Path(folder), WORLD, SEED, weather) as storm:
        try:
            return storm.run(seconds=seconds)
        finally:
            print(storm.report, file=sys.stderr, flush=True)


def quarters(samples: list[Use], kind: str) -> tuple[float, float, float, float]:
    """One kind of use: before the faults, the medians of the first and the last quarter of them, and after them."""
    values = [float(getattr(sample, kind)) for sample in samples]
    size = max(1, len(values) // 4)
    return values[0], statistics.median(values[:size]), statistics.median(values[-size:]), values[-1]


def run(out: TextIO) -> dict[str, Any]:
    """Run the soak, write its tables, and return all samples."""
    from tradewind.units import format_duration, format_size

    report = soak(float(os.environ.get("SECONDS", SECONDS)))
    events = ", ".join(f"{count} x {kind}" for kind, count in sorted(report.events.items()))
    out.write(
        f"{format_duration(report.seconds)} with {report.events.total()} events: {events}. {report.rounds} rounds of "
        f"several ranks in {report.terms} terms of controllers, all members of each with the same bytes. Of "
        f"{report.steps} steps of ranks {report.repaired} were repaired and {report.alone} ended alone; "
        f"{report.fetched} ranks received the model of a member when they joined. No process ended by itself.\n\n"
    )
    out.write("| process | of it | before | first quarter, median | last quarter, median | after |\n")
    out.write("|---|---|---:|---:|---:|---:|\n")
    for name, samples in report.use.items():
        for kind in KINDS:
            shown = quarters(samples, kind)
            cells = [format_size(v) if kind == "memory_bytes" else f"{v:g}" for v in shown]
            out.write(f"| {name} | {kind.removesuffix('_bytes')} | {' | '.join(cells)} |\n")
    return {"use": {name: [asdict(sample) for sample in samples] for name, samples in report.use.items()}}
