"""Selective Reduce's Figures 5, 6 and 7: the three schemes by number of workers, and the cost of waiting."""

from __future__ import annotations

from collections.abc import Callable

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.report import Cell, Claim, Outcome, verdict_of, verdict_of_gains
from tradewind.experiments.papers.selective.trials import (
    ALL,
    METRICS,
    OURS,
    OURS_NOTE,
    PARTIAL,
    SECONDS,
    SELECTIVE,
    Case,
    Summary,
    Sweep,
    falls,
    from_to,
    rises,
    sweep,
)
from tradewind.figures.chart import Panel, Series

WORKERS = (40.0, 80.0, 120.0, 160.0, 200.0)
_SCHEMES = (ALL, PARTIAL, SELECTIVE, OURS)


def by_workers(setting: Setting, label: str, traces: tuple[str, ...], schemes: tuple[str, ...] = _SCHEMES) -> Sweep:
    """A sweep of the schemes by number of workers n, with the paper's defaults."""
    values = (40.0, 120.0) if setting.quick else WORKERS
    return sweep(setting, label, "workers n", values, lambda trace, n: Case("", trace, int(n)), schemes, traces)


# --- Figures 5 and 6 --------------------------------------------------------------------------------------

SCALE_CLAIMS = (
    "Selective reduce's rounds take less time than partial reduce's, down to 1/2.55.",
    "Selective reduce's rounds are larger than partial reduce's, up to 1.25 times.",
    "With more workers rounds of all reduce and of partial reduce take longer, those of selective reduce less long.",
    "Selective reduce completes more iterations than partial reduce and all reduce at every n.",
    "Iterations per worker fall as n grows, under all three schemes.",
)


def _run(setting: Setting, name: str, trace: str) -> Outcome:
    swept = by_workers(setting, name, (trace,))
    return Outcome(
        columns=swept.columns,
        rows=swept.rows,
        panels=tuple(swept.panels(METRICS)),
        claims=_judge(swept, trace),
        notes=(
            OURS_NOTE,
            "Medians over the trials. A ring of m takes 2(m - 1) latencies and sends 2(m - 1)/m of the model through "
            "its slowest NIC. The paper gives neither delta t nor c; here they are 0.1 s and 100 rounds.",
        ),
    )


def _judge(swept: Sweep, trace: str) -> tuple[Claim, ...]:
    faster = swept.ratios(PARTIAL, SELECTIVE, lambda found: found.sync_s)
    larger = swept.ratios(SELECTIVE, PARTIAL, lambda found: found.scale)
    more = swept.ratios(SELECTIVE, PARTIAL, lambda found: found.iterations)
    than_all = swept.ratios(SELECTIVE, ALL, lambda found: found.iterations)
    times = {scheme: [found.sync_s for found in swept.at(trace, scheme)] for scheme in _SCHEMES}
    iterations = {scheme: [found.iterations for found in swept.at(trace, scheme)] for scheme in _SCHEMES}
    pairs = zip(swept.at(trace, SELECTIVE), swept.at(trace, OURS), strict=True)
    ours = [found.sync_s / mine.sync_s for found, mine in pairs]
    return (
        Claim(
            SCALE_CLAIMS[0],
            f"1/{min(faster):.2f} to 1/{max(faster):.2f}; ours 1/{min(ours):.2f} to 1/{max(ours):.2f} of that",
            verdict_of_gains([ratio - 1 for ratio in faster], 1.55, up_to=True),
        ),
        Claim(
            SCALE_CLAIMS[1],
            f"{min(larger):.2f} to {max(larger):.2f} times",
            verdict_of_gains([ratio - 1 for ratio in larger], 0.25, up_to=True),
        ),
        Claim(
            SCALE_CLAIMS[2],
            "; ".join(f"{scheme} {from_to(times[scheme])} s" for scheme in (ALL, PARTIAL, SELECTIVE)),
            verdict_of([rises(times[ALL]), rises(times[PARTIAL]), falls(times[SELECTIVE])]),
            "The larger groups of a larger cluster reach further down among the slow workers; that offsets the better "
            "choice.",
        ),
        Claim(
            SCALE_CLAIMS[3],
            f"{min(more):.2f} to {max(more):.2f} times partial reduce's, {min(than_all):.2f} to {max(than_all):.2f} "
            "times all reduce's",
            verdict_of(ratio > 1 for ratio in (*more, *than_all)),
        ),
        Claim(
            SCALE_CLAIMS[4],
            "; ".join(f"{scheme} {from_to(iterations[scheme], 1)}" for scheme in (ALL, PARTIAL, SELECTIVE)),
            verdict_of(falls(iterations[scheme]) for scheme in (ALL, PARTIAL, SELECTIVE)),
        ),
    )


def _by_workers_experiment(figure: int, trace: str) -> Experiment:
    name = f"selective/fig{figure}"
    title = f"Selective Reduce Fig. {figure}: {trace} training trace, by number of workers"
    return Experiment(name, title, SCALE_CLAIMS, lambda setting: _run(setting, name, trace))


FIG5 = _by_workers_experiment(5, "CNN")
FIG6 = _by_workers_experiment(6, "Transformer")

# --- Figure 7 ---------------------------------------------------------------------------------------------

_FIG7_CLAIMS = (
    "What a worker waits in vain is a few milliseconds of 100 s, less than 0.01% of its time, on both traces.",
)
_READINGS: tuple[tuple[str, Callable[[Summary], float]], ...] = (
    ("in vain in the end", lambda found: found.in_vain_s),
    ("in empty slots", lambda found: found.empty_slots_s),
)


def _run_fig7(setting: Setting) -> Outcome:
    swept = by_workers(setting, "selective/fig7", ("CNN", "Transformer"), (SELECTIVE,))
    rows: list[tuple[Cell, ...]] = [
        (trace, value, *(1e3 * reading(found) for _, reading in _READINGS))
        for trace in swept.traces
        for value, found in zip(swept.values, swept.at(trace, SELECTIVE), strict=True)
    ]
    shares = {
        title: [reading(found) / SECONDS for trace in swept.traces for found in swept.at(trace, SELECTIVE)]
        for title, reading in _READINGS
    }
    return Outcome(
        columns=("trace", "workers n", *(f"waited {title}, ms" for title, _ in _READINGS)),
        rows=tuple(rows),
        panels=tuple(_fig7_panel(swept, trace) for trace in swept.traces),
        claims=(
            Claim(
                _FIG7_CLAIMS[0],
                "; ".join(f"{title} {min(s):.2%} to {max(s):.2%}" for title, s in shares.items()),
                verdict_of(max(found) < 1e-4 for found in shares.values()),
                "In vain in the end: a round started, and no worker had become ready since it could have started "
                "before. Empty slots also count waits that were extended until a worker came; the paper's words fit "
                "both.",
            ),
        ),
        notes=("Medians over the trials, of the average over the workers.",),
    )


def _fig7_panel(swept: Sweep, trace: str) -> Panel:
    ends = swept.values[0], swept.values[-1]
    limit = Series("0.01% of the time", ends, (1e-4 * SECONDS * 1e3,) * 2, reference=True)
    curves = (
        Series(f"waited {title}", swept.values, tuple(1e3 * reading(found) for found in swept.at(trace, SELECTIVE)))
        for title, reading in _READINGS
    )
    return Panel(f"{trace} trace", "workers n", "waited per worker in 100 s, ms", (*curves, limit))


FIG7 = Experiment("selective/fig7", "Selective Reduce Fig. 7: time waited in vain", _FIG7_CLAIMS, _run_fig7)
