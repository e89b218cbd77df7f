"""What it costs to switch plans: rounds that start with a new version against rounds that do not.

*Live*: a process a site in a lab on `htb`, at a tenth of 20 to 155 Mbps, so that links and not processors are the
limit. Before every second round the controller is handed a new version of the same plan, so that all that differs is
the switch: the plan travels to every site over the same links as the data, and the round starts with it. Neighbours are
compared, one with and one without, and the middle of their ratios is given with the middle half of them. *Simulated*:
the same controller, client and engine on virtual time, where nothing but links and control messages takes time; a run
that switches after every round, to the same planner's plan, against one that never does. The aim is below 2% of a
round.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import TextIO

import numpy as np

from tradewind.catalog import load_network
from tradewind.control.awareness import Awareness
from tradewind.control.plans import PlanMade
from tradewind.lab.processes import call_sites
from tradewind.lab.session import Lab
from tradewind.lab.site import Place
from tradewind.network import Network
from tradewind.runtime.group import Group
from tradewind.sim.chunk_changing import ChangingRun, run_changing
from tradewind.sim.chunk_run import ChunkRun

RATE_SCALE = 0.1
PAIRS = 40
NBYTES = {4: 1_000_000, 8: 2_000_000}
SIMULATED_ROUNDS = {4: 24, 8: 6}
DEADLINE_S = 150.0


def slow_mesh(sites: int) -> Network:
    """A mesh of 2 to 15.5 Mbps."""
    return load_network("mesh", n=sites, seed=2).scaled(RATE_SCALE)


def take_turns(place: Place, nbytes: int, pairs: int) -> list[float]:
    """Runs in a site: seconds of every round, of which every second one starts with a new version."""
    array = np.ones(nbytes // 4, np.float32)
    out, times = np.empty_like(array), []
    with place.connect(0, awareness=Awareness(measure=False)) as group:
        group.all_reduce(array, out=out)
        for number in range(2 * pairs):
            if place.rank == 0 and number % 2:
                renew(group)
            group.barrier()
            began_s = time.monotonic()
            group.all_reduce(array, out=out)
            times.append(time.monotonic() - began_s)
        group.barrier()
    return times


def renew(group: Group) -> None:
    """Have the next round start with a new version of its plan."""
    server = group._server
    assert server is not None
    with server._changed:
        plans = server._controller.plans
        key = max(plans.keys, key=lambda key: key[1])
        current = plans.by_version[plans.plan_for(*key[:2])]
        server._controller.planned(PlanMade(key, current, float("inf"), ""), time.monotonic())


def measure_live(sites: int) -> tuple[list[float], list[float]]:
    """Seconds of rounds without and with a switch, in turn, each as long as its slowest site says."""
    with Lab(slow_mesh(sites), "htb", calibrate=False) as lab:
        arguments = {"nbytes": NBYTES[sites], "pairs": PAIRS}
        answers = call_sites(lab.network, take_turns, arguments, deadline_s=DEADLINE_S, inside=lab)
    times = [max(round_) for round_ in zip(*answers, strict=True)]
    return times[0::2], times[1::2]


def simulate(sites: int) -> tuple[float, float, int]:
    """Seconds a round without and with switches, and how many there were."""
    run = ChunkRun(slow_mesh(sites), "optimal", 1, (NBYTES[sites] // 4,) * SIMULATED_ROUNDS[sites], buffer_bytes=2**20)
    still = Awareness(measure=False)
    plain = run_changing(ChangingRun(run, still, control_s=0.01))
    switching = run_changing(ChangingRun(run, still, control_s=0.01, switch_to=("optimal",)))
    took = [max(times[-1] for times in r.ended_s.values()) / SIMULATED_ROUNDS[sites] for r in (plain, switching)]
    return took[0], took[1], switching.switches


def run(out: TextIO) -> None:
    """Print the tables."""
    print("| live, sites | a round | with a switch | neighbours | middle half | pairs | load |", file=out)
    print("|---|---:|---:|---:|---:|---:|---:|", file=out)
    for sites in NBYTES:
        without, with_switch = measure_live(sites)
        ratios = [b / a - 1 for a, b in zip(without, with_switch, strict=True)]
        lower, middle, upper = statistics.quantiles(ratios, n=4)
        medians = f"{statistics.median(without):.3f} s | {statistics.median(with_switch):.3f} s"
        spread = f"{middle:+.1%} | {lower:+.1%} to {upper:+.1%}"
        print(f"| {sites} | {medians} | {spread} | {len(ratios)} | {os.getloadavg()[0]:.0f} |", file=out)
    print("\n| simulated, sites | a round | with a switch | | switches |\n|---|---:|---:|---:|---:|", file=out)
    for sites in NBYTES:
        plain_s, switching_s, switches = simulate(sites)
        ratio = switching_s / plain_s - 1
        print(f"| {sites} | {plain_s:.3f} s | {switching_s:.3f} s | {ratio:+.1%} | {switches} |", file=out)
