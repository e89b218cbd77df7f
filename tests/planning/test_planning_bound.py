"""The limit: right where it can be computed by hand, and never below what a plan reaches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from networks import problems
from tradewind.errors import ImpossibleProblem
from tradewind.network import Link, Network, Site, Trunk
from tradewind.planning import planner, planner_names, planner_options, resolve_members
from tradewind.planning.bound import bound
from tradewind.planning.cost import cost
from tradewind.planning.host import FREE_HOST

QUICK_PLANNERS = [name for name in planner_names() if name not in ("auto", "topoadopt", "blink", "mtree")]
"""Without those that only choose among others' plans, and those that solve an integer program for every network."""


def mesh(n: int, mbps: float, latency_s: float = 0.0, **site: float) -> Network:
    bandwidth = np.full((n, n), mbps * 1e6)
    np.fill_diagonal(bandwidth, 0)
    latency = np.full((n, n), latency_s)
    return Network("mesh", [Site(f"s{i}", **site) for i in range(n)], bandwidth, latency)  # type: ignore[arg-type]


def test_a_uniform_mesh_is_limited_by_the_partition_into_single_sites() -> None:
    limit = bound(mesh(4, 100), ("s0", "s1", "s2", "s3"), 10**6)
    assert limit.rate_bps == pytest.approx(200e6)  # 12 links x 100 Mbps, each element crosses 2 x 3 times
    assert limit.exact
    assert len(limit.parts) == 4
    assert "exact" in limit.argument


def test_equal_nics_behind_a_fast_core_allow_what_a_ring_reaches() -> None:
    network = mesh(5, 1e5, egress_bps=100e6, ingress_bps=100e6)
    limit = bound(network, network.names, 10**6)
    assert limit.rate_bps == pytest.approx(100e6 * 5 / 8)  # B n / (2 (n - 1))
    assert not limit.exact


def test_a_trunk_limits_the_zones_that_it_joins() -> None:
    bandwidth = np.full((4, 4), 1e9)
    np.fill_diagonal(bandwidth, 0)
    sites = [Site(f"s{i}", zone="ab"[i // 2]) for i in range(4)]
    network = Network("racks", sites, bandwidth, trunks=[Trunk("up", "a", "*", 50e6), Trunk("down", "*", "a", 80e6)])
    assert bound(network, network.names, 10**6).rate_bps == pytest.approx(50e6)


def test_one_way_links_limit_each_direction_separately() -> None:
    network = Network("pair", [Site("a"), Site("b")], [[0, 10e6], [300e6, 0]])
    assert bound(network, ("a", "b"), 10**6).rate_bps == pytest.approx(10e6)


def test_helpers_raise_the_limit_of_a_few_members() -> None:
    network = mesh(6, 100)
    alone = network.subnetwork(["s0", "s1"])
    assert bound(alone, ("s0", "s1"), 10**6).rate_bps == pytest.approx(100e6)
    assert bound(network, ("s0", "s1"), 10**6).rate_bps == pytest.approx(500e6)


def test_no_result_arrives_before_the_farthest_first_bit() -> None:
    latency = [[0, 0.1, 0], [0.1, 0, 0.2], [0, 0.2, 0]]
    chain = Network("chain", [Site("a"), Site("b"), Site("c")], [[0, 1e9, 0], [1e9, 0, 1e9], [0, 1e9, 0]], latency)
    assert bound(chain, chain.names, 4).seconds == pytest.approx(0.3)


def test_zero_latency_is_a_latency_and_not_a_missing_link() -> None:
    latency = np.array([[0, 0, 0.5], [0, 0, 0], [0.5, 0, 0]])
    bandwidth = np.full((3, 3), 1e9) - 1e9 * np.eye(3)
    network = Network("triangle", [Site("a"), Site("b"), Site("c")], bandwidth, latency)
    assert bound(network, network.names, 4).seconds < 0.01


def test_a_tiny_tensor_takes_one_latency_and_a_large_one_what_no_order_of_sending_avoids() -> None:
    network = mesh(4, 100, latency_s=0.1)
    assert bound(network, network.names, 4).seconds == pytest.approx(0.1, rel=1e-4)  # all-to-all needs no way back
    # 100 MB at 200 Mbps take 4 s. Links are busy from the start, with sums first, until one latency before the end.
    assert bound(network, network.names, 10**8).seconds == pytest.approx(4.0 + 0.1)
    # 2 MB: without a way back each link carries twice as much, 0.16 + 0.1 s. With one, it stands still in between:
    # 0.08 s of work, half of it done 0.2 s before the end.
    assert bound(network, network.names, 2 * 10**6).seconds == pytest.approx(0.24)
    assert "needs 240 ms" in bound(network, network.names, 2 * 10**6).latency_argument


def test_a_plan_with_roots_goes_through_a_central_site_and_back() -> None:
    """Two far ends of a star: 30 + 20 ms there and the same back, where a direct exchange would load the hub."""
    links = [Link("hub", f"s{i}", 1e9, 0.03 if i else 0.02) for i in range(8)]
    links += [Link(link.dst, link.src, link.bandwidth_bps, link.latency_s) for link in links]
    network = Network.from_links("star", [Site("hub"), *(Site(f"s{i}") for i in range(8))], links)
    limit = bound(network, network.names, 10**7)
    assert 8 * 10**7 / limit.rate_bps == pytest.approx(0.08)
    assert limit.seconds == pytest.approx(0.08 + 0.06, rel=0.3)
    assert limit.seconds > 0.08 + 0.03, "more than the last bit's own link"


@given(problems())
@settings(max_examples=12)
def test_no_planner_beats_the_limit(problem: tuple[Network, tuple[str, ...], int]) -> None:
    network, asked, nbytes = problem
    members = resolve_members(network, asked)
    limit = bound(network, members, nbytes)
    for name in QUICK_PLANNERS:
        try:
            plan = planner(name).function(network, members, nbytes, planner_options(name, {}))
        except ImpossibleProblem:
            continue
        spent = cost(plan, network, host=FREE_HOST)
        assert spent.steady_rate_bps <= limit.rate_bps * (1 + 1e-6), name
        assert spent.seconds >= limit.seconds * (1 - 1e-6), name
        assert cost(plan, network, pipelined=False).seconds >= limit.seconds * (1 - 1e-6), name
