"""Presentation of CREW's results: labels, curves over one quantity, and table rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from tradewind.experiments.papers import Setting
from tradewind.experiments.papers.crew.trials import CREW, OPR, WORKLOADS, Case, Training
from tradewind.experiments.papers.report import Cell
from tradewind.figures.chart import Series

Found = dict[Case, Training]
Measure = Callable[[Case], float]

SHORT = {OPR: "OPR", CREW: "CREW"}
"""Labels of contenders where only their best variant is shown."""


def short(contender: str) -> str:
    """The label of a contender where only its best variant is shown."""
    return SHORT.get(contender, contender)


def workloads(setting: Setting) -> tuple[tuple[str, str], ...]:
    """The paper's four workloads; in a quick run two of them with different networks and compute times."""
    return (WORKLOADS[0], WORKLOADS[3]) if setting.quick else WORKLOADS


def range_of(values: Iterable[float], digits: int = 1) -> str:
    """The least and the largest value as text.

    >>> range_of([2.04, 11.0, 3.0])
    '2.0 to 11.0'
    """
    found = list(values)
    low, high = f"{min(found):.{digits}f}", f"{max(found):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def times(over: float, under: float) -> float:
    """The ratio `over / under`; infinite where `under` is 0, and 1 where both are.

    >>> times(6.0, 2.0), times(6.0, 0.0), times(0.0, 0.0)
    (3.0, inf, 1.0)
    """
    if under:
        return over / under
    return math.inf if over else 1.0


def ratios(found: Found, over: str, under: str) -> list[float]:
    """One contender's rounds divided by another's, for all cases that both have."""
    return [
        times(each.rounds, found[replace(case, contender=under)].rounds)
        for case, each in found.items()
        if case.contender == over and replace(case, contender=under) in found
    ]


def rounds(training: Training) -> float:
    """The rounds of a result, which most figures show."""
    return training.rounds


def curve(found: Found, like: Case, x_of: Measure, label: str, y_of: Callable[[Training], float] = rounds) -> Series:
    """The curve through all cases that differ from `like` only in the quantities of x axes."""
    points = sorted((x_of(case), y_of(each)) for case, each in found.items() if _undisturbed(case) == like)
    x, y = zip(*points, strict=True)
    return Series(label, x, y)


def _undisturbed(case: Case) -> Case:
    return replace(case, faulty_links=0, compute_factor=1.0, size_factor=1, noise=0.0)


def columns(x_name: str) -> tuple[str, ...]:
    """The column names of `rows`."""
    return ("network", "compute", "p", "scheme", x_name, "rounds", "round s")


def rows(found: Found, x_of: Measure) -> tuple[tuple[Cell, ...], ...]:
    """One row for every case."""
    return tuple(
        (case.network, case.compute, case.p, short(case.contender), x_of(case), each.rounds, each.sync_s)
        for case, each in found.items()
    )
