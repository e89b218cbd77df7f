"""MTREE: heights, rates and chunks that its corrected algorithms must keep."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from networks import Problem, networks, problems
from tradewind.catalog import load_network
from tradewind.catalog.generators import mtree_skewed
from tradewind.errors import BadOption, InfeasiblePlan
from tradewind.network import Link, Network, Site
from tradewind.planning import planner, planner_options
from tradewind.planning.check import check
from tradewind.planning.chunking import optimal_chunk_bytes, path_seconds
from tradewind.planning.cost import cost
from tradewind.planning.plan import Plan
from tradewind.planning.trees.height_bounded import (
    Candidates,
    Growing,
    Reading,
    generate_trees,
    grow_tree,
    improve_heights,
    least_height,
    shortest_path_tree,
)
from tradewind.planning.trees.undirected import hang_from_centre, undirected_view

EXAMPLES = settings(max_examples=40, deadline=None)
READINGS = st.sampled_from(("global", "local"))


def mtree(network: Network, members: tuple[str, ...] | None = None, nbytes: int = 10**9, **options: Any) -> Plan:
    given_options = planner_options("mtree", options)
    return planner("mtree").function(network, members or network.names, nbytes, given_options)


def skewed(name: str, skewness: float, seed: int = 0) -> Network:
    return mtree_skewed(load_network(name), skewness, seed)


def growing(network: Network, unit: str, reading: Reading = "local", min_rate_bps: float = 1e6) -> Growing | None:
    try:
        graph = undirected_view(network, network.names, min_rate_bps)
    except InfeasiblePlan:
        return None
    length = np.ones(len(graph.ends)) if unit == "hops" else graph.latency_s * 1e3
    return Growing(graph, length, min_rate_bps, reading, seed=0)


# --- GOST -------------------------------------------------------------------------------------------------


@pytest.mark.mechanism("MTREE III-A GBST, the rate of a tree is taken off its edges")
@pytest.mark.mechanism("MTREE III-A GRTH, height under every root while a tree grows")
@EXAMPLES
@given(
    network=networks(),
    unit=st.sampled_from(("hops", "ms")),
    reading=READINGS,
    slack=st.sampled_from((0.0, 0.1, 1.0)),
    min_rate_mbps=st.sampled_from((1.0, 10.0, 33.0)),
)
def test_generated_trees_span_within_the_height_and_the_bandwidth(
    network: Network, unit: str, reading: Reading, slack: float, min_rate_mbps: float
) -> None:
    problem = growing(network, unit, reading, min_rate_mbps * 1e6)
    if problem is None:
        return
    graph = problem.graph
    limit = least_height(problem, graph.capacity_bps) * (1 + slack)
    made = generate_trees(problem, limit)
    assert made.trees, "a tree of that height exists"
    for tree in made.trees:
        rooted = hang_from_centre(graph, tree, problem.length)
        assert len(tree) == len(rooted.links) == len(graph) - 1
        assert rooted.height(problem.length) <= limit * (1 + 1e-6)
    assert all(rate >= min_rate_mbps * 1e6 for rate in made.rates_bps)
    load = np.zeros(len(graph.ends))
    for tree, rate in zip(made.trees, made.rates_bps, strict=True):
        load[list(tree)] += rate
    assert (load <= graph.capacity_bps * (1 + 1e-9)).all()


@EXAMPLES
@given(network=networks(), unit=st.sampled_from(("hops", "ms")), start=st.integers(0, 8))
def test_a_grown_tree_knows_its_radius(network: Network, unit: str, start: int) -> None:
    problem = growing(network, unit)
    if problem is None:
        return
    grown = grow_tree(problem, problem.graph.capacity_bps, math.inf, start % len(problem.graph))
    assert grown is not None
    tree, radius = grown
    assert radius == pytest.approx(hang_from_centre(problem.graph, tree, problem.length).height(problem.length))


@EXAMPLES
@given(network=networks(), unit=st.sampled_from(("hops", "ms")))
def test_the_tree_of_shortest_paths_is_as_low_as_any(network: Network, unit: str) -> None:
    problem = growing(network, unit)
    if problem is None:
        return
    least = least_height(problem, problem.graph.capacity_bps)
    found = shortest_path_tree(problem, problem.graph.capacity_bps, least)
    assert found is not None
    assert hang_from_centre(problem.graph, found[0], problem.length).height(problem.length) == pytest.approx(least)
    if least > 0:
        assert shortest_path_tree(problem, problem.graph.capacity_bps, least * 0.9) is None


@pytest.mark.mechanism("MTREE III-A ITH, least height that keeps rho of the rate")
@EXAMPLES
@given(network=networks(min_sites=3), reading=READINGS, rho=st.sampled_from((0.5, 0.95, 1.0)))
def test_lowering_the_height_costs_no_more_than_allowed(network: Network, reading: Reading, rho: float) -> None:
    problem = growing(network, "hops", reading)
    if problem is None:
        return
    loose = generate_trees(problem, len(network))
    improved = improve_heights(problem, len(network), rho)
    assert improved.total_bps >= rho * loose.total_bps * (1 - 1e-9)
    assert improved.tallest <= loose.tallest


@EXAMPLES
@given(network=networks(), unit=st.sampled_from(("hops", "ms")), reading=READINGS)
def test_a_limit_at_the_highest_tree_changes_nothing(network: Network, unit: str, reading: Reading) -> None:
    problem = growing(network, unit, reading)
    if problem is None:
        return
    loose = generate_trees(problem, math.inf)
    assert generate_trees(problem, loose.tallest).trees == loose.trees


@pytest.mark.mechanism("MTREE III-A GBST, height limit H by the radius of the tree")
def test_the_radius_is_tested_and_not_the_diameter() -> None:
    """Legs of 3 and 1 ms from the hub: diameter 4 = 2 H passes the printed test, but no root is within H = 2."""
    links = [
        Link(a, b, 100e6, ms / 1e3) for s, d, ms in (("x", "hub", 3), ("hub", "y", 1)) for a, b in ((s, d), (d, s))
    ]
    network = Network.from_links("legs", [Site(n) for n in ("x", "hub", "y")], links)
    with pytest.raises(InfeasiblePlan, match=r"at most 2 ms high; the least possible is 3. Raise --max-height"):
        mtree(network, max_height=2, height_in="ms")
    assert check(mtree(network, max_height=3, height_in="ms"), network) == ()


@pytest.mark.mechanism("MTREE III-A GBST, widest edge first")
def test_a_remainder_below_the_least_rate_is_not_the_smallest_bandwidth_left() -> None:
    """The 104 Mbps link keeps 4 Mbps after the first tree; the second tree must still get 10 Mbps or more."""
    n = 6
    bandwidth = np.full((n, n), 100e6)
    bandwidth[0, 1] = bandwidth[1, 0] = 104e6
    np.fill_diagonal(bandwidth, 0)
    problem = growing(Network("mesh", [Site(f"s{i}") for i in range(n)], bandwidth), "hops", "global", 10e6)
    assert problem is not None
    made: Candidates = generate_trees(problem, n)
    assert len(made.trees) > 1
    assert min(made.rates_bps) >= 10e6


# --- chunk sizes ------------------------------------------------------------------------------------------


@pytest.mark.mechanism("MTREE III-C Eq. (7), chunk size of a tree")
@pytest.mark.mechanism("MTREE III-C Eq. (3), time of chunks along a path")
@EXAMPLES
@given(
    shard_bytes=st.floats(1e3, 1e10),
    latencies_s=st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=12),
    rate_bps=st.floats(1e5, 1e10),
)
def test_the_chunk_size_minimises_the_time_along_the_path(
    shard_bytes: float, latencies_s: list[float], rate_bps: float
) -> None:
    def seconds(chunk_bytes: float) -> float:
        return path_seconds(shard_bytes / chunk_bytes, chunk_bytes, latencies_s, rate_bps)

    chosen = optimal_chunk_bytes(shard_bytes, latencies_s, rate_bps)
    assert 1 <= chosen <= math.ceil(shard_bytes)
    found = minimize_scalar(lambda log: seconds(math.exp(log)), bounds=(0.0, math.log(shard_bytes)), method="bounded")
    assert seconds(min(chosen, shard_bytes)) <= float(found.fun) * (1 + 1e-3)


def test_the_printed_formula_is_off_by_the_root_of_the_size() -> None:
    latencies_s, rate_bps, shard_bytes = [0.4, 0.1, 0.1, 0.4], 200e6, 100e6
    printed = math.sqrt(0.4 / (3 * 8 / rate_bps))
    right = optimal_chunk_bytes(shard_bytes, latencies_s, rate_bps)
    assert printed == pytest.approx(1.8e3, rel=0.02)
    assert right == pytest.approx(18e6, rel=0.02)
    slow, fast = (path_seconds(shard_bytes / mu, mu, latencies_s, rate_bps) for mu in (printed, right))
    assert slow > 1000 * fast


def test_one_link_is_not_chunked() -> None:
    assert optimal_chunk_bytes(1e6, [0.1], 1e6) == 10**6


@pytest.mark.mechanism("MTREE III-C, chunk size by the longest round trip of each tree")
def test_chunks_follow_the_longest_round_trip_or_stay_small() -> None:
    network = skewed("gscale", 0.5)
    for shard in mtree(network).shards:
        depth: dict[str, tuple[float, list[float]]] = {shard.root: (0.0, [])}
        for parent, child in shard.broadcast:
            latency = network.link(parent, child).latency_s
            depth[child] = (depth[parent][0] + latency, [*depth[parent][1], latency])
        deepest = max(depth.values(), key=lambda d: (d[0], len(d[1])))[1]
        assert shard.rate_bps is not None
        assert shard.chunk_bytes == optimal_chunk_bytes(shard.fraction * 1e9, deepest * 2, shard.rate_bps)
    assert {shard.chunk_bytes for shard in mtree(network, chunk_size="small").shards} == {65536}


# --- plans ------------------------------------------------------------------------------------------------


@EXAMPLES
@given(
    problem=problems(),
    max_trees=st.integers(1, 4),
    height_in=st.sampled_from(("hops", "ms")),
    tree_rate=st.sampled_from(("best", "global", "local")),
    seed=st.integers(0, 5),
)
def test_plans_are_valid_and_promise_only_what_the_network_confirms(
    problem: Problem, max_trees: int, height_in: str, tree_rate: str, seed: int
) -> None:
    network, members, nbytes = problem
    options = {"max_trees": max_trees, "height_in": height_in, "tree_rate": tree_rate, "seed": seed}
    try:
        plan = mtree(network, members, nbytes, min_rate_mbps=1, **options)
    except InfeasiblePlan:
        return
    assert check(plan, network) == ()
    assert 1 <= len(plan.shards) <= max_trees
    spent = cost(plan, network)
    assert plan.rate_bps is not None
    assert plan.rate_bps <= spent.steady_rate_bps * (1 + 1e-9)
    for shard in plan.shards:
        assert shard.rate_bps == pytest.approx(shard.fraction * plan.rate_bps)
        assert shard.broadcast == tuple(route[::-1] for route in shard.reduce), "the same tree both ways"
    if not network.has_shared_capacity:
        assert all(shard.rate_bps >= 1e6 * (1 - 1e-6) for shard in plan.shards if shard.rate_bps is not None)


@pytest.mark.mechanism("MTREE III-A line 22, r* the globally smallest bandwidth or the own bottleneck")
@pytest.mark.parametrize(("name", "wins"), [("gscale", "global"), ("equinix20-like", "local")])
def test_both_readings_of_the_rate_are_tried_and_the_better_is_kept(name: str, wins: str) -> None:
    network = skewed(name, 0.5)
    rates = {reading: mtree(network, tree_rate=reading).rate_bps for reading in ("global", "local", "best")}
    assert rates["best"] == max(rates["global"] or 0, rates["local"] or 0) == rates[wins]
    assert rates["global"] != rates["local"]
    assert f"r* {wins}" in mtree(network).reason


def test_heights_stay_within_the_limit_and_a_lower_limit_is_kept() -> None:
    network = skewed("gscale", 0.9)
    for limit in (3, 4, 5):
        plan = mtree(network, max_height=limit, rate_kept=1.0)
        for shard in plan.shards:
            depth = {shard.root: 0}
            for parent, child in shard.broadcast:
                depth[child] = depth[parent] + 1
            assert max(depth.values()) <= limit


def test_the_same_seed_gives_the_same_plan_and_seeds_differ() -> None:
    network = skewed("equinix20-like", 0.7)
    plans = [mtree(network, seed=seed, tree_rate="local") for seed in (0, 0, 1, 2)]
    assert plans[0] == plans[1]
    assert len({plan.shards for plan in plans}) > 1


def test_the_reason_says_whether_the_choice_is_proven() -> None:
    assert "the choice is optimal" in mtree(skewed("gscale", 0.5)).reason
    assert "stopped at a gap of" in mtree(skewed("equinix20-like", 0.1), tree_rate="global").reason


def test_rates_are_scaled_to_what_nics_leave() -> None:
    free = load_network("gscale")
    capped = Network(
        "capped",
        (Site(s.name, egress_bps=1e9, ingress_bps=1e9) for s in free.sites),
        free.bandwidth_bps,
        free.latency_s,
    )
    plan = mtree(capped)
    assert plan.rate_bps is not None
    assert plan.rate_bps == pytest.approx(cost(plan, capped).steady_rate_bps)
    assert "NICs and trunks" in plan.reason
    assert "NICs and trunks" not in mtree(free).reason


def test_members_without_links_of_their_own_are_joined_through_others() -> None:
    network = load_network("gscale")
    plan = mtree(network, ("AS1", "EU1"))
    assert check(plan, network) == ()
    assert set(plan.sites) > {"AS1", "EU1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_trees": 0}, "max_trees"),
        ({"max_height": 0}, "max_height"),
        ({"min_rate_mbps": 0}, "min_rate_mbps"),
        ({"rate_kept": 1.5}, "rate_kept"),
        ({"tree_rate": "middle"}, "middle"),
        ({"time_limit_s": 0}, "time_limit_s"),
        ({"seed": -1}, "seed"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        mtree(load_network("gscale"), **options)


def test_a_least_rate_that_no_link_has_is_explained() -> None:
    with pytest.raises(InfeasiblePlan, match="min-rate-mbps"):
        mtree(load_network("gscale"), min_rate_mbps=1e6)
