"""TOPOADOPT: its moves stay among spanning trees, and annealing only ever keeps the best it saw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import Problem, networks, problems
from tradewind.catalog import load_network
from tradewind.catalog.generators import mtree_skewed
from tradewind.errors import BadOption, InfeasiblePlan
from tradewind.network import Network
from tradewind.planning import planner, planner_options
from tradewind.planning.check import check
from tradewind.planning.cost import cost
from tradewind.planning.plan import Plan
from tradewind.planning.trees.topoadopt import TopoadoptOptions, anneal, swap_edge
from tradewind.planning.trees.tree_rates import SearchLimits, best_rates, choose_trees
from tradewind.planning.trees.undirected import hang, spanning_tree, undirected_view


def topoadopt(network: Network, members: tuple[str, ...] | None = None, **options: Any) -> Plan:
    chosen = planner_options("topoadopt", options)
    return planner("topoadopt").function(network, members or network.names, 10**9, chosen)


@settings(max_examples=40, deadline=None)
@given(network=networks(min_sites=3), seed=st.integers(0, 100))
def test_a_move_swaps_one_edge_and_keeps_a_spanning_tree(network: Network, seed: int) -> None:
    try:
        graph = undirected_view(network, network.names)
    except InfeasiblePlan:
        return
    if len(graph.ends) == len(graph) - 1:
        return
    rng = np.random.default_rng(seed)
    tree = spanning_tree(graph, rng.permutation(len(graph.ends)).tolist())
    moved = swap_edge(graph, tree, rng)
    assert len(set(tree) - set(moved)) == len(set(moved) - set(tree)) == 1
    assert len(hang(graph, moved, 0).links) == len(graph) - 1


@settings(max_examples=20, deadline=None)
@given(problem=problems(max_sites=6), trees=st.integers(1, 4), seed=st.integers(0, 5))
def test_plans_are_valid_and_carry_what_they_promise(problem: Problem, trees: int, seed: int) -> None:
    network, members, _ = problem
    try:
        plan = topoadopt(network, members, trees=trees, iterations=10, seed=seed)
    except InfeasiblePlan:
        return
    assert check(plan, network) == ()
    assert 1 <= len(plan.shards) <= trees
    assert plan.rate_bps is not None
    assert plan.rate_bps <= cost(plan, network).steady_rate_bps * (1 + 1e-9)


def test_annealing_is_never_worse_than_its_start_and_repeats_itself() -> None:
    graph_of = mtree_skewed(load_network("equinix20-like"), 0.7, 0)
    graph = undirected_view(graph_of, graph_of.names)
    start = anneal(graph, TopoadoptOptions(iterations=0, seed=3))
    once, again = (anneal(graph, TopoadoptOptions(iterations=60, seed=3)) for _ in range(2))
    assert once == again
    assert once.total_bps > start.total_bps
    assert anneal(graph, TopoadoptOptions(iterations=60, seed=4)) != once


def test_the_workload_program_agrees_with_the_choice_program() -> None:
    network = mtree_skewed(load_network("gscale"), 0.9, 0)
    graph = undirected_view(network, network.names)
    rng = np.random.default_rng(0)
    trees = [spanning_tree(graph, rng.permutation(len(graph.ends)).tolist()) for _ in range(5)]
    chosen = choose_trees(trees, graph.capacity_bps, len(trees), 0.0, SearchLimits(1000, 60.0))
    assert best_rates(trees, graph.capacity_bps).total_bps == pytest.approx(chosen.total_bps, rel=1e-4)


def test_a_network_that_is_a_tree_leaves_nothing_to_anneal() -> None:
    network = load_network("gscale").subnetwork(("AS1", "US1", "US2"))
    plan = topoadopt(network)
    assert check(plan, network) == ()
    assert len(plan.shards) == 1


@pytest.mark.parametrize("options", [{"trees": 0}, {"trees": 65}, {"iterations": -1}, {"seed": -1}])
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        topoadopt(load_network("gscale"), **options)
