"""The speed of the simulator, and the cost of idle sites.

The first table runs each job in a process of its own and counts its processor time and its peak memory. The second one
lets the same twenty ranks train (`opr`, p = 5: only members aggregate) on larger and larger meshes, where all other
sites are idle: the time for one flow, from being queued to having arrived, must not grow with the mesh. The last column
compares with the smallest mesh, measured in turn with the others. The rest at 1,000 sites is due to the matrices of a
million links that a run makes once.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import TextIO

from tradewind.catalog import load_compute_times, load_network
from tradewind.sim import simulate

REPEATS = 5
SIZES = (50, 100, 200, 500, 1000)
TRAINING = 20

CREW = '"crew", 50, 1, compute=load_compute_times("lstm").rescaled(0.05, 0.2), policy_options={"p": 5}'
JOBS = {
    "`crew`, n = 60, p = 5, 50 simulated seconds": ('load_network("crew-n2", n=60)', CREW),
    "the same under fair sharing": ('load_network("crew-n2", n=60)', f'{CREW}, discipline="fs"'),
    "the same with a non-blocking scatter": (
        'load_network("crew-n2", n=60)',
        CREW.replace('"crew"', '"crew-non-blocking"'),
    ),
    "`selective`, n = 200, 100 s": (
        'load_network("selective-nics", n=200)',
        '"selective", 100, 1, compute="transformer", nbytes=500_000_000',
    ),
    "`partial-ring`, n = 200, 100 s": (
        'load_network("selective-nics", n=200)',
        '"partial-ring", 100, 1, compute="transformer", nbytes=500_000_000',
    ),
    "`crew`, mesh of 1,000, p = 50, 50 rounds": (
        'load_network("mesh", n=1000)',
        '"crew", 1e6, 1, compute=load_compute_times("lstm").rescaled(0.05, 0.2), policy_options={"p": 50}, '
        "stop_after_rounds=50",
    ),
}

_SCRIPT = """
import json, resource, time
from tradewind.catalog import load_compute_times, load_network
from tradewind.sim import simulate
network = {network}
start_s = time.process_time()
result = simulate(network, {arguments})
print(json.dumps({{
    "cpu_s": time.process_time() - start_s,
    "rounds": result.finished_rounds,
    "flows": result.flows,
    "events": result.events,
    "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
}}))
"""


def run(out: TextIO) -> None:
    """Measure everything, and write two tables."""
    out.write(
        "| what | rounds | flows | events | CPU | CPU a flow | peak memory |\n|---|---:|---:|---:|---:|---:|---:|\n"
    )
    for name, (network, arguments) in JOBS.items():
        script = _SCRIPT.format(network=network, arguments=arguments)
        done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True, text=True)
        found = json.loads(done.stdout)
        out.write(
            f"| {name} | {found['rounds']:,} | {found['flows']:,} | {found['events']:,} | {found['cpu_s']:.2f} s "
            f"| {1e6 * found['cpu_s'] / found['flows']:.1f} µs | {found['peak_gb']:.2f} GB |\n"
        )
    out.write("\n| sites | training | flows | first come, first served | fair sharing | x smallest |\n")
    out.write("|---:|---:|---:|---:|---:|---:|\n")
    _idle_workers(out)


def _idle_workers(out: TextIO) -> None:
    networks = {n: load_network("mesh", n=n, min_mbps=100, max_mbps=100) for n in SIZES}
    times = load_compute_times("lstm").rescaled(0.05, 0.2)
    per_flow_us: dict[tuple[int, str], list[float]] = {(n, d): [] for n in SIZES for d in ("fcfs", "fs")}
    flows = dict.fromkeys(SIZES, 0)
    for repeat in range(REPEATS + 1):
        for n, discipline in per_flow_us:
            workers = networks[n].names[:TRAINING]
            start_s = time.process_time()
            result = simulate(
                networks[n],
                "opr",
                120,
                1,
                compute=times,
                nbytes=5_000_000,
                workers=workers,
                discipline=discipline,
                policy_options={"p": 5},
            )
            spent_s = time.process_time() - start_s
            flows[n] = result.flows
            if repeat:  # the first time is not counted
                per_flow_us[n, discipline].append(1e6 * spent_s / result.flows)
    smallest = statistics.median(per_flow_us[SIZES[0], "fcfs"])
    for n in SIZES:
        fcfs, fs = (statistics.median(per_flow_us[n, d]) for d in ("fcfs", "fs"))
        out.write(f"| {n:,} | {TRAINING} | {flows[n]:,} | {fcfs:.1f} µs | {fs:.1f} µs | {fcfs / smallest:.2f} |\n")
