"""`cost` and both simulators count the processor time of frames and bytes, and agree on it."""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import Problem, problems
from tradewind.errors import BadOption
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.cost import Cost, cost
from tradewind.planning.host import FREE_HOST, MEASURED_HOST, HostCost
from tradewind.planning.plan import Plan
from tradewind.schemes import ExecutionModel
from tradewind.sim import BusyProcessor, simulate
from tradewind.sim.chunks.run import ChunkRun
from virtual_rounds import chunk_round, seconds

ITEMS = 2**20
SEEDS = range(10)
PLANNERS = ("ring", "star", "multi-star", "all-to-all", "balanced-tree", "spanning-tree", "optimal", "fapt", "relay")
HOSTS = {
    "free": FREE_HOST,
    "frames": HostCost(frame_s=5e-3, byte_s=0.0),
    "bytes": HostCost(frame_s=0.0, byte_s=2e-7),
    "cores": HostCost(frame_s=2e-3, byte_s=5e-8, cores=2.0),
}
"""Hosts on which, on the networks of `drawn`, nothing, frames, bytes or shared cores decide."""


def mesh(n: int, bps: float) -> Network:
    return Network("mesh", [Site(f"s{i}") for i in range(n)], bps * (1 - np.eye(n)))


def drawn(seed: int) -> tuple[Network, str]:
    """A network of links alone, which is all that chunks are simulated on, and a planner."""
    random = np.random.default_rng(seed)
    n = int(random.integers(3, 7))
    rate_bps = random.uniform(20e6, 200e6, (n, n)) * (1 - np.eye(n))
    network = Network("drawn", [Site(f"s{i}") for i in range(n)], rate_bps, random.uniform(0, 0.03) * np.ones((n, n)))
    return network, PLANNERS[int(random.integers(len(PLANNERS)))]


def three_ways(network: Network, planner: str, host: HostCost, seed: int = 0) -> tuple[Cost, float, float]:
    """A plan's cost, and its time as one fluid and in chunks."""
    setup = ChunkRun(network, planner, seed, (ITEMS,), control_s=0.0, buffer_bytes=2**23, host=host)
    chunks_s, plan = chunk_round(replace(setup, connections=host.connections or 1))
    plan = replace(plan, nbytes=4 * ITEMS)
    return cost(plan, network, host=host), seconds([plan], network, "pipelined", host=host)[0], chunks_s


@cache
def drawn_three_ways(seed: int, host: str) -> tuple[Cost, float, float]:
    """`three_ways` of a drawn network and planner."""
    return three_ways(*drawn(seed), HOSTS[host], seed)


@pytest.mark.parametrize("name", HOSTS)
def test_cost_and_both_simulators_agree_on_random_networks_and_plans(name: str) -> None:
    """Chunks take at least what the busiest link or processor needs, and at most 10% longer than `cost` says.

    Of 40 seeds, chunks take 0.85 to 1.09 of it, and 0.92 to 1.09 where filling the pipeline is less than a tenth:
    `cost` adds that time to the transfer although they overlap in part.
    """
    found = [drawn_three_ways(seed, name) for seed in SEEDS]
    for expected, fluid_s, chunks_s in found:
        assert fluid_s == pytest.approx(expected.seconds)
        assert expected.busy_seconds * (1 - 1e-6) < chunks_s < 1.1 * expected.seconds
    assert 0.95 < statistics.median(chunks_s / expected.seconds for expected, _, chunks_s in found) < 1.02


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_that_processors_limit_is_slower_in_both_simulators_by_what_cost_predicts(seed: int) -> None:
    free, slow = (drawn_three_ways(seed, name) for name in ("free", "bytes"))
    assert "processor" in slow[0].bottleneck
    predicted = slow[0].seconds / free[0].seconds
    assert predicted > 2
    assert slow[1] / free[1] == pytest.approx(predicted)
    assert slow[2] / free[2] == pytest.approx(predicted, rel=0.15)


@pytest.mark.parametrize(
    ("planner", "host", "bottleneck"),
    [
        ("all-to-all", HostCost(frame_s=1e-4, byte_s=4e-9), "processor"),
        ("all-to-all", HostCost(frame_s=0.0, byte_s=4e-9, rank_cores=3.0, connections=2), "3 threads"),
        ("ring", HostCost(frame_s=0.0, byte_s=4e-9, rank_cores=64.0, connections=1), "connections"),
        ("all-to-all", HostCost(frame_s=0.0, byte_s=4e-9, rank_cores=3.0, connections=2, cores=2.0), "2 cores of all"),
    ],
)
def test_threads_connections_and_shared_cores_limit_fast_networks_in_both_simulators(
    planner: str, host: HostCost, bottleneck: str
) -> None:
    expected, fluid_s, chunks_s = three_ways(mesh(4, 20e9), planner, host)
    assert bottleneck in expected.bottleneck
    assert fluid_s == pytest.approx(expected.seconds)
    assert expected.busy_seconds * (1 - 1e-6) < chunks_s < 1.1 * expected.seconds


hosts = st.builds(
    HostCost,
    frame_s=st.sampled_from((0.0, 1e-4, 1e-2)),
    byte_s=st.sampled_from((0.0, 3e-10, 1e-7)),
    queued_bytes=st.sampled_from((0.0, 1e5)),
    cores=st.sampled_from((0.5, 2.0, float("inf"))),
    rank_cores=st.sampled_from((1.0, 4.0)),
    connections=st.integers(0, 3),
    stream_bytes=st.sampled_from((1e5, float("inf"))),
)


@given(problems(max_sites=6), hosts)
@settings(max_examples=60)
def test_one_fluid_alone_takes_what_cost_says_on_any_hosts(problem: Problem, host: HostCost) -> None:
    network, members, nbytes = problem
    plan = make_plan("multi-star", network, nbytes, members)
    took_s = seconds([plan], network, "pipelined", host=host)
    assert took_s == [pytest.approx(cost(plan, network, host=host).seconds, rel=1e-6)]


# --- rounds that run at once, in the fluid simulator ----------------------------------------------------------

SLOW = HostCost(frame_s=0.0, byte_s=1e-7)


def pair(network: Network, *members: str) -> Plan:
    """A plan of two ranks without a time to fill."""
    plan = make_plan("star", network, 10_000_000, members)
    return replace(plan, shards=tuple(replace(shard, chunk_bytes=1000) for shard in plan.shards))


def test_rounds_share_the_processor_of_a_rank_and_the_cores_of_a_machine() -> None:
    """A star of two handles 20 MB at each rank: 2 s. Rounds that share a rank or one core take twice that or more."""
    network = mesh(4, 1e9)
    one, apart, joined = pair(network, "s0", "s1"), pair(network, "s2", "s3"), pair(network, "s1", "s2")
    assert seconds([one, apart], network, "pipelined", host=SLOW) == [pytest.approx(2.0, rel=0.01)] * 2
    assert seconds([one, joined], network, "pipelined", host=SLOW) == [pytest.approx(4.0, rel=0.01)] * 2
    shared = replace(SLOW, cores=1.0)
    assert seconds([one, apart], network, "pipelined", host=shared) == [pytest.approx(8.0, rel=0.01)] * 2


def test_a_busy_processor_takes_its_share_of_the_time_for_frames_and_bytes() -> None:
    network, fault = mesh(4, 100e6), BusyProcessor("s1", 0.25, 20.0)
    result = simulate(
        network, "bsp+all-to-all", 40, compute=0.1, nbytes=2_000_000, faults=[fault], host=HostCost(0.0, 1e-7)
    )
    took_s = {r.start_s: r.seconds for r in result.finished}
    before, after = [s for at_s, s in took_s.items() if at_s + s < 20], [s for at_s, s in took_s.items() if at_s > 20]
    assert min(after) == pytest.approx(4 * max(before), rel=0.02)


# --- what has no frames ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("execution", ["store-and-forward", "chunked"])
def test_executions_without_frames_refuse_hosts_that_cost_something(execution: ExecutionModel) -> None:
    with pytest.raises(BadOption, match="counts no processor time"):
        simulate(mesh(3, 1e8), "bsp+ring", 1, execution=execution, host=MEASURED_HOST)
    simulate(mesh(3, 1e8), "bsp+ring", 1, execution=execution, host=FREE_HOST)
