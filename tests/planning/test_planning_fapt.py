"""NetStorm's trees and auxiliary paths: fastest paths, scored roots, no link twice."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from networks import Problem, networks, problems
from tradewind.catalog import load_network
from tradewind.errors import BadOption, InfeasiblePlan, UnknownName
from tradewind.network import Link, Matrix, Network, Site
from tradewind.planning import make_plan, planner, planner_options
from tradewind.planning.auxiliary import Exclusion, auxiliary_paths
from tradewind.planning.check import check
from tradewind.planning.plan import Plan, Route
from tradewind.planning.trees.fastest_paths import FastestPaths, next_hops_to, transfer_delay

EXAMPLES = settings(max_examples=40, deadline=None)


def fapt(network: Network, members: tuple[str, ...] | None = None, **options: object) -> Plan:
    return planner("fapt").function(network, members or network.names, 10**6, planner_options("fapt", options))


def distances(network: Network) -> Matrix:
    delay = transfer_delay(network)
    found: Matrix = shortest_path(csr_array(np.where(np.isfinite(delay), delay, 0.0)), method="FW")
    return found


def path_delay(network: Network, route: Route) -> float:
    delay = transfer_delay(network)
    return float(sum(delay[network.index[a], network.index[b]] for a, b in pairwise(route)))


def path_in_tree(edges: tuple[Route, ...], member: str, root: str) -> Route:
    parent = {edge[0]: edge[-1] for edge in edges}
    path = [member]
    while path[-1] != root:
        path.append(parent[path[-1]])
    return tuple(path)


# --- trees ------------------------------------------------------------------------------------------------


@pytest.mark.mechanism("NetStorm IV-B Algorithm 2, a reduce tree towards and a broadcast tree away from the root")
@pytest.mark.mechanism("NetStorm IV-A Theorem 1, trees of fastest paths (FAPT)")
@EXAMPLES
@given(problem=problems())
def test_every_member_is_on_a_fastest_path_both_ways(problem: Problem) -> None:
    network, members, _ = problem
    fastest = distances(network)
    plan = fapt(network, members)
    assert check(plan, network) == ()
    for shard in plan.shards:
        root = network.index[shard.root]
        downwards = tuple(edge[::-1] for edge in shard.broadcast)
        for member in members:
            up = path_in_tree(shard.reduce, member, shard.root)
            down = path_in_tree(downwards, member, shard.root)[::-1]
            row = network.index[member]
            assert path_delay(network, up) == pytest.approx(fastest[row, root], rel=1e-9)
            assert path_delay(network, down) == pytest.approx(fastest[root, row], rel=1e-9)


@pytest.mark.mechanism("NetStorm IV-B, shares in proportion to the scores")
@pytest.mark.mechanism("NetStorm IV-B Algorithm 1, roots by quality score")
@EXAMPLES
@given(problem=problems())
def test_shares_are_in_proportion_to_the_scores_and_the_best_come_first(problem: Problem) -> None:
    network, members, _ = problem
    fastest = distances(network)
    rows = [network.index[name] for name in members]
    plan = fapt(network, members)
    assert sorted(shard.root for shard in plan.shards) == sorted(members)
    roots = [network.index[shard.root] for shard in plan.shards]
    delays = [fastest[rows, root].max() + fastest[root, rows].max() for root in roots]
    assert delays == pytest.approx(sorted(delays), rel=1e-9)
    for shard, delay in zip(plan.shards, delays, strict=True):
        assert shard.fraction * delay == pytest.approx(plan.shards[0].fraction * delays[0], rel=1e-9)


def test_a_number_of_roots_takes_the_best_scored_ones() -> None:
    network = load_network("internet2")
    all_roots, three = fapt(network), fapt(network, roots=3)
    assert [s.root for s in three.shards] == [s.root for s in all_roots.shards][:3]
    assert sum(s.fraction for s in three.shards) == pytest.approx(1)


@pytest.mark.mechanism("NetStorm IV-C, roots stay when the network changes")
@pytest.mark.mechanism("NetStorm III-A, delay of a link by its throughput")
def test_fixed_roots_stay_when_the_network_changes() -> None:
    network = load_network("internet2")
    roots = tuple(shard.root for shard in fapt(network, roots=2).shards)
    rates = np.random.default_rng(1).uniform(20e6, 155e6, network.bandwidth_bps.shape)
    changed = network.with_bandwidth(np.where(network.bandwidth_bps > 0, rates, 0.0))
    assert tuple(shard.root for shard in fapt(changed, roots=2).shards) != roots, "else this test shows nothing"
    again = fapt(changed, fixed_roots=roots)
    assert tuple(shard.root for shard in again.shards) == roots
    assert check(again, changed) == ()


def test_a_root_may_be_a_site_that_is_not_a_member_if_it_is_given() -> None:
    network = load_network("internet2")
    outsider, members = network.names[0], network.names[1:4]
    plan = fapt(network, members, fixed_roots=(outsider,))
    assert [shard.root for shard in plan.shards] == [outsider]
    assert check(plan, network) == ()


def test_ties_go_to_the_hop_nearest_to_the_root_then_to_the_first_site() -> None:
    mesh = Network("even", [Site(c) for c in "abcd"], 1e8 * (1 - np.eye(4)))
    for shard in fapt(mesh).shards:
        assert set(shard.reduce) == {(name, shard.root) for name in mesh.names if name != shard.root}
    square = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    links = [Link(x, y, 1e8) for s, d in square for x, y in ((s, d), (d, s))]
    diamond = Network.from_links("diamond", [Site(c) for c in "abcd"], links)
    tree = next(shard for shard in fapt(diamond).shards if shard.root == "d")
    assert set(tree.reduce) == {("a", "b"), ("b", "d"), ("c", "d")}
    assert set(tree.broadcast) == {("b", "a"), ("d", "b"), ("d", "c")}


def test_one_way_links_give_different_trees_up_and_down() -> None:
    ring = [Link(a, b, 1e8) for a, b in (("a", "b"), ("b", "c"), ("c", "a"))]
    network = Network.from_links("one-way", [Site(c) for c in "abc"], ring)
    shard = next(shard for shard in fapt(network).shards if shard.root == "a")
    assert set(shard.reduce) == {("b", "c"), ("c", "a")}
    assert set(shard.broadcast) == {("a", "b"), ("b", "c")}


@pytest.mark.parametrize("options", [{"roots": 0}, {"roots": 10}, {"roots": 1, "fixed_roots": ("a",)}])
def test_wrong_numbers_of_roots_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        make_plan("fapt", load_network("internet2"), 1000, **options)


def test_a_fixed_root_must_exist_once_and_be_reachable() -> None:
    links = [Link("a", "b", 1e8), Link("b", "a", 1e8), Link("a", "dead", 1e8)]
    network = Network.from_links("dead-end", [Site("a"), Site("b"), Site("dead")], links)
    with pytest.raises(UnknownName):
        fapt(network, ("a", "b"), fixed_roots=("nowhere",))
    with pytest.raises(BadOption):
        fapt(network, ("a", "b"), fixed_roots=("a", "a"))
    with pytest.raises(InfeasiblePlan, match="dead"):
        fapt(network, ("a", "b"), fixed_roots=("dead",))


@EXAMPLES
@given(network=networks())
def test_one_root_alone_finds_the_same_hops_as_all_together(network: Network) -> None:
    delay = transfer_delay(network)
    paths = FastestPaths(delay)
    for root in range(len(network)):
        assert np.array_equal(next_hops_to(delay, root), paths.next_hops(root))


# --- auxiliary paths --------------------------------------------------------------------------------------


@pytest.mark.mechanism("NetStorm VI-B Algorithm 3, disjoint auxiliary paths by delay")
@pytest.mark.parametrize("exclusion", ["pair", "global"])
@EXAMPLES
@given(network=networks(max_sites=6))
def test_paths_of_a_pair_share_no_link_and_get_slower(exclusion: Exclusion, network: Network) -> None:
    fastest = distances(network)
    for (src, dst), paths in auxiliary_paths(network, exclusion=exclusion).items():
        links = [link for path in paths for link in pairwise(path)]
        assert len(set(links)) == len(links)
        assert all(network.link(a, b).bandwidth_bps > 0 for a, b in links)
        assert all((path[0], path[-1]) == (src, dst) for path in paths)
        delays = [path_delay(network, path) for path in paths]
        assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(delays))
        assert delays[0] == pytest.approx(fastest[network.index[src], network.index[dst]], rel=1e-9)


@EXAMPLES
@given(network=networks(max_sites=6))
def test_per_pair_the_search_ends_only_when_the_pair_is_cut_off(network: Network) -> None:
    for (src, dst), paths in auxiliary_paths(network).items():
        left = transfer_delay(network)
        for path in paths:
            for a, b in pairwise(path):
                left[network.index[a], network.index[b]] = np.inf
        assert np.isinf(FastestPaths(left).distance[network.index[src], network.index[dst]])


@pytest.mark.mechanism("NetStorm VI-B Algorithm 3 as published, links excluded globally")
def test_excluding_globally_as_published_leaves_almost_no_auxiliary_path() -> None:
    network = load_network("mesh", n=12)
    per_pair, globally = auxiliary_paths(network), auxiliary_paths(network, exclusion="global")
    mean = {name: np.mean([len(p) for p in found.values()]) for name, found in (("pair", per_pair), ("all", globally))}
    assert mean["pair"] == 11
    assert mean["all"] < 3


def test_pairs_and_their_number_of_paths_can_be_limited() -> None:
    network = load_network("mesh", n=8)
    pair = (network.names[0], network.names[5])
    found = auxiliary_paths(network, pairs=[pair], limit=3)
    assert list(found) == [pair]
    assert found[pair] == auxiliary_paths(network)[pair][:3]
    with pytest.raises(UnknownName):
        auxiliary_paths(network, pairs=[("nowhere", network.names[0])])
