"""NetStorm's Figures 19 and 20 live: model and cluster sizes, and the sensitivity of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from tradewind.experiments.papers import Experiment, Setting, in_both_forms
from tradewind.experiments.papers.netstorm.live import COMPRESSION, PRO, SHRINK, TRADEWIND, System
from tradewind.experiments.papers.netstorm.live_trials import QUICK_STATIC_S, Measured, measure
from tradewind.experiments.papers.netstorm.scale import (
    CLAIMS,
    MODELS,
    NETSTORM,
    cluster_panel,
    judge_clusters,
    judge_models,
    model_panel,
)
from tradewind.experiments.papers.netstorm.simulated import OPTIMAL, STAR
from tradewind.experiments.papers.report import Cell, Claim, Outcome, verdict_of
from tradewind.figures.chart import Panel, Series

# --- Figure 19 --------------------------------------------------------------------------------------------

SYSTEMS = {STAR: System("star"), NETSTORM: PRO, OPTIMAL: TRADEWIND}
SIZES = ("MobileNet-v1", "ResNet-50", "AlexNet")
CLUSTERS, QUICK_CLUSTERS = (5, 9, 15), (5, 7)
NUM_NODES = 9
TURN_S = 8.0


def _run_fig19(setting: Setting) -> Outcome:
    sizes = {name: MODELS[name] for name in (SIZES[:2] if setting.quick else SIZES)}
    clusters = QUICK_CLUSTERS if setting.quick else CLUSTERS
    length_s = QUICK_STATIC_S if setting.quick else TURN_S
    rows: list[tuple[Cell, ...]] = []
    seconds: dict[str, dict[str, float]] = {}
    found: dict[str | int, Measured] = {}
    for model, parameters in sizes.items():
        nbytes = 4 * round(parameters / SHRINK)
        label = f"netstorm/fig19 live: {model}"
        found[model] = measure(setting, label, SYSTEMS, ("static",), seconds=length_s, nbytes=nbytes)
        of = found[model].played
        seconds[model] = {name: median(one.round_s for one in of["static", name]) for name in SYSTEMS}
        rows.append(("(a) model", model, *seconds[model].values()))
    rates: dict[tuple[str, int], float] = {}
    for sites in clusters:
        label = f"netstorm/fig19 live: {sites}"
        known = found.get("AlexNet") if sites == NUM_NODES else None  # measured above
        found[sites] = known or measure(setting, label, SYSTEMS, ("static",), seconds=length_s, sites=sites)
        rates |= {(name, sites): sites * median(found[sites].rates("static")[name]) for name in SYSTEMS}
    base = rates[NETSTORM, clusters[0]]
    rates = {key: rate / base for key, rate in rates.items()}
    rows += [("(b) data centers", sites, *(rates[name, sites] for name in SYSTEMS)) for sites in clusters]
    return Outcome(
        columns=("part", "value", *SYSTEMS),
        rows=tuple(rows),
        panels=(model_panel(sizes, seconds), cluster_panel(clusters, rates)),
        claims=(judge_models(sizes, seconds), judge_clusters(clusters, rates)),
        notes=(
            *found[clusters[-1]].notes,
            f"(a): seconds of an iteration, static network. (b): samples per second, all data centers together, over "
            f"those of {NETSTORM} on {clusters[0]}; 9 sites are NetStorm's own network, the others random overlays.",
        ),
    )


FIG19 = Experiment("netstorm/fig19/live", "NetStorm Fig. 19, live: larger models, more sites", CLAIMS, _run_fig19)

# --- Figure 20 --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameter:
    """One of NetStorm's parameters, and the systems with its values, by value in the paper's units."""

    unit: str
    systems: dict[float, System]


def _bytes(million_parameters: float) -> int:
    return round(4e6 * million_parameters / SHRINK)


CHUNK, UPDATE, PROBE_SIZE, PROBE_NUM = "CHUNK_SIZE", "UPDATE_TIME", "PROBE_CHUNK_SIZE", "PROBE_CHUNK_NUM"
PARAMETERS = {
    CHUNK: Parameter(
        "million parameters",
        {value: replace(PRO, chunk_bytes=_bytes(value)) for value in (0.25, 0.5, 1.0, 4.0)},
    ),
    UPDATE: Parameter(
        "seconds",
        {value: replace(PRO, update_time_s=value / COMPRESSION) for value in (2.0, 5.0, 20.0, 60.0)},
    ),
    PROBE_SIZE: Parameter(
        "million parameters",
        {value: replace(PRO, probe_chunk_bytes=_bytes(value)) for value in (0.01, 0.2, 4.0)},
    ),
    PROBE_NUM: Parameter("chunks", {float(value): replace(PRO, probe_chunks=value) for value in (2, 4, 32)}),
}
QUICK_VALUES = 2
SENSITIVITY_S = 24.0
"""Duration of a turn in Figure 20, in seconds: thirteen turns take about five minutes, and each has two draws."""
_FIG20_CLAIMS = (
    "CHUNK_SIZE matters most: throughput falls as chunks grow, and 0.5 to 1 million parameters are best.",
    "UPDATE_TIME is best at 5 seconds: with longer ones plans are stale.",
    "Probe chunks of 0.01 to 4 million parameters work; too large a size finds none and throughput collapses.",
    "PROBE_CHUNK_NUM matters little between 4 and 32.",
)


def _values(parameter: Parameter, quick: bool) -> list[float]:
    values = list(parameter.systems)
    return [values[0], *values[1 - QUICK_VALUES :]] if quick else values


def judge_fig20(curves: Mapping[str, Mapping[float, float]]) -> tuple[Claim, ...]:
    """Verdicts on the claims from the throughput at each value, divided by the best of its parameter."""
    chunk, update, size, number = (curves[name] for name in (CHUNK, UPDATE, PROBE_SIZE, PROBE_NUM))
    spreads = {name: max(curve.values()) / min(curve.values()) for name, curve in curves.items()}
    best = {name: max(curve, key=lambda value: curve[value]) for name, curve in curves.items()}
    large = max(chunk)
    return (
        Claim(
            _FIG20_CLAIMS[0],
            f"best at {best[CHUNK]:g} million, {chunk[large]:.0%} of that at {large:g} million; from best to worst "
            + ", ".join(f"{name} {spread:.2f} times" for name, spread in spreads.items()),
            verdict_of([max(spreads, key=lambda name: spreads[name]) == CHUNK, best[CHUNK] <= 1.0, chunk[large] < 0.9]),
            f"The default here is {PRO.chunk_bytes * SHRINK / 4e6:.2g} million parameters.",
        ),
        Claim(
            _FIG20_CLAIMS[1],
            f"best at {best[UPDATE]:g} s; "
            + ", ".join(f"{share:.0%} of that at {value:g} s" for value, share in update.items()),
            verdict_of([update.get(5.0, 0.0) >= 0.95, update[max(update)] < 0.95]),
            "Holds within 5% of the best. A turn sees one change of rates, or none in a quick run.",
        ),
        Claim(
            _FIG20_CLAIMS[2],
            ", ".join(f"{share:.0%} of the best at {value:g} million" for value, share in size.items()),
            verdict_of([size[min(size)] >= 0.85, size[max(size)] < 0.85]),
            "The largest value is beyond our chunks, so that nothing is measured: holds if that costs 15% or more.",
        ),
        Claim(
            _FIG20_CLAIMS[3],
            ", ".join(f"{share:.0%} of the best at {value:g}" for value, share in number.items()),
            verdict_of(share >= 0.85 for value, share in number.items() if value >= 4),
            "Little: less than 15%.",
        ),
    )


def _run_fig20(setting: Setting, label: str, virtual: bool) -> Outcome:
    kept = {name: _values(parameter, setting.quick) for name, parameter in PARAMETERS.items()}
    named = {PARAMETERS[name].systems[value]: f"{name} {value:g}" for name in kept for value in kept[name]}
    systems = {text: system for system, text in named.items()}  # defaults that parameters share run once
    length_s = None if setting.quick else SENSITIVITY_S
    found = measure(setting, label, systems, seconds=length_s, virtual=virtual)
    curves: dict[str, dict[float, float]] = {}
    rows: list[tuple[Cell, ...]] = []
    for name, parameter in PARAMETERS.items():
        played = {value: found.played["dynamic", named[parameter.systems[value]]] for value in kept[name]}
        rates = {value: median(one.rate for one in turns) for value, turns in played.items()}
        curves[name] = {value: rate / max(rates.values()) for value, rate in rates.items()}
        for value, turns in played.items():
            seconds, idle = median(one.round_s for one in turns), min(one.idle for one in turns)
            rows.append((name, value, parameter.unit, seconds, curves[name][value], idle))
    panels = (
        Panel(name, PARAMETERS[name].unit, "throughput, over the best", (Series(name, tuple(c), tuple(c.values())),))
        for name, c in curves.items()
    )
    return Outcome(
        columns=("parameter", "value", "unit", "iteration s", "throughput over the best", "idle processors"),
        rows=tuple(rows),
        panels=tuple(panels),
        claims=judge_fig20(curves),
        notes=(
            *found.notes,
            f"Values are the paper's; here sizes are 1/{SHRINK:g} and times 1/{COMPRESSION:g} of them.",
        ),
    )


FIG20, FIG20_LIVE = in_both_forms("netstorm/fig20", "NetStorm Fig. 20: sensitivity", _FIG20_CLAIMS, _run_fig20)
