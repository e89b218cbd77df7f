"""Every planner of the registry on arbitrary networks, and each baseline's own shape."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import Problem, networks, problems
from tradewind.errors import BadOption, ImpossibleProblem, UnknownName
from tradewind.network import Link, Network, Site, Trunk
from tradewind.planning import planner, planner_names, planner_options
from tradewind.planning.baselines.ring import EXACT_AT_MOST
from tradewind.planning.check import check
from tradewind.planning.cost import busiest_resource, cost
from tradewind.planning.hops import bytes_per_link
from tradewind.planning.plan import Plan, default_chunk_bytes
from tradewind.planning.routes import Routes

EXAMPLES = settings(max_examples=40, deadline=None)

BASELINE_OPTIONS: list[tuple[str, dict[str, object]]] = [
    ("ring", {"order": "exact"}),
    ("ring", {"order": "given"}),
    ("ring", {"order": "auto"}),
    ("multi-star", {"weights": "bandwidth"}),
    ("balanced-tree", {"arity": 1}),
    ("balanced-tree", {"arity": 3}),
    ("hierarchical", {"inter": "star"}),
    ("hierarchical", {"intra": "ring"}),
    ("plink", {"groups": 1}),
    ("plink", {"groups": 2, "inter": "ring"}),
    ("psld", {"aggregators": 1}),
]


QUICK: dict[str, dict[str, object]] = {
    "topoadopt": {"iterations": 10},
    "auto": {"planners": ("star", "all-to-all", "spanning-tree")},
}
"""For planners that search as long as they are told to: what holds for all plans holds for hasty ones, too."""


def make(
    name: str, network: Network, members: tuple[str, ...] | None = None, nbytes: int = 10**6, **options: Any
) -> Plan:
    chosen = planner_options(name, QUICK.get(name, {}) | options)
    return planner(name).function(network, members or network.names, nbytes, chosen)


def mesh(n: int, seed: int = 0) -> Network:
    generator = np.random.default_rng(seed)
    bandwidth = generator.uniform(20e6, 155e6, (n, n))
    latency = generator.uniform(0.01, 0.2, (n, n))
    np.fill_diagonal(bandwidth, 0)
    np.fill_diagonal(latency, 0)
    return Network("mesh", [Site(f"s{i}") for i in range(n)], bandwidth, latency)


def both_ways(*links: tuple[str, str, float]) -> list[Link]:
    return [Link(a, b, mbps * 1e6, 0.01) for s, d, mbps in links for a, b in ((s, d), (d, s))]


# --- what holds for every planner -------------------------------------------------------------------------


@pytest.mark.parametrize("name", planner_names())
@EXAMPLES
@given(problem=problems())
def test_every_plan_is_valid_and_costs_a_finite_time(name: str, problem: Problem) -> None:
    network, members, nbytes = problem
    try:
        plan = make(name, network, members, nbytes)
    except ImpossibleProblem:
        return
    assert check(plan, network) == ()
    assert (plan.network, plan.members, plan.nbytes) == (network.name, members, nbytes)
    spent = cost(plan, network)
    assert 0 < spent.seconds < math.inf
    if plan.rate_bps is not None:
        assert plan.rate_bps <= spent.steady_rate_bps * (1 + 1e-9), "its rate is more than its links carry"


@pytest.mark.parametrize("name", planner_names())
@settings(max_examples=10, deadline=None)
@given(problem=problems(max_sites=6))
def test_store_and_forward_takes_at_least_what_the_busiest_resource_takes(name: str, problem: Problem) -> None:
    network, members, nbytes = problem
    try:
        plan = make(name, network, members, nbytes)
    except ImpossibleProblem:
        return
    busiest_s, _ = busiest_resource(bytes_per_link(plan, network), network)
    assert cost(plan, network, pipelined=False).seconds >= busiest_s * (1 - 1e-9)


@pytest.mark.parametrize("name", planner_names())
@settings(max_examples=8, deadline=None)
@given(problem=problems(max_sites=6))
def test_the_same_problem_always_gives_the_same_plan(name: str, problem: Problem) -> None:
    try:
        first = make(name, *problem)
    except ImpossibleProblem:
        return
    assert make(name, *problem) == first


@pytest.mark.parametrize("name", planner_names())
def test_every_planner_has_a_summary_and_plans_for_two_members(name: str) -> None:
    assert planner(name).summary
    pair = Network("pair", [Site("a"), Site("b")], [[0, 2e8], [1e8, 0]])
    assert check(make(name, pair), pair) == ()


@pytest.mark.parametrize(("name", "options"), BASELINE_OPTIONS)
@settings(max_examples=25, deadline=None)
@given(problem=problems())
def test_every_option_of_the_baselines_gives_valid_plans(name: str, options: dict[str, Any], problem: Problem) -> None:
    network, members, nbytes = problem
    assert check(make(name, network, members, nbytes, **options), network) == ()


@settings(max_examples=25, deadline=None)
@given(problem=problems())
def test_baselines_without_rates_chunk_every_shard_by_its_size(problem: Problem) -> None:
    for name in ("ring", "star", "multi-star", "spanning-tree", "hierarchical", "plink", "psld"):
        plan = make(name, *problem)
        for shard in plan.shards:
            assert shard.rate_bps is None
            assert shard.chunk_bytes == default_chunk_bytes(shard.fraction * plan.nbytes)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ring", {"order": "sorted"}, "sorted"),
        ("ring", {"start": "nowhere"}, "not a member"),
        ("ring", {"start": "s1", "order": "exact"}, "only matters"),
        ("balanced-tree", {"arity": 0}, "arity must be at least 1"),
        ("balanced-tree", {"root": "nowhere"}, "not a member"),
        ("plink", {"groups": 5}, "give 1 to 4"),
        ("plink", {"groups": 0}, "give 1 to 4"),
        ("psld", {"aggregators": 5}, "give 1 to 4"),
        ("psld", {"aggregators": 0}, "give 1 to 4"),
        ("star", {"rooot": "s1"}, "no option"),
        ("hierarchical", {"inter": "tree"}, "tree"),
    ],
)
def test_bad_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        make(name, mesh(4), **options)


# --- ring ---------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 9), order=st.sampled_from(("greedy", "exact", "given")))
def test_every_link_of_the_ring_carries_2_n_minus_1_over_n_of_the_tensor(n: int, order: str) -> None:
    network = mesh(n)
    plan = make("ring", network, nbytes=9_000_000, order=order)
    carried = bytes_per_link(plan, network)
    ring = carried[carried > 0]
    assert len(ring) == n
    np.testing.assert_allclose(ring, 9_000_000 * 2 * (n - 1) / n)
    assert sorted(shard.root for shard in plan.shards) == sorted(network.names)


def ring_of(plan: Plan) -> list[str]:
    """The sites in the order in which the first shard's result visits them."""
    return [plan.shards[0].root, *(route[-1] for route in plan.shards[0].broadcast)]


def test_the_greedy_ring_goes_on_to_the_largest_bandwidth_from_the_last() -> None:
    mbps = {("a", "b"): 10, ("a", "c"): 90, ("a", "d"): 20, ("c", "b"): 5, ("c", "d"): 50, ("d", "b"): 1}
    sites = [Site(name) for name in "abcd"]
    links = [Link(s, d, mbps.get((s, d), 2) * 1e6) for s in "abcd" for d in "abcd" if s != d]
    network = Network.from_links("n", sites, links)
    plan = make("ring", network)
    assert ring_of(plan) == ["a", "c", "d", "b"]
    assert "d->b with 1 Mbps" in plan.reason
    assert ring_of(make("ring", network, start="c")) == ["c", "d", "a", "b"]
    assert ring_of(make("ring", network, order="given")) == ["a", "b", "c", "d"]


@settings(max_examples=40, deadline=None)
@given(network=networks(max_sites=6))
def test_no_order_has_a_wider_or_among_those_a_shorter_ring_than_exact(network: Network) -> None:
    routes = Routes(network)
    bandwidth, distance = routes.bandwidth_bps(), routes.distance_s

    def quality(order: tuple[int, ...]) -> tuple[float, float]:
        hops = list(pairwise((*order, order[0])))
        return -min(bandwidth[hop] for hop in hops), sum(distance[hop] for hop in hops)

    found = tuple(network.index[name] for name in ring_of(make("ring", network, order="exact")))
    width, length = quality(found)
    best_width, best_length = min(quality((0, *rest)) for rest in permutations(range(1, len(network))))
    assert width == best_width
    assert length == pytest.approx(best_length)


def test_exact_is_refused_and_auto_is_greedy_above_the_limit() -> None:
    network = mesh(EXACT_AT_MOST + 1)
    with pytest.raises(BadOption, match="up to 16 members, here are 17"):
        make("ring", network, order="exact")
    assert make("ring", network, order="auto").shards == make("ring", network, order="greedy").shards
    small = mesh(8)
    assert make("ring", small, order="auto").shards == make("ring", small, order="exact").shards


# --- stars --------------------------------------------------------------------------------------------------


def test_the_star_is_rooted_at_the_largest_average_bandwidth_then_the_smallest_latency() -> None:
    sites = [Site(name) for name in "abc"]
    wide = both_ways(("a", "b", 10), ("b", "c", 30), ("a", "c", 20))
    assert make("star", Network.from_links("n", sites, wide)).shards[0].root == "c"
    equal = [Link(s, d, 1e7, 0.01 if "b" in (s, d) else 0.05) for s in "abc" for d in "abc" if s != d]
    assert make("star", Network.from_links("n", sites, equal)).shards[0].root == "b"
    alike = both_ways(("a", "b", 10), ("b", "c", 10), ("a", "c", 10))
    assert make("star", Network.from_links("n", sites, alike)).shards[0].root == "a"


def test_a_given_root_may_be_any_site_and_must_be_a_site() -> None:
    network = mesh(4)
    plan = make("star", network, members=("s0", "s1", "s3"), root="s2")
    assert plan.shards[0].root == "s2"
    assert set(plan.shards[0].reduce) == {("s0", "s2"), ("s1", "s2"), ("s3", "s2")}
    assert check(plan, network) == ()
    with pytest.raises(UnknownName, match="nowhere"):
        make("star", network, root="nowhere")


def test_star_edges_are_routed_where_there_is_no_link_and_double_up_on_shared_links() -> None:
    network = Network.from_links(
        "chain", [Site(name) for name in "abcd"], both_ways(("a", "b", 10), ("b", "c", 10), ("c", "d", 10))
    )
    plan = make("star", network, root="a", nbytes=1000)
    assert plan.shards[0].reduce == (("b", "a"), ("c", "b", "a"), ("d", "c", "b", "a"))
    assert plan.shards[0].broadcast == (("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d"))
    assert bytes_per_link(plan, network)[1, 0] == 3000


def test_multi_star_shares_follow_the_slowest_route_of_each_root_if_asked() -> None:
    network = Network.from_links(
        "n", [Site(name) for name in "abc"], both_ways(("a", "b", 10), ("b", "c", 30), ("a", "c", 20))
    )
    assert [shard.fraction for shard in make("multi-star", network).shards] == [1 / 3] * 3
    weighted = make("multi-star", network, weights="bandwidth").shards
    assert [shard.root for shard in weighted] == ["a", "b", "c"]
    assert [shard.fraction for shard in weighted] == [0.25, 0.25, 0.5]


def test_in_all_to_all_every_link_carries_the_whole_tensor_once() -> None:
    network = mesh(5)
    carried = bytes_per_link(make("all-to-all", network, nbytes=1000), network)
    np.testing.assert_array_equal(carried, np.where(np.eye(5), 0, 1000))


def test_psld_loads_aggregators_in_proportion_to_their_average_bandwidth() -> None:
    network = Network.from_links("n", [Site(name) for name in "abc"], both_ways(("a", "b", 10), ("b", "c", 30)))
    # On a-b-c the route a-c averages (10 + 30) / 2 = 20: a has 10 + 20, b has 10 + 30, c has 20 + 30.
    shards = make("psld", network).shards
    assert [shard.root for shard in shards] == ["a", "b", "c"]
    assert [shard.fraction for shard in shards] == pytest.approx([30 / 120, 40 / 120, 50 / 120])
    best = make("psld", network, aggregators=2).shards
    assert [shard.root for shard in best] == ["b", "c"]
    assert [shard.fraction for shard in best] == pytest.approx([40 / 90, 50 / 90])


# --- trees --------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 40), arity=st.integers(1, 5))
def test_the_balanced_tree_is_balanced(n: int, arity: int) -> None:
    network = mesh(n)
    (shard,) = make("balanced-tree", network, arity=arity).shards
    parent = {route[0]: route[-1] for route in shard.reduce}
    assert shard.root == "s0"
    assert max(Counter(parent.values()).values()) <= arity

    def depth(site: str) -> int:
        return 0 if site == shard.root else 1 + depth(parent[site])

    leaves = set(network.names) - set(parent.values())
    depths = [depth(leaf) for leaf in leaves]
    assert max(depths) - min(depths) <= 1


def test_the_balanced_tree_fills_every_site_before_it_goes_deeper() -> None:
    (shard,) = make("balanced-tree", mesh(8), arity=3, root="s2").shards
    assert shard.reduce == tuple(
        (child, parent)
        for parent, children in (("s2", ("s0", "s1", "s3")), ("s0", ("s4", "s5", "s6")), ("s1", ("s7",)))
        for child in children
    )


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_no_tree_is_wider_than_the_spanning_tree_on_links(problem: Problem) -> None:
    network, members, nbytes = problem
    (shard,) = make("spanning-tree", network, members, nbytes).shards
    if any(len(route) > 2 for route in (*shard.reduce, *shard.broadcast)):
        return  # links alone do not connect these members
    rows = [network.index[name] for name in members]
    one_way = Routes(network).bandwidth_bps()
    linked = (network.bandwidth_bps > 0) & (network.bandwidth_bps > 0).T
    width = np.where(linked, np.minimum(one_way, one_way.T), 0)[np.ix_(rows, rows)]
    edges = [tuple(network.index[site] for site in route) for route in shard.reduce]
    bottleneck = min(min(one_way[i, j], one_way[j, i]) for i, j in edges)
    wider = width > bottleneck
    reached = np.linalg.matrix_power(np.eye(len(rows)) + wider, len(rows))[0] > 0
    assert not reached.all(), "links wider than the tree's bottleneck connect all members"


def test_the_spanning_tree_is_rooted_where_it_is_lowest() -> None:
    chain = both_ways(("a", "b", 10), ("b", "c", 10), ("c", "d", 10), ("d", "e", 10))
    network = Network.from_links("chain", [Site(name) for name in "abcde"], [*chain, Link("a", "e", 1e9)])
    (shard,) = make("spanning-tree", network).shards
    assert shard.root == "c"
    far = [Link(s, d, 1e7, 0.3 if {s, d} == {"d", "e"} else 0.01) for s, d in ((x.src, x.dst) for x in chain)]
    (shard,) = make("spanning-tree", Network.from_links("chain", network.sites, far)).shards
    assert shard.root == "d"


def test_the_spanning_tree_of_a_one_way_cycle_routes_its_edges() -> None:
    cycle = [Link(s, d, 1e7) for s, d in ("ab", "bc", "ca")]
    network = Network.from_links("cycle", [Site(name) for name in "abc"], cycle)
    plan = make("spanning-tree", network)
    assert check(plan, network) == ()


# --- two levels ---------------------------------------------------------------------------------------------


def zoned(sizes: dict[str, int], inside_mbps: float = 1000, between_mbps: float = 50) -> Network:
    sites = [Site(f"{zone}{k}", zone=zone) for zone, size in sizes.items() for k in range(size)]
    bandwidth = np.array([[inside_mbps if a.zone == b.zone else between_mbps for b in sites] for a in sites]) * 1e6
    latency = np.array([[0.001 if a.zone == b.zone else 0.08 for b in sites] for a in sites])
    np.fill_diagonal(bandwidth, 0)
    return Network("zoned", sites, bandwidth, latency)


def crossing(plan: Plan, network: Network) -> float:
    """How often the tensor crosses between zones in one round."""
    zone = np.array([site.zone for site in network.sites])
    return float(bytes_per_link(plan, network)[zone[:, None] != zone].sum()) / plan.nbytes


@pytest.mark.parametrize(("name", "inter"), [(n, i) for n in ("hierarchical", "plink") for i in ("ring", "star")])
def test_two_levels_cross_between_zones_as_rarely_as_possible(name: str, inter: str) -> None:
    network = zoned({"asia": 3, "europe": 4, "us": 2})
    plan = make(name, network, inter=inter)
    assert check(plan, network) == ()
    assert crossing(plan, network) == pytest.approx(2 * (3 - 1))
    assert len(plan.shards) == (3 if inter == "ring" else 1)
    assert "3 groups" in plan.reason


def test_a_trunk_between_zones_makes_two_levels_faster_than_a_star() -> None:
    flat = zoned({"asia": 4, "us": 4}, between_mbps=1000)
    trunks = [Trunk("out", "asia", "us", 1e8), Trunk("back", "us", "asia", 1e8)]
    network = Network("trunked", flat.sites, flat.bandwidth_bps, flat.latency_s, trunks=trunks)
    star, two_level = (cost(make(name, network, nbytes=10**8), network) for name in ("star", "hierarchical"))
    assert star.bottleneck.startswith("trunk")
    assert two_level.transfer_seconds == pytest.approx(star.transfer_seconds / 4)


def test_leaders_are_the_members_that_reach_the_other_zones_best() -> None:
    base = zoned({"asia": 3, "us": 3})
    bandwidth = base.bandwidth_bps.copy()
    gateways = [base.index["asia2"], base.index["us1"]]
    bandwidth[np.ix_(gateways, gateways)] = [[0, 4e8], [4e8, 0]]
    plan = make("hierarchical", base.with_bandwidth(bandwidth))
    assert {shard.root for shard in plan.shards} == {"asia2", "us1"}


def test_without_zones_hierarchical_is_flat_and_in_one_zone_it_is_a_star() -> None:
    unzoned = mesh(5)
    assert make("hierarchical", unzoned).shards == make("ring", unzoned, order="exact").shards
    assert make("hierarchical", unzoned, inter="star").shards == make("star", unzoned).shards
    single = zoned({"us": 4})
    assert make("hierarchical", single).shards == make("star", single).shards


def test_plink_finds_the_groups_without_being_told_the_zones() -> None:
    told = zoned({"asia": 5, "europe": 2, "us": 5})
    untold = Network("untold", [Site(s.name) for s in told.sites], told.bandwidth_bps, told.latency_s)
    plan = make("plink", untold)
    leaders = {route[-1] for route in plan.shards[0].reduce}
    groups = {
        leader: {leader, *(r[0] for r in plan.shards[0].reduce if r[-1] == leader and r[0] not in leaders)}
        for leader in leaders
    }
    zones = {frozenset(f"{zone}{k}" for k in range(size)) for zone, size in (("asia", 5), ("europe", 2), ("us", 5))}
    assert {frozenset(group) for group in groups.values()} == zones
    assert len(make("plink", untold, groups=4, inter="ring").shards) == 4
