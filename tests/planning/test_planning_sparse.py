"""Plans for sparse arrays, whose sums grow from hop to hop: bytes on links, times, the choice of `auto`, limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.cost import cost
from tradewind.planning.hops import bytes_per_link, sizes_up
from tradewind.planning.host import FREE_HOST
from tradewind.planning.plan import Coded, Plan, Shard, plan_from_json, plan_to_json
from tradewind.sim import simulate
from tradewind.wire.codecs import sum_sizes, wire_bytes

NAMES = ("a", "b", "c", "d")
NETWORK = Network("four", [Site(name) for name in NAMES], 1e8 * (1 - np.eye(4)), 0.001 * (1 - np.eye(4)))
SIZES = (0.2, 0.5, 0.8, 1.0)
CHAIN = Shard(1.0, "d", (("a", "b"), ("b", "c"), ("c", "d")), (("d", "c"), ("c", "b"), ("b", "a")), 100_000)
STAR = Shard(1.0, "d", (("a", "d"), ("b", "d"), ("c", "d")), (("d", "a"), ("d", "b"), ("d", "c")), 100_000)


def plan_of(shard: Shard, members: tuple[str, ...] = NAMES) -> Plan:
    return Plan("test", "four", members, 10_000_000, (shard,), sum_sizes=SIZES)


def test_what_a_site_sends_up_grows_with_the_members_below_it() -> None:
    assert sizes_up(plan_of(CHAIN)) == [{"a": 0.2, "b": 0.5, "c": 0.8}]
    assert sizes_up(plan_of(STAR)) == [{"a": 0.2, "b": 0.2, "c": 0.2}]
    assert sizes_up(plan_of(CHAIN, ("a", "c", "d"))) == [{"a": 0.2, "b": 0.2, "c": 0.5}], "b only passes on"
    assert sizes_up(replace(plan_of(CHAIN), sum_sizes=())) == [{"a": 1.0, "b": 1.0, "c": 1.0}]


def test_links_carry_sums_up_and_whole_results_down() -> None:
    carried = bytes_per_link(plan_of(CHAIN), NETWORK)
    assert [carried[0, 1], carried[1, 2], carried[2, 3]] == [2e6, 5e6, 8e6]
    assert [carried[3, 2], carried[2, 1], carried[1, 0]] == [1e7] * 3
    assert cost(plan_of(STAR), NETWORK).egress_bytes.tolist() == [2e6, 2e6, 2e6, 3e7]


@pytest.mark.parametrize("pipelined", [True, False])
def test_smaller_sums_take_less_time(pipelined: bool) -> None:
    network = Network("four", [Site(name, ingress_bps=2e7) for name in NAMES], NETWORK.bandwidth_bps)
    for shard in (CHAIN, STAR):
        sparse = plan_of(shard)
        whole = replace(sparse, sum_sizes=())
        assert cost(sparse, network, pipelined).seconds < cost(whole, network, pipelined).seconds
    star = cost(plan_of(STAR), network, pipelined, FREE_HOST)
    assert star.seconds == pytest.approx(8e7 / 2e7 + (0.0 if pipelined else 8 * 6e6 / 2e7), rel=0.15)


def test_both_kinds_of_the_fluid_simulator_carry_what_the_cost_counts() -> None:
    items = 2_500_000
    for planner in ("star", "ring"):
        result = simulate(
            NETWORK, f"bsp+{planner}", 1e4, compute=0.1, nbytes=4 * items, codec="topk", stop_after_rounds=2
        )
        sizes = sum_sizes("topk", 4)
        plan = make_plan(planner, NETWORK, wire_bytes("topk", items, 4, 4), coded=Coded(sizes))
        assert result.link_bytes.sum() == pytest.approx(2 * cost(plan, NETWORK).link_bytes.sum(), rel=1e-6)
        assert result.wire_bytes == plan.nbytes and result.limit_s(NETWORK)[0] <= result.limit_s(NETWORK)[1]


@given(seed=st.integers(0, 50))
def test_auto_takes_the_plan_that_is_fastest_for_growing_sums(seed: int) -> None:
    random = np.random.default_rng(seed)
    rate = random.choice([1e7, 1e8], (4, 4)) * (1 - np.eye(4))
    network = Network("four", [Site(name) for name in NAMES], rate, random.choice([0.0, 0.02]) * np.ones((4, 4)))
    names = ("star", "ring", "multi-star", "balanced-tree")
    sizes = sum_sizes("topk", 4)
    best = make_plan("auto", network, 10**6, coded=Coded(sizes), planners=names)
    assert best.predicted is not None and best.sum_sizes == sizes
    for name in names:
        other = make_plan(name, network, 10**6, coded=Coded(sizes))
        assert other.predicted is not None
        assert best.predicted.seconds <= other.predicted.seconds * 1.05
        assert other.predicted.efficiency <= 1.0, "the limit holds for sparse arrays, too"


def test_a_plan_in_a_file_keeps_its_sizes() -> None:
    plan = plan_of(CHAIN)
    assert plan_from_json(plan_to_json(plan)) == plan
    assert "sum_sizes" not in plan_to_json(replace(plan, sum_sizes=()))
