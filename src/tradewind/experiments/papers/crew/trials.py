"""The trials behind CREW's evaluation (V): sixty workers in a full mesh, and what each scheme makes of it.

A trial plays a scheme out in the simulator, with the production policy and planners. Counting the rounds of 50 s takes
some schemes much longer than it is worth, so a trial may end once every worker has had a number of rounds; the rest of
the time is then filled at the pace that was seen (`rounds_within`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from time import perf_counter

import numpy as np

from tradewind.catalog import ComputeTimes, load_compute_times, load_network
from tradewind.experiments.papers import Setting
from tradewind.experiments.papers.report import mean
from tradewind.network import Network
from tradewind.planning import planner, planner_options
from tradewind.planning.bound import bound
from tradewind.planning.cost import cost
from tradewind.schemes import Scheme, make_scheme
from tradewind.sim import LinkOutage, SimulationResult, simulate

SITES = 60
MODEL_BYTES = 180_000_000
NETWORKS = {"N1": "crew-n1", "N2": "crew-n2"}
STEP_TIMES = {"T1": "lstm", "T2": "transformer"}
WORKLOADS = (("N1", "T1"), ("N1", "T2"), ("N2", "T1"), ("N2", "T2"))
SHORTEST_STEP_S, LONGEST_STEP_S = 0.05, 0.2
TRIALS = 10
DOWN_S = 2.0
"""How long a faulty link stays down, before another one does."""


def _variants(name: str) -> Iterator[tuple[str, Scheme]]:
    """Even (E-D) or network-aware (N-A) blocks, flows fairly shared (FS) or first come, first served (FCFS)."""
    for shares, weights in (("E-D", "even"), ("N-A", "network-aware")):
        for order in ("FS", "FCFS"):
            scheme = make_scheme(name, discipline=order.lower(), planner_options={"weights": weights})
            yield f"{name.upper()} {shares} {order}", scheme


A2A, OPR, CREW = "A2A", "OPR N-A FCFS", "CREW N-A FCFS"
PLAIN_CREW = "CREW E-D FS"
STARS, RELAY = "scatter-pipelined (ours)", "relay (ours)"
OURS = (STARS, RELAY)
CONTENDERS: dict[str, Scheme] = {
    "PS": make_scheme("partial+star", execution="store-and-forward"),
    "Ring": make_scheme("partial+ring", execution="store-and-forward"),
    "TOPOADOPT": make_scheme("partial+topoadopt", execution="store-and-forward"),
    "BLINK": make_scheme("partial+blink", execution="store-and-forward"),
    A2A: make_scheme("a2a"),
    **dict(_variants("opr")),
    **dict(_variants("crew")),
    "CREW TL": make_scheme("crew", discipline="task-fcfs"),
    "CREW C1": make_scheme("crew", discipline="multicast-first"),
    "CREW C2": make_scheme("crew", discipline="scatter-first"),
    "CREW non-blocking": make_scheme("crew-non-blocking"),
    STARS: make_scheme("partial+scatter-pipelined"),
    RELAY: make_scheme("partial+relay"),
}
"""Every scheme that a figure shows, by its label. The paper's send whole blocks, ours flow in chunks (pipelined)."""


@cache
def instance(network: str, trial: int) -> Network:
    """N1 or N2 with the bandwidths of this trial."""
    return load_network(NETWORKS[network], n=SITES, seed=trial)


def step_times(compute: str, factor: float = 1.0) -> ComputeTimes:
    """T1 or T2 between 0.05 and 0.2 s, as the paper rescales them, times a factor."""
    return load_compute_times(STEP_TIMES[compute]).rescaled(SHORTEST_STEP_S, LONGEST_STEP_S).scaled(factor)


# --- training: many rounds at the same time ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One point of a figure."""

    contender: str
    network: str
    compute: str
    p: int
    seconds: float = 50.0
    compute_factor: float = 1.0
    size_factor: int = 1
    noise: float = 0.0
    faulty_links: int = 0
    lasting: bool = False
    """Whether the same links are down all the time, rather than one after the other for `DOWN_S` each."""

    @property
    def workload(self) -> tuple[str, str]:
        """Its network and compute times."""
        return self.network, self.compute


@dataclass(frozen=True, slots=True)
class Training:
    """What a case came to."""

    rounds: float
    """Rounds that a worker completed in the case's time, on average."""
    sync_s: float
    """How long a round took, on average; NaN if none ended."""


def training_trial(case: Case, rounds_each: int, trial: int) -> Training:
    """Simulate a case until its time is over, or every worker has had `rounds_each` rounds on average."""
    network = instance(case.network, trial)
    result = simulate(
        network,
        CONTENDERS[case.contender],
        case.seconds,
        seed=trial,
        compute=step_times(case.compute, case.compute_factor),
        nbytes=MODEL_BYTES * case.size_factor,
        faults=faulty_links(network, case, trial),
        noise=case.noise,
        policy_options={"p": case.p},
        stop_after_rounds=max(1, rounds_each * SITES // case.p),
    )
    return Training(rounds_within(result, case.seconds), result.average_sync_s)


def faulty_links(network: Network, case: Case, trial: int) -> tuple[LinkOutage, ...]:
    """Random links such that as many as the case says are down at any time."""
    rng = np.random.default_rng([trial, case.faulty_links])
    src, dst = np.nonzero(network.bandwidth_bps)
    names = network.names
    faults = []
    for number, first in enumerate(rng.permutation(len(src))[: case.faulty_links]):
        if case.lasting:
            faults.append(LinkOutage(names[src[first]], names[dst[first]], 0.0))
            continue
        at_s = -DOWN_S * number / case.faulty_links
        while at_s < case.seconds:
            link, until_s = int(rng.integers(len(src))), at_s + DOWN_S
            faults.append(LinkOutage(names[src[link]], names[dst[link]], max(0.0, at_s), until_s))
            at_s = until_s
    return tuple(faults)


def rounds_within(result: SimulationResult, seconds: float) -> float:
    """Rounds a worker in that time; if the simulation ended before, the rest at each worker's pace so far.

    The pace is the average time between the ends of two rounds of a worker. Half a round less: whatever the pace, a
    round is under way when the time is over.
    """
    if result.seconds >= seconds:
        return result.rounds_per_worker
    ends: dict[str, list[float]] = {worker.name: [] for worker in result.workers}
    for round_ in result.finished:
        for member in round_.members:
            ends[member].append(round_.end_s)
    gaps = sum(len(found) - 1 for found in ends.values() if found)
    if not gaps:
        return result.rounds_per_worker * seconds / result.seconds
    pace_s = sum(max(found) - min(found) for found in ends.values() if found) / gaps
    forecast = [len(found) + (seconds - max(found, default=0.0)) / pace_s - 0.5 for found in ends.values()]
    return mean(forecast)


def averages(setting: Setting, cases: Iterable[Case], label: str) -> dict[Case, Training]:
    """Every case's average over its trials."""
    wanted = list(dict.fromkeys(cases))
    trials = {case: _trials(setting, case) for case in wanted}
    calls = [(case, _rounds_each(setting, case), trial) for case in wanted for trial in trials[case]]
    found = dict(zip(calls, setting.workers.map(training_trial, calls, label), strict=True))
    by_case = {case: [found[call] for call in calls if call[0] is case] for case in wanted}
    return {case: _average(results) for case, results in by_case.items()}


def _average(results: list[Training]) -> Training:
    times_s = [result.sync_s for result in results if not math.isnan(result.sync_s)]
    return Training(mean([result.rounds for result in results]), mean(times_s) if times_s else math.nan)


def _trials(setting: Setting, case: Case) -> range:
    """Fewer where every round, or every fault, takes a linear program."""
    trials = setting.trial_numbers(TRIALS)
    slow = case.contender == RELAY or (case.contender == STARS and case.faulty_links)
    return trials[: math.ceil(len(trials) / 3)] if slow else trials


def _rounds_each(setting: Setting, case: Case) -> int:
    """How many rounds of every worker are simulated."""
    if case.contender == RELAY:
        return 3 if setting.quick else 6
    if setting.quick:
        return 8
    return 10 if CONTENDERS[case.contender].discipline == "fs" else 15


PACE_NOTE = (
    "Simulated until every worker has had some 15 rounds (fair sharing: 10, relay: 6, a quick run: 8 and 3), and "
    "extended to the whole time at that pace; schemes that get less far are simulated in full. Relay has a third of "
    "the trials."
)


def limit_trial(case: Case, trial: int) -> float:
    """No scheme that sums up on the way can complete more rounds a worker, on average, than this.

    A round brings p tensors together and the sum back, over p - 1 links or more each way; all links together carry so
    much and no more. And a worker has to compute, send its tensor out and get one in before it is done with a round.
    """
    network = instance(case.network, trial)
    bits = 8.0 * MODEL_BYTES * case.size_factor
    together = network.bandwidth_bps.sum() * case.seconds / (2 * (case.p - 1) * bits) * case.p / SITES
    out_bps, in_bps = network.bandwidth_bps.sum(axis=1), network.bandwidth_bps.sum(axis=0)
    cycle_s = step_times(case.compute, case.compute_factor).mean_s + bits / np.minimum(out_bps, in_bps)
    return min(float(together), float((case.seconds / cycle_s).mean()))


def limits(setting: Setting, cases: Iterable[Case], label: str) -> dict[Case, float]:
    """The limit of every case; what its contender is does not matter."""
    wanted = list(dict.fromkeys(replace(case, contender=CREW) for case in cases))
    calls = [(case, trial) for case in wanted for trial in setting.trial_numbers(TRIALS)]
    found = dict(zip(calls, setting.workers.map(limit_trial, calls, label), strict=True))
    return {case: mean([found[call] for call in calls if call[0] is case]) for case in wanted}


# --- one partial reduce alone -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OneRound:
    """One partial reduce on an idle network."""

    whole_s: float
    """When every site sends a block on only once it has all of it."""
    pipelined_s: float
    """When chunks flow through all hops at once."""
    planning_s: float
    """On this machine."""


def one_round_trial(contender: str, network: str, p: int, trial: int) -> OneRound:
    """One round of p random workers."""
    mesh, members = instance(network, trial), drawn_members(network, p, trial)
    scheme = CONTENDERS[contender]
    scheme = make_scheme(scheme, planner_options=_drawn_options(contender, mesh, members, trial))
    found, options = planner(scheme.planner), planner_options(scheme.planner, scheme.planner_options)
    start_s = perf_counter()
    plan = found.function(mesh, members, MODEL_BYTES, options)
    planning_s = perf_counter() - start_s
    played = simulate(
        mesh,
        scheme,
        seconds=1e6,
        compute=1.0,
        nbytes=MODEL_BYTES,
        workers=members,
        execution="store-and-forward",
        policy_options={"p": p},
        stop_after_rounds=1,
    )
    return OneRound(played.rounds[0].seconds, cost(plan, mesh).seconds, planning_s)


def limit_of_one_round(network: str, p: int, trial: int) -> float:
    """No partial reduce of these workers takes less, however it is done."""
    return bound(instance(network, trial), drawn_members(network, p, trial), MODEL_BYTES).seconds


def drawn_members(network: str, p: int, trial: int) -> tuple[str, ...]:
    """The p workers of this trial."""
    drawn = np.random.default_rng([trial, p]).choice(SITES, p, replace=False)
    return tuple(instance(network, trial).names[k] for k in sorted(drawn.tolist()))


def _drawn_options(contender: str, network: Network, members: tuple[str, ...], trial: int) -> dict[str, object]:
    """What the paper's baselines (V-A) leave to chance or to the whole network."""
    if contender == "PS":  # the worker with the largest average bandwidth to all others, member or not
        return {"root": network.names[int(network.bandwidth_bps.sum(axis=1).argmax())]}
    if contender == "Ring":
        return {"start": members[int(np.random.default_rng([trial, 1]).integers(len(members)))]}
    return {"seed": trial} if contender == "TOPOADOPT" else {}
