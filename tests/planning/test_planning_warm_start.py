"""Replanning from the trees of an earlier plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import Problem, problems
from tradewind.catalog import load_network
from tradewind.control.plans.versions import PlanWanted
from tradewind.errors import ImpossibleProblem
from tradewind.network import Network
from tradewind.planning import checked_plan, planner
from tradewind.planning.bound import bound
from tradewind.planning.check import check
from tradewind.planning.cost import cost
from tradewind.planning.plan import Plan
from tradewind.planning.shape import plan_shape
from tradewind.planning.trees.warm_start import FAR, replanned

NBYTES = 40_000_000


def with_changed_links(network: Network, seed: int, share: float = 0.1, most: float = 2.0) -> Network:
    """The network with this share of its links faster or slower by up to a factor."""
    rng = np.random.default_rng(seed)
    bandwidth = network.bandwidth_bps.copy()
    src, dst = np.nonzero(bandwidth)
    some = rng.choice(len(src), max(1, round(share * len(src))), replace=False)
    bandwidth[src[some], dst[some]] *= most ** rng.uniform(-1, 1, len(some))
    return network.with_bandwidth(bandwidth)


def from_trees(previous: Plan, network: Network) -> Plan | None:
    return replanned(network, previous.members, previous.nbytes, previous, lambda: False)


@pytest.mark.parametrize("sites", [6, 10])
def test_a_few_changed_links_lose_less_than_one_percent_and_keep_most_trees(sites: int) -> None:
    network = load_network("mesh", n=sites)
    previous = checked_plan("optimal", network, NBYTES)
    for seed in range(3):
        changed = with_changed_links(network, seed)
        again = checked_plan("optimal", changed, NBYTES, previous=previous)
        fresh = checked_plan("optimal", changed, NBYTES)
        assert cost(again, changed).steady_rate_bps >= 0.99 * cost(fresh, changed).steady_rate_bps
        assert again.planner == "optimal" and "as in the plan before" in again.reason
        kept = {(s.reduce, s.broadcast) for s in again.shards} & {(s.reduce, s.broadcast) for s in previous.shards}
        assert len(kept) >= len(previous.shards) / 3
        assert plan_shape(again).height <= plan_shape(previous).height


@given(problems(), st.integers(0, 99), st.sampled_from(["optimal", "ring", "mtree", "star", "relay", "all-to-all"]))
@settings(max_examples=40, deadline=None)
def test_whatever_the_plan_before_the_result_is_valid_and_near_the_limit_or_none(
    problem: Problem, seed: int, name: str
) -> None:
    network, members, _ = problem
    try:
        previous = checked_plan(name, network, NBYTES, members)
    except ImpossibleProblem:
        return
    changed = with_changed_links(network, seed, share=0.3, most=20.0)
    again = from_trees(previous, changed)
    if again is not None:
        assert check(again, changed) == ()
        limit_bps = bound(changed, previous.members, NBYTES).rate_bps
        assert cost(again, changed).steady_rate_bps >= (1 - FAR - 1e-6) * limit_bps


def test_trees_over_a_lost_link_are_left_out() -> None:
    network = load_network("mesh", n=6)
    previous = checked_plan("optimal", network, NBYTES)
    bandwidth = network.bandwidth_bps.copy()
    bandwidth[0, 1] = 0.0
    again = from_trees(previous, network.with_bandwidth(bandwidth))
    assert again is not None and check(again, network.with_bandwidth(bandwidth)) == ()


def test_a_plan_for_other_members_is_no_start() -> None:
    network = load_network("mesh", n=5)
    previous = checked_plan("optimal", network, NBYTES, network.names[:4])
    assert replanned(network, network.names, NBYTES, previous, lambda: False) is None
    assert checked_plan("optimal", network, NBYTES, previous=previous).members == network.names


def test_a_symmetric_network_stays_with_trees_that_are_used_both_ways() -> None:
    network = load_network("gscale")
    previous = checked_plan("optimal", network, NBYTES)
    bandwidth = network.bandwidth_bps.copy()
    bandwidth[bandwidth > 0] *= 1.5
    again = from_trees(previous, network.with_bandwidth(bandwidth))
    assert again is not None
    assert all(set(s.reduce) == {route[::-1] for route in s.broadcast} for s in again.shards)


def test_the_background_planner_starts_from_the_plan_in_use_only_if_it_is_of_the_same_planner() -> None:
    network = load_network("mesh", n=6)
    changed = with_changed_links(network, 1)
    for name, from_before in (("optimal", True), ("ring", False)):
        current = checked_plan(name, network, NBYTES)
        made = PlanWanted((current.members, NBYTES, "", 1), changed, "optimal", {}, current).make()
        assert made.plan is not None and ("as in the plan before" in made.plan.reason) is from_before
    assert planner("auto").takes_previous and not planner("ring").takes_previous
