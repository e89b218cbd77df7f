"""The Plan itself: its JSON form, how it splits a tensor, and what it says about itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import Problem, problems
from tradewind.errors import BadPlan
from tradewind.planning import planner, planner_options
from tradewind.planning.plan import (
    DEFAULT_CHUNK_BYTES,
    MIN_CHUNKS_PER_SHARD,
    Plan,
    Prediction,
    Shard,
    default_chunk_bytes,
    plan_from_json,
    plan_to_json,
    split_points,
)
from tradewind.units import MAX_BYTES

SHARD = Shard(1.0, "a", (("b", "h", "a"),), (("a", "b"),), 1000, rate_bps=12.5e6)
PREDICTED = Prediction(2.0, 4e6, 1.5, 6e6, "the link between a and b")
PLAN = Plan("hand", "net", ("a", "b"), 10**6, (SHARD,), PREDICTED, 0.25, "it is short")


def test_a_plan_survives_json() -> None:
    assert plan_from_json(plan_to_json(PLAN)) == PLAN


def test_the_json_is_the_one_of_the_design() -> None:
    text = plan_to_json(PLAN, indent=0)
    for part in (
        '"bytes": 1000000',
        '"rate_mbps": 12.5',
        '"reduce": [["b", "h", "a"]]',
        '"efficiency": 0.75',
        '"bound_rate_mbps": 6.0',
        '"planning_seconds": 0.25',
    ):
        assert part in text, text


@settings(max_examples=40, deadline=None)
@given(problem=problems(), name=st.sampled_from(("ring", "multi-star", "all-to-all", "psld")))
def test_every_plan_survives_json(problem: Problem, name: str) -> None:
    plan = planner(name).function(*problem, planner_options(name, {}))
    assert plan_from_json(plan_to_json(plan)) == plan


@given(st.floats(1e-3, 1e15))
def test_rates_survive_json_up_to_rounding(rate_bps: float) -> None:
    plan = replace(PLAN, shards=(replace(SHARD, rate_bps=rate_bps),), predicted=None)
    (shard,) = plan_from_json(plan_to_json(plan)).shards
    assert shard.rate_bps == pytest.approx(rate_bps, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "somewhere.json is not a plan"),
        ("[]", "Expected `object`"),
        ("[" * 100_000, "is not a plan"),
        (b"\xff{}", "is not a plan"),
        (plan_to_json(PLAN).replace('"root"', '"rooot"'), "rooot"),
        (plan_to_json(PLAN).replace('"chunk_bytes": 1000', '"chunk_bytes": "big"'), "Expected `int`"),
        (plan_to_json(PLAN).replace('"bytes": 1000000', '"bytes": 0'), "must be between 1 and"),
        (plan_to_json(PLAN).replace('"bytes": 1000000', f'"bytes": {MAX_BYTES + 1}'), "must be between 1 and"),
        (plan_to_json(PLAN).replace('"members"', '"mumbers"'), "mumbers"),
    ],
)
def test_an_invalid_plan_file_is_refused_with_its_name(text: str | bytes, message: str) -> None:
    with pytest.raises(BadPlan, match=message) as refused:
        plan_from_json(text, "somewhere.json")
    assert "somewhere.json" in str(refused.value)


@given(
    weights=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=50),
    count=st.one_of(st.integers(0, 100), st.integers(0, 10**12)),
)
def test_split_points_give_every_item_to_exactly_one_shard_in_proportion(weights: list[float], count: int) -> None:
    fractions = [weight / sum(weights) for weight in weights]
    points = split_points(fractions, count)
    assert (points[0], points[-1], len(points)) == (0, count, len(fractions) + 1)
    assert points == sorted(points)
    for fraction, start, end in zip(fractions, points, points[1:], strict=False):
        assert abs((end - start) - fraction * count) <= 1 + 1e-12 * count


@pytest.mark.parametrize("error", [-1e-6, -1e-12, 1e-12, 1e-6])
def test_split_points_end_at_the_end_whatever_the_rounding_of_the_fractions(error: float) -> None:
    assert split_points([0.25, 0.75 + error], 10**9) == [0, 250_000_000, 10**9]
    assert split_points([0.25, 0.75 + error, 1e-9], 10**9)[-1] == 10**9


@given(st.integers(1, MAX_BYTES))
def test_chunks_are_small_enough_to_pipeline_and_never_empty(nbytes: int) -> None:
    chunk_bytes = default_chunk_bytes(nbytes)
    assert 1 <= chunk_bytes <= DEFAULT_CHUNK_BYTES
    assert chunk_bytes == 1 or chunk_bytes * MIN_CHUNKS_PER_SHARD <= nbytes


def test_sites_are_the_members_then_the_helpers_by_name() -> None:
    other = Shard(0.5, "z", (("b", "z"), ("a", "k", "z")), (("z", "b"), ("z", "a")), 1)
    assert replace(PLAN, shards=(SHARD, other)).sites == ("a", "b", "h", "k", "z")


def test_the_rate_of_a_plan_is_known_if_all_its_shards_have_one() -> None:
    assert PLAN.rate_bps == 12.5e6
    assert replace(PLAN, shards=(SHARD, SHARD)).rate_bps == 25e6
    assert replace(PLAN, shards=(SHARD, replace(SHARD, rate_bps=None))).rate_bps is None
    assert replace(PLAN, shards=()).rate_bps is None


def test_prediction_and_planning_time_are_added_without_changing_the_rest() -> None:
    bare = replace(PLAN, predicted=None, planning_seconds=None)
    assert bare.with_prediction(PREDICTED).with_planning_seconds(0.25) == PLAN
    assert PREDICTED.efficiency == 0.75
