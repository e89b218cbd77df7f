"""DS-Sync's Figures 7 to 9 and the accuracies of Tables III to V: time to accuracy in two racks, on virtual time.

The racks, the times of an iteration and the size of the model are those of the tables (WideResNet-28-10 on Cifar10); a
perceptron learns handwritten digits instead, by real steps and averages. So times are simulated and accuracies are
real, but of another model and data set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from tradewind.catalog import load_network
from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.ds_sync.tables import (
    AR,
    ASP,
    COMPUTE_S,
    DS_SYNC,
    GOSSIP,
    HIERARCHICAL,
    METHODS,
    MODELS,
)
from tradewind.experiments.papers.report import SAME, Claim, Outcome, verdict_of, verdict_of_gains
from tradewind.experiments.stragglers.curves import COLUMNS, Trained, Trials, spread
from tradewind.experiments.stragglers.live import SiteCurve, System, Turn
from tradewind.experiments.stragglers.systems import DS_SYNC_CLAIMS, panels, steps_to_target
from tradewind.sim.setup import ConstantSteps, Setup

SEEDS = 5
SECONDS = 240.0
PLAIN = "DS-Sync without SWA"
TRAINED = {AR: AR, HIERARCHICAL: HIERARCHICAL, ASP: ASP, GOSSIP: GOSSIP, DS_SYNC: DS_SYNC, PLAIN: DS_SYNC}
"""What is trained, with the method of the tables that synchronises it."""
SCENARIOS = {
    "ds-sync/fig7": ("inter-rack-and-host", "contention between racks and on one host"),
    "ds-sync/fig8": ("inter-rack", "contention between racks"),
    "ds-sync/fig9": ("static", "no contention"),
}
NEAR = 0.01
_SAME_ACCURACY = "DS-Sync ends with the accuracy of BSP."
_ASP = "ASP fails to reach the accuracy of BSP."
_SWA = "The final SWA ensemble generalises slightly better on small data sets."


def claims_of(what: str) -> tuple[str, ...]:
    """The paper's claims about a figure and the accuracies of its table."""
    return (f"With {what} DS-Sync reaches the accuracy first.", *DS_SYNC_CLAIMS, _SAME_ACCURACY, _ASP, _SWA)


def train(
    name: str, scenario: str, trial: int, seconds: float, size: float = 1.0, learning_rate: float = 1.0
) -> tuple[SiteCurve, ...]:
    """Train one method from one seed; `size` and `learning_rate` are factors of the usual ones."""
    from tradewind.experiments.stragglers.virtual import train_on_virtual_time

    scheme = METHODS[TRAINED[name]]
    setup = Setup(
        load_network("ds-sync-racks", scenario=scenario),
        scheme,
        round(size * MODELS[0].nbytes),
        ConstantSteps(COMPUTE_S),
        seconds,
        trial,
    )
    assert scheme.planner is not None
    system = System("tradewind", scheme.policy, scheme.planner, ensemble=name == DS_SYNC)
    return train_on_virtual_time(
        Turn(system, trial, seconds, sites=len(setup.network), learning_rate=learning_rate), setup
    )


def _run(setting: Setting, name: str) -> Outcome:
    scenario, what = SCENARIOS[name]
    trials = setting.trial_numbers(SEEDS)
    seconds = SECONDS / 4 if setting.quick else SECONDS
    calls = [(method, scenario, trial, seconds) for method in TRAINED for trial in trials]
    played = dict(zip(calls, setting.workers.map(train, calls, name), strict=True))
    curves = {method: [played[method, scenario, trial, seconds] for trial in trials] for method in TRAINED}
    found, target = to_accuracy_of_all_reduce(curves)
    return Outcome(
        COLUMNS,
        tuple(found.rows(AR)),
        panels(found),
        judge(found, what),
        (
            f"A perceptron on digits; times of an iteration as with the {MODELS[0].nbytes / 1e6:.0f} "
            f"MB of WideResNet-28-10. Target {target:.3f}: the least accuracy of AR from {len(trials)} seeds, as in "
            "the paper. Cifar10, Cifar100, ImageNet, SQuAD and the paper's models are not available here.",
            "ASP adds the changes of all workers to its server, so that its learning rate is an eighth of the others'. "
            "Nothing overlaps computing.",
        ),
    )


def to_accuracy_of_all_reduce(curves: Mapping[str, Sequence[tuple[SiteCurve, ...]]]) -> tuple[Trials, float]:
    """The trainings with the paper's target, the least accuracy that AR ends with; and that target."""
    target = min(Trained(of_seed).accuracy_at_end() for of_seed in curves[AR])
    return Trials({name: [Trained(of_seed, target) for of_seed in own] for name, own in curves.items()}, ()), target


def judge(found: Trials, what: str) -> tuple[Claim, ...]:
    """Verdicts on the claims from the trainings."""
    texts = claims_of(what)
    sooner = {name: found.sooner(DS_SYNC, name) for name in (AR, HIERARCHICAL, ASP, GOSSIP)}
    steps = steps_to_target(found, DS_SYNC) / steps_to_target(found, AR)
    finals = {name: found.finals(name) for name in found.trained}
    told = {name: f"{fmean(own):.3f}+-{spread(own):.3f}" for name, own in finals.items()}
    noise = max(NEAR, spread(finals[AR]))
    return (
        Claim(
            texts[0],
            ", ".join(f"{ratio:.2f} times as soon as {name}" for name, ratio in sooner.items()),
            verdict_of(ratio > 1 for ratio in sooner.values()),
        ),
        Claim(
            texts[1],
            f"{sooner[AR]:.2f} times as soon as AR",
            verdict_of_gains([sooner[AR] - 1], 0.94, up_to=True),
        ),
        Claim(texts[2], f"{steps:.2f} times the steps", verdict_of([steps <= 1 + SAME]), "Holds within 10%."),
        Claim(
            texts[3],
            f"{told[DS_SYNC]} instead of {told[AR]}",
            verdict_of([fmean(finals[DS_SYNC]) >= fmean(finals[AR]) - noise]),
            "Holds within 0.01 or a standard deviation.",
        ),
        Claim(
            texts[4],
            f"{told[ASP]} instead of {told[AR]}",
            verdict_of([fmean(finals[ASP]) < fmean(finals[AR]) - noise]),
            "By more than 0.01 and a standard deviation.",
        ),
        Claim(
            texts[5],
            f"{told[DS_SYNC]}, without it {told[PLAIN]}",
            verdict_of([fmean(finals[DS_SYNC]) > fmean(finals[PLAIN])]),
        ),
    )


def _experiment(name: str) -> Experiment:
    what = SCENARIOS[name][1]
    title = f"DS-Sync Fig. {name[-1]}: time to accuracy, {what}"
    return Experiment(name, title, claims_of(what), lambda setting: _run(setting, name))


FIG7, FIG8, FIG9 = map(_experiment, SCENARIOS)
