"""Plans of every collective: valid by every planner, never faster than their limit, and near it by `optimal`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import Problem, problems
from tradewind.errors import BadOption, ImpossibleProblem
from tradewind.network import Network, Site, Trunk
from tradewind.planning import checked_plan, make_plan
from tradewind.planning.bound import bound
from tradewind.planning.check import check
from tradewind.planning.collective import KINDS, Collective, Kind, demands_of
from tradewind.planning.cost import cost
from tradewind.planning.halves import derive_plan
from tradewind.planning.host import FREE_HOST, FREE_OPTIONS
from tradewind.planning.plan import Plan, plan_from_json, plan_to_json

OTHERS: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind != "all-reduce")
PLANNERS = ("ring", "star", "multi-star", "all-to-all", "spanning-tree", "hierarchical", "scatter", "fapt", "relay")


def mesh(n: int, mbps: float, **site: float) -> Network:
    bandwidth = np.full((n, n), mbps * 1e6)
    np.fill_diagonal(bandwidth, 0)
    return Network("mesh", [Site(f"s{i}", **site) for i in range(n)], bandwidth)  # type: ignore[arg-type]


def random_mesh(seed: int, n: int) -> Network:
    bandwidth = np.random.default_rng(seed).uniform(20e6, 155e6, (n, n))
    np.fill_diagonal(bandwidth, 0)
    return Network("drawn", [Site(f"s{i}") for i in range(n)], bandwidth)


def of(kind: Kind, root: str) -> Collective:
    return Collective.parse(kind, root)


# --- every plan ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(problems(max_sites=7), st.sampled_from(OTHERS), st.sampled_from(PLANNERS), st.integers(0, 6))
def test_halves_of_every_planner_are_valid_and_not_faster_than_the_limit(
    problem: Problem, kind: Kind, planner: str, place: int
) -> None:
    network, members, nbytes = problem
    collective = of(kind, members[place % len(members)])
    try:
        plan = checked_plan(planner, network, nbytes, members, collective=collective)
    except ImpossibleProblem:
        return
    assert plan.collective == collective
    assert not check(plan, network)
    _is_not_faster_than_its_limit(plan, network)


@settings(max_examples=60, deadline=None)
@given(problems(max_sites=7), st.sampled_from(OTHERS), st.integers(0, 6))
def test_optimal_plans_of_collectives_are_valid_and_not_faster_than_the_limit(
    problem: Problem, kind: Kind, place: int
) -> None:
    network, members, nbytes = problem
    collective = of(kind, members[place % len(members)])
    free: dict[str, Any] = FREE_OPTIONS
    plan = checked_plan("optimal", network, nbytes, members, collective=collective, **free)
    _is_not_faster_than_its_limit(plan, network)
    limit = bound(network, members, nbytes, collective)
    assert plan.proven_rate_bps is not None
    steady_bps = cost(plan, network, host=FREE_HOST).steady_rate_bps
    assert steady_bps <= min(plan.proven_rate_bps, limit.rate_bps) * (1 + 1e-6)


def _is_not_faster_than_its_limit(plan: Plan, network: Network) -> None:
    limit = bound(network, plan.members, plan.nbytes, plan.collective)
    for pipelined in (True, False):
        assert cost(plan, network, pipelined, FREE_HOST).seconds >= limit.seconds * (1 - 1e-6)
    assert {name for part in limit.parts for name in part} == set(network.names)


# --- limits, by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "rate_mbps"),
    [
        ("broadcast", 300),  # each receives over 3 links
        ("reduce", 300),
        ("all-gather", 400),  # each receives 3/4 over 3 links
        ("reduce-scatter", 400),
        ("gather", 400),
        ("scatter", 400),
        ("all-to-all", 400),  # each sends 3/4 over 3 links
    ],
)
def test_limits_of_a_uniform_mesh(kind: Kind, rate_mbps: float) -> None:
    network = mesh(4, 100)
    limit = bound(network, network.names, 10**6, of(kind, "s1"))
    assert limit.rate_bps == pytest.approx(rate_mbps * 1e6)
    assert limit.exact == (kind != "all-to-all")


def test_the_limit_of_a_reduce_is_that_of_a_broadcast_on_the_reversed_network() -> None:
    network = random_mesh(3, 6)
    reduced = bound(network, network.names, 10**6, Collective("reduce", "s2"))
    sent = bound(network.reversed(), network.names, 10**6, Collective("broadcast", "s2"))
    assert (reduced.seconds, reduced.rate_bps) == (sent.seconds, sent.rate_bps)
    assert "must reach" in reduced.argument
    assert "must leave" in sent.argument


def test_a_trunk_limits_what_leaves_its_zone() -> None:
    bandwidth = np.full((4, 4), 1e9)
    np.fill_diagonal(bandwidth, 0)
    sites = [Site(f"s{i}", zone="ab"[i // 2]) for i in range(4)]
    network = Network("racks", sites, bandwidth, trunks=[Trunk("up", "a", "*", 50e6)])
    assert bound(network, network.names, 10**6, Collective("all-gather")).rate_bps == pytest.approx(100e6)
    assert bound(network, network.names, 10**6, Collective("broadcast", "s3")).rate_bps > 1e9


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", OTHERS)
def test_optimal_reaches_nearly_the_limit_of_large_tensors(kind: Kind, seed: int) -> None:
    network = random_mesh(seed, 5)
    plan = make_plan("optimal", network, 10**9, collective=of(kind, "s4"))
    assert plan.predicted is not None
    assert plan.predicted.efficiency > 0.97


def test_latency_makes_trees_low_where_it_counts() -> None:
    bandwidth, latency = np.full((6, 6), 1e9), np.full((6, 6), 0.05)
    np.fill_diagonal(bandwidth, 0)
    network = Network("far", [Site(f"s{i}") for i in range(6)], bandwidth, latency)
    plan = make_plan("optimal", network, 10**6, collective=Collective("all-gather"))
    for shard in plan.shards:
        assert sorted(shard.broadcast) == sorted((shard.root, name) for name in network.names if name != shard.root)


# --- halves --------------------------------------------------------------------------------------------------------


def test_a_ring_gathers_on_its_broadcast_paths() -> None:
    network = mesh(4, 100)
    plan = checked_plan("ring", network, 10**6, collective=Collective("all-gather"))
    assert len(plan.shards) == 4
    assert all(len(shard.broadcast) == 3 and not shard.reduce for shard in plan.shards)


def test_trees_with_unequal_roots_gather_every_part_on_all_of_them() -> None:
    network = mesh(4, 100)
    star = checked_plan("star", network, 10**6)
    plan = derive_plan(star, Collective("all-gather"), network)
    assert [shard.root for shard in plan.shards] == list(network.names)
    assert not check(plan, network)


# --- the checker -----------------------------------------------------------------------------------------------------


def test_check_names_what_is_wrong_with_the_plan_of_a_collective() -> None:
    network = mesh(3, 100)
    plan = checked_plan("ring", network, 900, collective=Collective("all-gather"))
    first, second, third = plan.shards
    broken = {
        "a shard of all-gather has a broadcast tree and no reduce tree": replace(first, reduce=(("s1", "s0"),)),
        "does not reach 's2'": replace(first, broadcast=(("s0", "s1"),)),
        "the shards of s0 add up to 0.5": replace(first, fraction=0.5),
        "'s9', which is not a site": replace(first, broadcast=(*first.broadcast[:1], ("s1", "s9", "s2"))),
    }
    for text, shard in broken.items():
        problems_found = " | ".join(map(str, check(replace(plan, shards=(shard, second, third)), network)))
        assert text in problems_found
    stray = replace(plan, collective=Collective("broadcast", "s0"))
    assert "serves no demand of broadcast:s0" in " | ".join(map(str, check(stray, network)))
    two_routes = checked_plan("ring", network, 900, collective=Collective("gather", "s0"))
    more = replace(two_routes.shards[0], broadcast=(("s1", "s0"), ("s1", "s2")))
    assert "has one route" in " | ".join(map(str, check(replace(two_routes, shards=(more,)), network)))


def test_a_plan_keeps_its_collective_in_json() -> None:
    plan = make_plan("ring", mesh(3, 100), 900, collective=Collective("scatter", "s2"))
    assert plan_from_json(plan_to_json(plan)).collective == Collective("scatter", "s2")
    assert '"collective"' not in plan_to_json(make_plan("ring", mesh(3, 100), 900))


@pytest.mark.parametrize(("text", "expected"), [("broadcast", "root"), ("all-gather:s1", "no root"), ("sum", "one of")])
def test_a_wrong_collective_is_refused_with_what_is_expected(text: str, expected: str) -> None:
    with pytest.raises(BadOption, match=expected):
        Collective.parse(text)


def test_a_root_must_be_a_member() -> None:
    with pytest.raises(BadOption, match="must be a member"):
        demands_of(Collective("gather", "s9"), ("s0", "s1"))
