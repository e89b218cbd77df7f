"""CREW's Figures 8 and 11: faulty links, and wrong bandwidth estimates."""

from __future__ import annotations

from dataclasses import replace

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.crew.trials import (
    CREW,
    DOWN_S,
    MANY_FAULTS,
    OURS,
    PACE_NOTE,
    RELAY,
    STARS,
    Case,
    Training,
    averages,
)
from tradewind.experiments.papers.crew.views import Found, columns, curve, range_of, rows, short, times
from tradewind.experiments.papers.report import Claim, Outcome, verdict_of
from tradewind.figures.chart import Panel

# --- Figure 8 ---------------------------------------------------------------------------------------------

_FIG8_CLAIMS = (
    "The first faulty links cost many rounds; further ones cost very little.",
    "CREW suffers more from faulty links when p is larger.",
)
_FIG8_WORKLOADS = (("N2", "T1"), ("N2", "T2"), ("N1", "T2"))
_FEW = 5


def _links_down(case: Case) -> float:
    return case.faulty_links


def _run_fig8(setting: Setting) -> Outcome:
    counts = (0, _FEW, 40) if setting.quick else (0, 1, 2, _FEW, 10, 20, 40)
    workloads = _FIG8_WORKLOADS[:2] if setting.quick else _FIG8_WORKLOADS
    curves = {
        f"{short(name)}, p = {p}, {'the same links' if lasting else 'changing links'}": (name, p, lasting)
        for name, p, lasting in (
            *((CREW, p, lasting) for lasting in (False, True) for p in (5, 10)),
            (STARS, 5, False),
        )
    }
    cases = [
        Case(name, *workload, p, faulty_links=count, lasting=lasting)
        for workload in workloads
        for name, p, lasting in curves.values()
        for count in counts
    ]
    found = averages(setting, cases, "crew/fig8")
    panels = tuple(
        Panel(
            f"({', '.join(workload)})",
            "links down at any time",
            "rounds a worker in 50 s",
            tuple(
                curve(found, Case(name, *workload, p, lasting=lasting), _links_down, label)
                for label, (name, p, lasting) in curves.items()
            ),
        )
        for workload in workloads
    )
    lasting_of = [str(case.lasting).lower() for case in found]
    return Outcome(
        (*columns("links down"), "lasting"),
        tuple((*row, lasting) for row, lasting in zip(rows(found, _links_down), lasting_of, strict=True)),
        panels,
        _judge_fig8(found, counts[-1]),
        (
            PACE_NOTE,
            f"So many of 3540 links are down at any time: each for {DOWN_S:g} s, then another one, so that running "
            "rounds have to be repaired all the time; or always the same ones, which plans then avoid. The paper does "
            "not say which. A loss is known immediately. With faults scatter-pipelined has a third of the trials, so "
            f"have all with {MANY_FAULTS} or more changing links.",
        ),
    )


def _judge_fig8(found: Found, many: int) -> tuple[Claim, ...]:
    def left(case: Case, count: int) -> float:
        return times(found[replace(case, faulty_links=count)].rounds, found[replace(case, faulty_links=0)].rounds)

    healthy = [case for case in found if case.contender == CREW and not case.faulty_links]
    changing = [case for case in healthy if not case.lasting]
    first = {case: 1 - left(case, _FEW) for case in changing}
    later = {case: left(case, _FEW) - left(case, many) for case in changing}

    def percent(compute: str, costs: dict[Case, float]) -> str:
        return range_of((100 * cost for case, cost in costs.items() if case.compute == compute), 0) + "%"

    pairs = [(left(case, many), left(replace(case, p=10), many)) for case in healthy if case.p == 5]
    ours = [left(replace(case, contender=STARS), many) for case in changing if case.p == 5]
    return (
        Claim(
            _FIG8_CLAIMS[0],
            f"changing links: {_FEW} down cost {percent('T2', first)} (T2) and {percent('T1', first)} (T1) of the "
            f"rounds, {many} down another {percent('T2', later)} and {percent('T1', later)}",
            verdict_of(first[case] > later[case] for case in changing),
            "Holds where the first few cost more than all others. With T2 all steps take nearly the same time, so "
            "rounds run in step and scatters meet no multicasts; the first disturbance ends that for good.",
        ),
        Claim(
            _FIG8_CLAIMS[1],
            f"with {many} links down {range_of((few for few, _ in pairs), 2)} of the rounds are left at p = 5, "
            f"{range_of((more for _, more in pairs), 2)} at p = 10",
            verdict_of(more < few for few, more in pairs),
            f"Of {STARS} at p = 5, {range_of(ours, 2)} are left: it plans what remains of a round anew.",
        ),
    )


FIG8 = Experiment("crew/fig8", "CREW Fig. 8: rounds with faulty links", _FIG8_CLAIMS, _run_fig8)

# --- Figure 11 --------------------------------------------------------------------------------------------

_EVEN = "CREW E-D FCFS"
_FIG11_LABELS = {CREW: "CREW N-A", _EVEN: "CREW E-D", STARS: STARS, RELAY: RELAY}
_FIG11_CLAIMS = (
    "Even blocks (E-D) do not feel wrong estimates.",
    "Network-aware blocks (N-A) slow down slowly as estimates get worse.",
    "With bad estimates N-A can be worse than E-D on some workloads.",
)
_NETWORKS, _SCALES = ("N2", "N1"), (5, 10)


def _noise(case: Case) -> float:
    return case.noise


def _sync_s(training: Training) -> float:
    return training.sync_s


def _run_fig11(setting: Setting) -> Outcome:
    noises = (0.0, 0.2, 0.5) if setting.quick else (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    shown = [(p, name) for p in _SCALES for name in _FIG11_LABELS if (name, p) != (RELAY, 10)]
    cases = [Case(name, n, "T2", p, noise=noise) for n in _NETWORKS for p, name in shown for noise in noises]
    found = averages(setting, cases, "crew/fig11")
    panels = tuple(
        Panel(
            f"({network}, T2), p = {p}",
            "largest relative error of an estimate",
            "average time of a partial reduce, s",
            tuple(
                curve(found, Case(name, network, "T2", p), _noise, _FIG11_LABELS[name], _sync_s)
                for scale, name in shown
                if scale == p
            ),
        )
        for network in _NETWORKS
        for p in _SCALES
    )
    claims = _judge_fig11(found, noises[1], noises[-1])
    return Outcome(columns("noise"), rows(found, _noise), panels, claims, (PACE_NOTE,))


def _judge_fig11(found: Found, little: float, much: float) -> tuple[Claim, ...]:
    def slowdown(contender: str, noise: float) -> list[float]:
        exact = [case for case in found if case.contender == contender and not case.noise]
        return [found[replace(case, noise=noise)].sync_s / found[case].sync_s for case in exact]

    def at(noise: float) -> str:
        return f"at +-{100 * noise:.0f}%"

    even = [*slowdown(_EVEN, little), *slowdown(_EVEN, much)]
    noisy = [case for case in found if case.contender == CREW and case.noise == much]
    against = [found[case].sync_s / found[replace(case, contender=_EVEN)].sync_s for case in noisy]
    ours = "; ".join(f"{name} {range_of(slowdown(name, much), 2)}" for name in OURS)
    return (
        Claim(
            _FIG11_CLAIMS[0],
            f"a round takes {range_of(even, 3)} times as long, whatever the error",
            verdict_of(abs(ratio - 1) < 1e-9 for ratio in even),
        ),
        Claim(
            _FIG11_CLAIMS[1],
            f"{range_of(slowdown(CREW, little), 2)} times the time {at(little)}, {range_of(slowdown(CREW, much), 2)} "
            f"{at(much)}",
            verdict_of(ratio < 1 + 2 * noise for noise in (little, much) for ratio in slowdown(CREW, noise)),
            f"Slowly: by less than twice the error. Ours {at(much)}: {ours}.",
        ),
        Claim(
            _FIG11_CLAIMS[2],
            f"{at(much)} N-A takes {range_of(against, 2)} times as long as E-D",
            verdict_of([max(against) > 1]),
        ),
    )


FIG11 = Experiment("crew/fig11", "CREW Fig. 11: wrong bandwidth estimates", _FIG11_CLAIMS, _run_fig11)
