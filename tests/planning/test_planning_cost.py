"""What plans cost, against times computed by hand, and the arrays behind it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import Problem, problems
from tradewind.errors import ImpossibleProblem, UnknownName
from tradewind.network import Link, Network, Site, Trunk
from tradewind.planning import make_plan, planner, planner_options
from tradewind.planning.cost import Cost, busiest_resource, cost, transfer_seconds
from tradewind.planning.hops import bytes_per_link, flatten, hop_rate_bps, longest_path
from tradewind.planning.host import FREE_HOST, HostCost
from tradewind.planning.plan import Plan, Shard

MB = 10**6


def uniform(
    names: str, mbps: float = 8, latency_s: float = 0.0, trunks: tuple[Trunk, ...] = (), **site: Any
) -> Network:
    """A full mesh; 8 Mbps is one megabyte a second. `site` may give NIC caps and zones by site name."""
    links = [Link(s, d, mbps * 1e6, latency_s) for s in names for d in names if s != d]
    return Network.from_links("uniform", [Site(name, **site.get(name, {})) for name in names], links, trunks)


def star(root: str, leaves: str, fraction: float = 1.0, chunk_bytes: int = 1000) -> Shard:
    up = tuple((leaf, root) for leaf in leaves)
    return Shard(fraction, root, up, tuple(route[::-1] for route in up), chunk_bytes)


def plan_of(members: str, nbytes: int, *shards: Shard) -> Plan:
    return Plan("hand", "uniform", tuple(members), nbytes, shards)


def network_cost(plan: Plan, network: Network, pipelined: bool = True) -> Cost:
    """The cost where hosts cost nothing, as the times by hand have it."""
    return cost(plan, network, pipelined, FREE_HOST)


# --- pipelined ----------------------------------------------------------------------------------------------


def test_two_sites_take_the_slower_way_and_fill_both() -> None:
    network = Network.from_links(
        "pair", [Site("a"), Site("b")], [Link("a", "b", 80e6, 0.010), Link("b", "a", 40e6, 0.020)]
    )
    spent = network_cost(plan_of("ab", MB, star("b", "a", chunk_bytes=10_000)), network)
    assert spent.transfer_seconds == pytest.approx(8e6 / 40e6)
    # Up: 10 ms + 80 kbit at 80 Mbps. Down: 20 ms + 80 kbit at 40 Mbps. One transmission is in the transfer already.
    assert spent.fill_seconds == pytest.approx(0.010 + 0.001 + 0.020 + 0.002 - 0.001)
    assert spent.seconds == spent.transfer_seconds + spent.fill_seconds
    assert spent.bottleneck == "link b->a"
    assert spent.steady_rate_bps == pytest.approx(40e6)
    assert spent.rate_bps == pytest.approx(8e6 / 0.232)
    assert spent.egress_bytes.tolist() == [MB, MB]


@pytest.mark.parametrize("chunk_bytes", [1000, 50_000, MB])
def test_a_chain_of_uniform_links_takes_what_mtree_eq_2_says(chunk_bytes: int) -> None:
    """Eq. (2) without an alpha on every chunk: the sum of alphas + (l - 1) beta mu + beta v, with l = 6 up and down."""
    latency_s = {("a", "b"): 0.05, ("b", "c"): 0.02, ("c", "d"): 0.1}
    links = [Link(*ends, 8e6, alpha) for (a, b), alpha in latency_s.items() for ends in ((a, b), (b, a))]
    network = Network.from_links("chain", [Site(name) for name in "abcd"], links)
    reduce = (("d", "c"), ("c", "b"), ("b", "a"))
    shard = Shard(1.0, "a", reduce, tuple(route[::-1] for route in reduce), chunk_bytes)
    beta = 8 / 8e6
    expected = 2 * sum(latency_s.values()) + 5 * beta * chunk_bytes + beta * MB
    assert network_cost(plan_of("abcd", MB, shard), network).seconds == pytest.approx(expected)


def test_a_routed_edge_pays_every_hop() -> None:
    links = [Link(s, d, 8e6, 0.1) for s, d in ("ab", "ba", "bc", "cb")]
    network = Network.from_links("chain", [Site(name) for name in "abc"], links)
    shard = Shard(1.0, "a", (("c", "b", "a"),), (("a", "b", "c"),), 1000)
    spent = network_cost(plan_of("ac", MB, shard), network)
    assert spent.fill_seconds == pytest.approx(4 * 0.1 + 3 * 0.001)
    assert spent.egress_bytes.tolist() == [MB, 2 * MB, MB]


def test_a_chunk_is_never_larger_than_its_shard() -> None:
    network = uniform("ab")
    small = plan_of("ab", 100, star("a", "b", chunk_bytes=10**6))
    assert network_cost(small, network).seconds == pytest.approx(0.0001 + 0.0001)


def test_shards_that_share_a_link_share_its_bandwidth() -> None:
    network = uniform("ab")
    halves = plan_of("ab", MB, star("a", "b", 0.5), star("b", "a", 0.5))
    assert network_cost(halves, network).transfer_seconds == pytest.approx(1.0)


def test_the_nic_of_the_root_is_the_bottleneck_of_a_star() -> None:
    network = uniform("abcd", a={"ingress_bps": 12e6, "egress_bps": 16e6})
    spent = network_cost(plan_of("abcd", MB, star("a", "bcd")), network)
    assert spent.transfer_seconds == pytest.approx(3 * 8e6 / 12e6)
    assert spent.bottleneck == "ingress of a"
    slow_out = uniform("abcd", a={"egress_bps": 4e6})
    assert network_cost(plan_of("abcd", MB, star("a", "bcd")), slow_out).bottleneck == "egress of a"


def test_what_a_site_receives_does_not_load_what_it_sends_through() -> None:
    only_up = Shard(1.0, "a", (("b", "a"), ("c", "a")), (), 1000)
    network = uniform("abc", a={"egress_bps": 1.0, "ingress_bps": 8e6}, b={"ingress_bps": 1.0})
    spent = network_cost(plan_of("abc", MB, only_up), network)
    assert spent.transfer_seconds == pytest.approx(2.0) and spent.bottleneck == "ingress of a"


def test_a_trunk_is_shared_by_all_that_crosses_it() -> None:
    zones: dict[str, Any] = {"a": {"zone": "x"}, "b": {"zone": "x"}, "c": {"zone": "y"}, "d": {"zone": "y"}}
    trunks = (Trunk("y-x", "y", "x", 10e6), Trunk("out", "x", "*", 100e6))
    network = uniform("abcd", trunks=trunks, **zones)
    spent = network_cost(plan_of("abcd", MB, star("a", "bcd")), network)
    assert spent.transfer_seconds == pytest.approx(2 * 8e6 / 10e6)
    assert spent.bottleneck == "trunk y-x"


# --- hosts ------------------------------------------------------------------------------------------------


def test_every_rank_pays_for_the_frames_that_it_sends_and_receives() -> None:
    network = uniform("abc")
    plan = plan_of("abc", MB, star("a", "bc", chunk_bytes=10_000))
    spent = cost(plan, network, host=HostCost(frame_s=0.001, byte_s=1e-7))
    # a receives and sends 200 frames and 2 MB; every link carries 1 MB in 1 s.
    assert spent.processor_seconds == pytest.approx(400 * 0.001 + 4 * MB * 1e-7)
    assert spent.transfer_seconds == pytest.approx(1.0) and spent.frames == 400
    assert spent.bottleneck.startswith("link")
    # Two hops of 10 ms, less the transmission that the transfer has; two hosts handle the chunk on each of them.
    assert spent.fill_seconds == pytest.approx(0.01 + 4 * (0.001 + 10_000 * 1e-7))
    assert spent.seconds == pytest.approx(1.0 + spent.fill_seconds)


def test_the_processor_is_the_bottleneck_where_it_needs_longer_than_the_links() -> None:
    network = uniform("abc")
    plan = plan_of("abc", MB, star("a", "bc", chunk_bytes=1000))
    spent = cost(plan, network, host=HostCost(frame_s=0.001, byte_s=0.0))
    assert spent.processor_seconds == pytest.approx(4.0) and spent.bottleneck == "processor of a"
    assert spent.seconds == pytest.approx(4.0 + spent.fill_seconds)


def test_ranks_on_one_machine_share_its_cores() -> None:
    network = uniform("abc")
    plan = plan_of("abc", MB, star("a", "bc", chunk_bytes=1000))
    each, shared = (cost(plan, network, host=HostCost(0.001, 0.0, cores=cores)) for cores in (3.0, 1.0))
    assert each.bottleneck == "processor of a" and each.processor_seconds == pytest.approx(4.0)
    # Each of the 4,000 frames is sent by one rank and received by another one, all on one core.
    assert shared.processor_seconds == pytest.approx(8.0) and shared.bottleneck == "the 1 cores of all ranks"


def test_bytes_queued_in_a_kernel_delay_every_hop_of_a_busy_link() -> None:
    network = uniform("ab")
    plan = plan_of("ab", MB, star("a", "b", chunk_bytes=10_000))
    queued = HostCost(0.0, 0.0, queued_bytes=50_000)
    assert cost(plan, network, host=queued).fill_seconds == pytest.approx(0.01 + 2 * 0.05)
    small = plan_of("ab", 10_000, star("a", "b", chunk_bytes=10_000))
    assert cost(small, network, host=queued).fill_seconds == pytest.approx(0.01), "nothing else is in its queue"


@pytest.mark.parametrize(
    "wrong",
    [
        {"frame_s": -1.0},
        {"byte_s": math.inf},
        {"queued_bytes": math.nan},
        {"cores": 0.0},
        {"cores": math.nan},
        {"rank_cores": 0.5},
        {"stream_bytes": 0.0},
        {"connections": 17},
    ],
)
def test_impossible_hosts_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be "):
        HostCost(**wrong)


# --- connections --------------------------------------------------------------------------------------------

FAST = replace(HostCost(), frame_s=0.0, byte_s=0.5e-9, rank_cores=16.0)
"""A thread carries 16 Gbit/s."""


@pytest.mark.parametrize(
    ("host", "seconds", "bottleneck"),
    [
        (replace(FAST, connections=1), 0.8, "processor of a (2 threads on 16 cores)"),
        (replace(FAST, connections=2), 0.4, "processor of a (4 threads on 16 cores)"),
        (replace(FAST, rank_cores=1.0), 1.6, "processor of a"),
        (replace(FAST, frame_s=0.001, connections=4), 0.2 + 0.2, "processor of a (8 threads on 16 cores)"),
        (FAST, 0.32, "link a->b"),
    ],
)
def test_a_fast_link_carries_what_threads_and_connections_do(host: HostCost, seconds: float, bottleneck: str) -> None:
    """1.6 GB over 40 Gbit/s take 0.32 s; each rank handles 3.2 GB, at 0.5 ns each 1.6 s of one core."""
    spent = cost(plan_of("ab", 1600 * MB, star("b", "a", chunk_bytes=16 * MB)), uniform("ab", mbps=40_000), host=host)
    assert spent.busy_seconds == pytest.approx(seconds) and spent.bottleneck == bottleneck


@pytest.mark.parametrize(("connections", "mbps"), [(0, 800.0), (1, 320.0), (2, 640.0)])
def test_a_long_link_carries_one_buffer_of_each_connection_in_a_round_trip(connections: int, mbps: float) -> None:
    """4 MB in 0.1 s are 320 Mbit/s; a run that knows the link opens three connections."""
    network = uniform("ab", mbps=800, latency_s=0.05)
    host = replace(FREE_HOST, stream_bytes=4 * MB, connections=connections)
    spent = cost(plan_of("ab", 100 * MB, star("a", "b")), network, host=host)
    assert spent.busy_seconds == pytest.approx(800 / mbps)
    assert spent.bottleneck == (f"the connections a->b ({connections})" if connections else "link a->b")


def test_plans_go_around_links_that_their_connections_do_not_fill() -> None:
    """Directly between a and c one connection carries 80 Mbit/s of 800, over b each of two links 160."""
    links = [Link(s, d, 800e6, 0.05 if "b" in s + d else 0.1) for s, d in ("ab", "ba", "bc", "cb", "ac", "ca")]
    network = Network.from_links("triangle", [Site(name) for name in "abc"], links)
    limits: dict[str, Any] = {"stream_bytes": 2.0 * MB, "connections": 1}
    plans = [make_plan("optimal", network, 100 * MB, **options) for options in ({}, limits)]
    unaware, aware = (cost(plan, network, host=HostCost(**limits)).seconds for plan in plans)
    assert aware < 0.65 * unaware, "0.74 if only the choice among trees knows the connections"
    assert plans[1].predicted is not None and plans[1].predicted.seconds == aware


# --- store and forward --------------------------------------------------------------------------------------


def test_store_and_forward_waits_for_the_slowest_leaf_before_it_sends_back() -> None:
    links = [Link("b", "a", 8e6), Link("c", "a", 4e6, 0.5), Link("a", "b", 8e6), Link("a", "c", 2e6, 0.25)]
    network = Network.from_links("star", [Site(name) for name in "abc"], links)
    spent = network_cost(plan_of("abc", MB, star("a", "bc")), network, pipelined=False)
    assert spent.seconds == pytest.approx((2 + 0.5) + (4 + 0.25))
    assert spent.fill_seconds == 0


def test_scatter_and_multicast_of_crew_take_one_after_the_other() -> None:
    """CREW's blocks on a mesh: every link carries a third of the tensor towards a root, then a third back."""
    network = uniform("abc", latency_s=0.1)
    plan = plan_of("abc", 3 * MB, *(star(root, "abc".replace(root, ""), 1 / 3) for root in "abc"))
    assert network_cost(plan, network, pipelined=False).seconds == pytest.approx(2 * (1 + 0.1))


def test_uneven_blocks_meet_on_a_link_and_share_it() -> None:
    """Link a->b first carries b's block and, from when a's block is complete, also a's result."""
    network = uniform("ab")
    plan = plan_of("ab", 4 * MB, star("a", "b", 0.25), star("b", "a", 0.75))
    # 0-1 s: b sends 1 MB to a, and a sends 3 MB to b. From 1 s a->b holds 2 MB of those and 1 MB of a's result: at
    # half rate each, the result is through at 3 s and the block at 4 s. Then b sends its result of 3 MB back.
    assert network_cost(plan, network, pipelined=False).seconds == pytest.approx(7.0)


def test_leaves_share_the_nic_of_their_root() -> None:
    network = uniform("abc", a={"ingress_bps": 8e6})
    spent = network_cost(plan_of("abc", MB, star("a", "bc")), network, pipelined=False)
    assert spent.seconds == pytest.approx(2 + 1)


def test_a_relay_forwards_when_it_has_everything() -> None:
    links = [Link(s, d, 8e6) for s, d in ("ab", "ba", "bc", "cb")]
    network = Network.from_links("chain", [Site(name) for name in "abc"], links)
    plan = plan_of("ac", MB, Shard(1.0, "a", (("c", "b", "a"),), (("a", "b", "c"),), 1000))
    assert network_cost(plan, network, pipelined=False).seconds == pytest.approx(4.0)


@settings(max_examples=40, deadline=None)
@given(problem=problems(max_sites=6), factor=st.sampled_from((0.5, 2.0, 4.0)))
def test_more_capacity_makes_everything_proportionally_faster(problem: Problem, factor: float) -> None:
    network, members, nbytes = problem
    still = Network(network.name, network.sites, network.bandwidth_bps, trunks=network.trunks)
    plan = planner("multi-star").function(still, members, nbytes, planner_options("multi-star", {}))
    for pipelined in (True, False):
        before, after = (network_cost(plan, net, pipelined).seconds for net in (still, still.scaled(factor)))
        assert after == pytest.approx(before / factor)


# --- hops ---------------------------------------------------------------------------------------------------


def test_flatten_lists_every_hop_with_its_route_and_shard() -> None:
    network = uniform("abc")
    first = Shard(0.5, "a", (("c", "b", "a"), ("b", "a")), (("a", "b"), ("a", "c")), 1)
    second = Shard(0.5, "b", (("a", "b"), ("c", "b")), (("b", "c", "a"), ("b", "c")), 1)
    hops = flatten(plan_of("abc", 100, first, second), network)
    assert hops.src.tolist() == [2, 1, 1, 0, 2, 0, 0, 1, 2, 1]
    assert hops.dst.tolist() == [1, 0, 0, 1, 1, 1, 2, 2, 0, 2]
    assert hops.route.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 6, 7]
    assert hops.shard.tolist() == [0, 0, 0, 1, 1, 0, 0, 1, 1, 1]
    assert hops.route_start.tolist() == [2, 1, 0, 2, 0, 0, 1, 1]
    assert hops.route_end.tolist() == [0, 0, 1, 1, 1, 2, 0, 2]
    assert hops.reduce_routes == 4


def test_flatten_works_without_broadcast() -> None:
    network = uniform("ab")
    plan = plan_of("ab", 100, Shard(1.0, "a", (("b", "a"),), (), 1), Shard(1.0, "b", (("a", "b"),), (), 1))
    assert flatten(plan, network).reduce_routes == 2
    assert network_cost(plan, network).transfer_seconds == pytest.approx(100 * 8 / 8e6)


def test_flatten_names_a_site_that_the_network_does_not_have() -> None:
    with pytest.raises(UnknownName, match="'z'"):
        flatten(plan_of("az", 100, star("a", "z")), uniform("abc"))


def test_bytes_per_link_adds_up_what_crosses_each_link() -> None:
    network = uniform("abc")
    plan = plan_of("abc", 1000, star("a", "bc", 0.25), Shard(0.75, "b", (("c", "a", "b"), ("a", "b")), (), 1))
    assert bytes_per_link(plan, network).tolist() == [[0, 250 + 2 * 750, 250], [250, 0, 0], [250 + 750, 0, 0]]


def test_a_transfer_alone_is_limited_by_link_nics_and_trunk() -> None:
    zones: dict[str, Any] = {
        "a": {"zone": "x", "egress_bps": 5e6},
        "b": {"zone": "x"},
        "c": {"zone": "y", "ingress_bps": 3e6},
    }
    network = uniform("abc", trunks=(Trunk("y-x", "y", "x", 2e6),), **zones)
    assert (hop_rate_bps(network) / 1e6).tolist() == [[0, 5, 3], [8, 0, 3], [2, 2, 0]]


@settings(max_examples=40, deadline=None)
@given(problem=problems(), name=st.sampled_from(("ring", "star", "balanced-tree", "spanning-tree", "plink")))
def test_longest_path_is_the_longest_way_up_and_down(problem: Problem, name: str) -> None:
    network, members, nbytes = problem
    plan = planner(name).function(network, members, nbytes, planner_options(name, {}))
    hops = flatten(plan, network)
    weight = np.random.default_rng(nbytes).uniform(0, 1, len(hops.route_shard))
    found = longest_path(hops, weight, len(plan.shards), len(network))
    numbered = iter(weight)
    weights = [[next(numbered) for _ in tree] for phase in ("reduce", "broadcast") for tree in _trees(plan, phase)]
    for s, shard in enumerate(plan.shards):
        up = {r[0]: (r[-1], w) for r, w in zip(shard.reduce, weights[s], strict=True)}
        down = {r[-1]: (r[0], w) for r, w in zip(shard.broadcast, weights[len(plan.shards) + s], strict=True)}
        assert found[s] == pytest.approx(_height(up) + _height(down))


def _trees(plan: Plan, phase: str) -> list[tuple[tuple[str, ...], ...]]:
    return [getattr(shard, phase) for shard in plan.shards]


def _height(parent: dict[str, tuple[str, float]]) -> float:
    def above(site: str) -> float:
        return parent[site][1] + above(parent[site][0]) if site in parent else 0.0

    return max((above(site) for site in parent), default=0.0)


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_smaller_chunks_and_less_latency_never_cost_more(problem: Problem) -> None:
    network, members, nbytes = problem
    plan = planner("spanning-tree").function(network, members, nbytes, planner_options("spanning-tree", {}))
    spent = network_cost(plan, network)
    assert spent.fill_seconds >= 0
    fine = replace(plan, shards=tuple(replace(shard, chunk_bytes=1) for shard in plan.shards))
    assert network_cost(fine, network).seconds <= spent.seconds * (1 + 1e-12)
    still = Network(network.name, network.sites, network.bandwidth_bps, trunks=network.trunks)
    assert network_cost(plan, still).seconds <= spent.seconds * (1 + 1e-12)
    assert math.isclose(network_cost(plan, still).transfer_seconds, spent.transfer_seconds)


@given(problem=problems(), name=st.sampled_from(["ring", "star", "mtree", "relay"]))
@settings(max_examples=40, deadline=None)
def test_the_busiest_resource_of_a_plans_hops_is_that_of_all_links(problem: Problem, name: str) -> None:
    network, members, nbytes = problem
    try:
        plan = make_plan(name, network, nbytes, members)
    except ImpossibleProblem:
        return
    hops = flatten(plan, network)
    expected, _ = busiest_resource(bytes_per_link(plan, network, hops), network)
    assert transfer_seconds(plan, network, hops) == pytest.approx(expected, rel=1e-12)
