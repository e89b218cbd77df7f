"""Why our own aims were missed: local steps between rounds, turns that end too early, and means over few seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import fmean, median

from tradewind.experiments.papers import Setting
from tradewind.experiments.papers.reasons import of_paper
from tradewind.experiments.papers.report import Switched
from tradewind.experiments.stragglers.curves import Trials, measure
from tradewind.experiments.stragglers.systems import (
    AIM,
    AIM_CLAIM,
    GLOO,
    GLOO_BEST,
    NEAR,
    OFTEN,
    OURS,
    SAME_ACCURACY,
    SEEDS,
    SKEW,
    SKEWED_AIM,
    SKEWED_AIM_CLAIM,
    SYSTEMS,
)

_LOCAL_STEPS = "Four local steps between rounds let models of sites drift apart."
_ORDER = "The aim compares with BSP over Gloo, whose ring follows the ranks; the widest ring is a stricter rival."
_FEW_SEEDS = "A mean over five seeds is ruled by one: with the GPT, BSP's times to the accuracy spread by their mean."
_SHORT_TURNS = "Turns end before BSP, whose steps take longest, has reached its final accuracy."
_MEASURED = "speed over Gloo in its best order to the accuracy"


def _steps(setting: Setting) -> Iterator[Switched]:
    systems = {name: SYSTEMS[name] for name in (GLOO_BEST, OURS, OFTEN)}
    found = measure(setting, "reasons: local steps", systems, SEEDS, virtual=True, concentration=SKEW)
    seldom, often = (found.sooner(name, GLOO_BEST) for name in (OURS, OFTEN))
    yield Switched(SKEWED_AIM_CLAIM, _LOCAL_STEPS, "a round after every step", _MEASURED, seldom, often, SKEWED_AIM)


def speed(found: Trials, base: str, average: Callable[[list[float]], float]) -> float:
    """Speed of the sooner one of ours over `base`, by the mean or the median of the seeds' times."""
    return average(found.target_s(base)) / min(average(found.target_s(name)) for name in (OURS, OFTEN))


def _rival(setting: Setting) -> Iterator[Switched]:
    """The GPT, with which the aim is missed: another average of the same seeds, and the rival that the aim names."""
    systems = {name: SYSTEMS[name] for name in (GLOO, GLOO_BEST, OURS, OFTEN)}
    found = measure(setting, "reasons: rival", systems, SEEDS, virtual=True, task="gpt")
    best = speed(found, GLOO_BEST, fmean)
    off = "medians of the same seeds of the GPT"
    yield Switched(AIM_CLAIM, _FEW_SEEDS, off, _MEASURED, best, speed(found, GLOO_BEST, median), AIM)
    off, measured = "the ranks' own order, with the GPT", "speed over Gloo to the accuracy"
    yield Switched(AIM_CLAIM, _ORDER, off, measured, best, speed(found, GLOO, fmean), AIM)


def _turns(setting: Setting) -> Iterator[Switched]:
    """Final accuracies of BSP and ours on digits, in turns as long as live ones and six times as long."""
    systems = {name: SYSTEMS[name] for name in (GLOO, OURS)}

    def apart(live_length: bool) -> float:
        found = measure(setting, "reasons: turns", systems, SEEDS, virtual=True, live_length=live_length)
        return abs(fmean(found.finals(GLOO)) - fmean(found.finals(OURS)))

    off = "turns six times as long, on digits"
    measured = "difference of the final accuracies of BSP and ours"
    yield Switched(SAME_ACCURACY, _SHORT_TURNS, off, measured, apart(True), apart(False), NEAR, at_most=True)


REASONS = of_paper("tradewind", "Tradewind", (_steps, _rival, _turns))
