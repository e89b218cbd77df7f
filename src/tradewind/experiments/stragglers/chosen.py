"""Our best combination, chosen on some seeds and judged on others, on virtual time.

Seven combinations of group size and local steps train digits, evenly dealt and skewed, from `CHOICE` seeds. The one
with the least total time to the accuracy then trains from `FRESH` seeds, beside BSP over Gloo and CREW. So what it is
judged by had no part in its choice.
"""

from __future__ import annotations

from statistics import fmean

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.report import Cell, Outcome
from tradewind.experiments.stragglers.curves import COLUMNS, Trials, measure
from tradewind.experiments.stragglers.systems import (
    AIM_CLAIM,
    CREW,
    GLOO,
    GLOO_BEST,
    SEEDS,
    SKEW,
    SKEWED_AIM_CLAIM,
    SYSTEMS,
    judge_aim,
    pair,
    panels,
    setting_notes,
)

CHOICE, FRESH = 100, 200
"""The first of the seeds for the choice, and for the judgement."""
CANDIDATES = {
    f"p = {p}, every {'step' if every == 1 else f'{every} steps'}": pair(
        "partial", "relay", ("p", p), every=every, seconds=6.0
    )
    for p, every in ((3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (4, 2), (7, 4))
}
KINDS = {"even": None, "skewed": SKEW}


def choose(by_kind: dict[str, Trials]) -> str:
    """The combination with the least time to the accuracy, all kinds of data together."""
    return min(CANDIDATES, key=lambda name: sum(fmean(found.target_s(name)) for found in by_kind.values()))


def _run(setting: Setting) -> Outcome:
    tried = {
        kind: measure(setting, "tradewind/chosen: choice", CANDIDATES, SEEDS, True, first_seed=CHOICE, concentration=c)
        for kind, c in KINDS.items()
    }
    best = choose(tried)
    systems = {name: SYSTEMS[name] for name in (GLOO, GLOO_BEST, CREW)} | {best: CANDIDATES[best]}
    found = {
        kind: measure(setting, "tradewind/chosen", systems, SEEDS, True, first_seed=FRESH, concentration=c)
        for kind, c in KINDS.items()
    }
    rows: list[tuple[Cell, ...]] = []
    for kind, trials in tried.items():
        rows += [(f"{kind}, choice", *row) for row in trials.rows(best)]
    for kind, trials in found.items():
        rows += [(kind, *row) for row in trials.rows(GLOO)]
    return Outcome(
        ("data", *COLUMNS),
        tuple(rows),
        tuple(panel for trials in found.values() for panel in panels(trials)),
        tuple(judge_aim(trials, best, kind == "skewed") for kind, trials in found.items()),
        (
            f"Chosen: {best}, of {len(CANDIDATES)} combinations, by the total time to the accuracy on {SEEDS} other "
            "seeds of each kind of data.",
            *setting_notes(),
            *found["even"].notes,
        ),
    )


CHOSEN = Experiment(
    "tradewind/chosen",
    "Our combination, chosen on other seeds than it is judged by, on virtual time",
    (AIM_CLAIM, SKEWED_AIM_CLAIM),
    _run,
)
