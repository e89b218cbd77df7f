"""All-reduce on 12 to 32 emulated sites: predicted and live, beside the limit and Gloo.

Every site is a process in a lab with kernel-shaped links (`htb`: TCP, no added latency) of 20 to 155 Mbps, or a quarter
of that. Planners take turns on the same links, as in `python -m benchmarks wan`, and with 16 sites and 40 MB so does
Gloo, in the order of ranks and in the order with the widest ring, found by exhaustive search. All sites share this
machine's cores, which plans and predictions take into account (`cores`). Times are medians. It needs 16 cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, TextIO

LONGEST_S = 300


@dataclass(frozen=True, slots=True)
class Work:
    """One command: sites, the factor of all rates, the bytes, Tradewind's planners and its peers."""

    sites: int
    scale: float
    size: str
    rounds: int = 3
    planners: str = "auto,optimal,mtree"
    peers: str = "none"

    def command(self) -> list[str]:
        """The arguments of `tradewind` that measure it."""
        network = ["bench", "wan", "mesh", "--option", f"n={self.sites}", "--backend", "htb", "--no-calibrate"]
        scale = ["--scale", str(self.scale)] if self.scale != 1 else []
        rounds, planner = ["--rounds", str(self.rounds)], ["--planner", self.planners, "--peers", self.peers]
        return [*network, *scale, "--bytes", self.size, *rounds, *planner]


WORKS = (
    Work(12, 1, "40MB", 5),
    Work(12, 1, "180MB", 2),
    Work(16, 1, "40MB", 5),
    Work(16, 1, "180MB"),
    Work(16, 0.25, "10MB", 5),
    Work(24, 0.25, "40MB", 5),
    Work(32, 0.25, "40MB", 5),
    Work(16, 1, "40MB", 3, peers="gloo"),
    Work(24, 0.25, "180MB", 2, "auto,mtree"),
    Work(32, 0.25, "180MB", 2, "auto,mtree"),
)


def measure(work: Work) -> dict[str, Any]:
    """What the command prints as JSON, with the load of the machine before it."""
    load = os.getloadavg()[0]
    program = [sys.executable, "-m", "tradewind", *work.command(), "--json"]
    done = subprocess.run(program, stdout=subprocess.PIPE, check=True, timeout=LONGEST_S)
    found: dict[str, Any] = json.loads(done.stdout)
    return {"sites": work.sites, "scale": work.scale, "load": load, **found}


def run(out: TextIO) -> dict[str, Any]:
    """Measure, write the tables, and return all numbers."""
    measured = []
    for work in WORKS:
        measured.append(measure(work))
        print(json.dumps(measured[-1]), file=sys.stderr, flush=True)
    out.write("| sites | rates | size | system | predicted | live | spread | live over predicted | of the limit |\n")
    out.write("|---:|---:|---:|---|---:|---:|---|---:|---:|\n")
    for work, one in zip(WORKS, measured, strict=True):
        for entry in one["rows"]:
            out.write(row(work, entry))
    out.write(contest(next(one for work, one in zip(WORKS, measured, strict=True) if work.peers != "none")))
    out.write("\nEach line is one command:\n\n")
    out.writelines(f"    tradewind {' '.join(work.command())}\n" for work in WORKS)
    return {"works": measured}


def row(work: Work, entry: dict[str, Any]) -> str:
    """The table's row of one system."""
    from tradewind.units import format_duration

    predicted_s, live_s, every_s = entry["predicted_seconds"], entry["seconds"], entry["all_seconds"]
    ratio = "" if predicted_s is None else f"{live_s / predicted_s:.2f}"
    return (
        f"| {work.sites} | x {work.scale:g} | {work.size} | {entry['system']} "
        f"| {'' if predicted_s is None else format_duration(predicted_s)} | {format_duration(live_s)} "
        f"| {format_duration(min(every_s))} to {format_duration(max(every_s))} | {ratio} | {entry['of_limit']:.0%} |\n"
    )


def contest(measured: dict[str, Any]) -> str:
    """One sentence: how many times as fast as Gloo."""
    seconds = {entry["system"]: entry["seconds"] for entry in measured["rows"]}
    gloo, best, auto = (seconds.get(name) for name in ("gloo", "gloo, best order", "tradewind auto"))
    if gloo is None or best is None or auto is None:
        return "\nGloo did not complete its turns.\n"
    return (
        f"\n16 sites, 40 MB, in one run: `auto` is {gloo / auto:.1f} times as fast as Gloo in the order of ranks, and "
        f"{best / auto:.1f} times as fast as Gloo in its best order.\n"
    )
