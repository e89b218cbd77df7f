"""Why claims of Selective Reduce do not hold in trainings: links that differ, few sites, and rings."""

from __future__ import annotations

from collections.abc import Iterator

from tradewind.experiments.papers import Setting
from tradewind.experiments.papers.reasons import of_paper
from tradewind.experiments.papers.report import MOST, Switched, mean
from tradewind.experiments.papers.selective.trials import PARTIAL, SCHEMES, SELECTIVE, Case, selective_trial
from tradewind.experiments.stragglers.curves import measure
from tradewind.experiments.stragglers.live import MODEL_BYTES, compute_times, nics_network, sites_network
from tradewind.experiments.stragglers.systems import (
    FEW_GROUPS,
    HORIZON,
    LINKS_DIFFER,
    P_REDUCE,
    SELECTIVE_CLAIMS,
    SYSTEMS,
    P,
    pair,
)
from tradewind.sim import simulate

_RINGS = "P-Reduce is measured on OPR's stars, too, and Selective Reduce on rings only, which wait for a link twice."
SHORTER, LARGER = 1 + MOST * 1.55, 1 + MOST * 0.25


def rounds_trial(scheme: str, nics: bool, trial: int) -> tuple[float, float]:
    """Mean duration and size of the rounds of eight sites: links differ, or NICs."""
    result = simulate(
        nics_network() if nics else sites_network(),
        SCHEMES[scheme],
        20.0,
        seed=trial,
        compute=compute_times(False),
        nbytes=MODEL_BYTES,
        policy_options=dict((P, HORIZON) if scheme == SELECTIVE else (P,)),
        planner_options={"order": "auto"},
    )
    return result.average_sync_s, result.average_scale


def _advantage(partial: list[tuple[float, float]], selective: list[tuple[float, float]]) -> tuple[float, float]:
    """How many times as short and as large Selective Reduce's rounds are."""
    seconds, scales = ([mean([one[k] for one in found]) for found in (partial, selective)] for k in (0, 1))
    return seconds[0] / seconds[1], scales[1] / scales[0]


def _groups(setting: Setting) -> Iterator[Switched]:
    trials = setting.trial_numbers(5)
    links, nics = (
        _advantage(
            *(
                setting.workers.map(rounds_trial, [(name, kind, k) for k in trials], "reasons: links and NICs")
                for name in (PARTIAL, SELECTIVE)
            )
        )
        for kind in (False, True)
    )

    def advantage(n: int, share: float) -> tuple[float, float]:
        found = []
        for name in (PARTIAL, SELECTIVE):
            calls = [(Case(name, "CNN", n, share), k) for k in trials]
            several = setting.workers.map(selective_trial, calls, "reasons: number of workers")
            found.append([(one.sync_s, one.scale) for one in several])
        return _advantage(found[0], found[1])

    few, many = advantage(8, 0.5), advantage(40, 0.3)
    words = ("partial reduce's time of a round over selective reduce's", "selective reduce's scale over partial's")
    off = "12 of 40 workers instead of 4 of 8"
    for k, needed in enumerate((SHORTER, LARGER)):
        claim = SELECTIVE_CLAIMS[k]
        yield Switched(claim, LINKS_DIFFER, "NICs that differ instead of links", words[k], links[k], nics[k], needed)
        yield Switched(claim, FEW_GROUPS, off, words[k], few[k], many[k], needed)


def _planners(setting: Setting) -> Iterator[Switched]:
    stars = "selective on stars"
    systems = {
        P_REDUCE: SYSTEMS[P_REDUCE],
        "on rings": SYSTEMS["Selective"],
        stars: pair("selective", "opr", P, HORIZON, seconds=8.0),
    }
    found = measure(setting, "reasons: planners", systems, 5, virtual=True)
    rings, both = (found.sooner(name, P_REDUCE) for name in ("on rings", stars))
    off = "Selective Reduce on OPR's stars, too"
    yield Switched(SELECTIVE_CLAIMS[2], _RINGS, off, "its speed over P-Reduce's to the accuracy", rings, both, 1.0)


REASONS = of_paper("selective", "Selective Reduce", (_groups, _planners))
