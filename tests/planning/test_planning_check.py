"""Each rule of `check`: a valid plan broken in exactly that way shows exactly that problem."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import Problem, problems
from tradewind.errors import BadPlan
from tradewind.network import Link, Network, Site
from tradewind.planning import planner, planner_options
from tradewind.planning.check import FRACTION_TOLERANCE, check, ensure_valid
from tradewind.planning.check import Problem as Fault
from tradewind.planning.plan import Plan, Route, Shard

# A mesh of a, b, c and a helper h; d hangs on b only; h->c is missing.
NETWORK = Network.from_links(
    "net",
    [Site(name) for name in "abcdh"],
    [Link(s, d, 1e8) for s in "abch" for d in "abch" if s != d and s + d != "hc"]
    + [Link("b", "d", 1e8), Link("d", "b", 1e8)],
)
FIRST = Shard(
    fraction=0.5,
    root="a",
    reduce=(("b", "a"), ("c", "h"), ("h", "a"), ("d", "b", "a")),
    broadcast=(("a", "b"), ("a", "c"), ("a", "b", "d")),
    chunk_bytes=1000,
    rate_bps=1e7,
)
SECOND = Shard(
    fraction=0.5,
    root="h",
    reduce=(("a", "h"), ("b", "h"), ("c", "h"), ("d", "b")),
    broadcast=(("h", "a"), ("h", "b"), ("a", "c"), ("b", "d")),
    chunk_bytes=1000,
)
PLAN = Plan("hand", "net", ("a", "b", "c", "d"), 10**6, (FIRST, SECOND))
TO_EACH = Plan(
    "hand",
    "net",
    ("a", "b", "c"),
    10**6,
    tuple(Shard(1.0, root, tuple((x, root) for x in "abc" if x != root), (), 1000) for root in "abc"),
)


def faults(plan: Plan) -> list[tuple[str, str]]:
    return [(fault.where, fault.what) for fault in check(plan, NETWORK)]


def with_first(**changes: Any) -> Plan:
    return replace(PLAN, shards=(replace(FIRST, **changes), SECOND))


def with_reduce(*routes: Route) -> Plan:
    return with_first(reduce=routes)


def with_broadcast(*routes: Route) -> Plan:
    return with_first(broadcast=routes)


def test_the_plans_that_the_other_tests_break_are_valid() -> None:
    assert faults(PLAN) == faults(TO_EACH) == []
    assert ensure_valid(PLAN, NETWORK) is PLAN


# --- members and shards -------------------------------------------------------------------------------------


def test_one_member_is_too_few() -> None:
    lonely = Plan("hand", "net", ("a",), 10**6, (Shard(1.0, "a", (), (), 1000),))
    assert faults(lonely) == [("members", "a plan needs at least two members, this one has 1")]


def test_a_member_named_twice() -> None:
    assert faults(replace(PLAN, members=("a", "b", "c", "d", "b"))) == [("members", "a member is named twice")]


def test_a_member_that_is_not_a_site_is_named_first() -> None:
    assert faults(replace(PLAN, members=("a", "b", "c", "d", "x")))[0] == ("members", "'x' is not a site of 'net'")


def test_no_shards() -> None:
    assert faults(replace(PLAN, shards=())) == [("shards", "a plan needs at least one shard")]


@pytest.mark.parametrize("fraction", [0.0, -0.0, math.nan])
def test_a_fraction_that_is_not_a_share(fraction: float) -> None:
    plan = replace(PLAN, shards=(FIRST, SECOND, replace(FIRST, fraction=fraction)))
    expected = [("shard 2", f"fraction {fraction} is not in (0, 1]")]
    assert faults(plan) == expected


@pytest.mark.parametrize("fraction", [1.5, -0.25, math.inf])
def test_a_fraction_outside_of_the_tensor_is_named_beside_the_wrong_sum(fraction: float) -> None:
    where = [where for where, _ in faults(with_first(fraction=fraction))]
    assert where == ["shard 0", "shards"]


def test_chunks_without_bytes() -> None:
    assert faults(with_first(chunk_bytes=0)) == [("shard 0", "chunk_bytes 0 is below 1")]


@pytest.mark.parametrize("rate_bps", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_that_is_none(rate_bps: float) -> None:
    assert faults(with_first(rate_bps=rate_bps)) == [
        ("shard 0", f"rate {rate_bps} bit/s is not a finite number above zero")
    ]


def test_a_root_that_is_not_a_site() -> None:
    assert faults(with_first(root="x")) == [("shard 0", "root 'x' is not a site of 'net'")]


def test_a_result_that_stays_with_a_helper_is_lost() -> None:
    lost = Shard(1.0, "h", (("a", "h"), ("b", "h"), ("c", "h")), (), 1000)
    assert faults(replace(TO_EACH, shards=(*TO_EACH.shards, lost))) == [
        ("shard 3", "root 'h' is not a member and has no broadcast tree: its result is lost")
    ]


# --- trees --------------------------------------------------------------------------------------------------


def test_an_edge_needs_two_ends() -> None:
    assert faults(with_reduce(*FIRST.reduce, ("a",))) == [("shard 0 reduce", "edge [a] has fewer than two sites")]
    assert faults(with_broadcast(*FIRST.broadcast, ())) == [("shard 0 broadcast", "edge [] has fewer than two sites")]


def test_a_route_that_visits_a_site_twice() -> None:
    assert faults(with_reduce(("b", "a"), ("c", "h"), ("h", "a"), ("d", "b", "c", "b", "a"))) == [
        ("shard 0 reduce", "edge d->b->c->b->a visits a site twice")
    ]


def test_a_route_through_a_name_that_is_not_a_site_is_named_once() -> None:
    assert faults(with_reduce(("b", "a"), ("c", "h"), ("h", "a"), ("d", "x", "a"))) == [
        ("shard 0 reduce", "edge d->x->a names 'x', which is not a site of 'net'")
    ]


def test_a_missing_link_in_the_direction_of_the_data() -> None:
    assert faults(with_reduce(("b", "a"), ("c", "a"), ("d", "a"))) == [
        ("shard 0 reduce", "edge d->a needs a link d->a, which 'net' does not have")
    ]
    assert faults(with_broadcast(("a", "b"), ("a", "h"), ("h", "c"), ("a", "b", "d"))) == [
        ("shard 0 broadcast", "edge h->c needs a link h->c, which 'net' does not have")
    ]


def test_a_root_with_a_parent() -> None:
    assert faults(with_reduce(*FIRST.reduce, ("a", "b"))) == [
        ("shard 0 reduce", "edge a->b gives the root 'a' a parent")
    ]


def test_a_site_with_two_parents_would_be_counted_twice() -> None:
    assert faults(with_reduce(*FIRST.reduce, ("b", "c"))) == [("shard 0 reduce", "'b' has two parents, 'a' and 'c'")]
    assert faults(with_broadcast(*FIRST.broadcast, ("c", "b"))) == [
        ("shard 0 broadcast", "'b' has two parents, 'a' and 'c'")
    ]


def test_a_helper_with_two_parents_would_be_counted_twice() -> None:
    assert faults(with_reduce(*FIRST.reduce, ("h", "b"))) == [("shard 0 reduce", "'h' has two parents, 'a' and 'b'")]


def test_two_parents_of_one_member_do_not_make_up_for_another_that_is_left_out() -> None:
    assert faults(with_reduce(("b", "a"), ("c", "a"), ("b", "c"))) == [
        ("shard 0 reduce", "'b' has two parents, 'a' and 'c'"),
        ("shard 0 reduce", "does not reach 'd'"),
    ]


def test_a_member_that_is_left_out() -> None:
    assert faults(with_reduce(("c", "a"), ("b", "a"))) == [("shard 0 reduce", "does not reach 'd'")]
    assert faults(with_broadcast(("a", "b"))) == [("shard 0 broadcast", "does not reach 'c', 'd'")]


def test_a_branch_that_ends_in_nothing() -> None:
    assert faults(with_reduce(("b", "a"), ("c", "h"), ("d", "b"))) == [
        ("shard 0 reduce", "'c' ends at 'h', which is not connected to the root 'a'")
    ]


def test_a_cycle() -> None:
    assert faults(with_reduce(("b", "c"), ("c", "b"), ("d", "b"))) == [
        ("shard 0 reduce", "'b' runs in a cycle and never reaches the root 'a'")
    ]


def test_a_helper_that_carries_nothing() -> None:
    assert faults(with_reduce(("b", "a"), ("c", "a"), ("d", "b"), ("h", "a"))) == [
        ("shard 0 reduce", "helper 'h' is a leaf: it carries nothing and must be removed")
    ]
    assert faults(with_broadcast(*FIRST.broadcast, ("a", "h"))) == [
        ("shard 0 broadcast", "helper 'h' is a leaf: it carries nothing and must be removed")
    ]


# --- coverage -----------------------------------------------------------------------------------------------


def test_shares_that_do_not_add_up() -> None:
    assert faults(with_first(fraction=0.4)) == [("shards", "the fractions add up to 0.9, not to 1")]
    assert faults(with_first(fraction=0.5 + FRACTION_TOLERANCE / 2)) == []


def test_broadcast_for_some_shards_only() -> None:
    assert faults(with_first(broadcast=())) == [
        ("shards", "some shards broadcast and some do not: expected all or none")
    ]


def test_without_broadcast_every_member_needs_everything() -> None:
    assert faults(replace(TO_EACH, shards=TO_EACH.shards[:2])) == [
        ("shards", "'c' receives 0 of the tensor, not all of it")
    ]
    half = replace(TO_EACH.shards[0], fraction=0.5)
    assert faults(replace(TO_EACH, shards=(half, *TO_EACH.shards[1:]))) == [
        ("shards", "'a' receives 0.5 of the tensor, not all of it")
    ]
    assert faults(replace(TO_EACH, shards=(half, half, *TO_EACH.shards[1:]))) == []


# --- how problems are shown ---------------------------------------------------------------------------------


def test_ensure_valid_names_plan_network_and_the_first_problems() -> None:
    with pytest.raises(BadPlan, match=r"plan 'hand' is not valid on network 'net': shard 0: chunk_bytes 0"):
        ensure_valid(with_first(chunk_bytes=0), NETWORK)
    many = replace(PLAN, shards=(replace(FIRST, chunk_bytes=0, fraction=1 / 30),) * 30)
    with pytest.raises(BadPlan, match=r"\(\+10 more\)\. Plan again\.$"):
        ensure_valid(many, NETWORK)
    assert str(Fault("shard 1", "is wrong")) == "shard 1: is wrong"


@settings(max_examples=60, deadline=None)
@given(problem=problems(min_sites=3), data=st.data())
def test_a_plan_without_one_of_its_edges_is_never_valid(problem: Problem, data: st.DataObject) -> None:
    network, members, nbytes = problem
    plan = planner("ring").function(network, members, nbytes, planner_options("ring", {}))
    number = data.draw(st.integers(0, len(plan.shards) - 1))
    shard = plan.shards[number]
    tree = data.draw(st.sampled_from(("reduce", "broadcast")))
    routes = getattr(shard, tree)
    gone = data.draw(st.integers(0, len(routes) - 1))
    changed = replace(shard, **{tree: routes[:gone] + routes[gone + 1 :]})
    broken = replace(plan, shards=(*plan.shards[:number], changed, *plan.shards[number + 1 :]))
    assert check(broken, network)
