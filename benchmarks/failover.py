"""The duration of a round whose aggregator is killed, compared with an undisturbed round.

Four processes on links of 16 Mbit/s that Tradewind's transport shapes, CREW (three initiators, all four aggregate, 4
MB). The fourth never initiates: it is an aggregator, and is ended by SIGKILL half a second into a round. Its
connections break at once, so the detection takes almost no time here; a machine that vanishes silently is detected
after 0.8 of the patience. The aim is at most twice the undisturbed time, without the detection. The load when it
started is in the table.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from tradewind.formats import network_to_json
from tradewind.network import Network, Site
from tradewind.runtime.addresses import LOOPBACK, listen_on

REPEATS = 3
STEPS = 4
ITEMS = 1_000_000
MBPS = 16.0
LONGEST_S = 90.0
PROGRAM = """
import json, sys, numpy as np, tradewind
rank, port, steps, items = map(int, sys.argv[1:])
tolerance = tradewind.Tolerance(patience_s=10.0)
options = tradewind.RunOptions(scheme="crew", policy_options={"p": 3}, tolerance=tolerance)
group = tradewind.connect(f"127.0.0.1:{port}", rank, 4, options, secret="a benchmark")
array = np.full(items, float(rank), np.float32)
for _ in range(steps):
    handle = group.average_async(array)
    handle.wait(60.0)
    print(json.dumps([handle.outcome.repaired, handle.outcome.seconds]), flush=True)
group.barrier()
group.close()
"""


def trial(folder: Path) -> list[list[Any]]:
    """Rank 0's rounds: whether each was repaired, and its seconds."""
    file = folder / "network.json"
    names = [f"rank{n}" for n in range(4)]
    file.write_bytes(network_to_json(Network("bench", [Site(n) for n in names], MBPS * 1e6 * (1 - np.eye(4)))))
    with listen_on(LOOPBACK, 0) as probe:
        port = probe.getsockname()[1]
    started = []
    for rank in range(4):
        arguments = [str(rank), str(port), str(STEPS if rank < 3 else 0), str(ITEMS)]
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *arguments],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "TRADEWIND_SHAPE": str(file)},
            )
        )
    try:
        out = started[0].stdout
        assert out is not None
        said = [json.loads(out.readline()), json.loads(out.readline())]
        time.sleep(0.5)
        started[3].send_signal(signal.SIGKILL)
        rest, _ = started[0].communicate(timeout=LONGEST_S)
        return [*said, *map(json.loads, rest.splitlines())]
    finally:
        for process in started:
            process.kill()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()


def run(out: TextIO) -> None:
    """Print the table."""
    out.write("| undisturbed round, median | round with a killed aggregator | ratio | load |\n|---|---|---|---|\n")
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(REPEATS):
            load = os.getloadavg()[0]
            said = trial(Path(folder))
            repaired = [seconds for was, seconds in said if was]
            before = statistics.median(seconds for was, seconds in said[:2] if not was)
            if repaired:
                ratio = repaired[0] / before
                out.write(f"| {before:.2f} s | {repaired[0]:.2f} s | {ratio:.2f} | {load:.0f} |\n")
            else:
                out.write(f"| {before:.2f} s | it fell between two rounds | | {load:.0f} |\n")
