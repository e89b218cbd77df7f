"""Why claims of MTREE do not hold: TOPOADOPT's rates, BLINK's number of trees, the limits H and K, and the instance."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tradewind.experiments.papers import Setting
from tradewind.experiments.papers.mtree.chunks import FIG9, FIG10, SKEWNESS, TOPOLOGY
from tradewind.experiments.papers.mtree.completion import FIG8
from tradewind.experiments.papers.mtree.limits import (
    COUNTS,
    FIG11,
    FIG12,
    FIG13,
    HEIGHTS,
    MIN_RATE_BPS,
    READINGS,
    SKEWNESSES,
    count_trial,
    height_trial,
)
from tradewind.experiments.papers.mtree.messages import best_chunks, plan_seconds
from tradewind.experiments.papers.mtree.trees import FIG6, FIG7
from tradewind.experiments.papers.mtree.trials import TOPOLOGIES, instance, limit_trial, normal_rate_bps, scheme_plan
from tradewind.experiments.papers.reasons import of_paper
from tradewind.experiments.papers.report import MOST, SAME, Switched, mean
from tradewind.planning.shape import shard_shape
from tradewind.planning.trees.height_bounded import Growing, Reading, generate_trees
from tradewind.planning.trees.topoadopt import TopoadoptOptions, anneal
from tradewind.planning.trees.tree_rates import SearchLimits, choose_trees
from tradewind.planning.trees.undirected import hang_from_centre, undirected_view

LEAST, MOST_SKEWED = 0.1, 0.9
_LATE_RATES = "Our annealing ends with the best rates for its trees, an LP."
_FEW_TREES = "Our BLINK may use five trees only."
_LOW_TREES = "ITH prefers low trees, and a low tree needs sites with many children."
_OTHER_INSTANCE = "The substitute topology has other links, and the paper does not give the H and K of its instance."
_KIND_BLINK = "Our BLINK chooses five trees from a near-optimal packing, by the same MILP as MTREE: a kinder reading."
_WELL_CHOSEN = "Our BLINK and TOPOADOPT choose five trees nearly optimally, which is easiest on the small GScale."
_STEPS = "Its number of trees and steps are not published; ours are 5 and 300."
_THIN = "Where low trees are possible at all, a tight H makes them thin and many rather than few."
_GLOBAL = (
    "As printed (global) GBST makes many thin trees on a dense graph; there the paper's number is nearer to what the "
    "tree's own bottleneck (local) gives."
)
_SPARSE = "On idn40-like the sparsest sites limit every scheme to less."
_MANY_OFFERED = "The global reading of r* offers it many trees on equinix20-like."


def _trials(setting: Setting, most: int = 4) -> range:
    return setting.trial_numbers(published=most)


# --- Figures 6 to 8: TOPOADOPT and BLINK -----------------------------------------------------------------------------


def annealed_trial(topology: str, skewness: float, trial: int) -> tuple[float, float]:
    """TOPOADOPT's throughput, normalised: with the best rates for its trees, and with the same rate for each."""
    network = instance(topology, skewness, trial)
    graph = undirected_view(network, network.names)
    choice = anneal(graph, TopoadoptOptions(seed=trial))
    uses = np.zeros(len(graph.ends))
    for tree in choice.trees:
        uses[list(tree)] += 1
    even_bps = len(choice.trees) * float((graph.capacity_bps[uses > 0] / uses[uses > 0]).min())
    return choice.total_bps / normal_rate_bps(network), even_bps / normal_rate_bps(network)


def scheme_trial(scheme: str, options: tuple[tuple[str, object], ...], topology: str, sk: float, trial: int) -> float:
    """A scheme's throughput with these options, normalised."""
    network = instance(topology, sk, trial)
    rate_bps = scheme_plan(scheme, network, **dict(options)).rate_bps
    assert rate_bps is not None
    return rate_bps / normal_rate_bps(network)


def _annealed_falls(setting: Setting) -> Iterator[Switched]:
    calls = [(t, sk, trial) for t in TOPOLOGIES for sk in (LEAST, MOST_SKEWED) for trial in _trials(setting)]
    found = dict(zip(calls, setting.workers.map(annealed_trial, calls, "reasons: TOPOADOPT"), strict=True))

    def trend(topology: str, kind: int) -> float:
        first, last = (mean([found[topology, sk, k][kind] for k in _trials(setting)]) for sk in (LEAST, MOST_SKEWED))
        return last / first

    best, even = (max(trend(topology, kind) for topology in TOPOLOGIES) for kind in (0, 1))
    off = "the same rate for all of its trees"
    yield Switched(
        FIG6.claims[4], _LATE_RATES, off, "largest factor of throughput from sk 0.1 to 0.9", best, even, 1 - SAME, True
    )


def _blink_rises(setting: Setting) -> Iterator[Switched]:
    def trend(topology: str, trees: int) -> float:
        options = (("max_trees", trees),)
        calls = [("blink", options, topology, sk, k) for sk in (LEAST, MOST_SKEWED) for k in _trials(setting)]
        found = setting.workers.map(scheme_trial, calls, "reasons: BLINK")
        half = len(found) // 2
        return mean(found[half:]) / mean(found[:half])

    few, many = (min(trend(topology, trees) for topology in TOPOLOGIES[:2]) for trees in (5, 40))
    measure = "least factor of throughput from sk 0.1 to 0.9 on GScale and Equinix"
    yield Switched(FIG6.claims[6], _FEW_TREES, "up to 40 trees", measure, few, many, 1.0)


def _least_over(setting: Setting, other: str, options: tuple[tuple[str, object], ...] = ()) -> float:
    """MTREE's throughput over that of another scheme with these options, the least of all topologies and skewnesses."""

    def throughput(scheme: str, own: tuple[tuple[str, object], ...], topology: str, sk: float) -> float:
        calls = [(scheme, own, topology, sk, trial) for trial in _trials(setting)]
        return mean(setting.workers.map(scheme_trial, calls, f"reasons: {scheme}"))

    places = [(topology, sk) for topology in TOPOLOGIES for sk in (LEAST, MOST_SKEWED)]
    return min(throughput("mtree", (), *place) / throughput(other, options, *place) for place in places)


def _over_others(setting: Setting) -> Iterator[Switched]:
    measure = "least throughput of MTREE over BLINK's"
    few = _least_over(setting, "blink", (("max_trees", 2),))
    yield Switched(
        FIG6.claims[1], _KIND_BLINK, "a BLINK of two trees", measure, _least_over(setting, "blink"), few, 1.0
    )
    measure, before = "least throughput of MTREE over TOPOADOPT's", _least_over(setting, "topoadopt")
    for off, options in (("30 steps of annealing", (("iterations", 30),)), ("two trees", (("trees", 2),))):
        without = _least_over(setting, "topoadopt", options)
        yield Switched(FIG6.claims[2], _STEPS, off, measure, before, without, 1.0)


def pipelined_trial(scheme: str, options: tuple[tuple[str, object], ...], skewness: float, trial: int) -> float:
    """The time of a chunked all-reduce on GScale, in seconds."""
    network = instance("gscale", skewness, trial)
    plan = scheme_plan(scheme, network, **dict(options))
    return plan_seconds(plan, network, best_chunks(plan, network))


def _pipelined(setting: Setting) -> Iterator[Switched]:
    def least(trees: int) -> float:
        options = {"mtree": (), "blink": (("max_trees", trees),), "topoadopt": (("trees", trees),)}

        def ratio(sk: float) -> float:
            mtree, *others = (
                mean(
                    setting.workers.map(
                        pipelined_trial, [(name, o, sk, k) for k in _trials(setting)], "reasons: pipelined"
                    )
                )
                for name, o in options.items()
            )
            return min(others) / mtree

        return min(map(ratio, (LEAST, 0.5, MOST_SKEWED)))

    measure = "least time of the others on GScale over MTREE's"
    yield Switched(FIG8.claims[3], _WELL_CHOSEN, "two trees each", measure, least(5), least(2), 1.0)


def fan_out_trial(scheme: str, topology: str, skewness: float, trial: int) -> float:
    """The average over a plan's trees of the most children that a site has; `tall`: MTREE without ITH."""
    network = instance(topology, skewness, trial)
    if scheme != "tall":
        return mean([shard_shape(shard).fan_out for shard in scheme_plan(scheme, network).shards])
    graph = undirected_view(network, network.names, MIN_RATE_BPS)
    hops = np.ones(len(graph.ends))
    chosen = []
    for reading in READINGS:
        made = generate_trees(Growing(graph, hops, MIN_RATE_BPS, reading, 0), float(len(graph)))
        trees = tuple(dict.fromkeys(made.trees))
        chosen.append(choose_trees(trees, graph.capacity_bps, 10, MIN_RATE_BPS, SearchLimits(1, 10.0)))
    best = max(chosen, key=lambda choice: choice.total_bps)
    return mean([float(hang_from_centre(graph, tree, hops).max_fan_out) for tree in best.trees])


def _fan_out(setting: Setting) -> Iterator[Switched]:
    places = [(topology, sk) for topology in TOPOLOGIES[1:] for sk in (0.3, MOST_SKEWED)]

    def fan_out(scheme: str, topology: str, sk: float) -> float:
        calls = [(scheme, topology, sk, k) for k in _trials(setting, 3)]
        return mean(setting.workers.map(fan_out_trial, calls, "reasons: fan-outs"))

    def most(ours: str, others: tuple[str, ...]) -> float:
        return max(fan_out(ours, *place) / min(fan_out(other, *place) for other in others) for place in places)

    published = ("blink", "topoadopt")
    measure = "largest fan-out of MTREE over the least of the others, at most"
    before = most("mtree", published)
    yield Switched(
        FIG7.claims[3], _LOW_TREES, "no limit on the height", measure, before, most("tall", published), 1.0, True
    )
    yield Switched(
        FIG7.claims[3],
        "TOPOADOPT starts from random spanning trees, which are long and thin.",
        "BLINK alone beside MTREE",
        measure,
        before,
        most("mtree", ("blink",)),
        1.0,
        True,
    )


# --- Figures 9 and 10: the instance ----------------------------------------------------------------------------------


def chunking_gain(trial: int, topology: str, max_trees: int) -> tuple[float, int]:
    """How many times as long a reduction takes without chunks on a draw, and the number of trees."""
    network = instance(topology, SKEWNESS, trial)
    plan = scheme_plan("mtree", network, max_trees=max_trees)
    best = best_chunks(plan, network, broadcast=False)
    whole, chunked = (plan_seconds(plan, network, chunks, broadcast=False) for chunks in (None, best))
    return whole / chunked, len(plan.shards)


def _instance(setting: Setting) -> Iterator[Switched]:
    draws = setting.trial_numbers(published=20, quick=2)
    usual = setting.workers.map(chunking_gain, [(k, TOPOLOGY, 10) for k in draws], "reasons: draws")
    other, fewer = setting.workers.map(
        chunking_gain, [(0, "idn40-like", 10), (0, TOPOLOGY, 9)], "reasons: other instances"
    )
    claim, measure, needed = FIG10.claims[1], "unchunked over chunked time", 1 + MOST * 1.15
    before, trees = usual[0]
    most = max(gain for gain, _ in usual)
    yield Switched(claim, _OTHER_INSTANCE, f"the best of {len(draws)} draws", measure, before, most, needed)
    yield Switched(claim, _OTHER_INSTANCE, "idn40-like instead of equinix20-like", measure, before, other[0], needed)
    claim, measure = FIG9.claims[1], "the number of trees differs from 9 by"
    nearest = min(abs(count - 9) for _, count in usual)
    off = f"the nearest of {len(draws)} draws"
    yield Switched(claim, _OTHER_INSTANCE, off, measure, abs(trees - 9), nearest, 0.0, at_most=True)
    cause = "With K = 10 ten trees are used; the paper does not give its K."
    yield Switched(claim, cause, "K = 9", measure, abs(trees - 9), abs(fewer[1] - 9), 0.0, at_most=True)


# --- Figures 11 to 13: H and K ----------------------------------------------------------------------------------------


def _heights(setting: Setting) -> Iterator[Switched]:
    drawn = [(sk, k) for sk in SKEWNESSES for k in _trials(setting, 20)]  # the figures' own
    calls = [(t, sk, k, r, HEIGHTS) for t in TOPOLOGIES for r in READINGS for sk, k in drawn]
    results = dict(zip(calls, setting.workers.map(height_trial, calls, "reasons: heights"), strict=True))

    def at_heights(topology: str, reading: Reading, what: str) -> list[float]:
        several = [results[topology, sk, k, reading, HEIGHTS] for sk, k in drawn]
        return [mean([getattr(one[place], what) for one in several]) for place in range(len(HEIGHTS))]

    def trees(topology: str, reading: Reading) -> list[float]:
        return at_heights(topology, reading, "trees")

    def stops(topology: str, reading: Reading, first: int) -> bool:
        at = trees(topology, reading)[first:]
        return at[-1] <= at[-2] * 1.1 and at[0] <= at[-1] * 1.1

    places = [(topology, reading) for topology in TOPOLOGIES for reading in READINGS]
    low, loose = (mean([float(stops(*place, first)) for place in places]) for first in (0, 2))
    measure = "share of topologies and readings where the number of trees grows with H and stops"
    yield Switched(FIG11.claims[0], _THIN, "H from 4 on instead of from 2 on", measure, low, loose, 1.0)
    own = mean([float(stops(topology, "local", 0)) for topology in TOPOLOGIES])
    yield Switched(FIG11.claims[0], _GLOBAL, "the local reading alone", measure, low, own, 1.0)
    most = {r: max(max(trees(t, r)) / (7 if t == "gscale" else 12) for t in TOPOLOGIES) for r in READINGS}
    measure = "trees over the paper's number, at most"
    yield Switched(
        FIG11.claims[1], _GLOBAL, "the local reading alone", measure, most["global"], most["local"], 1.0, True
    )

    def throughput(topology: str, reading: Reading, low: int, high: int) -> float:
        found = at_heights(topology, reading, "throughput")
        return max(value for value, height in zip(found, HEIGHTS, strict=True) if low <= height <= high)

    six, eight = (min(throughput(*p, 0, h) / throughput(*p, 10, 10) for p in places) for h in (6, 8))
    cause = "On idn40-like and in the local reading trees of up to 7 or 8 hops still carry a little more."
    measure = "throughput of the best small H over that of H = 10 is at least"
    yield Switched(FIG12.claims[1], cause, "small meaning up to 8", measure, six, eight, 0.98)


def _counts(setting: Setting) -> Iterator[Switched]:
    trials = _trials(setting, 3)
    calls = [(t, 0.7, k, r, (10,)) for t in TOPOLOGIES for k in trials for r in READINGS]
    results = dict(zip(calls, setting.workers.map(count_trial, calls, "reasons: counts"), strict=True))
    used = {
        t: mean([max(results[t, 0.7, k, r, (10,)].throughput[0] for r in READINGS) for k in trials]) for t in TOPOLOGIES
    }
    limits = {
        t: mean(setting.workers.map(limit_trial, [(t, 0.7, k) for k in trials], "reasons: limits")) for t in TOPOLOGIES
    }
    shares = min(used[t] / limits[t] for t in TOPOLOGIES)
    measure = "share of the bandwidth with ten trees on every topology, at least"
    off = "the exact limit of each topology in place of sum(b)/(n-1)"
    yield Switched(FIG13.claims[1], _SPARSE, off, measure, min(used.values()), shares, 0.7)
    best = {t: used[t] / limits[t] for t in TOPOLOGIES}
    yield Switched(
        FIG6.claims[0],
        _SPARSE,
        off,
        "throughput with ten trees on every topology, at least",
        min(used.values()),
        min(best.values()),
        0.8,
    )
    drawn = [("equinix20-like", sk, k) for sk in SKEWNESSES for k in _trials(setting, 4)]
    slowest = {
        r: max(
            found.milp_s
            for found in setting.workers.map(count_trial, [(*one, r, COUNTS) for one in drawn], "reasons: programs")
        )
        for r in READINGS
    }
    measure = "seconds of processor time of the slowest program on equinix20-like"
    off = "the local reading, which offers few trees"
    yield Switched(FIG13.claims[2], _MANY_OFFERED, off, measure, slowest["global"], slowest["local"], 1.0, at_most=True)


REASONS = of_paper(
    "mtree",
    "MTREE",
    (
        _over_others,
        _annealed_falls,
        _blink_rises,
        _fan_out,
        _pipelined,
        _instance,
        _heights,
        _counts,
    ),
)
