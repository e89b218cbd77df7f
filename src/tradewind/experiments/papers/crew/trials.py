"""The trials of CREW's evaluation (V): sixty workers in a full mesh.

A trial runs a scheme in the simulator, with the production policy and planners. Simulating all rounds of 50 s takes
very long for some schemes, so a trial may end once every worker has had a number of rounds; the rest of the time is
then extrapolated from the rate so far (`rounds_within`).
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
from tradewind.planning.host import FREE_HOST
from tradewind.schemes import Scheme, make_scheme
from tradewind.sim import LinkOutage, SimulationResult, simulate

SITES = 60
MODEL_BYTES = 180_000_000
NETWORKS = {"N1": "crew-n1", "N2": "crew-n2"}
STEP_TIMES = {"T1": "lstm", "T2": "transformer"}
WORKLOADS = (("N1", "T1"), ("N1", "T2"), ("N2", "T1"), ("N2", "T2"))
SHORTEST_STEP_S, LONGEST_STEP_S = 0.05, 0.2
TRIALS = 10
MANY_FAULTS = 20
"""Number of changing faulty links from which on a trial takes ten times as long as one without them."""
DOWN_S = 2.0
"""Seconds that a faulty link stays down before another one goes down."""


def _variants(name: str) -> Iterator[tuple[str, Scheme]]:
    """The variants of a scheme: even (E-D) or network-aware (N-A) blocks, fair sharing (FS) or FCFS flows."""
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
"""Every scheme in the figures, by its label. The paper's schemes send whole blocks, ours pipeline chunks."""


@cache
def instance(network: str, trial: int) -> Network:
    """The network N1 or N2 with the bandwidths of this trial."""
    return load_network(NETWORKS[network], n=SITES, seed=trial)


def step_times(compute: str, factor: float = 1.0) -> ComputeTimes:
    """The step times T1 or T2, rescaled to 0.05 to 0.2 s as in the paper, times a factor."""
    return load_compute_times(STEP_TIMES[compute]).rescaled(SHORTEST_STEP_S, LONGEST_STEP_S).scaled(factor)


# --- training: many rounds at the same time ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """The parameters of one point of a figure."""

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
        """The case's network and compute times."""
        return self.network, self.compute


@dataclass(frozen=True, slots=True)
class Training:
    """The result of a case."""

    rounds: float
    """Mean number of rounds that a worker completed in the case's time."""
    sync_s: float
    """Mean duration of a round, in seconds; NaN if none ended."""


def training_trial(case: Case, rounds_each: int, trial: int) -> Training:
    """Simulate a case until its time has ended, or workers have had `rounds_each` rounds on average."""
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
    """Outages of random links, so that the case's number of links is down at any time."""
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
    """Mean rounds of a worker in that time; if the simulation ended before, extrapolated at each worker's rate so far.

    The rate is from the mean time between the ends of two rounds of a worker. Half a round is subtracted, because a
    round is running when the time ends.
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
    """The average of every case over its trials."""
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
    """The trials of a case: fewer where every round, or every fault, needs a linear program, or faults never end."""
    trials = setting.trial_numbers(TRIALS)
    repaired = case.faulty_links >= MANY_FAULTS and not case.lasting
    slow = case.contender == RELAY or (case.contender == STARS and case.faulty_links) or repaired
    return trials[: math.ceil(len(trials) / 3)] if slow else trials


def _rounds_each(setting: Setting, case: Case) -> int:
    """The number of rounds per worker to simulate."""
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
    """An upper bound on the mean rounds per worker of any scheme that aggregates in the network.

    A round collects p tensors and returns the sum, over at least p - 1 links each way, which the total rate of all
    links limits. And a worker has to compute, send one tensor and receive one in every round.
    """
    network = instance(case.network, trial)
    bits = 8.0 * MODEL_BYTES * case.size_factor
    together = network.bandwidth_bps.sum() * case.seconds / (2 * (case.p - 1) * bits) * case.p / SITES
    out_bps, in_bps = network.bandwidth_bps.sum(axis=1), network.bandwidth_bps.sum(axis=0)
    cycle_s = step_times(case.compute, case.compute_factor).mean_s + bits / np.minimum(out_bps, in_bps)
    return min(float(together), float((case.seconds / cycle_s).mean()))


def limits(setting: Setting, cases: Iterable[Case], label: str) -> dict[Case, float]:
    """The limit of every case, which does not depend on its contender."""
    wanted = list(dict.fromkeys(replace(case, contender=CREW) for case in cases))
    calls = [(case, trial) for case in wanted for trial in setting.trial_numbers(TRIALS)]
    found = dict(zip(calls, setting.workers.map(limit_trial, calls, label), strict=True))
    return {case: mean([found[call] for call in calls if call[0] is case]) for case in wanted}


# --- one partial reduce alone -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OneRound:
    """Times of one partial reduce on an idle network."""

    whole_s: float
    """Seconds if every site forwards a block only once it has all of it."""
    pipelined_s: float
    """Seconds with chunks pipelined over all hops."""
    planning_s: float
    """Planning time on this machine, in seconds."""


def one_round_trial(contender: str, network: str, p: int, trial: int) -> OneRound:
    """Plan and simulate one round of p random workers."""
    mesh, members = instance(network, trial), drawn_members(network, p, trial)
    scheme = CONTENDERS[contender]
    scheme = make_scheme(scheme, planner_options=_drawn_options(contender, mesh, members, trial))
    assert scheme.planner is not None
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
    return OneRound(played.rounds[0].seconds, cost(plan, mesh, host=FREE_HOST).seconds, planning_s)


def limit_of_one_round(network: str, p: int, trial: int) -> float:
    """The least time of any partial reduce of these workers, in seconds."""
    return bound(instance(network, trial), drawn_members(network, p, trial), MODEL_BYTES).seconds


def drawn_members(network: str, p: int, trial: int) -> tuple[str, ...]:
    """The p workers of this trial."""
    drawn = np.random.default_rng([trial, p]).choice(SITES, p, replace=False)
    return tuple(instance(network, trial).names[k] for k in sorted(drawn.tolist()))


def _drawn_options(contender: str, network: Network, members: tuple[str, ...], trial: int) -> dict[str, object]:
    """Options of the paper's baselines (V-A) that are random or depend on the whole network."""
    if contender == "PS":  # the worker with the largest average bandwidth to all others, member or not
        return {"root": network.names[int(network.bandwidth_bps.sum(axis=1).argmax())]}
    if contender == "Ring":
        return {"start": members[int(np.random.default_rng([trial, 1]).integers(len(members)))]}
    return {"seed": trial} if contender == "TOPOADOPT" else {}
