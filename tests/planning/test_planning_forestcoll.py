"""`forestcoll`: forests that reach the limit of an all-gather, each way, and what that gives for an all-reduce."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from networks import networks
from tradewind.catalog import load_network
from tradewind.errors import BadOption, InfeasiblePlan
from tradewind.network import Link, Matrix, Network, Site
from tradewind.planning import checked_plan
from tradewind.planning.check import check
from tradewind.planning.cost import cost
from tradewind.planning.plan import Plan, Route

NBYTES = 100_000_000


def all_gather_limit_bps(bandwidth: Matrix) -> float:
    """N times the least capacity out of a set of members over their number, over all sets."""
    sites = range(len(bandwidth))
    sets = (list(chosen) for size in sites[1:] for chosen in combinations(sites, size))
    return len(bandwidth) * min(float(np.delete(bandwidth[s], s, axis=1).sum()) / len(s) for s in sets)


def phase_rate_bps(plan: Plan, network: Network, trees: list[tuple[Route, ...]]) -> float:
    """The rate at which one phase could run alone: what its busiest link allows."""
    load = np.zeros_like(network.bandwidth_bps)
    for shard, tree in zip(plan.shards, trees, strict=True):
        for src, dst in tree:
            load[network.index[src], network.index[dst]] += shard.fraction
    return float((network.bandwidth_bps[load > 0] / load[load > 0]).min())


@given(networks(max_sites=6))
@settings(max_examples=30, deadline=None)
def test_each_phase_reaches_the_limit_that_cuts_set_and_the_plan_no_more_than_optimal(network: Network) -> None:
    plan = checked_plan("forestcoll", network, NBYTES, trees_per_root=64)
    assert check(plan, network) == ()
    for trees, bandwidth in (
        ([shard.broadcast for shard in plan.shards], network.bandwidth_bps),
        ([shard.reduce for shard in plan.shards], network.bandwidth_bps.T),
    ):
        limit_bps = all_gather_limit_bps(bandwidth)
        assert 0.9 * limit_bps <= phase_rate_bps(plan, network, trees) <= limit_bps * (1 + 1e-6)
    best = checked_plan("optimal", network, NBYTES, gap=1e-6)
    rate_bps = cost(plan, network).steady_rate_bps
    assert plan.rate_bps == pytest.approx(rate_bps)
    assert rate_bps <= cost(best, network).steady_rate_bps * (1 + 1e-5)


def test_one_tree_a_root_is_optimal_where_all_links_are_equal() -> None:
    network = Network("equal", [Site(f"s{i}") for i in range(5)], 1e8 * (1 - np.eye(5)))
    plan = checked_plan("forestcoll", network, NBYTES)
    assert len(plan.shards) == 5 and {shard.root for shard in plan.shards} == set(network.names)
    assert cost(plan, network).steady_rate_bps == pytest.approx(2.5e8)


def test_it_uses_fewer_trees_than_optimal_and_loses_rate_by_its_equal_shares() -> None:
    network = load_network("mesh", n=8)
    forest, best = (
        checked_plan("forestcoll", network, NBYTES, trees_per_root=1),
        checked_plan("optimal", network, NBYTES),
    )
    assert len(forest.shards) == 8 < len(best.shards)
    ratio = cost(forest, network).steady_rate_bps / cost(best, network).steady_rate_bps
    assert 0.4 < ratio < 0.9
    more = checked_plan("forestcoll", network, NBYTES, trees_per_root=8)
    assert cost(more, network).steady_rate_bps > cost(forest, network).steady_rate_bps


def test_trees_of_a_symmetric_network_are_the_same_both_ways() -> None:
    plan = checked_plan("forestcoll", load_network("gscale"), NBYTES)
    assert all(set(s.reduce) == {route[::-1] for route in s.broadcast} for s in plan.shards)


def test_members_that_need_other_sites_are_refused() -> None:
    links = [Link(a, b, 1e8) for a, b in (("a", "h"), ("h", "a"), ("b", "h"), ("h", "b"))]
    network = Network.from_links("through a helper", [Site("a"), Site("h"), Site("b")], links)
    with pytest.raises(InfeasiblePlan, match="not members"):
        checked_plan("forestcoll", network, NBYTES, ["a", "b"])


@pytest.mark.parametrize("wrong", [{"trees_per_root": 0}, {"trees_per_root": 999}, {"gap": 1.0}])
def test_invalid_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        checked_plan("forestcoll", load_network("mesh", n=4), NBYTES, **wrong)
