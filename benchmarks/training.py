"""The same training over Gloo and over Tradewind, on four emulated sites.

A small convolutional network learns the 1797 handwritten digits that come with scikit-learn, with PyTorch's
DistributedDataParallel on every site of a lab with kernel-shaped links (`htb`), first over Gloo in rank order and then
over Tradewind: the same processes, links, seeds and batches ([source](../../examples/lab_training.py)). The clock runs
from the first step, so connecting and planning are included. The loss is that of the first site's model on digits that
are not trained with. One run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

COMMAND = ["lab", "run", "mesh", "--option", "n=4", "--no-calibrate", "--"]
EXAMPLE = Path(__file__).parents[1] / "examples" / "lab_training.py"
LONGEST_S = 600
SHOWN_STEPS = (10, 25, 50, 100)


def run(out: TextIO) -> dict[str, Any]:
    """Train, write one table, and return the curves."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "tradewind", *COMMAND, sys.executable, str(EXAMPLE), "--out", folder]
        subprocess.run(program, stdout=subprocess.DEVNULL, check=True, timeout=LONGEST_S)
        found: dict[str, Any] = json.loads((Path(folder) / "runs.json").read_text())
    gloo, ours = found["gloo"], found["tradewind"]
    out.write(
        "| step | Gloo | Tradewind | times as fast | loss, Gloo | loss, Tradewind |\n|---:|---:|---:|---:|---:|---:|\n"
    )
    for step in SHOWN_STEPS:
        times = [run["seconds"][step - 1] for run in (gloo, ours)]
        losses = " | ".join(f"{run['loss'][step - 1]:.4f}" for run in (gloo, ours))
        out.write(f"| {step} | {times[0]:.1f} s | {times[1]:.1f} s | {times[0] / times[1]:.1f} | {losses} |\n")
    apart = max(abs(a - b) for a, b in zip(gloo["loss"], ours["loss"], strict=True))
    out.write(f"\n{found['parameters']:,} parameters, {4e-6 * found['parameters']:.2f} MB of gradients a step. ")
    out.write(f"Losses differ by at most {apart:.1e} in all steps. Load of the machine at the start: {load:.1f}.\n")
    out.write("\n![Loss against time, over Gloo and over Tradewind](../images/training.svg)\n")
    return found
