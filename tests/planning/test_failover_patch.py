"""A patched plan is valid on what is left, keeps shards and chunks, and fails only where nothing could work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

from networks import networks
from tradewind.errors import ImpossibleProblem, InfeasiblePlan
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.check import check
from tradewind.planning.patch import patch_plan

PLANNERS = ("ring", "star", "multi-star", "balanced-tree", "fapt", "scatter", "mtree", "all-to-all", "hierarchical")


def without(network: Network, sites: set[str], links: set[tuple[str, str]]) -> Network:
    """The network that is left."""
    bandwidth = network.bandwidth_bps.copy()
    for src, dst in links:
        bandwidth[network.index[src], network.index[dst]] = 0.0
    return network.with_bandwidth(bandwidth).subnetwork([name for name in network.names if name not in sites])


def mesh(n: int, mbps: float = 100.0) -> Network:
    return Network("mesh", [Site(f"s{i}") for i in range(n)], mbps * 1e6 * (1 - np.eye(n)))


@settings(max_examples=200)
def component_of(network: Network, members: tuple[str, ...]) -> set[int]:
    """Sites that the members reach and that reach them."""
    _, component = connected_components(network.bandwidth_bps > 0, connection="strong")
    return set(np.flatnonzero(component == component[network.index[members[0]]]).tolist())


@given(st.data())
def test_a_patched_plan_is_valid_on_what_is_left_and_cuts_the_tensor_as_before(data: st.DataObject) -> None:
    network = data.draw(networks(min_sites=3, max_sites=7))
    chosen = data.draw(st.sets(st.sampled_from(network.names), min_size=2))
    members = tuple(name for name in network.names if name in chosen)
    try:
        plan = make_plan(data.draw(st.sampled_from(PLANNERS)), network, 10**6, members)
    except ImpossibleProblem:
        assume(False)
    lost = data.draw(st.sets(st.sampled_from(network.names), max_size=len(network) - 2))
    ends = [(link.src, link.dst) for link in network.links]
    cut = data.draw(st.sets(st.sampled_from(ends), max_size=4))
    left = without(network, lost, cut)
    try:
        patch = patch_plan(plan, left)
    except InfeasiblePlan:
        remaining = [left.index[name] for name in members if name in left.index]
        _, component = connected_components(left.bandwidth_bps > 0, connection="strong")
        assert len(remaining) < 2 or len(set(component[remaining])) > 1, "a route was left"
        return
    assert check(patch.plan, left) == ()
    assert patch.plan.members == tuple(name for name in members if name not in lost)
    for number, shard in zip(patch.shards, patch.plan.shards, strict=True):
        old = plan.shards[number]
        assert (shard.fraction, shard.chunk_bytes) == (old.fraction, old.chunk_bytes)
        reachable = old.root in left.index and left.index[old.root] in component_of(left, patch.plan.members)
        assert shard.root == old.root or not reachable
    dropped = set(range(len(plan.shards))) - set(patch.shards)
    assert all(not plan.shards[n].broadcast and plan.shards[n].root in lost for n in dropped)
    assert patch_plan(plan, left) == patch, "the same loss gives the same plan"


def test_what_a_loss_does_not_touch_stays_as_it_was() -> None:
    network = mesh(5)
    plan = make_plan("ring", network, 10**6)
    assert patch_plan(plan, network).plan.shards == plan.shards


def test_a_root_that_is_cut_off_from_a_member_is_replaced_although_it_is_alive() -> None:
    network = mesh(4)
    members = network.names[:2]
    plan = make_plan("scatter", network, 10**6, members)
    helper = next(shard.root for shard in plan.shards if shard.root not in members)
    left = without(network, set(), {(helper, name) for name in network.names if name != helper})
    patched = patch_plan(plan, left).plan
    assert check(patched, left) == () and helper not in {shard.root for shard in patched.shards}


@pytest.mark.mechanism("CREW IV-B, a round goes on with the replacement of a lost aggregator")
def test_a_lost_root_is_replaced_by_the_candidate_that_is_loaded_least() -> None:
    """Eq. (3): all links are equal, so the candidate's own load decides, and that grows with what it takes over."""
    network = mesh(6)
    plan = make_plan("scatter", network, 10**6, ("s0", "s1", "s2"), weights="even")
    assert [shard.root for shard in plan.shards] == list(network.names)
    patched = patch_plan(plan, without(network, {"s4", "s5"}, set())).plan
    assert [shard.root for shard in patched.shards] == ["s0", "s1", "s2", "s3", "s0", "s1"]


def test_a_replacement_needs_links_with_all_members_where_a_site_has_them() -> None:
    network = mesh(5)
    plan = make_plan("star", network, 10**6, ("s0", "s1", "s2"), root="s3")
    left = without(network, {"s3"}, {("s0", "s1"), ("s0", "s2")})
    assert patch_plan(plan, left).plan.shards[0].root == "s4"


def test_a_lost_link_is_gone_around_and_nothing_else_moves() -> None:
    network = mesh(4)
    plan = make_plan("star", network, 10**6, root="s0")
    left = without(network, set(), {("s1", "s0")})
    shard = patch_plan(plan, left).plan.shards[0]
    assert shard.broadcast == plan.shards[0].broadcast
    moved = set(shard.reduce) - set(plan.shards[0].reduce)
    assert len(moved) == 1 and next(iter(moved))[0] == "s1"


@pytest.mark.mechanism("CREW IV-B Eq. (3), a lost link moves a block to another aggregator")
def test_replace_moves_the_block_of_an_aggregator_that_lost_a_link_by_eq_3() -> None:
    """CREW IV-B: another site with live links to all members takes the block; nothing is relayed."""
    network = mesh(6)
    members = ("s0", "s1", "s2")
    plan = make_plan("scatter", network, 10**6, members, weights="even")
    left = without(network, set(), {("s1", "s4")})
    patched = patch_plan(plan, left, "replace").plan
    assert check(patched, left) == ()
    assert [shard.root for shard in patched.shards] == ["s0", "s1", "s2", "s3", "s0", "s5"], "all are loaded equally"
    assert all(len(route) == 2 for shard in patched.shards for route in (*shard.reduce, *shard.broadcast))
    assert [shard.root for shard in patch_plan(plan, left).plan.shards] == list(network.names), "reroute keeps roots"
    rates = left.bandwidth_bps.copy()
    rates[left.index["s5"]] *= 4
    rates[:, left.index["s5"]] *= 4
    chosen = patch_plan(plan, left.with_bandwidth(rates), "replace").plan.shards[4].root
    assert chosen == "s5", "the same load takes less time on faster links"


@given(st.data())
def test_a_plan_with_replaced_aggregators_is_valid_or_no_site_could_take_over(data: st.DataObject) -> None:
    network = mesh(data.draw(st.integers(3, 7)))
    chosen = data.draw(st.sets(st.sampled_from(network.names), min_size=2))
    members = tuple(name for name in network.names if name in chosen)
    plan = make_plan("scatter", network, 10**6, members)
    ends = [(link.src, link.dst) for link in network.links]
    left = without(network, set(), data.draw(st.sets(st.sampled_from(ends), max_size=6)))
    rows = [left.index[name] for name in members]
    works = (left.bandwidth_bps > 0) | np.eye(len(left), dtype=bool)
    able = {name for name in left.names if works[rows, left.index[name]].all() and works[left.index[name], rows].all()}
    try:
        patched = patch_plan(plan, left, "replace").plan
    except InfeasiblePlan:
        assert not able or len(component_of(left, members) & set(rows)) < len(rows)
        return
    assert check(patched, left) == () and {shard.root for shard in patched.shards} <= able
    moved = [new.root != old.root for old, new in zip(plan.shards, patched.shards, strict=True)]
    assert moved == [old.root not in able for old in plan.shards]


def test_a_routed_edge_is_used_where_there_is_no_other_way() -> None:
    bandwidth = 1e8 * np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]], dtype=float)
    network = Network("vee", [Site("hub"), Site("a"), Site("b")], bandwidth)
    whole = Network("vee", [Site("hub"), Site("a"), Site("b")], 1e8 * (1 - np.eye(3)))
    plan = make_plan("star", whole, 10**6, ("a", "b"), root="a")
    shard = patch_plan(plan, network).plan.shards[0]
    assert shard.reduce == (("b", "hub", "a"),) and shard.broadcast == (("a", "hub", "b"),)


def test_one_member_alone_has_nothing_to_patch() -> None:
    network = mesh(3)
    plan = make_plan("ring", network, 10**6, ("s0", "s1"))
    with pytest.raises(InfeasiblePlan, match="only 's0' is left"):
        patch_plan(plan, without(network, {"s1"}, set()))
