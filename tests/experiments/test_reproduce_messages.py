"""The message model: Eq. (2) exactly on paths, and chunk by chunk on trees."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import networks
from tradewind.errors import BadPlan, InfeasiblePlan
from tradewind.experiments.papers.mtree.messages import (
    best_chunks,
    delivered,
    longest_path_latencies_s,
    plan_seconds,
    shard_seconds,
)
from tradewind.network import Network, Site
from tradewind.planning import planner, planner_options
from tradewind.planning.chunking import path_seconds
from tradewind.planning.plan import Plan, Shard

EXAMPLES = settings(max_examples=40, deadline=None)
LATENCIES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8)


def path(latencies_s: list[float], rate_bps: float = 1e6, relayed: bool = False) -> tuple[Network, Shard]:
    """Sites in a row, the last one the root; relayed, only the first and the root add, the rest forward."""
    n = len(latencies_s) + 1
    names = tuple(f"s{i}" for i in range(n))
    bandwidth, latency = np.zeros((n, n)), np.zeros((n, n))
    for i, seconds in enumerate(latencies_s):
        bandwidth[i, i + 1] = bandwidth[i + 1, i] = rate_bps
        latency[i, i + 1] = latency[i + 1, i] = seconds
    up = (names,) if relayed else tuple(pairwise(names))
    shard = Shard(1.0, names[-1], up, tuple(route[::-1] for route in up), 1000, rate_bps)
    return Network("path", [Site(name) for name in names], bandwidth, latency), shard


@EXAMPLES
@given(latencies_s=LATENCIES, chunks=st.integers(1, 50), rate_bps=st.floats(1e4, 1e9), relayed=st.booleans())
def test_a_path_takes_exactly_what_equation_2_says(
    latencies_s: list[float], chunks: int, rate_bps: float, relayed: bool
) -> None:
    network, shard = path(latencies_s, rate_bps, relayed)
    nbytes = 10**6
    one_way = path_seconds(chunks, nbytes / chunks, latencies_s, rate_bps)
    there_and_back = path_seconds(chunks, nbytes / chunks, latencies_s * 2, rate_bps)
    assert shard_seconds(shard, network, nbytes, chunks, broadcast=False) == pytest.approx(one_way)
    assert shard_seconds(shard, network, nbytes, chunks) == pytest.approx(there_and_back)


@EXAMPLES
@given(ready=st.lists(st.floats(0, 10), min_size=1, max_size=20), hop_s=st.floats(0, 3))
def test_a_link_carries_one_chunk_at_a_time(ready: list[float], hop_s: float) -> None:
    free, ends = 0.0, []
    for moment in ready:
        free = max(moment, free) + hop_s
        ends.append(free)
    assert delivered(np.array(ready), hop_s).tolist() == pytest.approx(ends)


def chunk_by_chunk(shard: Shard, network: Network, nbytes: int, chunks: int) -> float:
    """The time of an all-reduce of one shard by its definition: every chunk on every link, one after the other."""
    assert shard.rate_bps is not None
    sending = 8 * shard.fraction * nbytes / chunks / shard.rate_bps
    children: dict[str, list[str]] = {}
    for child, parent in shard.reduce:
        children.setdefault(parent, []).append(child)
    up: dict[tuple[str, str, int], float] = {}
    down: dict[tuple[str, str, int], float] = {}

    def hop(a: str, b: str) -> float:
        return network.link(a, b).latency_s + sending

    def has(site: str, c: int) -> float:
        return max((sent(child, site, c) for child in children.get(site, [])), default=0.0)

    def sent(child: str, parent: str, c: int) -> float:
        if (child, parent, c) not in up:
            before = sent(child, parent, c - 1) if c else 0.0
            up[child, parent, c] = max(has(child, c), before) + hop(child, parent)
        return up[child, parent, c]

    def received(site: str, c: int) -> float:
        if site == shard.root:
            return has(site, c)
        parent = next(p for child, p in shard.reduce if child == site)
        if (parent, site, c) not in down:
            before = received(site, c - 1) if c else 0.0
            down[parent, site, c] = max(received(parent, c), before) + hop(parent, site)
        return down[parent, site, c]

    return max(received(site, chunks - 1) for site in {site for route in shard.reduce for site in route})


@settings(max_examples=25, deadline=None)
@given(network=networks(min_sites=3), chunks=st.integers(1, 12))
def test_trees_follow_the_definition_and_no_path_is_faster_than_equation_2(network: Network, chunks: int) -> None:
    options = planner_options("mtree", {"min_rate_mbps": 1, "max_trees": 2})
    try:
        plan: Plan = planner("mtree").function(network, network.names, 10**6, options)
    except InfeasiblePlan:
        return
    for shard in plan.shards:
        seconds = shard_seconds(shard, network, plan.nbytes, chunks)
        assert seconds == pytest.approx(chunk_by_chunk(shard, network, plan.nbytes, chunks))
        assert shard.rate_bps is not None
        longest = longest_path_latencies_s(shard, network)
        size = shard.fraction * plan.nbytes
        assert shard_seconds(shard, network, plan.nbytes, chunks, broadcast=False) >= path_seconds(
            chunks, size / chunks, longest, shard.rate_bps
        ) * (1 - 1e-9)
    whole = plan_seconds(plan, network)
    assert whole == pytest.approx(max(shard_seconds(shard, network, plan.nbytes, 1) for shard in plan.shards))


@EXAMPLES
@given(latencies_s=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8))
def test_the_best_number_of_chunks_is_best_on_a_path(latencies_s: list[float]) -> None:
    network, shard = path(latencies_s, 1e6)
    plan = Plan("x", "path", network.names, 10**6, (shard,))
    (best,) = best_chunks(plan, network, broadcast=False)
    seconds = [shard_seconds(shard, network, plan.nbytes, count, broadcast=False) for count in range(1, 2 * best + 20)]
    assert seconds[best - 1] <= min(seconds) * 1.02


def test_a_plan_without_rates_is_refused_by_the_model() -> None:
    network, shard = path([0.1])
    plan = Plan("x", "path", network.names, 100, (Shard(1.0, "s1", shard.reduce, shard.broadcast, 10),))
    with pytest.raises(BadPlan, match="no rate"):
        plan_seconds(plan, network)
    assert math.isfinite(plan_seconds(Plan("x", "path", network.names, 100, (shard,)), network))
