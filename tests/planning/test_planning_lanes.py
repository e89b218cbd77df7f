"""Plans among ranks that share sites: lanes, their owners, what crosses between sites, and what patches keep."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.errors import ImpossibleProblem
from tradewind.network import Network, Site
from tradewind.planning import make_plan, planner_names
from tradewind.planning.bound import bound
from tradewind.planning.check import check
from tradewind.planning.collective import Collective
from tradewind.planning.cost import NetworkCapacities, cost, resources_of, transfer_seconds
from tradewind.planning.hops import bytes_per_link, flatten
from tradewind.planning.lanes import LEAST_LANE_BYTES
from tradewind.planning.patch import patch_plan
from tradewind.planning.plan import Plan, split_points

MB = 1_000_000


def network_of(counts: list[int], seed: int = 0, nic_bps: float = np.inf) -> Network:
    n, rng = len(counts), np.random.default_rng(seed)
    rates = rng.uniform(50e6, 400e6, (n, n)) * (1 - np.eye(n))
    latency = 0.01 * (1 - np.eye(n))
    sites = [Site(f"s{i}", ranks=k, egress_bps=nic_bps, ingress_bps=nic_bps) for i, k in enumerate(counts)]
    return Network("shared", sites, rates, latency)


def crossing(plan: Plan, network: Network) -> list[tuple[int, str, str]]:
    """Hops between sites, each with its shard."""
    return [
        (number, network.site_of(a) or "", network.site_of(b) or "")
        for number, shard in enumerate(plan.shards)
        for route in (*shard.reduce, *shard.broadcast)
        for a, b in pairwise(route)
        if network.site_of(a) != network.site_of(b)
    ]


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    nbytes=st.sampled_from([1000, MB, 40 * MB]),
    seed=st.integers(0, 5),
    planner=st.sampled_from(["ring", "optimal", "multi-star", "mtree", "hierarchical"]),
)
def test_every_element_has_one_owner_a_site_and_crosses_as_often_as_between_sites(
    counts: list[int], nbytes: int, seed: int, planner: str
) -> None:
    network = network_of(counts, seed)
    alone, shared = network.with_ranks_each(1), network.with_ranks()
    between, plan = make_plan(planner, alone, nbytes), make_plan(planner, shared, nbytes)
    assert plan.members == shared.names and not check(plan, shared)
    points = split_points([shard.fraction for shard in plan.shards], nbytes // 4)
    assert points[0] == 0 and points[-1] == nbytes // 4 and points == sorted(points)
    np.testing.assert_allclose(
        bytes_between(plan, shared), bytes_per_link(between, alone), rtol=1e-9, atol=1e-6 * nbytes
    )
    for shard in plan.shards:
        owners = {shared.site_of(name): name for name in {*sum(shard.broadcast, ()), shard.root}}
        assert owners.keys() == set(alone.names)
        senders = [route[0] for route in shard.reduce]
        assert len(senders) == len(set(senders)) == len(shared) - 1


def bytes_between(plan: Plan, network: Network) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    folded = network.between_sites_only(bytes_per_link(plan, network))
    first = sorted(set(network.first_row.tolist()))
    return folded[np.ix_(first, first)]


@settings(max_examples=25, deadline=None)
@given(counts=st.lists(st.integers(1, 8), min_size=2, max_size=4), seed=st.integers(0, 9))
def test_ranks_of_a_site_own_equal_shares_if_lanes_divide(counts: list[int], seed: int) -> None:
    most = max(counts)
    counts = [k if most % k == 0 else most for k in counts]
    network = network_of(counts, seed).with_ranks()
    plan = make_plan("multi-star", network, 100 * MB)
    for place in set(network.places):
        owned: Counter[str] = Counter()
        here = [name for name, of in zip(network.names, network.places, strict=True) if of == place]
        for shard in plan.shards:
            local = {a for a, b in shard.reduce if a in here and b in here}
            (owner,) = set(here) - local
            owned[owner] += round(shard.fraction * 1e9)
        assert max(owned.values()) - min(owned[name] for name in here) <= 10


@pytest.mark.parametrize("counts", [[2, 2, 2, 2], [8, 4, 1], [3, 2, 1]])
@pytest.mark.parametrize("nic_bps", [np.inf, 300e6])
def test_a_plan_among_ranks_is_predicted_as_one_between_sites(counts: list[int], nic_bps: float) -> None:
    network = network_of(counts, 3, nic_bps)
    alone, shared = network.with_ranks_each(1), network.with_ranks()
    between, plan = make_plan("optimal", alone, 40 * MB), make_plan("optimal", shared, 40 * MB)
    assert plan.predicted is not None and between.predicted is not None
    assert plan.predicted.bound_seconds == between.predicted.bound_seconds
    assert plan.predicted.seconds == pytest.approx(between.predicted.seconds, rel=0.02)
    spent, alone_spent = cost(plan, shared), cost(between, alone)
    assert spent.transfer_seconds == pytest.approx(alone_spent.transfer_seconds)
    assert transfer_seconds(plan, shared, flatten(plan, shared)) == pytest.approx(spent.transfer_seconds)
    assert spent.egress_bytes.sum() == pytest.approx(alone_spent.egress_bytes.sum())
    assert bound(shared, shared.names, 40 * MB) == bound(alone, alone.names, 40 * MB)


def test_small_shards_are_not_cut_and_owners_take_turns() -> None:
    network = network_of([4, 4, 4]).with_ranks()
    plan = make_plan("multi-star", network, 3 * LEAST_LANE_BYTES)
    assert len(plan.shards) == 3
    assert len({shard.root.rpartition("/")[2] for shard in plan.shards}) == 3


@pytest.mark.parametrize("planner", sorted(set(planner_names()) - {"topoadopt"}))
def test_every_planner_plans_among_ranks(planner: str) -> None:
    network = network_of([2, 1, 3]).with_ranks()
    plan = make_plan(planner, network, 4 * MB)
    assert plan.members == network.names and not check(plan, network)


def without_links(network: Network, pairs: Iterable[tuple[str, str]]) -> Network:
    rates = network.bandwidth_bps.copy()
    for pair in pairs:
        rows = [network.index[name] for name in pair]
        rates[rows, rows[::-1]] = 0.0
    return Network(network.name, network.sites, rates, network.latency_s, network.loss)


@pytest.mark.parametrize("planner", ["optimal", "ring", "star", "relay"])
@pytest.mark.parametrize("lost", [("s0/0", "s1/0"), ("s0/1", "s1/1"), ("s1/1", "s2/1")])
def test_a_link_that_two_ranks_lost_changes_who_owns_a_lane_and_not_what_crosses(
    planner: str, lost: tuple[str, str]
) -> None:
    whole = network_of([2, 2, 2]).with_ranks()
    network = without_links(whole, [lost])
    plan = make_plan(planner, network, 40 * MB)
    assert not check(plan, network)
    np.testing.assert_allclose(
        bytes_between(plan, network), bytes_between(make_plan(planner, whole, 40 * MB), whole), rtol=1e-9, atol=40
    )


def test_ranks_of_a_site_that_lost_their_link_are_planned_as_if_apart() -> None:
    network = without_links(network_of([2, 2]).with_ranks(), [("s0/0", "s0/1")])
    plan = make_plan("optimal", network, 40 * MB)
    assert plan.members == network.names and not check(plan, network)


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    planner=st.sampled_from(["ring", "optimal", "mtree", "spanning-tree", "scatter"]),
    data=st.data(),
)
def test_whatever_links_ranks_have_lost_there_is_a_valid_plan_or_none(
    counts: list[int], planner: str, data: st.DataObject
) -> None:
    whole = network_of(counts).with_ranks()
    pairs = list(combinations(whole.names, 2))
    network = without_links(whole, data.draw(st.lists(st.sampled_from(pairs), max_size=len(pairs), unique=True)))
    with contextlib.suppress(ImpossibleProblem):
        assert not check(make_plan(planner, network, 4 * MB), network)


def test_options_that_name_ranks_mean_their_sites() -> None:
    network = network_of([2, 2]).with_ranks()
    plan = make_plan("star", network, 4 * MB, root="s1/1")
    assert {network.site_of(shard.root) for shard in plan.shards} == {"s1"}
    pair = make_plan("star", network, 4 * MB, ("s0/1", "s1/1"), root="s1/1")
    assert {shard.root for shard in pair.shards} == {"s1/1"} and pair.members == ("s0/1", "s1/1")


def test_members_may_be_named_by_their_site() -> None:
    network = network_of([2, 2, 1]).with_ranks()
    assert make_plan("ring", network, MB, ("s0", "s2")).members == ("s0/0", "s0/1", "s2")


@pytest.mark.parametrize("lost", ["s0/0", "s1/1", "s2"])
def test_a_patched_plan_without_a_rank_crosses_between_sites_no_more_often(lost: str) -> None:
    network = network_of([2, 3, 1]).with_ranks()
    plan = make_plan("optimal", network, 40 * MB)
    left = network.subnetwork([name for name in network.names if name != lost])
    patched = patch_plan(plan, left, "reroute").plan
    assert not check(patched, left)
    sites = len(set(left.places))
    assert Counter(number for number, _, _ in crossing(patched, network)) == dict.fromkeys(
        range(len(patched.shards)), 2 * (sites - 1)
    )


def test_ranks_share_links_and_nics_between_sites_only() -> None:
    network = network_of([2, 2], nic_bps=300e6).with_ranks()
    capacities = NetworkCapacities(network)
    assert resources_of(network, 0, 1) == (("link", 0, 1),)
    first, second = (set(resources_of(network, *pair)) for pair in ((0, 2), (1, 3)))
    assert first & second == {("pair", 0, 2), ("out", 0), ("in", 2)}
    assert all(capacities[resource] > 0 for resource in first | second)
    assert len(list(capacities)) == len(capacities)


def test_a_network_of_ranks_is_that_of_its_sites_again() -> None:
    network = network_of([2, 1, 3])
    assert network.with_ranks().names == network.rank_names == ("s0/0", "s0/1", "s1", "s2/0", "s2/1", "s2/2")
    assert network.with_ranks().sites_only() == network
    part = network.with_ranks(["s2/10", "s2/9", "s0"])
    assert part.names == ("s0", "s2/9", "s2/10") and part.places == ("s0", "s2", "s2")
    assert network.with_ranks(["s0", "s1"]).names == ("s0", "s1")
    assert network.site_of("s1/7") == "s1" and network.site_of("mars/1") is None


@pytest.mark.parametrize("text", ["broadcast:s2/1", "reduce:s2/1", "all-gather", "reduce-scatter"])
def test_other_collectives_are_planned_among_ranks(text: str) -> None:
    network = network_of([2, 1, 3]).with_ranks()
    plan = make_plan("optimal", network, 4 * MB, collective=Collective.parse(text))
    assert plan.members == network.names and not check(plan, network)
    if ":" in text:
        assert set(Counter(number for number, _, _ in crossing(plan, network)).values()) == {2}
