"""MTREE's Figures 11, 12 and 13: the cost of the limits on height (H) and number of trees (K).

GBST's rate r* has two readings (see `planning.trees.height_bounded`), and they differ most here: the printed one, the
smallest bandwidth left anywhere, makes many thin trees; a tree's own bottleneck makes few. Both are shown.
"""

from __future__ import annotations

from itertools import pairwise
from time import process_time
from typing import NamedTuple

import numpy as np

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.mtree.trials import SUBSTITUTES, TOPOLOGIES, instance, limit_trial, normal_rate_bps
from tradewind.experiments.papers.report import Claim, Outcome, mean, verdict_of
from tradewind.figures.chart import Panel, Series
from tradewind.planning.trees.height_bounded import MAX_CANDIDATES, Growing, Reading, generate_trees, improve_heights
from tradewind.planning.trees.tree_rates import SearchLimits, best_rates, choose_trees
from tradewind.planning.trees.undirected import undirected_view

READINGS: tuple[Reading, ...] = ("global", "local")
MIN_RATE_BPS, RATE_KEPT = 10e6, 0.95
_SEARCH = SearchLimits(nodes=1, seconds=10.0)
_PAPER_H = {"gscale": 4, "equinix20-like": 5, "idn40-like": 6}
"""Height from which on the throughput no longer grows in the paper."""


class HeightResult(NamedTuple):
    """The number of trees and the throughput that GOST reaches within one height limit."""

    trees: float
    throughput: float


def _problem(topology: str, skewness: float, trial: int, reading: Reading) -> tuple[Growing, float]:
    network = instance(topology, skewness, trial)
    graph = undirected_view(network, network.names, MIN_RATE_BPS)
    return Growing(graph, np.ones(len(graph.ends)), MIN_RATE_BPS, reading, trial), normal_rate_bps(network)


def height_trial(
    topology: str, skewness: float, trial: int, reading: Reading, heights: tuple[int, ...]
) -> tuple[HeightResult, ...]:
    """Trees and throughput for each height limit, with no limit on the number of trees."""
    problem, normal_bps = _problem(topology, skewness, trial, reading)
    found = []
    for height in heights:
        made = generate_trees(problem, height)
        trees = tuple(dict.fromkeys(made.trees))
        rate = best_rates(trees, problem.graph.capacity_bps).total_bps if trees else 0.0
        found.append(HeightResult(len(made.trees), rate / normal_bps))
    return tuple(found)


class CountResult(NamedTuple):
    """The throughput for each number of trees, and how long the slowest MILP took, in seconds of CPU time."""

    throughput: tuple[float, ...]
    milp_s: float


def count_trial(topology: str, skewness: float, trial: int, reading: Reading, counts: tuple[int, ...]) -> CountResult:
    """Throughput for each limit K, under the H that ITH finds without such a limit."""
    problem, normal_bps = _problem(topology, skewness, trial, reading)
    made = improve_heights(problem, float(len(problem.graph)), RATE_KEPT)
    trees = tuple(dict.fromkeys(made.trees))
    found, slowest_s = [], 0.0
    for count in counts:
        started = process_time()
        choice = choose_trees(trees, problem.graph.capacity_bps, count, MIN_RATE_BPS, _SEARCH)
        slowest_s = max(slowest_s, process_time() - started)
        found.append(choice.total_bps / normal_bps)
    return CountResult(tuple(found), slowest_s)


SKEWNESSES = (0.1, 0.3, 0.5, 0.7, 0.9)
HEIGHTS = (2, 3, 4, 5, 6, 7, 8, 10)
"""Values of H."""
COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 15)
"""Values of K."""


def _skewness(setting: Setting) -> tuple[float, ...]:
    return (0.7,) if setting.quick else SKEWNESSES


def _heights(setting: Setting) -> tuple[int, ...]:
    return (3, 4, 6, 8) if setting.quick else HEIGHTS


class _ByHeight(NamedTuple):
    topology: str
    reading: Reading
    height: int


def _height_averages(setting: Setting, label: str) -> dict[_ByHeight, HeightResult]:
    """Averages over trials and skewnesses."""
    heights, numbers = _heights(setting), setting.trial_numbers()
    calls = [
        (topology, skewness, trial, reading, heights)
        for topology in TOPOLOGIES
        for reading in READINGS
        for skewness in _skewness(setting)
        for trial in numbers
    ]
    results = setting.workers.map(height_trial, calls, label)
    gathered: dict[_ByHeight, list[HeightResult]] = {}
    for (topology, _, _, reading, _), result in zip(calls, results, strict=True):
        for height, found in zip(heights, result, strict=True):
            gathered.setdefault(_ByHeight(topology, reading, height), []).append(found)
    return {
        key: HeightResult(mean([f.trees for f in found]), mean([f.throughput for f in found]))
        for key, found in gathered.items()
    }


def _height_panels(values: dict[_ByHeight, HeightResult], field: str, y_label: str) -> tuple[Panel, ...]:
    panels = []
    for topology in TOPOLOGIES:
        curves = []
        for reading in READINGS:
            points = sorted(
                (key.height, getattr(v, field)) for key, v in values.items() if key[:2] == (topology, reading)
            )
            x, y = zip(*points, strict=True)
            curves.append(Series(f"r* {reading}", tuple(map(float, x)), tuple(map(float, y))))
        panels.append(Panel(topology, "height limit H, hops", y_label, tuple(curves)))
    return tuple(panels)


def _height_rows(values: dict[_ByHeight, HeightResult]) -> tuple[tuple[str | int | float, ...], ...]:
    return tuple((*key, found.trees, found.throughput) for key, found in values.items())


_HEIGHT_COLUMNS = ("topology", "r*", "H", "trees", "throughput")

# --- Figure 11 --------------------------------------------------------------------------------------------

_FIG11_CLAIMS = (
    "The number of trees grows with the allowed height H and then stops growing.",
    "Even without a limit on their number there are only about 10 trees, and 5 or 6 on GScale.",
)


def _run_fig11(setting: Setting) -> Outcome:
    values = _height_averages(setting, "mtree/fig11")
    last, before = _heights(setting)[-1], _heights(setting)[-2]
    stopped = []
    for topology in TOPOLOGIES:
        for reading in READINGS:
            at = {h: values[_ByHeight(topology, reading, h)].trees for h in _heights(setting)}
            stopped.append(at[last] <= at[before] * 1.1 and at[min(at)] <= at[last] * 1.1)
    most = {
        (t, r): max(v.trees for key, v in values.items() if key[:2] == (t, r)) for t in TOPOLOGIES for r in READINGS
    }
    claims = (
        Claim(
            _FIG11_CLAIMS[0],
            f"so on {sum(stopped)} of {len(stopped)} topologies and readings",
            verdict_of(stopped),
            "Where low trees are possible at all, a tight H makes them thin and many rather than few.",
        ),
        Claim(
            _FIG11_CLAIMS[1],
            "; ".join(
                f"{t}: at most {most[t, 'global']:.0f} (global), {most[t, 'local']:.0f} (local)" for t in TOPOLOGIES
            ),
            verdict_of(count <= (7 if topology == "gscale" else 12) for (topology, _), count in most.items()),
            "As printed (global) GBST makes many thin trees on a dense graph; there the paper's number is nearer to "
            "what the tree's own bottleneck (local) gives.",
        ),
    )
    panels = _height_panels(values, "trees", "number of trees")
    notes = (SUBSTITUTES, f"GBST stops after {MAX_CANDIDATES} trees.")
    return Outcome(_HEIGHT_COLUMNS, _height_rows(values), panels, claims, notes)


FIG11 = Experiment(
    "mtree/fig11", "MTREE Fig. 11: number of trees by height limit, K unlimited", _FIG11_CLAIMS, _run_fig11
)

# --- Figure 12 --------------------------------------------------------------------------------------------

_FIG12_CLAIMS = (
    "Throughput rises quickly with H at first, and hardly after H = 4, 5 and 6 on GScale, Equinix and IDN.",
    "A small H is best for each topology: it gives as much as a large one.",
)


def _run_fig12(setting: Setting) -> Outcome:
    values = _height_averages(setting, "mtree/fig12")

    def at(topology: str, reading: Reading, low: float, high: float) -> float:
        found = [
            v.throughput for key, v in values.items() if key[:2] == (topology, reading) and low <= key.height <= high
        ]
        return max(found)

    levels = {(t, r): at(t, r, 0, _PAPER_H[t]) / at(t, r, 0, float("inf")) for t in TOPOLOGIES for r in READINGS}
    tallest = _heights(setting)[-1]
    small = {(t, r): at(t, r, 0, 6) / at(t, r, tallest, tallest) for t in TOPOLOGIES for r in READINGS}
    claims = (
        Claim(
            _FIG12_CLAIMS[0],
            "; ".join(
                f"{t}: {levels[t, 'global']:.0%} (global), {levels[t, 'local']:.0%} (local) of the most by "
                f"H = {_PAPER_H[t]}"
                for t in TOPOLOGIES
            ),
            verdict_of(level >= 0.95 for level in levels.values()),
            "Holds where 95% of the most is reached by that H.",
        ),
        Claim(
            _FIG12_CLAIMS[1],
            f"the best H up to 6 gives {min(small.values()):.2f} to {max(small.values()):.2f} times as much as "
            f"H = {tallest}",
            verdict_of(ratio >= 0.98 for ratio in small.values()),
        ),
    )
    panels = _height_panels(values, "throughput", "throughput / (sum(b)/(n-1))")
    return Outcome(_HEIGHT_COLUMNS, _height_rows(values), panels, claims, (SUBSTITUTES,))


FIG12 = Experiment("mtree/fig12", "MTREE Fig. 12: throughput by height limit, K unlimited", _FIG12_CLAIMS, _run_fig12)

# --- Figure 13 --------------------------------------------------------------------------------------------

_FIG13_CLAIMS = (
    "Throughput grows with the number of trees K.",
    "With K up to 10 MTREE uses 70% to 85% of the bandwidth.",
    "The MILP takes less than 1 s even on IDN (IV-H, Gurobi).",
)


class _ByCount(NamedTuple):
    """A topology's averages: the throughput at each K under the better reading, the limit, and the slowest MILP."""

    throughput: tuple[float, ...]
    limit: float
    milp_s: float


def _count_averages(setting: Setting, topology: str, counts: tuple[int, ...]) -> _ByCount:
    instances = [(topology, sk, trial) for sk in _skewness(setting) for trial in setting.trial_numbers()]
    calls = [(*each, reading, counts) for each in instances for reading in READINGS]
    results = dict(zip(calls, setting.workers.map(count_trial, calls, f"mtree/fig13: {topology}"), strict=True))
    better = [
        [max(results[(*each, reading, counts)].throughput[k] for reading in READINGS) for each in instances]
        for k in range(len(counts))
    ]
    limit = mean(setting.workers.map(limit_trial, instances, f"mtree/fig13: {topology}, limit"))
    return _ByCount(tuple(map(mean, better)), limit, max(result.milp_s for result in results.values()))


def _run_fig13(setting: Setting) -> Outcome:
    counts = (1, 2, 5, 10) if setting.quick else COUNTS
    found = {topology: _count_averages(setting, topology, counts) for topology in TOPOLOGIES}
    at_ten = {t: found[t].throughput[counts.index(10)] for t in TOPOLOGIES}
    grows = [all(b >= a * (1 - 1e-3) for a, b in pairwise(found[t].throughput)) for t in TOPOLOGIES]
    claims = (
        Claim(_FIG13_CLAIMS[0], f"on {sum(grows)} of {len(grows)} topologies", verdict_of(grows)),
        Claim(
            _FIG13_CLAIMS[1],
            "; ".join(f"{t}: {at_ten[t]:.0%} with 10 trees, limit {found[t].limit:.0%}" for t in TOPOLOGIES),
            verdict_of(value >= 0.7 for value in at_ten.values()),
            "On idn40-like the sparsest sites limit every scheme to less.",
        ),
        Claim(
            _FIG13_CLAIMS[2],
            "; ".join(f"{t}: at most {found[t].milp_s:.1f} s of CPU time" for t in TOPOLOGIES),
            verdict_of(found[t].milp_s < 1 for t in TOPOLOGIES),
            "HiGHS instead of Gurobi, stopped at the root node: what it had not proved by then is the plan's gap. The "
            "global reading of r* offers it many trees on equinix20-like.",
        ),
    )
    x = tuple(map(float, counts))
    panels = tuple(
        Panel(
            topology,
            "number of trees K",
            "throughput / (sum(b)/(n-1))",
            (
                Series("MTREE", x, each.throughput),
                Series("limit", (x[0], x[-1]), (each.limit, each.limit), reference=True),
            ),
        )
        for topology, each in found.items()
    )
    rows = tuple((t, *pair) for t, each in found.items() for pair in zip(counts, each.throughput, strict=True))
    return Outcome(("topology", "K", "throughput"), rows, panels, claims, (SUBSTITUTES,))


FIG13 = Experiment("mtree/fig13", "MTREE Fig. 13: throughput by number of trees", _FIG13_CLAIMS, _run_fig13)
