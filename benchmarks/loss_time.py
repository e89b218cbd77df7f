"""Loss against time on shaped links: a GPT that real processes train with each way to synchronise.

Four sites in a lab with kernel-shaped links (`htb`) learn the Jargon File (package `jargon-text`) with one method after
the other, each for the same time ([source](../../examples/lab_loss.py)): DDP in float32, with int8 and int4-32 and
error feedback, DiLoCo, Streaming DiLoCo, and SparseLoCo with shorter intervals. The first site keeps its model at equal
times; they are judged on samples that no site trains with. The learning rate is constant, and the same for all.

Environment: `LOSS_SECONDS` of a method (40), `LOSS_MBPS` of a site (8), `LOSS_METHODS`, `LOSS_SEED` (0).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

EXAMPLE = Path(__file__).parents[1] / "examples" / "lab_loss.py"
SITES = 4
METHODS = "ddp,ddp-int8,ddp-int4-32,diloco,streaming-diloco,sparseloco"
STARTING_S = 120.0


def network(mbps: float) -> dict[str, Any]:
    """A full mesh whose sites have so much bandwidth each."""
    names = [f"site{k}" for k in range(SITES)]
    return {
        "name": f"{SITES} sites of {mbps:g} Mbps",
        "sites": [{"name": name, "egress_mbps": mbps, "ingress_mbps": mbps} for name in names],
        "links": [
            {"src": a, "dst": b, "bandwidth_mbps": mbps, "latency_ms": 0} for a in names for b in names if a != b
        ],
    }


def run(out: TextIO) -> dict[str, Any]:
    """Train with each method, and write one table."""
    seconds, mbps = float(os.environ.get("LOSS_SECONDS", "40")), float(os.environ.get("LOSS_MBPS", "8"))
    methods, seed = os.environ.get("LOSS_METHODS", METHODS).split(","), os.environ.get("LOSS_SEED", "0")
    load, curves = os.getloadavg()[0], {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sites.json"
        file.write_text(json.dumps(network(mbps)))
        for method in methods:
            lab = ["lab", "run", str(file), "--scale", "1", "--no-calibrate", "--", sys.executable, str(EXAMPLE)]
            given = ["--method", method, "--seconds", str(seconds), "--seed", seed, "--out", folder]
            command = [sys.executable, "-m", "tradewind", *lab, *given]
            subprocess.run(command, stdout=sys.stderr, check=True, timeout=seconds + STARTING_S)
            curves[method] = json.loads((Path(folder) / f"{method}.json").read_text())
    _table(out, curves, seconds, f"{SITES} sites of {mbps:g} Mbps, {seconds:g} s each, seed {seed}; load {load:.1f}.")
    return {"curves": curves, "seconds": seconds, "mbps": mbps, "seed": int(seed)}


def _table(out: TextIO, curves: dict[str, Any], seconds: float, about: str) -> None:
    first = next(iter(curves))
    aim = curves[first][-1][2]
    out.write(f"{about} Soon: how many times sooner than {first} a method has its last loss.\n\n")
    out.write(
        "| method | steps | loss after a quarter | half | all of the time | soon |\n|---|---:|---:|---:|---:|---:|\n"
    )
    for method, curve in curves.items():
        losses = [min(curve, key=lambda point: abs(point[0] - seconds * part))[2] for part in (0.25, 0.5, 1.0)]
        reached = next((point[0] for point in curve if point[2] <= aim), None)
        soon = "-" if reached is None else f"{curves[first][-1][0] / reached:.1f}"
        out.write(f"| {method} | {curve[-1][1]} | {' | '.join(f'{loss:.4f}' for loss in losses)} | {soon} |\n")
