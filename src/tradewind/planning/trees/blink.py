"""BLINK: pack spanning trees by multiplicative weights, then use a few of them (Wang et al., MLSys 2020).

Our interpretation. Blink packs trees from one root by the multiplicative-weights method for fractional packing: every
edge has a length that grows with its load, and each step adds the shortest spanning tree at its bottleneck's rate. That
gives many trees near the optimal total; an integer program then picks a few. CREW and MTREE, which compare with Blink,
use five trees chosen by a MILP, and so does this: the same program as MTREE's, without a least rate.

Blink bounds neither heights nor fan-outs. On symmetric links every root allows the same rate; of the members we take
the one that makes the highest tree lowest, which favours Blink.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree

from tradewind.network import Network
from tradewind.planning.plan import Plan
from tradewind.planning.trees.forest import forest_plan
from tradewind.planning.trees.tree_rates import SearchLimits, choose_trees
from tradewind.planning.trees.undirected import RootedTree, Tree, UndirectedGraph, hang, pruned, undirected_view
from tradewind.units import format_count

MAX_CANDIDATES = 128
"""Trees that the integer program chooses from at most: those that the packing gives the highest rates."""


@dataclass(frozen=True)
class BlinkOptions:
    """The number of trees, and how finely to pack."""

    max_trees: int = 5
    """The most trees to use."""
    epsilon: float = 0.5
    """Step of the packing: smaller is closer to the optimal total, but spreads it over more trees to choose from.
    At 0.5 the total is about 95% of the optimum and all trees can be considered."""
    search_nodes: int = 20
    """Branch-and-bound nodes that the choice of trees may take."""
    time_limit_s: float = 10.0
    """Seconds that the choice of trees may take: a safety net, reached only on very large networks."""

    def __post_init__(self) -> None:
        if self.max_trees < 1:
            raise ValueError(f"max_trees must be at least 1, got {self.max_trees}")
        if not 0.01 <= self.epsilon < 1:
            raise ValueError(f"epsilon must be at least 0.01 and below 1, got {self.epsilon}")
        if self.search_nodes < 1 or not self.time_limit_s > 0:
            raise ValueError("search_nodes must be at least 1 and time_limit_s above 0")


def plan_blink(network: Network, members: tuple[str, ...], nbytes: int, options: BlinkOptions) -> Plan:
    """A few spanning trees out of a multiplicative-weights packing, chosen by MILP (BLINK)."""
    graph = undirected_view(network, members)
    packing = pack_trees(graph, options.epsilon)
    by_rate = sorted(packing, key=lambda tree: (-packing[tree], tree))
    distinct = tuple(dict.fromkeys(pruned(graph, tree) for tree in by_rate))[:MAX_CANDIDATES]
    limits = SearchLimits(options.search_nodes, options.time_limit_s)
    choice = choose_trees(distinct, graph.capacity_bps, options.max_trees, 0.0, limits)
    reason = f"{len(choice.trees)} of {format_count(len(packing), 'packed tree')}; {choice.quality}"
    trees = hang_from_one_root(graph, choice.trees)
    return forest_plan("blink", network, members, nbytes, graph, trees, choice.rates_bps, reason)


def pack_trees(graph: UndirectedGraph, epsilon: float) -> dict[Tree, float]:
    """Spanning trees and rates that together load no edge beyond its capacity.

    The method of Garg and Koenemann. An edge's length starts at delta / capacity and grows by 1 + epsilon when its
    whole capacity is added; the method ends when the lengths weighted by capacity reach 1. Then the total is at
    least (1 - epsilon)^2 of the optimum, once all rates are divided by the worst overload.
    """
    n, m = len(graph), len(graph.ends)
    capacity = graph.capacity_bps
    length = (1 + epsilon) * ((1 + epsilon) * m) ** (-1 / epsilon) / capacity
    number_of = {(a, b): edge for edge, (a, b) in enumerate(graph.ends.tolist())}
    rates: dict[Tree, float] = {}
    load = np.zeros(m)
    while not rates or float(length @ capacity) < 1:
        shortest = minimum_spanning_tree(graph.adjacency(length)).tocoo()
        assert shortest.nnz == n - 1
        tree = tuple(sorted(number_of[a, b] for a, b in zip(shortest.row.tolist(), shortest.col.tolist(), strict=True)))
        edges = list(tree)
        rate = float(capacity[edges].min())
        length[edges] *= 1 + epsilon * rate / capacity[edges]
        load[edges] += rate
        rates[tree] = rates.get(tree, 0.0) + rate
    overload = float((load / capacity).max())
    return {tree: rate / overload for tree, rate in rates.items()}


def hang_from_one_root(graph: UndirectedGraph, trees: tuple[Tree, ...]) -> list[RootedTree]:
    """All trees hung from the member under which the highest of them is lowest, in hops."""
    hops = np.ones(len(graph.ends))
    hung = ([hang(graph, tree, int(root)) for tree in trees] for root in np.flatnonzero(graph.is_member))
    return min(hung, key=lambda forest: max(tree.height(hops) for tree in forest))
