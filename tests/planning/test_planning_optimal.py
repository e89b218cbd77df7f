"""`optimal`: reaches the limit where the limit is exact, proves its gap elsewhere, keeps its options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from networks import networks
from tradewind.catalog import load_network
from tradewind.catalog.generators import mtree_skewed
from tradewind.errors import BadOption, DisconnectedMembers, InfeasiblePlan
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.bound import bound
from tradewind.planning.cost import cost
from tradewind.planning.plan import Plan
from tradewind.planning.shape import plan_shape

NBYTES = 100_000_000


def steady_rate_bps(plan: Plan, network: Network) -> float:
    return cost(plan, network).steady_rate_bps


@given(networks())
@settings(max_examples=40)
def test_it_reaches_the_exact_limit_of_every_symmetric_network(network: Network) -> None:
    symmetric = network.symmetric()
    try:
        plan = make_plan("optimal", symmetric, NBYTES, gap=1e-6)
    except DisconnectedMembers:  # one-way links are gone in the symmetric view, and the network may fall apart
        return
    limit = bound(symmetric, plan.members, NBYTES)
    if limit.exact:
        assert steady_rate_bps(plan, symmetric) == pytest.approx(limit.rate_bps, rel=2e-6)


@given(networks())
@settings(max_examples=40)
def test_its_own_proof_is_met_on_directed_networks_with_nics_and_trunks(network: Network) -> None:
    plan = make_plan("optimal", network, NBYTES, gap=1e-6)
    assert plan.proven_rate_bps is not None
    rate = steady_rate_bps(plan, network)
    assert rate == pytest.approx(plan.proven_rate_bps, rel=2e-6)
    assert rate <= bound(network, plan.members, NBYTES).rate_bps * (1 + 1e-6)
    assert plan.rate_bps == pytest.approx(rate, rel=1e-6)


def test_the_papers_topologies_are_filled_to_the_limit_with_proof() -> None:
    for name in ("gscale", "equinix20-like", "idn40-like"):
        network = mtree_skewed(load_network(name), 0.7, 1)
        plan = make_plan("optimal", network, NBYTES, gap=1e-6)
        assert steady_rate_bps(plan, network) == pytest.approx(bound(network, plan.members, NBYTES).rate_bps, rel=1e-6)
        assert "which is the limit" in plan.reason


def test_height_limits_are_kept_in_hops_and_in_milliseconds() -> None:
    network = mtree_skewed(load_network("equinix20-like"), 0.7, 1)
    low = make_plan("optimal", network, NBYTES, max_height=3, gap=1e-3)
    assert plan_shape(low).height <= 3
    assert steady_rate_bps(low, network) >= 0.99 * bound(network, low.members, NBYTES).rate_bps
    limit_s = 0.9
    near = make_plan("optimal", network, NBYTES, max_height=1000 * limit_s, height_in="ms")
    for shard in near.shards:
        above = {route[0]: route[1] for route in shard.reduce}
        for site in above:
            latency, at = 0.0, site
            while at != shard.root:
                latency += network.link(at, above[at]).latency_s
                at = above[at]
            assert latency <= limit_s * (1 + 1e-9)


def test_a_height_that_no_tree_can_keep_is_refused() -> None:
    with pytest.raises(InfeasiblePlan, match="max_height 1 hops"):
        make_plan("optimal", load_network("gscale"), NBYTES, max_height=1)


def test_few_trees_are_few_and_better_than_the_strongest_of_many() -> None:
    network = load_network("mesh", n=7, seed=3, symmetric=True)
    everything = make_plan("optimal", network, NBYTES)
    few = make_plan("optimal", network, NBYTES, max_trees=3, attempts=1)
    assert len(few.shards) <= 3
    strongest = sorted((shard.rate_bps or 0.0 for shard in everything.shards), reverse=True)[:3]
    assert steady_rate_bps(few, network) > 1.5 * sum(strongest)
    assert few == make_plan("optimal", network, NBYTES, max_trees=3, attempts=1)  # the search is seeded


def test_few_trees_on_a_directed_network_with_a_height_limit() -> None:
    network = load_network("mesh", n=5, seed=1, symmetric=False)
    few = make_plan("optimal", network, NBYTES, max_trees=2, max_height=2, attempts=1)
    assert len(few.shards) <= 2
    assert plan_shape(few).height <= 2
    assert steady_rate_bps(few, network) > 0.5 * bound(network, few.members, NBYTES).rate_bps


def test_when_the_time_is_up_the_best_so_far_is_returned_with_its_gap() -> None:
    network = load_network("ec2-hotcloud18")
    ticks = iter(range(10**6))
    hurried = make_plan("optimal", network, NBYTES, clock=lambda: float(next(ticks)), time_limit_s=20)
    assert "below the proven limit" in hurried.reason
    assert steady_rate_bps(hurried, network) < (hurried.proven_rate_bps or 0.0)


def test_members_are_served_through_sites_that_are_not_members() -> None:
    line = Network(
        "line", [Site("a"), Site("m"), Site("b"), Site("x")],
        [[0, 1e6, 0, 0], [1e6, 0, 1e6, 1e6], [0, 1e6, 0, 0], [0, 1e6, 0, 0]],
    )  # fmt: skip
    plan = make_plan("optimal", line, NBYTES, ["a", "b"])
    assert {site for shard in plan.shards for route in shard.reduce for site in route} == {"a", "m", "b"}
    assert steady_rate_bps(plan, line) == pytest.approx(1e6)


@pytest.mark.parametrize(
    "wrong",
    [{"max_trees": 0}, {"max_height": -1}, {"height_in": "miles"}, {"gap": 2}, {"time_limit_s": 0}, {"trees": 3}],
)
def test_invalid_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        make_plan("optimal", load_network("gscale"), NBYTES, **wrong)


def test_a_dense_mesh_is_solved_by_the_interior_point_method() -> None:
    rng = np.random.default_rng(4)
    upper = np.triu(rng.integers(20, 156, (38, 38)) * 1e6, 1)
    network = Network("mesh", [Site(f"s{i:02}") for i in range(38)], upper + upper.T)
    plan = make_plan("optimal", network, NBYTES, gap=1e-3)
    assert steady_rate_bps(plan, network) >= (1 - 1e-3) * bound(network, plan.members, NBYTES).rate_bps
