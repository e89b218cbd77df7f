"""Experiments on why claims of the papers do not hold: each switches one suspected cause off.

`reasons/crew` runs all of CREW's. Each test is a function from `Setting` to one or more `Switched`: one number with the
suspected cause and without it, and the number that the claim needs. They are far smaller than the figures: what they
compare differs in the cause only, so a few trials show whether it matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.report import Outcome, Switched
from tradewind.figures.chart import Panel, Series

Test = Callable[[Setting], Iterable[Switched]]
COLUMNS = ("claim", "without the cause", "number", "with the cause", "without it", "needed", "moved", "finding")


def of_paper(paper: str, title: str, tests: Sequence[Test]) -> Experiment:
    """The experiment `reasons/PAPER` of these tests; it judges no claim itself."""
    name = f"reasons/{paper}"
    return Experiment(name, f"{title}: suspected causes of differences, switched off", (), partial(_run, tests=tests))


def _run(setting: Setting, tests: Sequence[Test]) -> Outcome:
    found = tuple(one for test in tests for one in test(setting))
    at = tuple(float(k) for k in range(len(found)))
    moved = tuple(min(max(one.moved, -1.0), 2.0) for one in found)
    return Outcome(
        COLUMNS,
        tuple(
            (
                *(one.claim, one.off, one.measure, one.before, one.after, one.needed, one.moved),
                "" if setting.quick else str(one.finding),
            )
            for one in found
        ),
        (
            Panel(
                "share of the difference that goes with its suspected cause",
                "",
                "1: the claim would hold (cut to -1 and 2)",
                (Series("moved", at, moved),),
                categories=tuple(one.off for one in found),
            ),
        ),
        (),
        switched=found,
    )
