"""What a run knows of its network, and what that is worth.

The truth is known twice: in the chunk simulator, on virtual time, where the production engine, meters and controller
run; and live, all ranks in one process on links that our own transport shapes, where threads that get no processor are
slow links, too: live numbers mean something on a machine that is otherwise idle. *Accuracy*: a mesh of 4 sites
whose links are all drawn anew, 20 to 155 Mbps, every few seconds; estimates of links measured since the change
against the truth, one, two and three update periods after it. *Unknown networks*: rounds on a network that was
described, that nobody described, and that was probed first. *Switches*: rounds that start with a new version of their
plan against rounds that do not, in turn. *Auxiliary paths*: the same plans with and without them.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import replace
from typing import TextIO

import numpy as np

from tradewind.catalog import load_network
from tradewind.control.awareness import Awareness
from tradewind.control.plans import PlanMade
from tradewind.lab.inproc import run_inproc
from tradewind.network import Network
from tradewind.runtime.group import Group
from tradewind.runtime.shaping import ShapedNetwork
from tradewind.sim.chunk_changing import ChangingRun, run_changing
from tradewind.sim.chunk_run import ChunkRun

UPDATE_TIME_S = 1.0
CHANGE_S = 5.0
CHANGES = 2
NBYTES = 4_000_000
ROUNDS = 8
SWITCHES = 20
SIMULATED = 2


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
    """The median of the last rounds, each as long as its slowest rank says."""
    return statistics.median([max(times) for times in zip(*per_rank, strict=True)][-last:])


def simulate_accuracy() -> list[float]:
    """How far the estimates are off at the end, more than three update periods after all links have changed."""
    errors: list[float] = []
    for seed in range(SIMULATED):
        before, after = drawn(2 * seed), drawn(2 * seed + 1)
        run = ChunkRun(before, "optimal", seed, (NBYTES // 8,) * 22, buffer_bytes=2**20)
        quick = Awareness(update_time_s=UPDATE_TIME_S / 2)
        view = run_changing(ChangingRun(run, quick, ((1.0, after),))).view
        links = after.bandwidth_bps > 0
        errors += np.abs(view.seen.bandwidth_bps[links] / after.bandwidth_bps[links] - 1).tolist()
    return errors


def measure_accuracy() -> dict[int, list[float]]:
    """How far estimates are off, by update periods since the change."""
    networks = [drawn(seed) for seed in range(CHANGES + 1)]
    shape = ShapedNetwork(networks[0])
    truth: list[tuple[float, Network]] = [(time.monotonic(), networks[0])]
    over = threading.Event()
    errors: dict[int, list[float]] = {1: [], 2: [], 3: []}

    def change() -> None:
        for network in networks[1:]:
            if over.wait(CHANGE_S):
                return
            shape.change(network)
            truth.append((time.monotonic(), network))
        over.wait(CHANGE_S)
        over.set()

    def compare(group: Group) -> None:
        since_s, network = truth[-1]
        periods = int((time.monotonic() - since_s) / UPDATE_TIME_S)
        if len(truth) == 1 or periods < 1:
            return
        seen = group.network()
        age_s = time.monotonic() - since_s
        if truth[-1][1] is network:
            wrong = [
                abs(link.bandwidth_bps / network.link(link.src, link.dst).bandwidth_bps - 1)
                for link in seen.links
                if link.age_s < age_s
            ]
            errors[min(3, periods)] += wrong

    def body(group: Group) -> None:
        if group.rank == 0:
            threading.Thread(target=change, daemon=True).start()
        going = np.ones(1)
        while going[0]:
            rounds_of(group, 1)
            if group.rank == 0:
                compare(group)
            going = group.broadcast(np.full(1, 0.0 if over.is_set() else 1.0), root=0)

    try:
        run_inproc(networks[0], body, shape, awareness=Awareness(update_time_s=UPDATE_TIME_S))
    finally:
        over.set()
    return errors


def measure_knowledge() -> dict[str, float]:
    """Seconds of a round once the run has settled, by what it was told."""
    truth = drawn(1)
    quick = Awareness(update_time_s=UPDATE_TIME_S)
    ways: dict[str, dict[str, object]] = {
        "described": {"awareness": replace(quick, measure=False)},
        "described, and measured all the time": {"awareness": quick},
        "unknown, measured by its own rounds": {"network": None, "awareness": quick},
        "unknown, probed before the first round": {"network": None, "awareness": replace(quick, probe=True)},
        "unknown, and nobody looks": {"network": None, "awareness": replace(quick, measure=False)},
    }
    settled = ROUNDS // 2
    return {
        name: slowest(run_inproc(truth, lambda group: rounds_of(group, 2 * ROUNDS), None, **options), settled)
        for name, options in ways.items()
    }


def measure_switches() -> tuple[float, float, float]:
    """Seconds of rounds that switch and of rounds that do not, in turn; and of making a plan."""
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
    """Have the next round start with a new version of its plan; how long a plan takes to make."""
    server = group._server
    assert server is not None
    with server._changed:
        plans = server._controller.plans
        key = max(plans.keys, key=lambda key: key[1])
        current = plans.by_version[plans.plan_for(*key[:2])]
        (wanted,) = [wanted for wanted in plans.wanted() if wanted.key == key]
        server._controller.planned(PlanMade(key, current, float("inf"), ""), time.monotonic())
    start_s = time.process_time()
    wanted.make()
    return time.process_time() - start_s


def measure_detours() -> list[tuple[str, str, float, float]]:
    """Network and planner, and seconds of a round without and with auxiliary paths."""
    netstorm = load_network("netstorm9").scaled(0.5)
    found = []
    for network, planner in ((netstorm, "fapt"), (netstorm, "optimal"), (drawn(3), "star"), (drawn(3), "optimal")):
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
    """All of it."""
    _accuracy(out)
    _knowledge(out)
    with_switch_s, without_s, planning_s = measure_switches()
    print(
        f"**Switches.** {SWITCHES} rounds that start with a new version took {with_switch_s:.3f} s, as many without "
        f"{without_s:.3f} s (medians): {with_switch_s / without_s - 1:+.1%}. Making the plan beside them takes "
        f"{1000 * planning_s:.0f} ms of processor time.\n",
        file=out,
    )
    print("| network | planner | without | with auxiliary paths | faster |\n|---|---|---|---|---|", file=out)
    for network, planner, without, with_them in measure_detours():
        print(f"| {network} | {planner} | {without:.2f} s | {with_them:.2f} s | {without / with_them:.2f} |", file=out)


def _accuracy(out: TextIO) -> None:
    errors = measure_accuracy()
    print("| where | update periods since all links changed | estimates | median error | p95 |", file=out)
    print("|---|---|---|---|---|", file=out)
    simulated = simulate_accuracy()
    print(f"| simulated | 3 or more | {_quantiles(simulated)} |", file=out)
    for periods, wrong in sorted(errors.items()):
        name = f"{periods} or more" if periods == 3 else str(periods)
        if wrong:
            print(f"| live | {name} | {_quantiles(wrong)} |", file=out)
    print(file=out)


def _quantiles(wrong: list[float]) -> str:
    return f"{len(wrong)} | {np.median(wrong):.1%} | {np.quantile(wrong, 0.95):.1%}"


def _knowledge(out: TextIO) -> None:
    took = measure_knowledge()
    base = took["described"]
    print("| the network is | a round | speed |\n|---|---|---|", file=out)
    for name, seconds in took.items():
        print(f"| {name} | {seconds:.3f} s | {base / seconds:.0%} |", file=out)
    print(file=out)
