"""Forty sites without faults for a thousand rounds: does anything grow?

Hours of faults are another benchmark, with eight ranks: [storm](storm.md). Here nothing fails: every site is a process
on links of 0.2 to 1.6 Mbps (`htb`: a mesh of 40 sites, rates divided by 100). Each round is one all-reduce of 200 kB
with `auto`, whose result every site checks; links are measured meanwhile. Memory, threads and open files of each
process are read after a tenth of the rounds and at the end. A connection to a peer is made when a plan or a measurement
first needs it, at most one to each of the 39 others and with a buffer of 256 KiB: what files and memory gain is that.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

if TYPE_CHECKING:
    from tradewind.lab.site import Place

SITES = 40
SCALE = 0.01
NBYTES = 200_000
ROUNDS = 1000
LONGEST_S = 3600.0
KINDS = ("memory", "threads", "files")


def use() -> list[int]:
    """Resident memory in bytes, threads and open files of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    threads, files = (len(list(Path(f"/proc/self/{kind}").iterdir())) for kind in ("task", "fd"))
    return [pages * os.sysconf("SC_PAGE_SIZE"), threads, files]


def all_rounds(place: Place, rounds: int, nbytes: int) -> dict[str, Any]:
    """All rounds at one site: their times, and the use of resources after a tenth and at the end."""
    group = place.connect(0, planner="auto")
    expected = np.float32(place.world * (place.world + 1) / 2)
    seconds, early = [], use()
    for number in range(rounds):
        began_s = time.monotonic()
        result = group.all_reduce(np.full(nbytes // 4, place.rank + 1, np.float32))
        seconds.append(time.monotonic() - began_s)
        if not (result == expected).all():
            raise AssertionError(f"round {number} at {place.site}: not all items are {expected}")
        if number + 1 == max(1, rounds // 10):
            early = use()
    late, stats = use(), group.stats()
    group.barrier()
    group.close()
    return {"seconds": seconds, "early": early, "late": late, "plans": stats.plans, "halts": stats.halts}


def run(out: TextIO) -> dict[str, Any]:
    """Run the soak, write one table, and return all numbers."""
    from tradewind.catalog import load_network
    from tradewind.lab.processes import call_sites
    from tradewind.lab.session import Lab
    from tradewind.units import format_duration, format_size

    rounds, load = int(os.environ.get("ROUNDS", ROUNDS)), os.getloadavg()[0]
    with Lab(load_network("mesh", n=SITES), "htb", scale=SCALE, calibrate=False) as lab:
        arguments = {"rounds": rounds, "nbytes": NBYTES}
        answers = call_sites(lab.network, all_rounds, arguments, deadline_s=LONGEST_S, inside=lab)
    times = [max(each) for each in zip(*(answer["seconds"] for answer in answers), strict=True)][1:]
    low, middle, high = (float(np.percentile(times, share)) for share in (5, 50, 95))
    out.write(
        f"{SITES} sites, {rounds} rounds of {format_size(NBYTES)}, all results right, no round repaired: "
        f"{sum(answer['halts'] for answer in answers) == 0}; plans in use at the first site: {answers[0]['plans']}. "
        f"A round takes {format_duration(middle)} (5th to 95th percentile: {format_duration(low)} to "
        f"{format_duration(high)}). Load before: {load:.1f} on {os.cpu_count()} cores.\n\n"
    )
    out.write("| of a process | after a tenth, median | at the end, median | growth, median | growth, most |\n")
    out.write("|---|---:|---:|---:|---:|\n")
    for place, kind in enumerate(KINDS):
        pairs = [(answer["early"][place], answer["late"][place]) for answer in answers]
        early, late = (statistics.median(column) for column in zip(*pairs, strict=True))
        growth = [after - before for before, after in pairs]
        shown = (early, late, statistics.median(growth), max(growth))
        cells = [format_size(abs(v)) if kind == "memory" else f"{abs(v):g}" for v in shown]
        cells = [f"-{cell}" if v < 0 else cell for cell, v in zip(cells, shown, strict=True)]
        out.write(f"| {kind} | {' | '.join(cells)} |\n")
    return {"seconds": times, "use": [[answer["early"], answer["late"]] for answer in answers]}
