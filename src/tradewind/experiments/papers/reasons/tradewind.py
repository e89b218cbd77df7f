"""Why our own aims were missed live: local steps between rounds, and turns that end too early."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from tradewind.experiments.papers import Setting
from tradewind.experiments.papers.reasons import of_paper
from tradewind.experiments.papers.report import Switched
from tradewind.experiments.stragglers.curves import measure
from tradewind.experiments.stragglers.systems import (
    AIM,
    AIM_CLAIM,
    GLOO,
    GLOO_BEST,
    NEAR,
    OFTEN,
    OURS,
    SAME_ACCURACY,
    SKEW,
    SKEWED_AIM,
    SKEWED_AIM_CLAIM,
    SYSTEMS,
)

_LOCAL_STEPS = "The live runs used four local steps between rounds, in which models of sites drift apart."
_SHORT_TURNS = "Turns end before BSP, whose steps take longest, has reached its final accuracy."


def _steps(setting: Setting) -> Iterator[Switched]:
    systems = {name: SYSTEMS[name] for name in (GLOO_BEST, OURS, OFTEN)}
    measured = "speed over Gloo in its best order to the accuracy"
    for claim, aim, concentration in ((AIM_CLAIM, AIM, None), (SKEWED_AIM_CLAIM, SKEWED_AIM, SKEW)):
        found = measure(setting, "reasons: local steps", systems, 5, virtual=True, concentration=concentration)
        seldom, often = (found.sooner(name, GLOO_BEST) for name in (OURS, OFTEN))
        yield Switched(claim, _LOCAL_STEPS, "a round after every step", measured, seldom, often, aim)


def _turns(setting: Setting) -> Iterator[Switched]:
    """Final accuracies of BSP and ours on digits, in turns as long as live ones and six times as long."""
    systems = {name: SYSTEMS[name] for name in (GLOO, OURS)}

    def apart(live_length: bool) -> float:
        found = measure(setting, "reasons: turns", systems, 5, virtual=True, live_length=live_length)
        return abs(fmean(found.finals(GLOO)) - fmean(found.finals(OURS)))

    off = "turns six times as long, on digits"
    measured = "difference of the final accuracies of BSP and ours"
    yield Switched(SAME_ACCURACY, _SHORT_TURNS, off, measured, apart(True), apart(False), NEAR, at_most=True)


REASONS = of_paper("tradewind", "Tradewind", (_steps, _turns))
