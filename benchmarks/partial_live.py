"""Partial reduce on real processes, compared with the simulator and the limit.

Eight sites on a shaped mesh of 20 to 155 Mbps, a process each; four of them average 40 MB in every round, the other
four only aggregate and relay. Per planner: the median round, from its start to the last member's end, compared with the
predictions of the simulator (chunked execution) and the planner, and with the limit.
"""

from __future__ import annotations

import os
import statistics
from typing import Any, TextIO

import numpy as np

from tradewind.catalog import load_network
from tradewind.lab.processes import call_sites
from tradewind.lab.site import Place
from tradewind.network import Network
from tradewind.planning import make_plan
from tradewind.schemes import make_scheme
from tradewind.sim import simulate

SITES, SCALE, NBYTES, ROUNDS = 8, 4, 40_000_000, 5
CASES = (("opr", 1.0), ("scatter", 1.0), ("scatter-pipelined", 1.0), ("relay", 1.0), ("relay", 0.5))
"""Planners, and the factor on all rates: eight processes on few cores cannot carry the full rates."""


def run(out: TextIO) -> None:
    """Measure all planners, and write one table."""
    mesh = load_network("mesh", n=SITES)
    load = f"Load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    out.write(f"{load} {NBYTES / 1e6:g} MB, median of {ROUNDS} rounds after a first one.\n\n")
    out.write("| planner | rates x | measured | simulated | ratio | predicted | ratio | limit | of the limit |\n")
    out.write("|---|---:|---:|---:|---:|---:|---:|---:|---:|\n")
    for planner, scale in CASES:
        network = mesh if scale == 1 else mesh.scaled(scale)
        members = network.names[:SCALE]
        predicted = make_plan(planner, network, NBYTES, members).predicted
        assert predicted is not None
        simulated_s = simulated(network, planner, members)
        answers = call_sites(network, rounds_at, {"planner": planner, "nbytes": NBYTES, "rounds": ROUNDS})
        per_round = zip(*(answer for answer in answers if answer), strict=True)
        measured_s = statistics.median(max(times) for times in list(per_round)[1:])
        out.write(
            f"| {planner} | {scale:g} | {measured_s:.2f} s | {simulated_s:.2f} s | {measured_s / simulated_s:.2f} | "
            f"{predicted.seconds:.2f} s | {measured_s / predicted.seconds:.2f} | {predicted.bound_seconds:.2f} s | "
            f"{predicted.bound_seconds / measured_s:.0%} |\n"
        )


def simulated(network: Network, planner: str, members: tuple[str, ...]) -> float:
    """The median round of the same members in the simulator."""
    scheme = make_scheme(f"partial+{planner}", execution="chunked", policy_options={"p": len(members)})
    result = simulate(network, scheme, 1000.0, compute=0.1, nbytes=NBYTES, workers=members, stop_after_rounds=ROUNDS)
    return statistics.median(summary.seconds for summary in result.finished)


def rounds_at(place: Place, planner: str, nbytes: int, rounds: int) -> list[float]:
    """Run in a site's process: take part in the rounds, or help until they have ended."""
    with place.connect(planner=planner, policy="partial", policy_options={"p": SCALE}) as group:
        times: list[Any] = []
        group.barrier()
        if place.rank < SCALE:
            array = np.full(nbytes // 4, float(place.rank), np.float32)
            out = np.empty_like(array)
            for _ in range(rounds + 1):  # the first makes connections
                outcome = group.average_async(array, out=out).outcome
                assert len(outcome.contributors) == SCALE
                assert (out == (SCALE - 1) / 2).all()
                times.append(outcome.seconds)
        group.barrier()
        return times
