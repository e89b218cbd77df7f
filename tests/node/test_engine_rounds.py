"""Any plan of any planner, carried out in any order of events, gives every member the right and identical bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from engine_driver import Driver
from networks import networks
from tradewind.arithmetic import COPY, Arithmetic, Array
from tradewind.errors import ImpossibleProblem
from tradewind.network import Network, Site
from tradewind.planning import make_plan, planner_names, windows
from tradewind.planning.halves import plan_broadcast
from tradewind.planning.plan import Plan, Shard

PLANNERS = tuple(name for name in planner_names() if name != "auto")


def integers(plan: Plan, items: int, random: np.random.Generator) -> dict[str, Array]:
    """Small whole numbers: sums are exact in any order, so numpy's is the truth."""
    return {name: random.integers(-50, 50, items).astype(np.float32) for name in plan.members}


def mesh(n: int) -> Network:
    return Network("mesh", [Site(f"s{i}") for i in range(n)], 1e8 * (1 - np.eye(n)))


@pytest.mark.parametrize("planner", PLANNERS)
@settings(max_examples=12)
@given(data=st.data())
def test_every_planners_plans_give_the_sum_to_every_member(planner: str, data: st.DataObject) -> None:
    network = data.draw(networks(2, 6))
    members = tuple(sorted(data.draw(st.sets(st.sampled_from(network.names), min_size=2)), key=network.names.index))
    items = data.draw(st.sampled_from((1, 2, 7, 64, 3000)))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    try:
        plan = make_plan(planner, network, 4 * items, members)
    except ImpossibleProblem:
        reject()
    driver = Driver(network.names, random, connections=data.draw(st.integers(1, 2)))
    arrays = integers(plan, items, random)
    before = {name: array.copy() for name, array in arrays.items()}
    in_place = data.draw(st.booleans())
    results = driver.add_round(0, plan, arrays, {"": Arithmetic("float32", "sum")}, in_place=in_place)
    driver.run()
    driver.check_at_rest({0: plan})
    for name in members:
        np.testing.assert_array_equal(results[name], sum(before.values()), err_msg=name)
        if not in_place:
            np.testing.assert_array_equal(arrays[name], before[name], err_msg="the input changed")


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.sampled_from(("ring", "multi-star", "optimal", "relay", "all-to-all")))
def test_many_rounds_at_once_do_not_mix(seed: int, planner: str) -> None:
    random = np.random.default_rng(seed)
    network = mesh(5)
    driver, plans, results, truth = Driver(network.names, random, 2), {}, {}, {}
    for number in range(4):
        members = tuple(n for n in network.names if random.random() < 0.7 or n in network.names[:2])
        plans[number] = make_plan(planner, network, 4000, members)
        arrays = integers(plans[number], 1000, random)
        truth[number] = sum(arrays.values())
        results[number] = driver.add_round(number, plans[number], arrays, {"": Arithmetic("float32", "sum")})
    driver.run()
    driver.check_at_rest(plans)
    for number, got in results.items():
        for name in plans[number].members:
            np.testing.assert_array_equal(got[name], truth[number])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("planner", ["optimal", "ring", "star", "all-to-all"])
def test_results_are_the_same_bits_whatever_the_order_of_events(planner: str, dtype: str) -> None:
    plan = make_plan(planner, mesh(4), 4000)
    inputs = np.random.default_rng(1)
    arrays = {name: inputs.normal(size=500).astype(dtype) for name in plan.members}
    seen: set[bytes | tuple[bytes, ...]] = set()
    for seed in range(6):
        driver = Driver(plan.members, np.random.default_rng(seed), 3)
        results = driver.add_round(0, plan, arrays, {"": Arithmetic(dtype, "sum")})
        driver.run()
        driver.check_at_rest({0: plan})
        if planner == "all-to-all":
            seen.add(tuple(results[name].tobytes() for name in plan.members))
        else:
            seen.update(results[name].tobytes() for name in plan.members)
    assert len(seen) == 1


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_weighted_mean_gives_each_member_its_weight(dtype: str) -> None:
    random = np.random.default_rng(3)
    for planner in ("optimal", "ring", "star", "all-to-all", "hierarchical"):
        plan = make_plan(planner, mesh(4), 4000)
        arrays = {name: random.normal(size=600).astype(dtype) for name in plan.members}
        weights = dict(zip(plan.members, (0.1, 0.2, 0.3, 0.4), strict=True))
        driver = Driver(plan.members, random)
        how = {name: Arithmetic(dtype, "mean", weight) for name, weight in weights.items()}
        results = driver.add_round(0, plan, arrays, how)
        driver.run()
        expected = sum(weights[name] * arrays[name].astype(np.float64) for name in plan.members)
        for name in plan.members:
            np.testing.assert_allclose(results[name], expected, atol=4e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("planner", ["optimal", "ring", "star", "all-to-all", "hierarchical", "scatter"])
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0, 1.0), (0.1, 0.2, 0.3, 0.4)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_result_put_over_its_input_has_the_same_bits(planner: str, weights: tuple[float, ...], dtype: str) -> None:
    """Sixteen-bit sums gather their parts, weights multiply the input, five items leave some shards empty."""
    for items in (5, 700):
        plan = make_plan(planner, mesh(4), 2 * items)
        random = np.random.default_rng(items)
        values = {name: random.normal(size=items).astype(np.float32) for name in plan.members}
        if dtype == "bfloat16":
            arrays = {name: (v.view(np.uint32) >> 16).astype(np.uint16) for name, v in values.items()}
        else:
            arrays = {name: v.astype(dtype) for name, v in values.items()}
        how = {name: Arithmetic(dtype, "mean", w) for name, w in zip(plan.members, weights, strict=True)}
        bits = []
        for in_place in (False, True):
            driver = Driver(plan.members, random, 2)
            given = {name: array.copy() for name, array in arrays.items()}
            results = driver.add_round(0, plan, given, how, in_place=in_place)
            driver.run()
            driver.check_at_rest({0: plan})
            bits.append([results[name].tobytes() for name in plan.members])
        assert bits[0] == bits[1]


@pytest.mark.parametrize("planner", [name for name in PLANNERS if name != "all-to-all"])
@settings(max_examples=8)
@given(data=st.data())
def test_a_broadcast_takes_the_sources_bytes_to_every_member_once(planner: str, data: st.DataObject) -> None:
    network = data.draw(networks(2, 6))
    members = tuple(sorted(data.draw(st.sets(st.sampled_from(network.names), min_size=2)), key=network.names.index))
    items = data.draw(st.sampled_from((1, 2, 7, 64, 3000)))
    source = data.draw(st.sampled_from(members))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    try:
        plan = plan_broadcast(make_plan(planner, network, items, members), source)
    except ImpossibleProblem:
        reject()
    driver = Driver(network.names, random, connections=data.draw(st.integers(1, 2)))
    arrays = {name: random.integers(0, 256, items).astype(np.uint8) for name in members}
    sent = arrays[source].copy()
    driver.add_round(0, plan, arrays, {"": Arithmetic("bytes", COPY)}, in_place=True)
    driver.run()
    driver.check_at_rest({0: plan})
    assert all(array.tobytes() == sent.tobytes() for array in arrays.values())
    ends = [route[-1] for shard in plan.shards for route in shard.broadcast]
    assert all(ends.count(name) == len(plan.shards) for name in members if name != source) and source not in ends


def test_what_helpers_and_early_birds_keep_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A star on a helper in the middle of a line: everything is relayed, summed and fanned out away from members."""
    monkeypatch.setattr(windows, "KEPT_BYTES", 64 * 1024)
    edges = (("a", "x"), ("b", "x"), ("c", "y", "x"))
    shard = Shard(1.0, "x", edges, tuple(edge[::-1] for edge in edges), 4096)
    plan = Plan("by hand", "line", ("a", "b", "c"), 10**6, (shard,))
    for seed in range(3):
        random = np.random.default_rng(seed)
        driver = Driver(("a", "b", "c", "x", "y"), random, 2)
        arrays = integers(plan, 10**6 // 4, random)
        results = driver.add_round(0, plan, arrays, {"": Arithmetic("float32", "sum")})
        driver.run()
        driver.check_at_rest({0: plan})
        assert 0 < max(worker.most_kept for worker in driver.workers) <= 2 * 64 * 1024
        for name in plan.members:
            np.testing.assert_array_equal(results[name], sum(arrays.values()))
