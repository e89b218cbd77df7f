"""Selective Reduce's Figures 11 to 14: unknown step times, wrong estimates, skewness and latency."""

from __future__ import annotations

from dataclasses import replace

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.report import SAME, Claim, Outcome, verdict_of
from tradewind.experiments.papers.selective.parameters import NOTES, larger_and_faster, outcome_of
from tradewind.experiments.papers.selective.scale import WORKERS
from tradewind.experiments.papers.selective.trials import (
    ALL,
    METRICS,
    OURS,
    PARTIAL,
    SELECTIVE,
    TRACES,
    Case,
    Summary,
    Sweep,
    from_to,
    medians,
    rises,
    spread,
    sweep,
    sweep_workers,
    thinned,
)
from tradewind.figures.chart import Panel, Series

STARTS = {"warm start": False, "cold start": True}


def _by_start(setting: Setting, label: str, name: str, points: dict[float, dict[str, Case]]) -> Sweep:
    """A sweep of selective reduce with known and unknown step times, at every value on each trace."""
    cases = {
        (trace, start, value): replace(case, cold=cold)
        for value, by_trace in points.items()
        for trace, case in by_trace.items()
        for start, cold in STARTS.items()
    }
    found = medians(setting, cases.values(), label)
    return Sweep(name, tuple(points), tuple(STARTS), {key: found[case] for key, case in cases.items()})


# --- Figure 11: cold start --------------------------------------------------------------------------------

_FIG11_CLAIMS = ("Learning the step times on the way gives nearly the same synchronisation times as knowing them.",)


def _run_fig11(setting: Setting) -> Outcome:
    workers = (40.0, 120.0) if setting.quick else WORKERS
    points = {n: {trace: Case(SELECTIVE, trace, int(n)) for trace in TRACES} for n in workers}
    swept = _by_start(setting, "selective/fig11", "workers n", points)
    gaps = swept.ratios("cold start", "warm start", lambda found: found.sync_s)
    return Outcome(
        swept.columns,
        swept.rows,
        tuple(swept.panels(METRICS[:1])),
        (
            Claim(
                _FIG11_CLAIMS[0],
                f"{min(gaps):.2f} to {max(gaps):.2f} times as long",
                verdict_of(abs(gap - 1) <= SAME for gap in gaps),
                "Holds if all are within 10%.",
            ),
        ),
        ("Medians over the trials.",),
    )


FIG11 = Experiment("selective/fig11", "Selective Reduce Fig. 11: cold and warm start", _FIG11_CLAIMS, _run_fig11)

# --- Figure 12: wrong estimates ---------------------------------------------------------------------------

_FIG12_CLAIMS = (
    "With larger errors in the estimated bandwidths rounds take slightly longer and are marginally smaller.",
    "There are then more rounds, and a little more iterations.",
    "None of this is much: selective reduce is robust, with a cold start, too.",
)


def _run_fig12(setting: Setting) -> Outcome:
    n = sweep_workers(setting)
    errors = thinned(setting, (0.0, 0.1, 0.2, 0.3, 0.4, 0.5))
    points = {e: {trace: Case(SELECTIVE, trace, n, noise=e) for trace in TRACES} for e in errors}
    swept = _by_start(setting, "selective/fig12", "error e", points)
    runs = {f"{trace}, {start}": swept.at(trace, start) for trace in swept.traces for start in swept.schemes}

    def changes(name: str) -> str:
        return ", ".join(f"{getattr(at[-1], name) / getattr(at[0], name):.2f}" for at in runs.values())

    apart = max(
        spread([getattr(one, name) for one in at])
        for at in runs.values()
        for name in ("sync_s", "scale", "syncs", "iterations")
    )
    return Outcome(
        swept.columns,
        swept.rows,
        tuple(swept.panels()),
        (
            Claim(
                _FIG12_CLAIMS[0],
                f"at e = {errors[-1]:g} {changes('sync_s')} times as long and {changes('scale')} times as large",
                verdict_of(
                    [*(at[-1].sync_s > at[0].sync_s for at in runs.values())]
                    + [at[-1].scale < at[0].scale for at in runs.values()]
                ),
                f"In the order: {'; '.join(runs)}.",
            ),
            Claim(
                _FIG12_CLAIMS[1],
                f"at e = {errors[-1]:g} {changes('syncs')} times as many rounds and {changes('iterations')} times as "
                "many iterations",
                verdict_of(
                    [*(at[-1].syncs > at[0].syncs for at in runs.values())]
                    + [at[-1].iterations > at[0].iterations for at in runs.values()]
                ),
            ),
            Claim(
                _FIG12_CLAIMS[2],
                f"no metric changes by more than {apart:.0%}",
                verdict_of([apart < 0.25]),
                "Holds below a quarter. The paper does not say how large its e gets.",
            ),
        ),
        (NOTES[0], "Medians over the trials."),
    )


FIG12 = Experiment("selective/fig12", "Selective Reduce Fig. 12: errors of the estimates", _FIG12_CLAIMS, _run_fig12)

# --- Figure 13: skewness ----------------------------------------------------------------------------------

_FIG13_CLAIMS = (
    "For lambda of 0.05, 0.1 and 0.2, selective reduce's rounds are larger and faster than partial reduce's.",
    "It also completes more iterations.",
    "The more unequal the bandwidths (the smaller lambda), the larger the gain.",
)


def _run_fig13(setting: Setting) -> Outcome:
    n = sweep_workers(setting)
    values = (0.05, 0.1, 0.2)
    swept = sweep(setting, "selective/fig13", "lambda", values, lambda trace, floor: Case("", trace, n, floor=floor))
    more = swept.ratios(SELECTIVE, PARTIAL, lambda found: found.iterations)
    gains = {
        trace: [p.sync_s / s.sync_s for p, s in zip(swept.at(trace, PARTIAL), swept.at(trace, SELECTIVE), strict=True)]
        for trace in swept.traces
    }
    return outcome_of(
        swept,
        (
            Claim(_FIG13_CLAIMS[0], *larger_and_faster(swept)),
            Claim(
                _FIG13_CLAIMS[1], f"{min(more):.2f} to {max(more):.2f} times", verdict_of(ratio > 1 for ratio in more)
            ),
            Claim(
                _FIG13_CLAIMS[2],
                "; ".join(f"{trace} 1/" + ", 1/".join(f"{gain:.2f}" for gain in gains[trace]) for trace in gains),
                verdict_of(rises(found[::-1]) for found in gains.values()),
                "Times of a round over partial reduce's, by rising lambda.",
            ),
        ),
    )


FIG13 = Experiment("selective/fig13", "Selective Reduce Fig. 13: the skewness lambda", _FIG13_CLAIMS, _run_fig13)

# --- Figure 14: latency -----------------------------------------------------------------------------------

_FIG14_CLAIMS = (
    "Latency of 0 to 50 ms hardly changes the scale of rounds.",
    "Up to 1 ms it hardly changes anything else; beyond, rounds take longer and there are fewer iterations.",
    "All reduce's rounds grow most, then partial reduce's, then selective reduce's, although the latter are larger.",
)


def _run_fig14(setting: Setting) -> Outcome:
    n = sweep_workers(setting)
    values = (0.0, 1.0, 5.0, 50.0)
    swept = sweep(
        setting,
        "selective/fig14",
        "latency, ms",
        values,
        lambda trace, latency_ms: Case("", trace, n, latency_ms=latency_ms),
        (ALL, PARTIAL, SELECTIVE, OURS),
    )
    panels = tuple(_evenly_spaced(panel, values) for panel in swept.panels())
    return Outcome(swept.columns, swept.rows, panels, _judge_fig14(swept), NOTES)


def _judge_fig14(swept: Sweep) -> tuple[Claim, ...]:
    found = {trace: swept.at(trace, SELECTIVE) for trace in swept.traces}
    scales = max(spread([one.scale for one in at]) for at in found.values())

    def change(first: Summary, last: Summary) -> float:
        return max(abs(last.sync_s / first.sync_s - 1), abs(last.iterations / first.iterations - 1))

    small = [change(at[0], at[1]) for at in found.values()]
    longer = [rises([one.sync_s for one in at[1:]]) for at in found.values()]
    fewer = [at[-1].iterations < at[1].iterations for at in found.values()]
    grown = {
        trace: [swept.at(trace, s)[-1].sync_s - swept.at(trace, s)[0].sync_s for s in (ALL, PARTIAL, SELECTIVE)]
        for trace in found
    }
    return (
        Claim(
            _FIG14_CLAIMS[0],
            f"it changes by up to {scales:.0%}",
            verdict_of([scales <= SAME]),
            "Holds below 10%.",
        ),
        Claim(
            _FIG14_CLAIMS[1],
            f"up to {max(small):.0%} from 0 to 1 ms; then "
            + "; ".join(f"{trace} {from_to([one.sync_s for one in at[1:]])} s" for trace, at in found.items()),
            verdict_of([max(small) <= SAME, *longer, *fewer]),
        ),
        Claim(
            _FIG14_CLAIMS[2],
            "; ".join(
                f"{trace} +" + " s, +".join(f"{s:.2f}" for s in seconds) + " s" for trace, seconds in grown.items()
            ),
            verdict_of(a > p > s for a, p, s in grown.values()),
            "From 0 to 50 ms. A ring of m pays 2(m - 1) latencies, and a larger group has more members; our stars pay "
            "two.",
        ),
    )


def _evenly_spaced(panel: Panel, values: tuple[float, ...]) -> Panel:
    """The panel with bars instead of curves: the latencies are too unevenly spaced for an axis."""
    at = tuple(float(k) for k in range(len(values)))
    series = tuple(Series(one.label, at, one.y) for one in panel.series)
    return replace(panel, series=series, categories=tuple(f"{value:g} ms" for value in values), x_label="")


FIG14 = Experiment("selective/fig14", "Selective Reduce Fig. 14: the latency alpha", _FIG14_CLAIMS, _run_fig14)
