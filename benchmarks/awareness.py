"""Accuracy of link estimates, and the benefit of awareness.

The truth is known in the chunk simulator, on virtual time, where the production engine, meters and controller run, and
in the lab, where every site is a process on links of the kernel's `htb`. *Accuracy*: a mesh of 4 sites whose links all
get new random rates, 20 to 155 Mbps; estimates of links measured since the change against the truth, more than three
update periods after it. *On or off*: rounds in turn, in one lab, by a group with a network description and awareness
off, by one with a description and awareness on (the default), and by one without a description. *Changing*: the links
change in the middle. *In one process*: the same on links that Tradewind's transport shapes. *Switches*: rounds that
start with a new version of their plan against rounds that do not, in turn. *Auxiliary paths*: the same plans with and
without them. The load of the machine is given: processes that wait for a processor look like slow links.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any, TextIO

import numpy as np

from benchmarks._awareness_lab import CHANGED_ROUNDS, QUICK_UPDATE_S, STEADY_ROUNDS, WAYS, Turns, run_in_lab
from tradewind.catalog import load_network
from tradewind.control.awareness import Awareness
from tradewind.control.controller import Action, Controller
from tradewind.control.plans.versions import PlanMade, PlanWanted
from tradewind.lab.inproc import run_inproc
from tradewind.network import Network
from tradewind.runtime.group import Group
from tradewind.sim.chunks.changing import ChangingRun, run_changing
from tradewind.sim.chunks.run import ChunkRun

UPDATE_TIME_S = 1.0
NBYTES = 4_000_000
ROUNDS = 8
SWITCHES = 20
SIMULATED = 3
PAIRS = ((1, 7), (3, 5), (2, 9), (4, 6))
"""Seeds of the meshes before and after a change."""


def drawn(seed: int, latency_s: float = 0.005) -> Network:
    """A mesh of four sites, 20 to 155 Mbps."""
    mesh = load_network("mesh", n=4, seed=seed)
    return Network(mesh.name, mesh.sites, mesh.bandwidth_bps, latency_s * (1 - np.eye(4)))


def rounds_of(group: Group, count: int) -> list[float]:
    """Seconds of each round."""
    array = np.ones(NBYTES // 4, np.float32)
    out = np.empty_like(array)
    times = []
    for _ in range(count):
        start_s = time.monotonic()
        group.all_reduce(array, out=out)
        times.append(time.monotonic() - start_s)
    return times


def slowest(per_rank: list[list[float]], last: int) -> float:
    """The median of the last rounds, each by its slowest rank."""
    return statistics.median([max(map(float, times)) for times in zip(*per_rank, strict=True)][-last:])


def simulate_accuracy() -> list[float]:
    """The relative errors of the estimates at the end, more than three update periods after all links have changed."""
    errors: list[float] = []
    for seed in range(SIMULATED):
        before, after = drawn(2 * seed), drawn(2 * seed + 1)
        run = ChunkRun(before, "optimal", seed, (NBYTES // 8,) * 22, buffer_bytes=2**20)
        quick = Awareness(update_time_s=UPDATE_TIME_S / 2)
        view = run_changing(ChangingRun(run, quick, ((1.0, after),))).view
        links = after.bandwidth_bps > 0
        errors += np.abs(view.seen.bandwidth_bps[links] / after.bandwidth_bps[links] - 1).tolist()
    return errors


def measure_knowledge() -> dict[str, float]:
    """Seconds of a round once the run has settled, by setting; every setting twice, in turn."""
    truth = drawn(1)
    ways: dict[str, dict[str, Any]] = {
        "described, awareness off": {"awareness": Awareness(measure=False)},
        "described, awareness on (default)": {},
        "not described, awareness on": {"network": None},
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(2):
        for name, options in ways.items():
            per_rank = run_inproc(truth, lambda group: rounds_of(group, 2 * ROUNDS), None, **options)
            took[name].append(slowest(per_rank, ROUNDS))
    return {name: statistics.mean(seconds) for name, seconds in took.items()}


def measure_switches() -> tuple[float, float, float]:
    """Seconds of rounds that switch and of rounds that do not, in turn; and of planning."""
    truth = drawn(2)
    switched: list[list[float]] = [[], []]
    planning_s: list[float] = []

    def body(group: Group) -> list[float]:
        rounds_of(group, 2)
        times = []
        for number in range(2 * SWITCHES):
            if group.rank == 0 and number % 2:
                planning_s.append(_switch(group))
            group.barrier()
            times += rounds_of(group, 1)
        return times

    per_rank = run_inproc(truth, body, None, awareness=Awareness(measure=False))
    for number, times in enumerate(zip(*per_rank, strict=True)):
        switched[number % 2].append(max(times))
    return statistics.median(switched[1]), statistics.median(switched[0]), statistics.median(planning_s)


def _switch(group: Group) -> float:
    """Let the next round start with a new version of its plan; returns the planning time in s."""
    wanted: list[PlanWanted] = []

    def adopt(controller: Controller, now_s: float) -> list[Action]:
        plans = controller.plans
        key = max(plans.keys, key=lambda key: key[1])
        current = plans.by_version[plans.plan_for(*key[:2])]
        wanted.extend(plan for plan in plans.wanted() if plan.key == key)
        return controller.planned(PlanMade(key, current, float("inf"), ""), now_s)

    assert group.controller is not None
    group.controller.change(adopt)
    start_s = time.process_time()
    wanted[0].make()
    return time.process_time() - start_s


def measure_detours() -> list[tuple[str, str, float, float]]:
    """Network and planner, and seconds of a round without and with auxiliary paths."""
    netstorm = load_network("netstorm9").scaled(0.5)
    found = []
    for network, planner in ((netstorm, "fapt"), (drawn(3), "star"), (drawn(3), "optimal")):
        took = [
            slowest(
                run_inproc(
                    network,
                    lambda group: rounds_of(group, 4),
                    None,
                    planner=planner,
                    awareness=Awareness(measure=False, auxiliary=auxiliary),
                ),
                3,
            )
            for auxiliary in (False, True)
        ]
        found.append((network.name, planner, took[0], took[1]))
    return found


def run(out: TextIO) -> None:
    """Measure everything, and write the tables."""
    print(f"Load at the start {os.getloadavg()[0]:.1f}.\n", file=out)
    _lab(out)
    _knowledge(out)
    with_switch_s, without_s, planning_s = measure_switches()
    print(
        f"**Switches.** {SWITCHES} rounds that start with a new version took {with_switch_s:.3f} s, as many without "
        f"{without_s:.3f} s (medians): {with_switch_s / without_s - 1:+.1%}. Making the plan meanwhile takes "
        f"{1000 * planning_s:.0f} ms of processor time.\n",
        file=out,
    )
    print("| network | planner | without | with auxiliary paths | faster |\n|---|---|---|---|---|", file=out)
    for network, planner, without, with_them in measure_detours():
        print(f"| {network} | {planner} | {without:.2f} s | {with_them:.2f} s | {without / with_them:.2f} |", file=out)
    print(f"\nLoad at the end {os.getloadavg()[0]:.1f}.", file=out)


def _lab(out: TextIO) -> None:
    steady = run_in_lab(load_network("mesh", n=4, seed=1), NBYTES)
    changing = run_in_lab(load_network("mesh", n=4, seed=1), NBYTES, load_network("mesh", n=4, seed=7))
    alone = [
        run_in_lab(load_network("mesh", n=4, seed=a), NBYTES, load_network("mesh", n=4, seed=b), alone=True)
        for a, b in PAIRS
    ]
    print("| estimates | number | median error | p95 |\n|---|---|---|---|", file=out)
    print(f"| simulated, 3 update periods after a change and later | {_quantiles(simulate_accuracy())} |", file=out)
    print(f"| `htb`, constant network, during rounds | {_quantiles([error for _, error in steady.errors])} |", file=out)
    for what, turns in (
        ("others use the links in turn", changing),
        *((f"meshes {p}", t) for p, t in zip(PAIRS, alone, strict=True)),
    ):
        late = [error for age_s, error in turns.errors if age_s > 3 * QUICK_UPDATE_S]
        print(f"| `htb`, 3 update periods after a change and later, {what} | {_quantiles(late)} |", file=out)
    print("\n| on `htb` | a round | speed, medians | speed, neighbours |\n|---|---|---|---|", file=out)
    for way, name in enumerate(WAYS):
        _row(out, name, steady, way, STEADY_ROUNDS // 2 if way == 2 else STEADY_ROUNDS)
    for way, name in enumerate(WAYS[:2]):
        _row(out, f"links have changed; {name.replace('(default)', '')}", changing, way, CHANGED_ROUNDS // 2)
    print(file=out)


def _row(out: TextIO, name: str, turns: Turns, way: int, last: int) -> None:
    neighbours, medians = turns.speed(way, last)
    seconds = statistics.median(turns.times[way][-last:])
    print(f"| {name}, last {last} rounds | {seconds:.3f} s | {medians:.0%} | {neighbours:.0%} |", file=out)


def _quantiles(wrong: list[float]) -> str:
    return f"{len(wrong)} | {np.median(wrong):.1%} | {np.quantile(wrong, 0.95):.1%}"


def _knowledge(out: TextIO) -> None:
    took = measure_knowledge()
    base = took["described, awareness off"]
    print("| in one process | a round | speed |\n|---|---|---|", file=out)
    for name, seconds in took.items():
        print(f"| {name} | {seconds:.3f} s | {base / seconds:.0%} |", file=out)
    print(file=out)
