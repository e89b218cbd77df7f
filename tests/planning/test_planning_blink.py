"""BLINK: the packing it chooses from, and the few trees it uses."""

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
from tradewind.planning.partition import weakest_partition
from tradewind.planning.plan import Plan
from tradewind.planning.trees.blink import pack_trees
from tradewind.planning.trees.undirected import hang, undirected_view


def blink(network: Network, members: tuple[str, ...] | None = None, **options: Any) -> Plan:
    return planner("blink").function(network, members or network.names, 10**9, planner_options("blink", options))


@settings(max_examples=30, deadline=None)
@given(network=networks(), epsilon=st.sampled_from((0.2, 0.5)))
def test_the_packing_fits_and_is_near_the_limit(network: Network, epsilon: float) -> None:
    try:
        graph = undirected_view(network, network.names)
    except InfeasiblePlan:
        return
    packing = pack_trees(graph, epsilon)
    load = np.zeros(len(graph.ends))
    for tree, rate in packing.items():
        assert len(hang(graph, tree, 0).links) == len(tree) == len(graph) - 1
        load[list(tree)] += rate
    assert (load <= graph.capacity_bps * (1 + 1e-9)).all()
    weight = np.zeros((len(graph), len(graph)))
    a, b = graph.ends.T
    weight[a, b] = weight[b, a] = graph.capacity_bps
    limit = weakest_partition(weight).rate
    assert (1 - epsilon) ** 2 * limit * (1 - 1e-6) <= sum(packing.values()) <= limit * (1 + 1e-6)


@settings(max_examples=15, deadline=None)
@given(problem=problems(max_sites=6), max_trees=st.integers(1, 5))
def test_at_most_so_many_trees_from_one_member_carry_what_they_promise(problem: Problem, max_trees: int) -> None:
    network, members, _ = problem
    try:
        plan = blink(network, members, max_trees=max_trees, search_nodes=1)
    except InfeasiblePlan:
        return
    assert check(plan, network) == ()
    assert 1 <= len(plan.shards) <= max_trees
    assert len({shard.root for shard in plan.shards}) == 1
    assert plan.shards[0].root in members
    assert plan.rate_bps is not None
    assert plan.rate_bps <= cost(plan, network).steady_rate_bps * (1 + 1e-9)


def test_five_trees_by_default_and_the_gap_in_the_reason() -> None:
    plan = blink(mtree_skewed(load_network("equinix20-like"), 0.7, 0))
    assert len(plan.shards) == 5
    assert "packed trees; the" in plan.reason


def test_more_trees_carry_more() -> None:
    network = mtree_skewed(load_network("gscale"), 0.5, 1)
    rates = [blink(network, max_trees=k).rate_bps or 0.0 for k in (1, 2, 5)]
    assert rates[0] < rates[1] < rates[2]


@pytest.mark.parametrize("options", [{"max_trees": 0}, {"epsilon": 0}, {"epsilon": 1}, {"time_limit_s": -1}])
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        blink(load_network("gscale"), **options)
