"""DS-Sync's Table II: the paper's cost formula of each method, and the time that the method takes here.

N workers in C racks of G; a byte takes beta_1 inside a rack and beta_2 between racks, a message the latency alpha. The
formulas are for one synchronisation (L = 1) of S bytes with one parameter server (P = 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from tradewind.catalog import load_network
from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.ds_sync.tables import COMPUTE_S, DS_SYNC, GOSSIP, METHODS, MODELS, steady_periods_s
from tradewind.experiments.papers.report import SAME, Claim, Outcome, Switched, mean, verdict_of
from tradewind.figures.chart import Panel, Series
from tradewind.network import Network
from tradewind.planning import planner, planner_options
from tradewind.planning.cost import cost
from tradewind.planning.host import FREE_HOST
from tradewind.planning.plan import DEFAULT_CHUNK_BYTES, Plan
from tradewind.planning.routes import Routes, tree_shard
from tradewind.sim import simulate

NBYTES = MODELS[0].nbytes
NIC_GBPS, UPLINK_GBPS, LATENCY_MS = 20.0, 10.0, 0.05
FAST_GBPS = 2000.0
"""Rate of NICs that take no time, beside those uplinks."""
PS, RING, DOUBLE_TREE, HIERARCHICAL = "PS", "Ring", "Double tree", "Hierarchical"


class Racks(NamedTuple):
    """C racks of G workers."""

    racks: int
    workers: int

    @property
    def label(self) -> str:
        """The label in tables."""
        return f"{self.racks} racks of {self.workers}"


def rack_network(racks: Racks) -> Network:
    """The racks as a network: NICs of 20 Gbps, and uplinks on which background jobs leave 10 Gbps."""
    return load_network(
        "ds-sync-racks",
        hosts=(racks.workers,) * racks.racks,
        link_gbps=NIC_GBPS,
        oversubscription=racks.workers * NIC_GBPS / UPLINK_GBPS,
        latency_ms=LATENCY_MS,
    )


# --- the formulas -----------------------------------------------------------------------------------------


def paper_costs(racks: Racks, nic_gbps: float = NIC_GBPS) -> dict[str, float]:
    """Seconds by the paper's Table II, latency and transfer together."""
    c, g = racks
    n = c * g
    alpha, inside, between = LATENCY_MS / 1e3, 8 * NBYTES / (nic_gbps * 1e9), 8 * NBYTES / (UPLINK_GBPS * 1e9)
    chunks, depth = NBYTES / DEFAULT_CHUNK_BYTES, math.log2(n)
    return {
        PS: 2 * (n - 1) * alpha + 2 * ((c - 1) * g * between + (g - 1) * inside),
        RING: 2 * (n - 1) * alpha + 2 * (n - 1) * between / n,
        # The table's latency of k consecutive chunks, 2 k alpha, is left out: chunks follow each other without a pause.
        DOUBLE_TREE: 2 * depth * alpha + 2 * (depth + chunks) * between / chunks,
        HIERARCHICAL: 2 * (g + c - 2) * alpha + 2 * (g - 1) * inside / g + 2 * (c - 1) * between / c,
        GOSSIP: 2 * alpha + 4 * between,
        DS_SYNC: max(2 * alpha + 2 * between, 2 * (g - 1) * alpha + 2 * (g - 2) * inside / (g - 1)),
    }


# --- simulated times --------------------------------------------------------------------------------------


def double_tree(network: Network) -> Plan:
    """A plan of two trees with half of the data each: binary inside each rack, and binary between the racks' roots."""
    racks: dict[str | None, list[str]] = {}
    for site in network.sites:
        racks.setdefault(site.zone, []).append(site.name)
    routes = Routes(network)
    shards = []
    for turned in (False, True):
        groups = [rack[::-1] if turned else rack for rack in racks.values()]
        tops = [group[0] for group in (groups[::-1] if turned else groups)]
        parents: dict[str, str] = {}
        for heap in (*groups, tops):
            parents |= {heap[k]: heap[(k - 1) // 2] for k in range(1, len(heap))}
        shards.append(tree_shard(routes, NBYTES, 0.5, tops[0], parents, parents))
    return Plan("double-tree", network.name, network.names, NBYTES, tuple(shards))


def _planned(name: str, **options: object) -> Callable[[Network], Plan]:
    return lambda network: planner(name).function(network, network.names, NBYTES, planner_options(name, options))


_PLANS: dict[str, Callable[[Network], Plan]] = {
    PS: _planned("star"),
    RING: _planned("ring"),
    DOUBLE_TREE: double_tree,
    HIERARCHICAL: _planned("hierarchical", intra="ring"),
}


def round_trial(method: str, racks: Racks, pipelined: bool) -> float:
    """The time of one round of all workers, in seconds."""
    network = rack_network(racks)
    return cost(_PLANS[method](network), network, pipelined, FREE_HOST).seconds


def without_inside(method: str, racks: Racks) -> float:
    """Whole messages' time over the formula's where links inside racks take no time: only the uplinks are left."""
    c, g = racks
    network = load_network(
        "ds-sync-racks",
        hosts=(g,) * c,
        link_gbps=FAST_GBPS,
        oversubscription=g * FAST_GBPS / UPLINK_GBPS,
        latency_ms=LATENCY_MS,
    )
    return cost(_PLANS[method](network), network, False, FREE_HOST).seconds / paper_costs(racks, FAST_GBPS)[method]


def one_way_at_a_time(racks: Racks) -> float:
    """A double tree's time over the formula's where results are sent after all sums, not at the same time."""
    network = rack_network(racks)
    plan = double_tree(network)
    sums = replace(plan, shards=tuple(replace(shard, broadcast=()) for shard in plan.shards))
    results = replace(plan, shards=tuple(replace(shard, reduce=()) for shard in plan.shards))
    seconds = sum(cost(half, network, True, FREE_HOST).seconds for half in (sums, results))
    return seconds / paper_costs(racks)[DOUBLE_TREE]


def group_trial(method: str, racks: Racks, pipelined: bool, trial: int) -> float:
    """Seconds of an iteration beyond its computation, with concurrent rounds of changing groups."""
    scheme = METHODS[method]
    result = simulate(
        rack_network(racks),
        scheme,
        60 * COMPUTE_S,
        seed=trial,
        compute=COMPUTE_S,
        nbytes=NBYTES,
        execution="pipelined" if pipelined else "store-and-forward",
        discipline="fs",
        record="rounds",
    )
    assert result.trace is not None
    return mean(list(steady_periods_s(result.trace).values())) - COMPUTE_S


# --- the table --------------------------------------------------------------------------------------------

_CLAIMS = (
    "The formulas of PS, Ring and Hierarchical all-reduce are what whole messages take.",
    "A double tree takes about twice the model's time over the bottleneck.",
    "Gossip takes four times the model's time over the bottleneck, or more.",
    "DS-Sync costs the least of the six where the links between racks are the bottleneck.",
)
_METHODS = (*_PLANS, GOSSIP, DS_SYNC)
SHAPES = (Racks(2, 4), Racks(4, 4), Racks(4, 8))
Found = dict[tuple[str, Racks], tuple[float, float, float]]
"""Seconds by method and racks: by the formula, with whole messages, pipelined."""


def _run(setting: Setting) -> Outcome:
    shapes = SHAPES[:2] if setting.quick else SHAPES
    rounds = [(method, shape, pipelined) for method in _PLANS for shape in shapes for pipelined in (False, True)]
    trials = setting.trial_numbers()
    groups = [
        (method, shape, pipelined, trial)
        for method in (GOSSIP, DS_SYNC)
        for shape in shapes
        for pipelined in (False, True)
        for trial in (trials if method == GOSSIP else trials[:1])
    ]
    took: dict[tuple[str, Racks, bool], list[float]] = {}
    for call, seconds in zip(rounds, setting.workers.map(round_trial, rounds, "ds-sync/table2: rounds"), strict=True):
        took[call] = [seconds]
    found_groups = setting.workers.map(group_trial, groups, "ds-sync/table2: groups")
    for (method, shape, pipelined, _), seconds in zip(groups, found_groups, strict=True):
        took.setdefault((method, shape, pipelined), []).append(seconds)
    found: Found = {
        (method, shape): (paper_costs(shape)[method], mean(took[method, shape, False]), mean(took[method, shape, True]))
        for shape in shapes
        for method in _METHODS
    }
    return Outcome(
        columns=("method", "racks", "formula ms", "whole messages ms", "pipelined ms", "whole / formula"),
        rows=tuple(
            (method, shape.label, *(1e3 * seconds for seconds in times), times[1] / times[0])
            for (method, shape), times in found.items()
        ),
        panels=tuple(_panel(found, shape) for shape in shapes),
        claims=_judge(found, shapes),
        switched=_switched(found, shapes),
        notes=(
            f"S = {NBYTES / 1e6:.0f} MB (WideResNet-28-10), NICs of {NIC_GBPS:g} Gbps, uplinks of which "
            f"{UPLINK_GBPS:g} Gbps are left, {LATENCY_MS:g} ms a hop; links carry both directions at once.",
            "Rounds of all workers are computed alone; gossip and DS-Sync are simulated, as their groups run at the "
            "same time, and their time is an average over iterations.",
        ),
    )


def _panel(found: Found, shape: Racks) -> Panel:
    at = tuple(float(k) for k in range(len(_METHODS)))
    series = (
        Series(label, at, tuple(found[method, shape][k] for method in _METHODS))
        for k, label in enumerate(("the paper's formula", "whole messages", "pipelined"))
    )
    return Panel(shape.label, "", "time, s", tuple(series), categories=_METHODS, log_y=True)


_AT_ONCE = "PS's and Hierarchical's formulas add what runs at the same time: transfers inside and between racks."
_BOTH_WAYS = "Links carry sums and results at the same time, in opposite directions."


def _ratios(found: Found, shapes: tuple[Racks, ...], method: str, k: int) -> list[float]:
    """A method's time (1: whole messages, 2: pipelined) over its formula, by racks."""
    return [found[method, shape][k] / found[method, shape][0] for shape in shapes]


def _switched(found: Found, shapes: tuple[Racks, ...]) -> tuple[Switched, ...]:
    """The causes of differences that one more computation of the table switches off."""
    exact = min(ratio for method in (PS, HIERARCHICAL) for ratio in _ratios(found, shapes, method, 1))
    alone = min(without_inside(method, shape) for method in (PS, HIERARCHICAL) for shape in shapes)
    trees = min(_ratios(found, shapes, DOUBLE_TREE, 2))
    in_turn = min(map(one_way_at_a_time, shapes))
    least = "the least time over the formula's"
    return (
        Switched(_CLAIMS[0], _AT_ONCE, "links inside racks that take no time", f"{least} is", exact, alone, 1 - SAME),
        Switched(
            _CLAIMS[1], _BOTH_WAYS, "results that are sent after all sums", f"{least} is", trees, in_turn, 1 - SAME
        ),
    )


def _judge(found: Found, shapes: tuple[Racks, ...]) -> tuple[Claim, ...]:
    exact = {method: _ratios(found, shapes, method, 1) for method in (PS, RING, HIERARCHICAL)}
    trees, gossip = (_ratios(found, shapes, method, 2) for method in (DOUBLE_TREE, GOSSIP))
    formula = [min(_METHODS, key=lambda m: found[m, shape][0]) for shape in shapes]
    behind = [min(found[m, shape][2] for m in _METHODS if m != DS_SYNC) / found[DS_SYNC, shape][2] for shape in shapes]
    return (
        Claim(
            _CLAIMS[0],
            "; ".join(f"{method} {min(seen):.2f} to {max(seen):.2f} of it" for method, seen in exact.items()),
            verdict_of(abs(ratio - 1) <= SAME for seen in exact.values() for ratio in seen),
            f"Holds within 10%. {_AT_ONCE}",
        ),
        Claim(
            _CLAIMS[1],
            f"pipelined {min(trees):.2f} to {max(trees):.2f} of it",
            verdict_of(abs(ratio - 1) <= SAME for ratio in trees),
            _BOTH_WAYS,
        ),
        Claim(
            _CLAIMS[2],
            f"pipelined {min(gossip):.2f} to {max(gossip):.2f} of it on average",
            verdict_of(ratio >= 1 for ratio in gossip),
            "It counts two exchanges that cross at once and both directions one after the other. Some iterations are "
            "like that; in others most pairs are inside a rack.",
        ),
        Claim(
            _CLAIMS[3],
            f"least by formula: {', '.join(dict.fromkeys(formula))}; pipelined, the best other method takes "
            f"{min(behind):.2f} to {max(behind):.2f} times as long",
            verdict_of([*(method == DS_SYNC for method in formula), *(ratio > 1 for ratio in behind)]),
            "By the formulas a pair sends 2S, but two workers need S each way. With all uplinks equally contended none "
            "is set apart, and the representatives of four racks make one ring.",
        ),
    )


TABLE2 = Experiment("ds-sync/table2", "DS-Sync Table II: communication costs", _CLAIMS, _run)
