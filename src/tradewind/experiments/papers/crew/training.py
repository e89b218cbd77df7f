"""CREW's Figure 3: whether the duration of a partial reduce changes the number of rounds that training needs."""

from __future__ import annotations

from typing import NamedTuple

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.crew.partial_training import (
    MOST_ROUNDS,
    TARGET_ACCURACY,
    Conditions,
    TrainingResult,
    train,
)
from tradewind.experiments.papers.crew.trials import TRIALS
from tradewind.experiments.papers.crew.views import range_of
from tradewind.experiments.papers.report import SAME, Claim, Outcome, mean, verdict_of
from tradewind.figures.chart import Panel, Series

IID, NON_IID, STICKY = "IID", "non-IID", "few classes a worker, even steps"
CONDITIONS = {
    IID: Conditions(None, "lstm"),
    NON_IID: Conditions(0.5, "lstm"),
    STICKY: Conditions(0.1, "transformer"),
}
"""The paper's two conditions, and a harder one: workers with few classes, and steps of nearly equal time, so that
workers that averaged together are ready together again."""

CLAIMS = (
    "With IID data workers need the same rounds to an accuracy of 0.95, whether a reduce takes 0.5 s or 4 s.",
    "With non-IID data workers need the same rounds, too, whether a reduce takes 0.5 s or 4 s.",
    "How long a reduce takes does not change how workers form groups.",
)


class _Point(NamedTuple):
    conditions: str
    p: int
    reduce_s: float


def trial(conditions: str, p: int, reduce_s: float, number: int) -> TrainingResult:
    """Run one training under the named conditions."""
    return train(p, reduce_s, CONDITIONS[conditions], number)


def _run(setting: Setting) -> Outcome:
    times_s = (0.5, 4.0) if setting.quick else (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
    points = [_Point(conditions, p, x) for conditions in CONDITIONS for p in (2, 4) for x in times_s]
    trials = setting.trial_numbers(TRIALS, quick=3)
    calls = [(*point, number) for point in points for number in trials]
    results = dict(zip(calls, setting.workers.map(trial, calls, "crew/fig3"), strict=True))
    found = {point: [results[(*point, number)] for number in trials] for point in points}
    rounds = {point: mean([mean(each.rounds) for each in results]) for point, results in found.items()}
    repeated = {point: mean([each.repeated for each in results]) for point, results in found.items()}
    reached = {point: sum(each.reached for each in results) for point, results in found.items()}
    return Outcome(
        columns=("data", "p", "reduce s", "rounds", "fewest", "most", "same group again", "reached"),
        rows=tuple(
            (
                *point,
                rounds[point],
                min(min(each.rounds) for each in found[point]),
                max(max(each.rounds) for each in found[point]),
                repeated[point],
                f"{reached[point]} of {len(trials)}",
            )
            for point in points
        ),
        panels=(
            *(_panel(name, "rounds of a worker to the target", rounds, (name,)) for name in CONDITIONS),
            _panel("groups that meet again at once", "share of all rounds", repeated, (NON_IID, STICKY)),
        ),
        claims=_judge(rounds, repeated),
        notes=(
            "8 workers, a network with one hidden layer on 8x8 digits instead of MobileNet on MNIST, target accuracy "
            f"{TARGET_ACCURACY}; a local step is one batch. Averages over workers and runs; a worker that never gets "
            f"there counts as {MOST_ROUNDS} rounds.",
            f"Steps take as long as was measured for an LSTM, 1.2 s on average; in '{STICKY}', which is ours, for a "
            "Transformer, 0.5 s. Non-IID: classes by Dirichlet(0.5), in ours by Dirichlet(0.1).",
        ),
    )


def _panel(title: str, y_label: str, values: dict[_Point, float], conditions: tuple[str, ...]) -> Panel:
    curves = []
    for name in conditions:
        for p in dict.fromkeys(point.p for point in values):
            at = {point.reduce_s: value for point, value in values.items() if point[:2] == (name, p)}
            label = f"p = {p}" if len(conditions) == 1 else f"p = {p}, {name}"
            curves.append(Series(label, tuple(at), tuple(at.values())))
    return Panel(title, "average time of a reduce, s", y_label, tuple(curves))


def _judge(rounds: dict[_Point, float], repeated: dict[_Point, float]) -> tuple[Claim, ...]:
    def spread(conditions: str) -> dict[int, list[float]]:
        """For each p, the rounds at each reduce time divided by their mean."""
        found: dict[int, list[float]] = {}
        for p in dict.fromkeys(point.p for point in rounds):
            values = [value for point, value in rounds.items() if point[:2] == (conditions, p)]
            found[p] = [value / mean(values) for value in values]
        return found

    def described(conditions: str) -> str:
        return "; ".join(f"p = {p}: {range_of(found, 2)} of their mean" for p, found in spread(conditions).items())

    def same(conditions: str) -> list[bool]:
        return [max(abs(ratio - 1) for ratio in found) <= SAME for found in spread(conditions).values()]

    def growth(conditions: str, p: int) -> float:
        values = [value for point, value in rounds.items() if point[:2] == (conditions, p)]
        return values[-1] / values[0]

    groups = {
        p: [value for point, value in repeated.items() if point[:2] == (NON_IID, p)]
        for p in dict.fromkeys(point.p for point in repeated)
    }
    stuck = [value for point, value in repeated.items() if point.conditions == STICKY]
    return (
        Claim(CLAIMS[0], described(IID), verdict_of(same(IID)), "Holds within 10%."),
        Claim(
            CLAIMS[1],
            described(NON_IID),
            verdict_of(same(NON_IID)),
            "Holds within 10%. With few classes a worker and even steps, training at 4 s needs "
            f"{growth(STICKY, 2):.2f} (p = 2) and {growth(STICKY, 4):.2f} (p = 4) times the rounds of 0.5 s.",
        ),
        Claim(
            CLAIMS[2],
            "the same group meets again at once in "
            + " and ".join(f"{found[0]:.0%} to {found[-1]:.0%}" for found in groups.values())
            + f" of the rounds at p = {' and '.join(map(str, groups))}, with even steps in up to {max(stuck):.0%}",
            verdict_of(abs(found[-1] - found[0]) < 0.05 for found in groups.values()),
            "The longer a reduce takes, the more often exactly the workers that averaged together are ready together "
            "again. It matters once their data differ enough.",
        ),
    )


FIG3 = Experiment("crew/fig3", "CREW Fig. 3: rounds to an accuracy of 0.95 by the time of a reduce", CLAIMS, _run)
