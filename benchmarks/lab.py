"""The time of `tradewind lab up` and `lab down`, as whole commands.

Nine sites in full mesh, 72 links. Every round runs each command once, in turn, so that other work on the machine
affects all of them; medians, and the least and the most. An interpreter that only loads numpy is measured as a
reference for the state of the machine. The aim for `up` is below 2 s. Links of up to 40 Mbps let the calibration pass
on a busy machine; with the usual 155 Mbps it sends 6 Gbps for a second, and fails there.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TextIO

ROUNDS = 7
LONGEST_S = 60.0
MESH = ("mesh", "--option", "n=9", "--option", "max_mbps=40")
LAB = (sys.executable, "-m", "tradewind", "lab")
STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("an interpreter that loads numpy", (sys.executable, "-c", "import numpy")),
    ("`lab up`, calibrated", (*LAB, "up", *MESH)),
    ("`lab down`", (*LAB, "down")),
    ("`lab up --no-calibrate`", (*LAB, "up", *MESH, "--no-calibrate")),
    ("`lab down`", (*LAB, "down")),
)


def run(out: TextIO) -> None:
    """Print the table."""
    seconds: dict[str, list[float]] = {what: [] for what, _ in STEPS}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as base:
        for _ in range(ROUNDS):
            for what, command in STEPS:
                start_s = time.monotonic()
                environment = {**os.environ, "XDG_RUNTIME_DIR": base}
                subprocess.run(command, env=environment, timeout=LONGEST_S, check=True, stdout=subprocess.DEVNULL)
                seconds[what].append(time.monotonic() - start_s)
    out.write(f"Load {load:.0f} before, {os.getloadavg()[0]:.0f} after.\n\n")
    out.write("| command | median | least | most | runs |\n|---|---:|---:|---:|---:|\n")
    for what, took in seconds.items():
        middle_s = statistics.median(took)
        out.write(f"| {what} | {middle_s:.2f} s | {min(took):.2f} s | {max(took):.2f} s | {len(took)} |\n")
