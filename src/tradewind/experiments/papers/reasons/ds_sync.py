"""Why claims of DS-Sync do not hold: what computing weighs, learning rates, latency, and how its formulas count."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from tradewind.experiments.papers import Setting
from tradewind.experiments.papers.ds_sync.costs import LATENCY_MS, SHAPES, TABLE2, Racks, paper_costs, rack_network
from tradewind.experiments.papers.ds_sync.costs import NBYTES as COST_BYTES
from tradewind.experiments.papers.ds_sync.tables import (
    AR,
    ASP,
    COMPUTE_S,
    DS_SYNC,
    GOSSIP,
    HIERARCHICAL,
    METHODS,
    MODELS,
    TABLES,
    communication_trial,
)
from tradewind.experiments.papers.ds_sync.training import FIG7, FIG8, FIG9, PLAIN, to_accuracy_of_all_reduce, train
from tradewind.experiments.papers.reasons import of_paper
from tradewind.experiments.papers.report import MOST, SAME, Switched, mean
from tradewind.experiments.stragglers.curves import Trained, Trials
from tradewind.experiments.stragglers.live import SiteCurve
from tradewind.experiments.stragglers.systems import DS_SYNC_CLAIMS, steps_to_target
from tradewind.sim import simulate

SEEDS = 5
SECONDS = 240.0
BETWEEN_RACKS, ON_A_HOST = "inter-rack", "inter-rack-and-host"
_SMALL_SHARE = (
    "Communicating takes 0.7 of the time of computing here, and 1.8 of it in the paper, whose layers are many messages."
)
_DRIFT = "Groups of two average little at a time, so that models drift apart at a large learning rate."
_DIVIDED = "The learning rate of ASP is divided by the number of workers here, so that its stale changes do no harm."
_GENTLE = "The learning rate is far below the largest with which BSP trains, so that stale changes do no harm."
_CEILING = "The model is at its best accuracy already: there is no noise left that averaging over time could remove."
_IN_A_RACK = (
    "It counts two exchanges that cross at once and both directions one after the other. Some iterations are like "
    "that; in others most pairs are inside a rack."
)
_TWICE = (
    "By the formulas a pair sends 2S, but two workers need S each way. With all uplinks equally contended none is set "
    "apart, and the representatives of four racks make one ring."
)
_MESSAGES = "The paper's larger models have more layers, so more messages, each of which has to fill a ring's 14 hops."
_HOPS = "The first chunk takes 14 hops of a ring, and fewer of Hierarchical all-reduce: with a small model that counts."


# --- training --------------------------------------------------------------------------------------------------------


def _curves(
    setting: Setting, name: str, size: float = 1.0, learning_rate: float = 1.0, scenario: str = BETWEEN_RACKS
) -> list[tuple[SiteCurve, ...]]:
    """The trainings of one method, by seed; `size` and `learning_rate` are factors of the usual ones."""
    seconds = (SECONDS / 4 if setting.quick else SECONDS) * max(1.0, size / 2)
    factors = () if size == learning_rate == 1 else (size, learning_rate)  # without them, the figures' own trainings
    calls = [(name, scenario, trial, seconds, *factors) for trial in setting.trial_numbers(SEEDS)]
    return setting.workers.map(train, calls, "reasons: training in racks")


def _trained(
    setting: Setting,
    names: tuple[str, ...],
    size: float = 1.0,
    learning_rate: float = 1.0,
    scenario: str = BETWEEN_RACKS,
) -> Trials:
    return to_accuracy_of_all_reduce({name: _curves(setting, name, size, learning_rate, scenario) for name in names})[0]


_TESTS = (
    (_SMALL_SHARE, "a model of 2.6 times the size", (2.6, 1.0)),
    (_DRIFT, "a quarter of the learning rate", (1.0, 0.25)),
)


def _sooner(setting: Setting) -> Iterator[Switched]:
    usual = _trained(setting, (AR, DS_SYNC))
    measure = "DS-Sync's speed over AR's to the accuracy"
    for cause, off, factors in _TESTS:
        without = _trained(setting, (AR, DS_SYNC), *factors)
        over = (usual.sooner(DS_SYNC, AR), without.sooner(DS_SYNC, AR))
        yield Switched(DS_SYNC_CLAIMS[0], cause, off, measure, *over, 1 + MOST * 0.94)
    before, after = (steps_to_target(found, DS_SYNC) / steps_to_target(found, AR) for found in (usual, without))
    yield Switched(DS_SYNC_CLAIMS[1], cause, off, "DS-Sync's steps over BSP's", before, after, 1 + SAME, True)


def _first(setting: Setting) -> Iterator[Switched]:
    others = (AR, HIERARCHICAL, ASP, GOSSIP)
    measure = "DS-Sync's speed to the accuracy over that of the soonest other"
    for figure, scenario in ((FIG7, ON_A_HOST), (FIG8, BETWEEN_RACKS), (FIG9, "static")):

        def least(size: float, rate: float, scenario: str = scenario) -> float:
            found = _trained(setting, (*others, DS_SYNC), size, rate, scenario)
            return min(found.sooner(DS_SYNC, name) for name in others)

        usual = least(1.0, 1.0)
        for cause, off, factors in _TESTS:
            yield Switched(figure.claims[0], cause, off, measure, usual, least(*factors), 1.0)


def _final(setting: Setting, name: str, learning_rate: float = 1.0) -> float:
    """The final accuracy of a method between racks, the mean over the seeds."""
    return fmean(Trained(of_seed).final_accuracy for of_seed in _curves(setting, name, learning_rate=learning_rate))


def _asp(setting: Setting) -> Iterator[Switched]:
    base, usual, undivided = _final(setting, AR), _final(setting, ASP), _final(setting, ASP, 8.0)
    larger = _final(setting, ASP, 32.0) - _final(setting, AR, 4.0)
    for cause, off, without in (
        (_DIVIDED, "the learning rate of BSP for ASP", undivided - base),
        (_GENTLE, "four times the learning rate for both, not divided for ASP", larger),
    ):
        measure = "ASP's final accuracy less BSP's"
        yield Switched(FIG7.claims[4], cause, off, measure, usual - base, without, -0.01, at_most=True)


def _ensemble(setting: Setting) -> Iterator[Switched]:
    def gain(rate: float) -> float:
        found = _trained(setting, (AR, DS_SYNC, PLAIN), learning_rate=rate)
        return fmean(found.finals(DS_SYNC)) - fmean(found.finals(PLAIN))

    measure = "final accuracy with SWA less that without"
    yield Switched(FIG7.claims[5], _CEILING, "four times the learning rate", measure, gain(1.0), gain(4.0), 0.001)


# --- costs -----------------------------------------------------------------------------------------------------------


def gossip_trial(shape: Racks, trial: int) -> tuple[float, float]:
    """Mean and longest time of an iteration beyond its computation, in seconds, once the run is under way."""
    result = simulate(
        rack_network(shape),
        METHODS[GOSSIP],
        60 * COMPUTE_S,
        seed=trial,
        compute=COMPUTE_S,
        nbytes=COST_BYTES,
        execution="pipelined",
        discipline="fs",
    )
    seconds = [round_.seconds for round_ in result.finished]
    late = sorted(seconds[len(seconds) // 2 :])
    return mean(late), late[-1]


def _gossip(setting: Setting) -> Iterator[Switched]:
    trials = setting.trial_numbers(5)
    ratios = []
    for shape in SHAPES:
        found = setting.workers.map(gossip_trial, [(shape, trial) for trial in trials], "reasons: gossip")
        formula = paper_costs(shape)[GOSSIP]
        ratios.append((mean([usual for usual, _ in found]) / formula, mean([most for _, most in found]) / formula))
    usual, slowest = (min(pair[k] for pair in ratios) for k in (0, 1))
    off = "the slowest exchange of a run instead of the average"
    yield Switched(TABLE2.claims[2], _IN_A_RACK, off, "least time over the formula's", usual, slowest, 1.0)


def _formulas(setting: Setting) -> Iterator[Switched]:
    del setting

    def least(each_way: bool) -> float:
        ratios = []
        for shape in SHAPES:
            costs = paper_costs(shape)
            mine = costs.pop(DS_SYNC)
            if each_way:  # latency stays, half of the transfer goes
                mine = (mine + 2 * LATENCY_MS / 1e3) / 2
            ratios.append(min(costs.values()) / mine)
        return min(ratios)

    measure = "least cost of the others by formula over DS-Sync's"
    yield Switched(
        TABLE2.claims[3], _TWICE, "S for a pair, each way at the same time", measure, least(False), least(True), 1.0
    )


def _tables(setting: Setting) -> Iterator[Switched]:
    first, last = MODELS[0], MODELS[-1]
    for table in (TABLES[0], TABLES[2]):
        calls = [(method, table.scenario, model.nbytes, 0) for method in (AR, DS_SYNC) for model in MODELS]
        seconds = dict(zip(calls, setting.workers.map(communication_trial, calls, "reasons: tables"), strict=True))
        whole, in_parts = (
            min(
                (seconds[AR, table.scenario, size, 0] / seconds[DS_SYNC, table.scenario, size, 0] - 1) / (claimed - 1)
                for model, claimed in zip(MODELS, table.speedups, strict=True)
                for size in (first.nbytes if parts else model.nbytes,)
            )
            for parts in (False, True)
        )
        off = "larger models in parts of Cifar10's size, one after the other"
        yield Switched(table.claims[1], _MESSAGES, off, "least share of the claimed gain", whole, in_parts, MOST)
    calls = [(method, "static", model.nbytes, 0) for model in (first, last) for method in (HIERARCHICAL, AR)]
    small, small_ring, large, large_ring = setting.workers.map(communication_trial, calls, "reasons: tables")
    measure = "time of Hierarchical all-reduce over AR's"
    off = "a model of nine times the size"
    yield Switched(TABLES[2].claims[2], _HOPS, off, measure, small / small_ring, large / large_ring, 1.001)


REASONS = of_paper("ds-sync", "DS-Sync", (_formulas, _gossip, _tables, _sooner, _first, _asp, _ensemble))
