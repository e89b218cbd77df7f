"""Any plan of any collective, carried out in any order of events, gives every member exactly what it must get."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from engine_driver import CollectiveArrays, Driver
from networks import networks
from tradewind.arithmetic import COPY, Arithmetic
from tradewind.errors import BadPlan, ImpossibleProblem
from tradewind.network import Network, Site
from tradewind.node.collectives import CollectiveCall
from tradewind.node.engine.layout import Form, lay_out
from tradewind.planning import checked_plan
from tradewind.planning.collective import KINDS, Collective, Kind
from tradewind.planning.plan import Plan
from tradewind.sim.chunks.collectives import expected, own_items

OTHERS: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind != "all-reduce")


def mesh(n: int) -> Network:
    return Network("mesh", [Site(f"s{i}") for i in range(n)], 1e8 * (1 - np.eye(n)))


def carried_out(plan: Plan, network: Network, sizes: list[int], random: np.random.Generator) -> None:
    """Run the plan on engines and compare every member's result. Ranks are in the order of members."""
    kind, members = plan.collective.kind, plan.members
    root = members.index(plan.collective.root) if plan.collective.is_rooted else 0
    given_sizes = sizes if plan.collective.is_parted else [sum(sizes)]
    inputs = [
        random.integers(0, 50, own_items(kind, rank, given_sizes) if plan.collective.is_parted else sum(sizes))
        for rank in range(len(members))
    ]
    inputs = [array.astype(np.uint8) for array in inputs]
    truth = expected(kind, inputs, root, given_sizes)
    results = {}
    for rank, name in enumerate(members):
        if kind == "broadcast":
            results[name] = inputs[rank].copy()
            continue
        results[name] = np.zeros_like(truth[rank])
        parts = tuple(given_sizes) if plan.collective.is_parted else ()
        CollectiveCall(kind, inputs[rank], results[name], rank, root, members, parts).copy_own()
    how = {"": Arithmetic("bytes", "sum" if plan.collective.is_summed else COPY)}
    driver = Driver(network.names, random, 2)
    arrays = dict(zip(members, inputs, strict=True)) if kind != "broadcast" else results
    parts = tuple(given_sizes) if plan.collective.is_parted else ()
    driver.add_round(0, plan, arrays, how, collective=CollectiveArrays(sum(sizes), parts, results))
    driver.run()
    for rank, name in enumerate(members):
        np.testing.assert_array_equal(results[name], truth[rank], err_msg=name)


@pytest.mark.parametrize("kind", OTHERS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_collective_gives_every_member_its_result(kind: Kind, data: st.DataObject) -> None:
    network = data.draw(networks(2, 6))
    members = tuple(sorted(data.draw(st.sets(st.sampled_from(network.names), min_size=2)), key=network.names.index))
    planner = data.draw(st.sampled_from(("optimal", "ring", "star", "multi-star", "all-to-all", "spanning-tree")))
    part = data.draw(st.sampled_from((1, 7, 300)))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    collective = Collective.parse(kind, data.draw(st.sampled_from(members)))
    try:
        plan = checked_plan(planner, network, part * len(members), members, collective=collective)
    except ImpossibleProblem:
        reject()
    carried_out(plan, network, [part] * len(members), random)


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "gather", "scatter"])
@pytest.mark.parametrize("sizes", [[5, 0, 900], [0, 0, 1], [1000, 1, 1]])
def test_parts_of_different_sizes_are_delivered(kind: Kind, sizes: list[int]) -> None:
    network = mesh(3)
    for planner in ("optimal", "ring"):
        plan = checked_plan(planner, network, 1000, collective=Collective.parse(kind, "s1"))
        carried_out(plan, network, sizes, np.random.default_rng(7))


def test_parts_belong_to_ranks_and_not_to_the_order_of_sites_in_the_network() -> None:
    plan = checked_plan("ring", mesh(3), 30, collective=Collective("reduce-scatter"))
    numbers = {"s0": 2, "s1": 0, "s2": 1}
    layout = lay_out(plan, numbers, "s0", 30, 1)
    (owned,) = [work for work in layout.shards if work.receives]
    assert (owned.own_first, owned.result_first, owned.items) == (20, 0, 10)


def test_sizes_of_other_ranks_are_refused() -> None:
    plan = checked_plan("ring", mesh(3), 30, collective=Collective("all-gather"))
    with pytest.raises(BadPlan, match="3 members need as many parts of 30 items"):
        lay_out(plan, {"s0": 0, "s1": 1, "s2": 2}, "s0", 30, 1, form=Form(sizes=(10, 20)))
