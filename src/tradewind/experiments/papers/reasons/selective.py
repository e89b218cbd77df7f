"""Why claims of Selective Reduce do not hold: links that differ, few sites, rings, and what the paper leaves open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tradewind.experiments.papers import Setting
from tradewind.experiments.papers.reasons import of_paper
from tradewind.experiments.papers.report import MOST, Switched, mean
from tradewind.experiments.papers.selective.parameters import FIG10
from tradewind.experiments.papers.selective.robustness import FIG12, FIG14
from tradewind.experiments.papers.selective.scale import SCALE_CLAIMS
from tradewind.experiments.papers.selective.trials import (
    PARTIAL,
    SCHEMES,
    SELECTIVE,
    SWEEP_WORKERS,
    Case,
    Summary,
    medians,
    selective_trial,
    spread,
)
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
    published,
)
from tradewind.sim import simulate

_RINGS = "P-Reduce is measured on OPR's stars, too, and Selective Reduce on rings only, which wait for a link twice."
_SLOT = "The paper does not give delta t. A group waits for up to 0.1 s here, which every round feels."
_SLACK = "With eta = 0.3 a larger cluster makes larger groups, which reach further down among the slow workers."
_HOPS = "A ring of m sends 2(m - 1)/m of the model and pays 2(m - 1) latencies, so it takes longer with more members."
_LARGER_RINGS = "A ring of m pays 2(m - 1) latencies, and selective reduce's groups are larger."
_SHORT_SLOT, _OFF_SLOT = 0.01, "delta t = 10 ms instead of 100 ms"
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
        stars: published("opr", P, HORIZON, policy="selective", seconds=8.0),
    }
    found = measure(setting, "reasons: planners", systems, 5, virtual=True)
    rings, both = (found.sooner(name, P_REDUCE) for name in ("on rings", stars))
    off = "Selective Reduce on OPR's stars, too"
    yield Switched(SELECTIVE_CLAIMS[2], _RINGS, off, "its speed over P-Reduce's to the accuracy", rings, both, 1.0)


# --- figures 5, 10, 12 and 14 -----------------------------------------------------------------------------------------

_USUAL = Case(SELECTIVE, "CNN", SWEEP_WORKERS)


def _medians(setting: Setting, cases: Sequence[Case]) -> list[Summary]:
    several = replace(setting, trials=len(setting.trial_numbers(8)))
    found = medians(several, cases, "reasons: selective reduce")
    return [found[case] for case in cases]


def _slots(setting: Setting) -> Iterator[Switched]:
    """What theta and errors of the estimates change with a long and a short slot."""

    def tests(slot_s: float) -> tuple[float, float, float]:
        usual = replace(_USUAL, horizon_s=slot_s)
        first, *others, wrong = _medians(
            setting, [usual, replace(usual, gain=5.0), replace(usual, gain=20.0), replace(usual, noise=0.5)]
        )
        metrics: tuple[Callable[[Summary], float], ...] = (
            lambda found: found.sync_s,
            lambda found: found.scale,
            lambda found: found.iterations,
        )
        apart = max(spread([metric(found) for found in (first, *others)]) for metric in metrics)
        return apart, _more(first, others[-1]), _more(first, wrong)

    wanted = (
        (FIG10.claims[0], "the largest difference that theta makes to time, scale or iterations", 0.25, True),
        (FIG10.claims[2], "rounds or iterations with theta = 20 over those with 1, the fewer", 1.0, False),
        (FIG12.claims[1], "rounds or iterations with e = 0.5 over those with e = 0, the fewer", 1.0, False),
    )
    for (claim, words, needed, at_most), before, after in zip(wanted, tests(0.1), tests(_SHORT_SLOT), strict=True):
        yield Switched(claim, _SLOT, _OFF_SLOT, words, before, after, needed, at_most)


def _more(first: Summary, last: Summary) -> float:
    return min(last.syncs / first.syncs, last.iterations / first.iterations)


def _latency(setting: Setting) -> Iterator[Switched]:
    def slower(slack: float) -> float:
        usual = replace(_USUAL, slack=slack)
        pairs = [replace(usual, latency_ms=ms) for ms in (0.0, 50.0)]
        found = _medians(setting, [case.of(scheme) for scheme in (PARTIAL, SELECTIVE) for case in pairs])
        return (found[1].sync_s - found[0].sync_s) / (found[3].sync_s - found[2].sync_s)

    measured = "what 50 ms add to partial reduce's rounds over what they add to selective reduce's"
    off = "eta = 0: no group is larger than it must be"
    yield Switched(FIG14.claims[2], _LARGER_RINGS, off, measured, slower(_USUAL.slack), slower(0.0), 1.0)


def _workers(setting: Setting) -> Iterator[Switched]:
    def longer(case: Case) -> float:
        few, many = _medians(setting, [replace(case, n=n) for n in (40, 200)])
        return many.sync_s / few.sync_s

    def by_members(case: Case) -> float:
        """The time of a round over what a ring of so many members sends, without latencies."""
        (found,) = _medians(setting, [replace(case, latency_ms=0.0)])
        return found.sync_s / (1 - 1 / found.scale)

    usual = longer(_USUAL)
    per_byte = by_members(replace(_USUAL, n=200)) / by_members(replace(_USUAL, n=40))
    for cause, off, without in (
        (_SLACK, "eta = 0", longer(replace(_USUAL, slack=0.0))),
        (_HOPS, "no latency, and time over the share (m - 1)/m that a ring of m sends", per_byte),
        (_SLOT, _OFF_SLOT, longer(replace(_USUAL, horizon_s=_SHORT_SLOT))),
    ):
        measured = "selective reduce's time of a round with 200 workers over that with 40"
        yield Switched(SCALE_CLAIMS[2], cause, off, measured, usual, without, 1.0, at_most=True)


REASONS = of_paper("selective", "Selective Reduce", (_groups, _planners, _slots, _latency, _workers))
