"""A plan as workers are told it: nothing that they need is lost, it is small, and what is no plan is refused."""

from __future__ import annotations

import zlib
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import Problem, problems
from tradewind.catalog import load_network
from tradewind.errors import BadPlan, ImpossibleProblem
from tradewind.planning import make_plan, planner, planner_options
from tradewind.planning.plan import Plan, Shard, plan_to_json
from tradewind.wire.frames import MAX_MESSAGE_BYTES
from tradewind.wire.packed_plans import pack_plan, unpack_plan

PLAN = Plan(
    "hand", "net", ("a", "b"), 10**6, (Shard(1.0, "a", (("b", "h", "a"),), (("a", "b"),), 1000),), reason="it is short"
)


def as_told(plan: Plan) -> Plan:
    """What workers need of a plan."""
    shards = tuple(replace(shard, rate_bps=None) for shard in plan.shards)
    return Plan(plan.planner, plan.network, plan.members, plan.nbytes, shards, reason=plan.reason)


@settings(max_examples=60, deadline=None)
@given(problem=problems(), name=st.sampled_from(("ring", "multi-star", "all-to-all", "psld", "fapt", "optimal")))
def test_every_plan_survives(problem: Problem, name: str) -> None:
    try:
        plan = planner(name).function(*problem, planner_options(name, {}))
    except ImpossibleProblem:
        return
    assert unpack_plan(pack_plan(plan), "plan 1") == as_told(plan)


names = st.text(min_size=1, max_size=8)
routes = st.lists(names, min_size=2, max_size=5).map(tuple)
shards = st.builds(
    Shard,
    fraction=st.floats(0, 1),
    root=names,
    reduce=st.lists(routes, max_size=4).map(tuple),
    broadcast=st.lists(routes, max_size=4).map(tuple),
    chunk_bytes=st.integers(1, 2**40),
)


@settings(max_examples=30, deadline=None)
@given(
    st.builds(
        Plan,
        planner=names,
        network=names,
        members=st.lists(names, min_size=1, max_size=5, unique=True).map(tuple),
        nbytes=st.integers(1, 2**40),
        shards=st.lists(shards, max_size=5).map(tuple),
        reason=names,
    )
)
def test_anything_of_the_form_survives_bit_for_bit(plan: Plan) -> None:
    assert unpack_plan(pack_plan(plan), "plan 1") == plan


def test_56_trees_over_8_sites_take_a_tenth_of_their_json() -> None:
    network = load_network("mesh", n=8, seed=2)
    plan = replace(make_plan("optimal", network, 2**25, gap=1e-6), predicted=None)
    assert len(plan.shards) > 40
    assert 10 * len(pack_plan(plan)) < len(plan_to_json(plan, indent=0))


@given(st.data())
def test_damaged_bytes_are_refused_by_name(data: st.DataObject) -> None:
    packed = bytearray(pack_plan(PLAN))
    where = data.draw(st.integers(0, len(packed) - 1))
    packed[where] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(packed)))
    for damaged in (bytes(packed), bytes(packed[:cut]) if cut < len(packed) else bytes(packed) + b"x"):
        try:
            assert unpack_plan(damaged, "plan 7") == PLAN, "zlib's level and such do not change what is packed"
        except BadPlan as error:
            assert "plan 7" in str(error)


@pytest.mark.parametrize("field", ["members", "roots", "reduce", "fractions", "nbytes"])
def test_numbers_that_make_no_sense_are_refused(field: str) -> None:
    wrong = {"members": 9, "roots": [3], "reduce": [[[1, -1]]], "fractions": [0.5, 0.5], "nbytes": 0}
    order = ("planner", "network", "reason", "nbytes", "members", "sites", "fractions", "chunk_bytes", "roots")
    places = {name: k for k, name in enumerate((*order, "reduce", "broadcast"))}
    values = msgspec.msgpack.decode(zlib.decompress(pack_plan(PLAN)))
    values[places[field]] = wrong[field]
    with pytest.raises(BadPlan, match="plan 7 cannot be decoded"):
        unpack_plan(zlib.compress(msgspec.msgpack.encode(values)), "plan 7")


def test_a_few_bytes_that_claim_to_be_huge_are_not_unpacked() -> None:
    with pytest.raises(BadPlan, match="larger than"):
        unpack_plan(zlib.compress(bytes(4 * MAX_MESSAGE_BYTES)), "plan 7")
