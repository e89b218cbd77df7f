"""Completion-time planning: few trees, useful shards and chunk sizes, and no time lost for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import Problem, networks, problems
from tradewind.catalog import load_network
from tradewind.network import Network, Site
from tradewind.planning import make_plan, planner, planner_options
from tradewind.planning.check import check
from tradewind.planning.completion import completed
from tradewind.planning.cost import cost
from tradewind.planning.fill import LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES, with_best_chunks
from tradewind.planning.host import FREE_HOST, OWN_CORES, HostCost
from tradewind.planning.plan import Plan


def smallest_bytes(plan: Plan) -> float:
    return min(shard.fraction for shard in plan.shards) * plan.nbytes


@given(networks(max_sites=7), st.integers(10**6, 10**9))
@settings(max_examples=25)
def test_few_trees_take_no_longer_than_the_whole_packing(network: Network, nbytes: int) -> None:
    plan = make_plan("optimal", network, nbytes)
    everything = make_plan("optimal", network, nbytes, gap=1e-6)
    assert check(plan, network) == ()
    assert cost(plan, network).seconds <= 1.05 * cost(everything, network).seconds
    assert len(plan.shards) == 1 or smallest_bytes(plan) >= LEAST_CHUNK_BYTES


def test_trees_of_any_height_are_tried_although_those_of_low_latency_become_worse() -> None:
    mbps = [[0, 1, 107, 1, 1], [62, 0, 46, 1, 1], [1, 1, 0, 424, 1], [199, 287, 1, 0, 185], [993, 1, 1, 1, 0]]
    latency_s = 0.01 * (1 - np.eye(5))
    latency_s[1, 0] = latency_s[1, 4] = latency_s[3, 2] = 0.05
    network = Network("drawn", [Site(f"s{i}") for i in range(5)], 1e6 * np.array(mbps), latency_s)
    plan = make_plan("optimal", network, 13_722_033)
    everything = make_plan("optimal", network, 13_722_033, gap=1e-6)
    assert cost(plan, network).seconds <= cost(everything, network).seconds


@given(problems(max_sites=6))
@settings(max_examples=25)
def test_shards_are_worth_a_frame_unless_there_is_only_one(problem: Problem) -> None:
    network, members, nbytes = problem
    plan = planner("optimal").function(network, members, nbytes, planner_options("optimal", {}))
    assert check(plan, network) == ()
    assert len(plan.shards) == 1 or smallest_bytes(plan) >= LEAST_CHUNK_BYTES * (1 - 1e-9)
    assert all(LEAST_CHUNK_BYTES <= shard.chunk_bytes <= MOST_CHUNK_BYTES for shard in plan.shards)


def test_a_mesh_of_16_sites_needs_a_third_of_the_frames_and_half_of_the_trees() -> None:
    network = load_network("mesh", n=16)
    plan = make_plan("optimal", network, 40_000_000)
    spent = cost(plan, network)
    assert plan.predicted is not None and plan.predicted.efficiency > 0.88
    assert len(plan.shards) <= 130 and spent.frames <= 40_000
    assert spent.processor_seconds <= 0.55 * spent.seconds


@pytest.mark.parametrize("name", ["optimal", "auto"])
def test_plans_have_fewer_frames_where_all_ranks_share_two_cores(name: str) -> None:
    network, two = load_network("mesh", n=8), HostCost(cores=2.0)
    own, shared = (make_plan(name, network, 40_000_000, cores=cores) for cores in (OWN_CORES, 2.0))
    assert cost(shared, network, host=two).frames <= 0.7 * cost(own, network).frames
    fast = network.scaled(8.0)  # processors are the bottleneck
    own, shared = (make_plan(name, fast, 40_000_000, cores=cores) for cores in (OWN_CORES, 2.0))
    assert cost(shared, fast, host=two).seconds < 0.95 * cost(own, fast, host=two).seconds


@given(problems(max_sites=6), st.sampled_from(["star", "ring", "fapt", "spanning-tree"]))
@settings(max_examples=30)
def test_chosen_chunks_are_about_as_fast_as_any_common_size(problem: Problem, name: str) -> None:
    network, members, nbytes = problem
    plan = planner(name).function(network, members, nbytes, planner_options(name, {}))
    chosen_s = cost(with_best_chunks(plan, network), network).seconds
    for size in (LEAST_CHUNK_BYTES, 64 * 1024, 2**20):
        common = replace(plan, shards=tuple(replace(shard, chunk_bytes=size) for shard in plan.shards))
        assert chosen_s <= 1.1 * cost(common, network).seconds


def test_slow_hosts_get_larger_chunks_and_idle_ones_smaller() -> None:
    network = load_network("mesh", n=8)
    plan = make_plan("multi-star", network, 40_000_000)
    hosts = (FREE_HOST, HostCost(), HostCost(frame_s=0.01))
    largest = [max(shard.chunk_bytes for shard in with_best_chunks(plan, network, host).shards) for host in hosts]
    assert largest[0] <= largest[1] < largest[2]


def test_hosts_can_be_given_to_the_planner() -> None:
    network = load_network("mesh", n=8)
    slow = make_plan("optimal", network, 40_000_000, frame_s=0.01, byte_s=1e-8)
    usual = make_plan("optimal", network, 40_000_000)
    frames = [cost(plan, network).frames for plan in (slow, usual)]
    assert frames[0] < 0.5 * frames[1]
    assert slow.predicted is not None
    expected = cost(slow, network, host=HostCost(0.01, 1e-8)).seconds
    assert slow.predicted.seconds == pytest.approx(expected), "predicted on the hosts that were given"


def test_a_plan_without_broadcasts_keeps_its_trees() -> None:
    network = load_network("mesh", n=5)
    plan = make_plan("all-to-all", network, 10**6)
    assert [shard.reduce for shard in completed(plan, network).plan.shards] == [shard.reduce for shard in plan.shards]
