"""The cost of a change of plan version: rounds with a new version between them, compared with rounds without.

*Live*: one process per site in a lab on `htb`, on a mesh of 20 to 155 Mbps and at a tenth of that, where links and not
processors are the limit. Two rounds follow each other; in every second such pair the controller receives a new version
of the same plan while the first round is running, so that the switch is the only difference: the plan travels to every
site over the same links as the first round's data, and the second round starts with it. A pair with a switch is
compared with the one before it; given are the median of the additional time, as a share of one round, and its middle
half. *Simulated*: the same controller, client and engine on virtual time, where nothing but links and control messages
takes time; a run that switches after every round, to the same planner's plan, compared with one that never does. The
aim is below 2% of a round.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import TextIO

import numpy as np

from tradewind.catalog import load_network
from tradewind.control.awareness import Awareness
from tradewind.control.controller import Action, Controller
from tradewind.control.plans.versions import PlanMade
from tradewind.lab.processes import call_sites
from tradewind.lab.session import Lab
from tradewind.lab.site import Place
from tradewind.network import Network
from tradewind.runtime.group import Group
from tradewind.sim.chunks.changing import ChangingRun, run_changing
from tradewind.sim.chunks.run import ChunkRun

COMPARED = 24
NBYTES = {4: 10_000_000, 8: 20_000_000}
"""Bytes at full rates; scaled with the rates."""
SCALES = (0.1, 1.0)
SIMULATED_ROUNDS = {4: 24, 8: 6}
DEADLINE_S = 150.0
RENEWED_AT = 0.3
"""Of a round."""


def mesh(sites: int, scale: float) -> Network:
    """A mesh of 20 to 155 Mbps, scaled."""
    return load_network("mesh", n=sites, seed=2).scaled(scale)


def take_turns(place: Place, nbytes: int, compared: int) -> list[float]:
    """Run in a site; returns seconds of every pair of rounds; during every second pair a new version arrives."""
    array = np.ones(nbytes // 4, np.float32)
    out, times = np.empty_like(array), list[float]()
    with place.connect(0, awareness=Awareness(measure=False)) as group:
        for _ in range(2):
            group.all_reduce(array, out=out)
        for number in range(2 * compared):
            group.barrier()
            began_s = time.monotonic()
            first = group.all_reduce_async(array, out=out)
            if place.rank == 0 and number % 2:
                time.sleep(RENEWED_AT * times[-1] / 2)
                renew(group)
            first.wait()
            group.all_reduce(array, out=out)
            times.append(time.monotonic() - began_s)
        group.barrier()
    return times


def renew(group: Group) -> None:
    """Let the next round start with a new version of the plan."""

    def adopt(controller: Controller, now_s: float) -> list[Action]:
        plans = controller.plans
        key = max(plans.keys, key=lambda key: key[1])
        current = plans.by_version[plans.plan_for(*key[:2])]
        return controller.planned(PlanMade(key, current, float("inf"), ""), now_s)

    assert group.controller is not None
    group.controller.change(adopt)


def measure_live(sites: int, scale: float) -> tuple[list[float], list[float]]:
    """Seconds of two rounds without and with a switch, in turn, each by its slowest site."""
    with Lab(mesh(sites, scale), "htb", calibrate=False) as lab:
        arguments = {"nbytes": int(scale * NBYTES[sites]), "compared": COMPARED}
        answers = call_sites(lab.network, take_turns, arguments, deadline_s=DEADLINE_S, inside=lab)
    times = [max(pair) for pair in zip(*answers, strict=True)]
    return times[0::2], times[1::2]


def simulate(sites: int) -> tuple[float, float, int]:
    """Seconds per round without and with switches, and the number of switches."""
    items = (int(SCALES[0] * NBYTES[sites]) // 4,) * SIMULATED_ROUNDS[sites]
    run = ChunkRun(mesh(sites, SCALES[0]), "optimal", 1, items, buffer_bytes=2**20)
    still = Awareness(measure=False)
    plain = run_changing(ChangingRun(run, still, control_s=0.01))
    switching = run_changing(ChangingRun(run, still, control_s=0.01, switch_to=("optimal",)))
    took = [max(times[-1] for times in r.ended_s.values()) / SIMULATED_ROUNDS[sites] for r in (plain, switching)]
    return took[0], took[1], switching.switches


def run(out: TextIO) -> None:
    """Print the tables."""
    print("| live, sites | rates | two rounds | with a switch | of a round | middle half | switches | load |", file=out)
    print("|---|---:|---:|---:|---:|---:|---:|---:|", file=out)
    for sites in NBYTES:
        for scale in SCALES:
            without, with_switch = measure_live(sites, scale)
            cost = [2 * (b / a - 1) for a, b in zip(without, with_switch, strict=True)]
            lower, middle, upper = statistics.quantiles(cost, n=4)
            medians = f"{statistics.median(without):.3f} s | {statistics.median(with_switch):.3f} s"
            spread = f"{middle:+.1%} | {lower:+.1%} to {upper:+.1%}"
            load = f"{os.getloadavg()[0]:.0f}"
            print(f"| {sites} | {scale:g} | {medians} | {spread} | {len(cost)} | {load} |", file=out, flush=True)
    print("\n| simulated, sites | a round | with a switch | | switches |\n|---|---:|---:|---:|---:|", file=out)
    for sites in NBYTES:
        plain_s, switching_s, switches = simulate(sites)
        ratio = switching_s / plain_s - 1
        print(f"| {sites} | {plain_s:.3f} s | {switching_s:.3f} s | {ratio:+.1%} | {switches} |", file=out)
