"""Loss against time on shaped links: a GPT that real processes train with each way to synchronise.

Four sites in a lab (`delay`: a rate for all that a site sends, and for all that it receives) learn the Jargon File
(package `jargon-text`) with one method after the other, each for the same time
([source](../../examples/lab_loss.py)): DDP in float32, with int8 and int4-32 and error feedback, DiLoCo, Streaming
DiLoCo, and SparseLoCo with shorter intervals. The first site keeps its model at equal
times; they are judged on samples that no site trains with. The learning rate is constant, and the same for all. All
methods train with one seed before the next seed begins.

Environment: `LOSS_SECONDS` of a method (40), `LOSS_MBPS` of a site (8), `LOSS_METHODS`, `LOSS_SEEDS` (0,1,2,3,4).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from benchmarks.outer_live import mesh

EXAMPLE = Path(__file__).parents[1] / "examples" / "lab_loss.py"
SITES = 4
METHODS = "ddp,ddp-int8,ddp-int4-32,diloco,streaming-diloco,sparseloco"
SEEDS = "0,1,2,3,4"
STARTING_S = 120.0

Curve = Sequence[tuple[float, int, float]]
"""Seconds, steps and loss."""


def run(out: TextIO) -> dict[str, Any]:
    """Train with each method and seed, and write one table."""
    seconds, mbps = float(os.environ.get("LOSS_SECONDS", "40")), float(os.environ.get("LOSS_MBPS", "8"))
    methods = os.environ.get("LOSS_METHODS", METHODS).split(",")
    seeds = [int(seed) for seed in os.environ.get("LOSS_SEEDS", SEEDS).split(",")]
    load, curves = os.getloadavg()[0], {method: list[Curve]() for method in methods}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sites.json"
        file.write_text(json.dumps(mesh(SITES, mbps)))
        for seed in seeds:
            for method in methods:
                lab = ["lab", "run", str(file), "--scale", "1", "--no-calibrate", "--", sys.executable, str(EXAMPLE)]
                given = ["--method", method, "--seconds", str(seconds), "--seed", str(seed), "--out", folder]
                command = [sys.executable, "-m", "tradewind", *lab, *given]
                subprocess.run(command, stdout=sys.stderr, check=True, timeout=seconds + STARTING_S)
                curves[method].append(json.loads((Path(folder) / f"{method}.json").read_text()))
    out.write(
        f"{SITES} sites of {mbps:g} Mbps, {seconds:g} s each; load {load:.1f} at the start. Means over "
        f"{len(seeds)} seeds +- their standard deviation. Soon: how many times sooner than {methods[0]} a method has "
        f"{methods[0]}'s last loss of the same seed, the median and the range of the seeds.\n\n"
    )
    _table(out, curves, seconds)
    return {"curves": curves, "seconds": seconds, "mbps": mbps, "seeds": seeds}


def _table(out: TextIO, curves: dict[str, list[Curve]], seconds: float) -> None:
    out.write(
        "| method | steps | loss after a quarter | half | all of the time | soon |\n|---|---:|---:|---:|---:|---:|\n"
    )
    base = next(iter(curves.values()))
    for method, of_seeds in curves.items():
        steps = statistics.mean(curve[-1][1] for curve in of_seeds)
        losses = [_mean([_loss_at(curve, seconds * part) for curve in of_seeds]) for part in (0.25, 0.5, 1.0)]
        sooner = [_sooner(curve, other) for curve, other in zip(of_seeds, base, strict=True)]
        least, most = min(sooner), max(sooner)
        soon = f"{statistics.median(sooner):.1f} ({least:.1f} to {most:.1f})" if least else "-"
        out.write(f"| {method} | {steps:.0f} | {' | '.join(losses)} | {soon} |\n")


def _loss_at(curve: Curve, time_s: float) -> float:
    return min(curve, key=lambda point: abs(point[0] - time_s))[2]


def _mean(values: Sequence[float]) -> str:
    apart = f"+-{statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{apart}"


def _sooner(curve: Curve, base: Curve) -> float:
    """How many times sooner than `base` ended a curve has the last loss of `base`; 0: never."""
    reached = next((time_s for time_s, _, loss in curve if loss <= base[-1][2]), None)
    return 0.0 if reached is None else base[-1][0] / reached
