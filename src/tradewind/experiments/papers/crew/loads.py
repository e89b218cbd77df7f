"""CREW's Figures 9 and 10: longer compute times, and larger models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.crew.trials import A2A, CREW, OPR, OURS, PACE_NOTE, RELAY, STARS, Case, averages
from tradewind.experiments.papers.crew.views import Found, columns, curve, range_of, rows, short, times
from tradewind.experiments.papers.report import Claim, Outcome, mean, verdict_of
from tradewind.figures.chart import Panel, Series

_SECONDS = 100.0
_NETWORKS = ("N1", "N2")

# --- Figure 9 ---------------------------------------------------------------------------------------------

_FIG9_CLAIMS = (
    "On N1 rounds fall almost linearly with the compute time at p = 10 and 12.",
    "On N1 they fall somewhat less steeply at p = 4 and 5.",
    "On N2 CREW tolerates slow computing slightly better than on N1.",
    "On N2 a larger p helps more.",
)


def _compute_factor(case: Case) -> float:
    return case.compute_factor


def _run_fig9(setting: Setting) -> Outcome:
    factors = (1.0, 3.0, 6.0) if setting.quick else (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    scales = (5, 10) if setting.quick else (4, 5, 10, 12)
    shown = [*((CREW, p) for p in scales), *((name, 5) for name in OURS)]
    cases = [
        Case(name, network, "T2", p, _SECONDS, compute_factor=factor)
        for network in _NETWORKS
        for name, p in shown
        for factor in factors
    ]
    found = averages(setting, cases, "crew/fig9")
    panels = tuple(
        Panel(
            f"({network}, T2)",
            "compute time, times T2",
            "rounds a worker in 100 s",
            tuple(
                curve(found, Case(name, network, "T2", p, _SECONDS), _compute_factor, f"{short(name)}, p = {p}")
                for name, p in shown
            ),
        )
        for network in _NETWORKS
    )
    claims = _judge_fig9(found, scales, factors[-1])
    return Outcome(columns("compute factor"), rows(found, _compute_factor), panels, claims, (PACE_NOTE,))


def _judge_fig9(found: Found, scales: tuple[int, ...], most: float) -> tuple[Claim, ...]:
    def left(network: str, scales: Iterable[int], contender: str = CREW) -> float:
        """Rounds at the longest compute time divided by those at the shortest."""
        firsts = [Case(contender, network, "T2", p, _SECONDS) for p in scales]
        return mean([times(found[replace(case, compute_factor=most)].rounds, found[case].rounds) for case in firsts])

    def straightness(p: int) -> float:
        """The fraction of the fall that a straight line explains (R squared)."""
        drawn = curve(found, Case(CREW, "N1", "T2", p, _SECONDS), _compute_factor, "")
        return float(np.corrcoef(drawn.x, drawn.y)[0, 1]) ** 2

    small, large = [p for p in scales if p <= 5], [p for p in scales if p > 5]
    fits = [straightness(p) for p in large]
    slowest = [case for case in found if case.contender in OURS and case.compute_factor == most]
    ours = {
        name: [times(found[c].rounds, found[replace(c, contender=CREW)].rounds) for c in slowest if c.contender == name]
        for name in OURS
    }
    beside = "; ".join(f"{name} {range_of(gains, 2)}" for name, gains in ours.items())
    return (
        Claim(
            _FIG9_CLAIMS[0],
            f"a straight line explains {range_of(100 * fit for fit in fits)}% of the fall; {left('N1', large):.2f} of "
            f"the rounds are left at {most:.0f} times the compute time",
            verdict_of(fit > 0.95 for fit in fits),
            "Rounds fall as 1 / (compute + synchronise), nearly a line while synchronising takes most of the time. "
            f"Rounds of ours over CREW's at {most:.0f} times the compute time, p = 5: {beside}.",
        ),
        Claim(
            _FIG9_CLAIMS[1],
            f"left: {left('N1', small):.3f} at small p, {left('N1', large):.3f} at large p",
            verdict_of([left("N1", small) > left("N1", large)]),
            "A round of more workers takes longer anyway, so computing weighs less in it.",
        ),
        Claim(
            _FIG9_CLAIMS[2],
            f"left: {left('N1', scales):.2f} on N1, {left('N2', scales):.2f} on N2",
            verdict_of([left("N2", scales) > left("N1", scales)]),
            "Rounds on N2 are shorter, so the same compute time weighs more there.",
        ),
        Claim(
            _FIG9_CLAIMS[3],
            f"left on N2: {left('N2', small):.3f} at small p, {left('N2', large):.3f} at large p",
            verdict_of([left("N2", large) > left("N2", small)]),
        ),
    )


FIG9 = Experiment("crew/fig9", "CREW Fig. 9: rounds with slower computing", _FIG9_CLAIMS, _run_fig9)

# --- Figure 10 --------------------------------------------------------------------------------------------

_FIG10_CLAIMS = (
    "Rounds do not fall in proportion to the size of the model: CREW softens the fall on all workloads.",
    "CREW's advantage is plain when communication dominates, unlike when computing does.",
)
_SCALES = (5, 10)


def _size_factor(case: Case) -> float:
    return case.size_factor


def _run_fig10(setting: Setting) -> Outcome:
    sizes = (1, 8) if setting.quick else (1, 2, 4, 8)
    shown = [(p, name) for p in _SCALES for name in (A2A, OPR, CREW, *OURS) if (name, p) != (RELAY, 10)]
    cases = [
        Case(name, network, "T1", p, _SECONDS, size_factor=size)
        for network in _NETWORKS
        for p, name in shown
        for size in sizes
    ]
    found = averages(setting, cases, "crew/fig10")
    panels = tuple(
        Panel(
            f"({network}, T1), p = {p}",
            "model size, times 180 MB",
            "rounds a worker in 100 s",
            tuple(
                _completed(curve(found, Case(name, network, "T1", p, _SECONDS), _size_factor, short(name)))
                for scale, name in shown
                if scale == p
            ),
            log_y=True,
        )
        for network in _NETWORKS
        for p in _SCALES
    )
    notes = (PACE_NOTE, "The paper, too, shows T1 only: T2 is about the same.")
    claims = _judge_fig10(found, sizes[-1])
    return Outcome(columns("size factor"), rows(found, _size_factor), panels, claims, notes)


def _completed(drawn: Series) -> Series:
    """The curve without sizes at which no round completes, which a logarithmic axis cannot show."""
    points = [(x, y) for x, y in zip(drawn.x, drawn.y, strict=True) if y > 0]
    return replace(drawn, x=tuple(x for x, _ in points), y=tuple(y for _, y in points))


def _judge_fig10(found: Found, most: int) -> tuple[Claim, ...]:
    firsts = [case for case in found if case.contender == CREW and case.size_factor == 1]

    def begun(case: Case) -> float:
        """Completed rounds plus half a round, for the one that is running at the end: it matters where they are few."""
        return found[case].rounds + 0.5

    def over(contender: str, under: str, size: int) -> list[float]:
        at = [replace(case, size_factor=size) for case in firsts]
        pairs = [(replace(case, contender=contender), replace(case, contender=under)) for case in at]
        return [begun(a) / begun(b) for a, b in pairs if a in found]

    kept = [most * begun(replace(case, size_factor=most)) / begun(case) for case in firsts]
    ours = "; ".join(f"{name} {range_of(over(name, CREW, most), 2)}" for name in (STARS, RELAY))
    return (
        Claim(
            _FIG10_CLAIMS[0],
            f"with {most} times the size, rounds times {most} are {range_of(kept, 2)} times the rounds before",
            verdict_of(ratio > 1.1 for ratio in kept),
            "1 would be in proportion; what is beyond comes from computing, which does not grow. Softened: by a tenth.",
        ),
        Claim(
            _FIG10_CLAIMS[1],
            f"{range_of(over(CREW, OPR, 1))} times OPR's rounds, with {most} times the size "
            f"{range_of(over(CREW, OPR, most))} times",
            verdict_of(ratio > 2 for ratio in over(CREW, OPR, most)),
            f"Rounds of ours over CREW's with {most} times the size: {ours}.",
        ),
    )


FIG10 = Experiment("crew/fig10", "CREW Fig. 10: rounds with larger models", _FIG10_CLAIMS, _run_fig10)
