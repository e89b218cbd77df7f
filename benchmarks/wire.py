"""All-reduce between processes of one machine, beside Gloo.

Real processes on loopback take turns between Tradewind through Unix sockets, as it does on one machine, Tradewind over
TCP, and PyTorch's own Gloo. Only the ratios mean anything on a machine that does other things as well. Where all
processors are busy, time is processor time: what the interpreter costs for each chunk is what Tradewind adds. The large
array has 40 MB, and 800 MB on a machine with 8 cores or more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, TextIO

MANY_CORES = 8
LONGEST_S = 600


def run(out: TextIO) -> dict[str, Any]:
    """Measure, write one table, and return all numbers."""
    from tradewind.units import format_duration, format_size

    load, large = os.getloadavg()[0], "800MB" if (os.cpu_count() or 1) >= MANY_CORES else "40MB"
    command = ["bench", "wire", "--processes", "2,4", "--bytes", f"4KB,{large}", "--rounds", "9"]
    program = [sys.executable, "-m", "tradewind", *command, "--json"]
    done = subprocess.run(program, stdout=subprocess.PIPE, check=True, timeout=LONGEST_S)
    found: dict[str, Any] = json.loads(done.stdout)
    out.write("| processes | bytes | system | median | time over Gloo's | processor time over Gloo's |\n")
    out.write("|---:|---:|---|---:|---:|---:|\n")
    for row in found["rows"]:
        ratios = " | ".join(f"{row[key]:.2f}" for key in ("of_gloo", "cpu_of_gloo"))
        size, median = format_size(row["bytes"]), format_duration(row["seconds"])
        out.write(f"| {row['processes']} | {size} | {row['system']} | {median} | {ratios} |\n")
    out.write(f"\n`tradewind {' '.join(command)}`, load of the machine at the start: {load:.1f}.\n")
    return {"load": load, **found}
