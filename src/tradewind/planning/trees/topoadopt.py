"""TOPOADOPT: trees and workload by simulated annealing (Luo et al., ICENAT 2022).

Our interpretation. The paper is known to us through its descriptions in MTREE and CREW: which trees to use and how much
each carries is one nonlinear mixed-integer program, solved by simulated annealing, without pipelining. Here a state is
a set of spanning trees, started at random; a step swaps one edge of one tree for another that keeps it a tree; a state
is worth the largest total rate that its trees can carry together, an LP. Number of trees, steps and cooling are not
published: five trees, as many as CREW gives BLINK, and a geometric cooling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tradewind.network import Network
from tradewind.planning.plan import Plan
from tradewind.planning.trees.forest import forest_plan
from tradewind.planning.trees.tree_rates import TreeChoice, best_rates
from tradewind.planning.trees.undirected import (
    Tree,
    UndirectedGraph,
    hang,
    hang_from_centre,
    pruned,
    spanning_tree,
    undirected_view,
)
from tradewind.units import format_count

HOTTEST = 0.1
COLDEST = 0.001
"""Temperature at the start and at the end, as a share of the first state's rate: a loss of 10% is accepted now and
then at first, one of 1% practically never at the end."""


@dataclass(frozen=True)
class TopoadoptOptions:
    """The number of trees, and the length of the annealing."""

    trees: int = 5
    """The number of trees."""
    iterations: int = 300
    """Steps of the annealing: each costs about a millisecond."""
    seed: int = 0
    """Seed of the annealing."""

    def __post_init__(self) -> None:
        if not 1 <= self.trees <= 64:
            raise ValueError(f"trees must be from 1 to 64, got {self.trees}")
        if not 0 <= self.iterations <= 1_000_000:
            raise ValueError(f"iterations must be from 0 to a million, got {self.iterations}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")


def plan_topoadopt(network: Network, members: tuple[str, ...], nbytes: int, options: TopoadoptOptions) -> Plan:
    """Spanning trees found by simulated annealing, with rates by LP (TOPOADOPT)."""
    graph = undirected_view(network, members)
    choice = anneal(graph, options)
    hops = np.ones(len(graph.ends))
    trees = [hang_from_centre(graph, tree, hops) for tree in choice.trees]
    reason = f"{format_count(len(trees), 'tree')} after {format_count(options.iterations, 'step')} of annealing"
    return forest_plan("topoadopt", network, members, nbytes, graph, trees, choice.rates_bps, reason)


def anneal(graph: UndirectedGraph, options: TopoadoptOptions) -> TreeChoice:
    """The best state that the annealing visits; it ends early at a state that is known to be optimal."""
    rng = np.random.default_rng(options.seed)
    edges = len(graph.ends)
    state = [spanning_tree(graph, rng.permutation(edges).tolist()) for _ in range(options.trees)]
    known: dict[frozenset[Tree], TreeChoice] = {}
    value = best = _value(graph, state, known)
    scale, ceiling = value.total_bps, _ceiling_bps(graph)
    for step in range(options.iterations):
        if best.total_bps >= ceiling * (1 - 1e-9) or edges == len(graph) - 1:
            break
        temperature = scale * HOTTEST * (COLDEST / HOTTEST) ** (step / options.iterations)
        i = int(rng.integers(len(state)))
        moved = [*state[:i], swap_edge(graph, state[i], rng), *state[i + 1 :]]
        worth = _value(graph, moved, known)
        gain = worth.total_bps - value.total_bps
        if gain >= 0 or rng.random() < math.exp(gain / temperature):
            state, value = moved, worth
            best = max(best, value, key=lambda choice: choice.total_bps)
    return best


def _value(graph: UndirectedGraph, state: list[Tree], known: dict[frozenset[Tree], TreeChoice]) -> TreeChoice:
    """The value of a state, cached because on small networks the annealing often revisits states."""
    trees = sorted({pruned(graph, tree) for tree in state})
    key = frozenset(trees)
    if key not in known:
        known[key] = best_rates(trees, graph.capacity_bps)
    return known[key]


def _ceiling_bps(graph: UndirectedGraph) -> float:
    """No trees carry more than the links of the least connected member, or all links shared among all members."""
    at_site = np.zeros(len(graph))
    for side in graph.ends.T:
        np.add.at(at_site, side, graph.capacity_bps)
    spread = graph.capacity_bps.sum() / (graph.is_member.sum() - 1)
    return float(min(at_site[graph.is_member].min(), spread))


def swap_edge(graph: UndirectedGraph, tree: Tree, rng: np.random.Generator) -> Tree:
    """A neighbouring tree: a random edge from outside comes in, a random edge of the cycle it closes goes out."""
    outside = np.setdiff1d(np.arange(len(graph.ends)), tree)
    added = int(rng.choice(outside))
    a, b = graph.ends[added].tolist()
    above = {child: (parent, edge) for parent, child, edge in hang(graph, tree, a).links}
    cycle = []
    while b != a:
        b, edge = above[b]
        cycle.append(edge)
    removed = int(rng.choice(cycle))
    return tuple(sorted({*tree, added} - {removed}))
