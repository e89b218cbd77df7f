"""Measurements of what the paper leaves open: the form of Eq. (4), delta t, and the value of scale.

This is not a figure of the paper and judges no claim; it justifies the defaults of the policy `selective`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.report import Outcome, mean
from tradewind.experiments.papers.selective.trials import PARTIAL, SELECTIVE, TRACES, Case, medians
from tradewind.figures.chart import Panel, Series
from tradewind.policy.readiness import ProbabilityForm


class Choice(NamedTuple):
    """One setting of the open parameters."""

    probability: ProbabilityForm
    horizon_s: float
    value_scale: float

    @property
    def label(self) -> str:
        """The label on the axis."""
        return f"{self.probability}, {self.horizon_s:g} s, {self.value_scale:g}"


CHOICES = (
    *(Choice(form, horizon_s, 0.0) for form in ("printed", "conditional") for horizon_s in (0.05, 0.1, 0.2)),
    *(Choice("printed", 0.1, value) for value in (0.25, 0.5, 1.0)),
    *(Choice("printed", 0.2, 1.0), Choice("conditional", 0.1, 1.0), Choice("conditional", 0.2, 1.0)),
)


def _run(setting: Setting) -> Outcome:
    sizes = (40,) if setting.quick else (40, 120, 200)
    places = [(trace, n) for trace in TRACES for n in sizes]
    cases = {
        (choice, *place): replace(Case(SELECTIVE, *place), **choice._asdict()) for choice in CHOICES for place in places
    }
    base = {place: Case("", *place).of(PARTIAL) for place in places}
    found = medians(setting, [*cases.values(), *base.values()], "selective/options")

    def against_partial(choice: Choice, metric: str) -> float:
        return mean([getattr(found[cases[choice, *p]], metric) / getattr(found[base[p]], metric) for p in places])

    def average(choice: Choice, metric: str) -> float:
        return mean([getattr(found[cases[choice, *place]], metric) for place in places])

    metrics = ("sync_s", "scale", "iterations", "syncs")
    table = {choice: [against_partial(choice, metric) for metric in metrics] for choice in CHOICES}
    rows = tuple(
        (*choice, *table[choice], 1e3 * average(choice, "empty_slots_s"), average(choice, "least_rounds"))
        for choice in CHOICES
    )
    names = tuple(choice.label for choice in CHOICES)
    at = tuple(float(k) for k in range(len(names)))
    titles = ("sync time", "scale", "iterations", "rounds")
    return Outcome(
        columns=(
            "Eq. (4)",
            "horizon_s",
            "value_scale",
            *(f"{title} / partial" for title in titles),
            "empty slots ms",
            "least rounds",
        ),
        rows=rows,
        panels=tuple(
            Panel(
                title,
                "form of Eq. (4), horizon_s, value_scale",
                f"{title}, times partial reduce's",
                (Series(SELECTIVE, at, tuple(table[choice][k] for choice in CHOICES)),),
                categories=names,
            )
            for k, title in enumerate(titles[:3])
        ),
        claims=(),
        notes=(
            "Ratios of medians, averaged over both traces and "
            f"n = {', '.join(map(str, sizes))}; least rounds: of the worker that had the fewest in 100 s.",
        ),
    )


OPTIONS = Experiment("selective/options", "Selective Reduce: what the paper leaves open, measured", (), _run)
