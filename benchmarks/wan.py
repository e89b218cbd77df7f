"""All-reduce on emulated wide-area links, beside Gloo.

Every site is a process in a lab with kernel-shaped links (`htb`: TCP, no added latency). Tradewind and PyTorch's own
Gloo take turns on the same links; a turn lasts from the moment when the last site began until the last one has the
result, and every result is checked. Gloo runs in the order of ranks, as torchrun starts it, and in the order that
gives the widest ring, found by exhaustive search. The limit is the least time that any all-reduce over TCP can take
there. Times are medians; connecting and planning happen before the first turn that counts, for all systems. The
network is known to Tradewind, and nothing is measured meanwhile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, TextIO

SITES = (2, 4, 6, 8)
ROUNDS = 3
PLANNERS = "optimal,auto"
SYSTEMS = ("gloo", "gloo, best order", "tradewind optimal", "tradewind auto")
LONGEST_S = 900


def command(sites: int) -> list[str]:
    """The arguments of `tradewind` that measure one network."""
    network = ["bench", "wan", "mesh", "--option", f"n={sites}", "--bytes", "40MB", "--backend", "htb"]
    return [*network, "--rounds", str(ROUNDS), "--planner", PLANNERS, "--peers", "gloo", "--no-calibrate"]


def measure(sites: int) -> dict[str, Any]:
    """What the command prints as JSON, with the load of the machine before it."""
    load = os.getloadavg()[0]
    program = [sys.executable, "-m", "tradewind", *command(sites), "--json"]
    done = subprocess.run(program, stdout=subprocess.PIPE, check=True, timeout=LONGEST_S)
    found: dict[str, Any] = json.loads(done.stdout)
    return {"sites": sites, "load": load, **found}


def run(out: TextIO) -> dict[str, Any]:
    """Measure, write one table, and return all numbers."""
    measured = [measure(sites) for sites in SITES]
    out.write("| sites | rates of the links | load | Gloo | Gloo, best order | `optimal` | `auto` | limit |")
    out.write(" `auto` over Gloo | over its best order | of the limit |\n|---:|---|---:|" + "---:|" * 8 + "\n")
    for one in measured:
        out.write(row(one))
    commands = "\n".join("    tradewind " + " ".join(command(sites)) for sites in SITES)
    out.write(f"\nEach row is one command, {ROUNDS} turns of 40 MB each:\n\n{commands}\n")
    return {"networks": measured}


def row(measured: dict[str, Any]) -> str:
    """The table's row of one network."""
    from tradewind.catalog import load_network
    from tradewind.units import format_duration, format_rate

    rates = [link.bandwidth_bps for link in load_network("mesh", n=measured["sites"]).links]
    by_name = {one["system"]: one for one in measured["rows"]}
    gloo, best, optimal, auto = (by_name[name] for name in SYSTEMS)
    times = " | ".join(format_duration(one["seconds"]) for one in (gloo, best, optimal, auto))
    return (
        f"| {measured['sites']} | {format_rate(min(rates))} to {format_rate(max(rates))} "
        f"| {measured['load']:.1f} | {times} "
        f"| {format_duration(auto['bound_seconds'])} | {gloo['seconds'] / auto['seconds']:.1f} "
        f"| {best['seconds'] / auto['seconds']:.1f} | {auto['of_limit']:.0%} |\n"
    )
