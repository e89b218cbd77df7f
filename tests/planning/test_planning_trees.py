"""Trees on the undirected view, and the programs that choose among them: what MTREE, BLINK and TOPOADOPT share."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import Problem, networks, problems
from tradewind.errors import InfeasiblePlan
from tradewind.network import Link, Network, Site
from tradewind.planning.trees.tree_rates import PROVEN_GAP, SearchLimits, best_rates, choose_trees
from tradewind.planning.trees.undirected import (
    Tree,
    UndirectedGraph,
    hang,
    hang_from_centre,
    pruned,
    spanning_tree,
    undirected_view,
)

EXAMPLES = settings(max_examples=40, deadline=None)
ENOUGH = SearchLimits(nodes=10_000, seconds=60.0)


def random_trees(graph: UndirectedGraph, count: int, seed: int) -> list[Tree]:
    rng = np.random.default_rng(seed)
    return [spanning_tree(graph, rng.permutation(len(graph.ends)).tolist()) for _ in range(count)]


def view_of(problem: Problem) -> UndirectedGraph | None:
    network, members, _ = problem
    try:
        return undirected_view(network, members)
    except InfeasiblePlan:
        return None


def triangle_with_tail() -> Network:
    links = [("a", "b", 100), ("b", "c", 50), ("a", "c", 20), ("c", "d", 30)]
    both = [Link(x, y, mbps * 1e6, 0.01) for s, d, mbps in links for x, y in ((s, d), (d, s))]
    return Network.from_links("tail", [Site(name) for name in "abcd"], both)


# --- the view ---------------------------------------------------------------------------------------------


@pytest.mark.mechanism("MTREE III-A, undirected links with the lower bandwidth of both directions")
def test_the_view_takes_the_lower_bandwidth_and_drops_one_way_links() -> None:
    links = [
        Link("a", "b", 100e6),
        Link("b", "a", 40e6),
        Link("a", "c", 10e6),
        Link("b", "c", 10e6),
        Link("c", "b", 9e6),
    ]
    graph = undirected_view(Network.from_links("x", [Site(n) for n in "abc"], links), ("a", "b", "c"))
    assert graph.ends.tolist() == [[0, 1], [1, 2]]
    assert graph.capacity_bps.tolist() == [40e6, 9e6]


def test_the_view_holds_only_members_where_their_links_connect_them() -> None:
    assert undirected_view(triangle_with_tail(), ("a", "b")).names == ("a", "b")


def test_the_view_holds_other_sites_where_members_need_them() -> None:
    graph = undirected_view(triangle_with_tail(), ("a", "d"))
    assert graph.names == ("a", "b", "c", "d")
    assert graph.is_member.tolist() == [True, False, False, True]


def test_links_below_the_least_rate_do_not_exist() -> None:
    graph = undirected_view(triangle_with_tail(), ("a", "b", "c"), min_rate_bps=50e6)
    assert graph.capacity_bps.tolist() == [100e6, 50e6]
    with pytest.raises(InfeasiblePlan, match=r"no links of 50 Mbps both ways connect 'a' with 'd'.*min-rate-mbps"):
        undirected_view(triangle_with_tail(), ("a", "d"), min_rate_bps=50e6)


def test_members_that_only_one_way_links_connect_cannot_share_a_tree() -> None:
    ring = [Link("a", "b", 1e6), Link("b", "c", 1e6), Link("c", "a", 1e6)]
    with pytest.raises(InfeasiblePlan, match="both ways"):
        undirected_view(Network.from_links("ring", [Site(n) for n in "abc"], ring), ("a", "b", "c"))


# --- trees ------------------------------------------------------------------------------------------------


@pytest.mark.mechanism("MTREE III-A, trees hang from their centre")
@EXAMPLES
@given(problem=problems(), seed=st.integers(0, 100))
def test_the_centre_is_the_best_of_all_roots(problem: Problem, seed: int) -> None:
    graph = view_of(problem)
    if graph is None:
        return
    tree = random_trees(graph, 1, seed)[0]
    for length in (np.ones(len(graph.ends)), graph.latency_s):
        least = min(hang(graph, tree, root).height(length) for root in range(len(graph)))
        assert hang_from_centre(graph, tree, length).height(length) == pytest.approx(least)


@EXAMPLES
@given(problem=problems(), seed=st.integers(0, 100))
def test_pruning_keeps_all_members_connected_and_leaves_no_other_leaf(problem: Problem, seed: int) -> None:
    graph = view_of(problem)
    if graph is None:
        return
    tree = random_trees(graph, 1, seed)[0]
    left = pruned(graph, tree)
    member = int(np.flatnonzero(graph.is_member)[0])
    hung = hang(graph, left, member)
    reached = {member} | {child for _, child, _ in hung.links}
    assert set(left) <= set(tree)
    assert len(hung.links) == len(left)
    assert set(np.flatnonzero(graph.is_member)) <= reached
    leaves = reached - {parent for parent, _, _ in hung.links} - {member}
    assert all(graph.is_member[leaf] for leaf in leaves)


def test_the_deepest_path_runs_from_the_farthest_site_to_the_root() -> None:
    graph = undirected_view(triangle_with_tail(), ("a", "b", "c", "d"))
    tree = spanning_tree(graph, [0, 2, 3])
    rooted = hang(graph, tree, 0)
    assert [graph.ends[edge].tolist() for edge in rooted.deepest_path(graph.latency_s)] == [[2, 3], [1, 2], [0, 1]]
    assert (rooted.height(np.ones(4)), rooted.max_fan_out) == (3, 1)


# --- choosing trees ---------------------------------------------------------------------------------------


@pytest.mark.mechanism("MTREE III-B MILP (1), at most K trees")
@EXAMPLES
@given(
    network=networks(min_sites=3, max_sites=7),
    max_trees=st.integers(1, 4),
    min_rate_mbps=st.sampled_from((0.0, 1.0, 10.0, 60.0)),
    seed=st.integers(0, 10),
)
def test_a_choice_keeps_capacity_number_and_least_rate(
    network: Network, max_trees: int, min_rate_mbps: float, seed: int
) -> None:
    try:
        graph = undirected_view(network, network.names, min_rate_mbps * 1e6)
    except InfeasiblePlan:
        return
    trees = list(dict.fromkeys(random_trees(graph, 6, seed)))
    choice = choose_trees(trees, graph.capacity_bps, max_trees, min_rate_mbps * 1e6, ENOUGH)
    assert 1 <= len(choice.trees) <= max_trees
    assert set(choice.trees) <= set(trees)
    assert all(rate >= min_rate_mbps * 1e6 * (1 - 1e-6) for rate in choice.rates_bps)
    load = np.zeros(len(graph.ends))
    for tree, rate in zip(choice.trees, choice.rates_bps, strict=True):
        load[list(tree)] += rate
    assert (load <= graph.capacity_bps * (1 + 1e-9)).all()


@settings(max_examples=20, deadline=None)
@given(network=networks(min_sites=4, max_sites=6), max_trees=st.integers(1, 3), seed=st.integers(0, 10))
def test_a_proven_choice_is_the_best_of_all_choices(network: Network, max_trees: int, seed: int) -> None:
    try:
        graph = undirected_view(network, network.names)
    except InfeasiblePlan:
        return
    trees = list(dict.fromkeys(random_trees(graph, 5, seed)))
    choice = choose_trees(trees, graph.capacity_bps, max_trees, 0.0, ENOUGH)
    best = max(best_rates(few, graph.capacity_bps).total_bps for few in combinations(trees, min(max_trees, len(trees))))
    assert choice.gap <= PROVEN_GAP
    assert choice.quality == "the choice is optimal"
    assert choice.total_bps == pytest.approx(best, rel=2 * PROVEN_GAP)


def test_a_search_that_is_cut_short_reports_its_gap() -> None:
    rng = np.random.default_rng(1)
    weight = rng.integers(130, 270, (12, 12)) * 1e6
    mesh = np.triu(weight, 1) + np.triu(weight, 1).T
    network = Network("mesh", [Site(f"s{i}") for i in range(12)], mesh)
    graph = undirected_view(network, network.names)
    choice = choose_trees(random_trees(graph, 60, 0), graph.capacity_bps, 4, 0.0, SearchLimits(1, 60.0))
    assert choice.gap > PROVEN_GAP
    assert choice.quality == f"the search for a better choice was stopped at a gap of {choice.gap:.1%}"
    with pytest.raises(InfeasiblePlan, match="--time-limit-s"):
        choose_trees(random_trees(graph, 60, 0), graph.capacity_bps, 4, 0.0, SearchLimits(1, 1e-9))


@pytest.mark.mechanism("MTREE III-B MILP (1), least rate r-bar of a tree")
def test_a_tree_that_would_get_less_than_the_least_rate_is_not_used() -> None:
    """The 5 Mbps edge allows two more trees of 2.5 Mbps each; with at least 4 required, one of 5 is used instead."""
    capacity_bps = np.array([100e6, 100e6, 5e6])
    trees: list[Tree] = [(0, 1), (0, 2), (1, 2)]
    totals = [choose_trees(trees, capacity_bps, 3, rate * 1e6, ENOUGH).total_bps / 1e6 for rate in (0, 4, 10)]
    assert totals == pytest.approx([102.5, 100.0, 100.0], rel=1e-4)
    assert best_rates(trees, capacity_bps).total_bps == pytest.approx(102.5e6)
