"""Why claims of CREW do not hold: the number of workers, how long rounds take, whole blocks, and even steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tradewind.catalog import load_network
from tradewind.experiments.papers import Setting
from tradewind.experiments.papers.crew.flows import FIG6, FIG7
from tradewind.experiments.papers.crew.loads import FIG9, FIG10
from tradewind.experiments.papers.crew.partial_training import Conditions, train
from tradewind.experiments.papers.crew.rounds import FIG4, FIG5_CLAIMS
from tradewind.experiments.papers.crew.stress import FIG8
from tradewind.experiments.papers.crew.training import CLAIMS as TRAINING_CLAIMS
from tradewind.experiments.papers.crew.training import CONDITIONS, NON_IID
from tradewind.experiments.papers.crew.trials import (
    CONTENDERS,
    CREW,
    MODEL_BYTES,
    NETWORKS,
    OPR,
    WORKLOADS,
    Case,
    Training,
    faulty_links,
    instance,
    one_round_trial,
    rounds_within,
    step_times,
    training_trial,
)
from tradewind.experiments.papers.reasons import of_paper
from tradewind.experiments.papers.report import SAME, Switched, mean
from tradewind.sim import simulate

NON_BLOCKING, C2 = "CREW non-blocking", "CREW C2"
ALL_ROUNDS = 1000
"""More rounds than a worker can have in 50 s."""
ENOUGH_ROUNDS = 150
"""Rounds of a worker that show how groups form."""
SLOWEST = 6.0
"""The longest compute time of Fig. 9, times T2."""
_READY_AGAIN = (
    "The longer a reduce takes, the more often exactly the workers that averaged together are ready together again. It "
    "matters once their data differ enough."
)
_HALF = "With half of eight sites in a round, CREW has twice P-Reduce's aggregators; with 5 of 60 twelve times."
_AT_ONCE = (
    "Ready workers form a round quickly: with sixty of them it starts within milliseconds, and there is little to gain "
    "before it does."
)
_TAKES = "Links are busy with other rounds, and a scatter that begins early takes from them what it gains."
_NO_DELAY = "Control messages take no time in the simulator, so that a blocking scatter waits for none of them."
_LONGER = "A round of more workers takes longer anyway, so computing weighs less in it."
_SHORTER = "Rounds on N2 are shorter, so the same compute time weighs more there."
_WHOLE = (
    "Trees of several levels lose most by waiting for whole blocks; pipelined, five good trees carry about as much as "
    "OPR's stars."
)
_EXTENDED = "A trial ends after 15 rounds of a worker, and its pace is extended to 50 s."
_IN_STEP = (
    "With T2 all steps take nearly the same time, so rounds run in step and scatters meet no multicasts; the first "
    "disturbance ends that for good."
)
_SAME_STEPS = "With T2 all steps take nearly the same time; with a third of the workers in a round, rounds run in step."
_SYNCHRONISING = "On N1 synchronising takes nearly all of the time, and it grows with the model; computing does not."


# --- Figure 3 --------------------------------------------------------------------------------------------------------


def repeated_trial(conditions: Conditions, workers: int, p: int, reduce_s: float, trial: int) -> float:
    """The share of rounds whose members were also together in their previous round."""
    return train(p, reduce_s, conditions, trial, workers, ENOUGH_ROUNDS).repeated


def _groups(setting: Setting) -> Iterator[Switched]:
    """The change of the share of repeated groups from reduces of 0.5 s to 4 s, at most over p."""

    def change(workers: int) -> float:
        conditions, trials = CONDITIONS[NON_IID], setting.trial_numbers(3)
        shares = []
        for p in (2, 4):
            short, long = (
                mean(
                    setting.workers.map(
                        repeated_trial, [(conditions, workers, p, x, k) for k in trials], "reasons: groups"
                    )
                )
                for x in (0.5, 4.0)
            )
            shares.append(long - short)
        return max(shares)

    off = "32 workers instead of 8, of which others are ready, too"
    measure = "repeated groups at 4 s beyond those at 0.5 s, share of rounds"
    yield Switched(TRAINING_CLAIMS[2], _READY_AGAIN, off, measure, change(8), change(32), 0.05, at_most=True)


# --- Figures 4 to 7 --------------------------------------------------------------------------------------------------


def workers_trial(case: Case, workers: int, rounds_each: int, trial: int, control_s: float = 0.0) -> Training:
    """A case with another number of workers, and with control messages that take a time."""
    result = simulate(
        load_network(NETWORKS[case.network], n=workers, seed=trial),
        CONTENDERS[case.contender],
        case.seconds,
        seed=trial,
        compute=step_times(case.compute, case.compute_factor),
        nbytes=MODEL_BYTES,
        policy_options={"p": case.p},
        stop_after_rounds=max(1, rounds_each * workers // case.p),
        control_s=control_s,
    )
    return Training(rounds_within(result, case.seconds), result.average_sync_s)


def _over(
    setting: Setting, over: str, under: str, case: Case, workers: int, rounds_each: int, control_s: float = 0.0
) -> float:
    """One contender's rounds over another's."""
    rounds = []
    for contender in (over, under):
        own = replace(case, contender=contender)
        calls = [(own, workers, rounds_each, trial, control_s) for trial in setting.trial_numbers(2)]
        found = setting.workers.map(workers_trial, calls, "reasons: number of workers")
        rounds.append(mean([one.rounds for one in found]))
    return rounds[0] / rounds[1]


def _aggregators(setting: Setting) -> Iterator[Switched]:
    few, many = (
        max(
            _over(setting, CREW, OPR, Case(CREW, *workload, p, seconds=200.0), workers, 10)
            for workload in WORKLOADS[::3]
        )
        for workers, p in ((8, 4), (60, 5))
    )
    measure = "CREW's rounds over OPR's, at most"
    yield Switched(FIG5_CLAIMS[2], _HALF, "5 of 60 workers instead of 4 of 8", measure, few, many, 1 + 0.8 * 7)


def _blocks(setting: Setting) -> Iterator[Switched]:
    trials = setting.trial_numbers(3)
    names = (OPR, "TOPOADOPT", "BLINK")
    calls = [(name, network, p, k) for name in names for network in NETWORKS for p in (5, 10) for k in trials]
    found = dict(zip(calls, setting.workers.map(one_round_trial, calls, "reasons: blocks"), strict=True))

    def least(what: str) -> float:
        def seconds(name: str, network: str, p: int) -> float:
            return mean([getattr(found[name, network, p, k], what) for k in trials])

        places = [(name, network, p) for name in names[1:] for network in NETWORKS for p in (5, 10)]
        return min(seconds(name, network, p) / seconds(OPR, network, p) for name, network, p in places)

    measure = "the trees' time over OPR's, at least"
    off = "whole blocks only, as the paper simulates"
    yield Switched(FIG4.claims[2], _WHOLE, off, measure, least("pipelined_s"), least("whole_s"), 1.5)


def _non_blocking(setting: Setting) -> Iterator[Switched]:
    def gains(workers: int, scales: Sequence[int], control_s: float = 0.0) -> list[float]:
        return [
            _over(setting, NON_BLOCKING, CREW, Case(CREW, *workload, p), workers, 10, control_s)
            for workload in WORKLOADS[::3]
            for p in scales
        ]

    many = gains(60, (4, 5))
    tests = (
        (_AT_ONCE, "8 workers instead of 60, of which few are ready at a time", gains(8, (4, 5))),
        (_TAKES, "one round at a time: all of 12 workers in every round", gains(12, (12,))),
        (_NO_DELAY, "control messages that take 150 ms each way", gains(60, (4, 5), 0.15)),
    )
    for cause, off, without in tests:
        yield Switched(FIG6.claims[0], cause, off, "least gain in rounds", min(many), min(without), 1.0)
    for cause, off, without in tests:
        yield Switched(FIG6.claims[1], cause, off, "largest gain in rounds", max(many), max(without), 1.16)


def _orders(setting: Setting) -> Iterator[Switched]:
    """C2 against FL where it comes closest, with uneven steps and many workers in a round."""
    crowded = "With many workers in a round, scatters that go first finish rounds that others then wait for less."

    trials = setting.trial_numbers(4)

    def most(p: int, rounds_each: int) -> float:
        calls = [(Case(name, n, "T1", p), rounds_each, k) for n in NETWORKS for name in (C2, CREW) for k in trials]
        found = iter(setting.workers.map(training_trial, calls, "reasons: orders"))
        rounds = [mean([next(found).rounds for _ in trials]) for _ in range(2 * len(NETWORKS))]
        return max(c2 / flows for c2, flows in zip(rounds[::2], rounds[1::2], strict=True))

    measure, usual = "C2's rounds over FL's, at most", most(20, 15)
    for cause, off, without in (
        (crowded, "p = 5 instead of 20, with T1", most(5, 15)),
        (_EXTENDED, "all 50 s simulated, with T1 and p = 20", most(20, ALL_ROUNDS)),
    ):
        yield Switched(FIG7.claims[0], cause, off, measure, usual, without, 1.0, at_most=True)


def _scales(setting: Setting) -> Iterator[Switched]:
    """C2 on N1, the one case with more rounds at p = 20 than at 5."""
    trials = setting.trial_numbers(4)

    def rounds(compute: str, p: int) -> float:
        calls = [(Case(C2, "N1", compute, p), 15, k) for k in trials]
        return mean([one.rounds for one in setting.workers.map(training_trial, calls, "reasons: scales")])

    even, uneven = (rounds(compute, 20) / rounds(compute, 5) for compute in ("T2", "T1"))
    measure = "C2's rounds on N1 at p = 20 over those at p = 5"
    yield Switched(FIG7.claims[3], _SAME_STEPS, "T1 instead of T2", measure, even, uneven, 1.0, at_most=True)


def _sizes(setting: Setting) -> Iterator[Switched]:
    """Fig. 10 with steps that take a larger part of the time."""
    trials = setting.trial_numbers(3)

    def softened(compute_factor: float) -> float:
        def times(p: int) -> float:
            case = Case(CREW, "N1", "T1", p, 100.0, compute_factor=compute_factor)
            small, large = (
                mean([one.rounds for one in setting.workers.map(training_trial, calls, "reasons: sizes")])
                for calls in ([(replace(case, size_factor=size), 10, k) for k in trials] for size in (1, 8))
            )
            return 8 * large / small

        return min(times(5), times(10))

    measure = "rounds with 8 times the size, times 8, over the rounds before, on (N1, T1)"
    off = "compute times four times as long"
    yield Switched(FIG10.claims[0], _SYNCHRONISING, off, measure, softened(1.0), softened(4.0), 1 + SAME)


# --- Figures 8 and 9 -------------------------------------------------------------------------------------------------


def faults_trial(case: Case, even: bool, rounds_each: int, trial: int) -> float:
    """The rounds of a case with faulty links; with `even` all steps take the mean time."""
    network, steps = instance(case.network, trial), step_times(case.compute)
    result = simulate(
        network,
        CONTENDERS[case.contender],
        case.seconds,
        seed=trial,
        compute=steps.mean_s if even else steps,
        nbytes=MODEL_BYTES,
        faults=faulty_links(network, case, trial),
        policy_options={"p": case.p},
        stop_after_rounds=max(1, rounds_each * len(network) // case.p),
    )
    return rounds_within(result, case.seconds)


def _faults(setting: Setting) -> Iterator[Switched]:
    def first_over_later(even: bool) -> float:
        ratios = []
        for p in (5, 10):
            rounds = {
                count: mean(
                    setting.workers.map(
                        faults_trial,
                        [
                            (Case(CREW, "N2", "T1", p, faulty_links=count), even, 15, k)
                            for k in setting.trial_numbers(3)
                        ],
                        "reasons: faults",
                    )
                )
                for count in (0, 5, 40)
            }
            ratios.append((rounds[0] - rounds[5]) / max(rounds[5] - rounds[40], 1e-9))
        return min(ratios)

    measure = "rounds lost with the first 5 links over those with 35 more, on (N2, T1)"
    off = "steps that all take T1's mean time"
    yield Switched(FIG8.claims[0], _IN_STEP, off, measure, first_over_later(False), first_over_later(True), 1.0)


def _weight(setting: Setting) -> Iterator[Switched]:
    """Fig. 9 with compute times that are the same share of a round everywhere."""
    trials, scales = setting.trial_numbers(2), (4, 5, 10, 12)

    def run(network: str, p: int, factor: float) -> Training:
        case = Case(CREW, network, "T2", p, 100.0, compute_factor=factor)
        found = setting.workers.map(training_trial, [(case, 10, k) for k in trials], "reasons: compute times")
        return Training(mean([one.rounds for one in found]), mean([one.sync_s for one in found]))

    usual = {(network, p): run(network, p, 1.0) for network in NETWORKS for p in scales}
    base_s = usual["N1", 4].sync_s

    def left(network: str, some: Sequence[int], weighed: bool) -> float:
        ratios = []
        for p in some:
            factor = SLOWEST
            if weighed:  # the added compute time is the same multiple of a round's time
                factor = 1 + (SLOWEST - 1) * usual[network, p].sync_s / base_s
            ratios.append(run(network, p, factor).rounds / usual[network, p].rounds)
        return mean(ratios)

    small, large = scales[:2], scales[2:]
    plain, even = (left("N1", small, weighed) / left("N1", large, weighed) for weighed in (False, True))
    off = "added compute time in proportion to a round's time"
    measure = "rounds left on N1 at p = 4 and 5 over those at p = 10 and 12"
    yield Switched(FIG9.claims[1], _LONGER, off, measure, plain, even, 1.0)
    plain, even = (left("N2", scales, weighed) / left("N1", scales, weighed) for weighed in (False, True))
    yield Switched(FIG9.claims[2], _SHORTER, off, "rounds left on N2 over those on N1", plain, even, 1.0)


REASONS = of_paper(
    "crew", "CREW", (_groups, _aggregators, _blocks, _non_blocking, _orders, _scales, _sizes, _faults, _weight)
)
