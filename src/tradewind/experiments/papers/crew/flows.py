"""CREW's Figures 6 and 7: scattering before the round is known, and the order of flows on a link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.crew.trials import CREW, PACE_NOTE, Case, averages
from tradewind.experiments.papers.crew.views import Found, range_of, ratios, workloads
from tradewind.experiments.papers.report import SAME, Cell, Claim, Outcome, verdict_of, verdict_of_gains
from tradewind.figures.chart import Panel, Series


def _by_scale(setting: Setting, contenders: Sequence[str], scales: Sequence[int], label: str) -> Found:
    """The results of every contender on every workload at every p."""
    cases = [Case(c, *w, p) for w in workloads(setting) for p in scales for c in contenders]
    return averages(setting, cases, label)


def _rows(found: Found, contenders: Sequence[str]) -> list[tuple[Cell, ...]]:
    """One row per workload and p, one column of rounds per contender."""
    places = dict.fromkeys(replace(case, contender="") for case in found)
    return [
        (place.network, place.compute, place.p, *(found[replace(place, contender=c)].rounds for c in contenders))
        for place in places
    ]


def _panels(found: Found, labels: Mapping[str, str]) -> tuple[Panel, ...]:
    """One panel per workload, one curve per contender under its label."""
    panels = []
    for workload in dict.fromkeys(case.workload for case in found):
        curves = []
        for contender, label in labels.items():
            points = [(c.p, e.rounds) for c, e in found.items() if (c.contender, c.workload) == (contender, workload)]
            x, y = zip(*sorted(points), strict=True)
            curves.append(Series(label, tuple(map(float, x)), y))
        title = f"({', '.join(workload)})"
        panels.append(Panel(title, "workers in a round, p", "rounds a worker in 50 s", tuple(curves)))
    return tuple(panels)


# --- Figure 6 ---------------------------------------------------------------------------------------------

_FIG6_LABELS = {CREW: "blocking", "CREW non-blocking": "non-blocking"}
FIG6_CLAIMS = (
    "A non-blocking scatter always completes more rounds than a blocking one.",
    "A non-blocking scatter is up to 1.2 times as fast as a blocking one.",
    "In some scenarios, by network, compute times and p, the gain is slight.",
)


def _run_fig6(setting: Setting) -> Outcome:
    scales = (5, 12) if setting.quick else (4, 5, 10, 12, 20, 30)
    found = _by_scale(setting, tuple(_FIG6_LABELS), scales, "crew/fig6")
    gains = ratios(found, "CREW non-blocking", CREW)
    claims = (
        Claim(
            FIG6_CLAIMS[0],
            f"{range_of(gains, 3)} times as many; over 1% more in {sum(gain > 1.01 for gain in gains)} of {len(gains)} "
            "scenarios",
            verdict_of(gain > 1 for gain in gains),
            "Ready workers form a round quickly: with sixty of them it starts within milliseconds, and there is little "
            "to gain before it does.",
        ),
        Claim(
            FIG6_CLAIMS[1],
            f"up to {max(gains):.2f} times",
            verdict_of_gains([gain - 1 for gain in gains], 0.2, up_to=True),
        ),
        Claim(
            FIG6_CLAIMS[2],
            f"less than 5% in {sum(gain < 1.05 for gain in gains)} of {len(gains)} scenarios",
            verdict_of([any(gain < 1.05 for gain in gains)]),
        ),
    )
    rows = zip(_rows(found, tuple(_FIG6_LABELS)), gains, strict=True)
    return Outcome(
        ("network", "compute", "p", *_FIG6_LABELS.values(), "gain"),
        tuple((*row, gain) for row, gain in rows),
        _panels(found, _FIG6_LABELS),
        claims,
        (PACE_NOTE, "The paper does not give its values of p. Both with network-aware blocks and FCFS."),
    )


FIG6 = Experiment("crew/fig6", "CREW Fig. 6: blocking and non-blocking scatter", FIG6_CLAIMS, _run_fig6)

# --- Figure 7 ---------------------------------------------------------------------------------------------

_FIG7_LABELS = {
    CREW: "FL (first flow first)",
    "CREW N-A FS": "FS (fair)",
    "CREW TL": "TL (first round first)",
    "CREW C1": "C1 (multicast first)",
    "CREW C2": "C2 (scatter first)",
}
_FIG7_CLAIMS = (
    "Flow-level FCFS (FL) completes the most rounds of all five orders.",
    "A multicast that interrupts scatters (C1) is worse than a scatter that interrupts multicasts (C2).",
    "Task-level FCFS (TL) is very close to C1.",
    "Rounds fall as p grows, whatever the order.",
)


def _run_fig7(setting: Setting) -> Outcome:
    scales = (5, 10) if setting.quick else (5, 10, 15, 20)
    found = _by_scale(setting, tuple(_FIG7_LABELS), scales, "crew/fig7")
    others = {label: ratios(found, name, CREW) for name, label in _FIG7_LABELS.items() if name != CREW}
    first, close = ratios(found, "CREW C1", "CREW C2"), ratios(found, "CREW TL", "CREW C1")
    smallest = [case for case in found if case.p == scales[0]]
    falls = [found[case].rounds > found[replace(case, p=scales[-1])].rounds for case in smallest]
    claims = (
        Claim(
            _FIG7_CLAIMS[0],
            "of FL's rounds: " + "; ".join(f"{label} {range_of(each, 2)}" for label, each in others.items()),
            verdict_of(ratio < 1 for each in others.values() for ratio in each),
        ),
        Claim(
            _FIG7_CLAIMS[1],
            f"C1 completes {range_of(first, 2)} times C2's rounds",
            verdict_of(ratio < 1 for ratio in first),
        ),
        Claim(
            _FIG7_CLAIMS[2],
            f"TL completes {range_of(close, 2)} times C1's rounds",
            verdict_of(abs(ratio - 1) <= SAME for ratio in close),
            "Very close: within a tenth.",
        ),
        Claim(
            _FIG7_CLAIMS[3],
            f"fewer at p = {scales[-1]} than at {scales[0]} in {sum(falls)} of {len(falls)} cases",
            verdict_of(falls),
        ),
    )
    return Outcome(
        ("network", "compute", "p", *_FIG7_LABELS.values()),
        tuple(_rows(found, tuple(_FIG7_LABELS))),
        _panels(found, _FIG7_LABELS),
        claims,
        (PACE_NOTE, "All with network-aware blocks. TL, C1 and C2 interrupt the flow that a link is sending."),
    )


FIG7 = Experiment("crew/fig7", "CREW Fig. 7: five orders of sending on a link", _FIG7_CLAIMS, _run_fig7)
