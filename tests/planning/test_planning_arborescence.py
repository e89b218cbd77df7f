"""Cheapest trees against all trees, and grown trees against their limit."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.network import Matrix
from tradewind.planning.trees.arborescence import cheapest_arborescence, grown_tree, shortest_path_tree


@st.composite
def costs(draw: st.DrawFn) -> Matrix:
    n = draw(st.integers(2, 5))
    cost = np.full((n, n), np.inf)
    for i in range(n):
        for j in range(n):
            if i != j and (draw(st.booleans()) or i == 0):
                cost[i, j] = draw(st.integers(0, 9))
    return cost


def depth_in_hops(parent: list[int], site: int) -> float:
    hops = 0
    while parent[site] != site:
        site, hops = parent[site], hops + 1
        if hops > len(parent):
            return np.inf
    return hops


def tree_cost(cost: Matrix, parent: list[int]) -> float:
    return float(sum(cost[parent[v], v] for v in range(len(parent)) if parent[v] != v))


@given(costs())
def test_no_tree_out_of_the_root_is_cheaper(cost: Matrix) -> None:
    n = len(cost)
    found = cheapest_arborescence(cost, 0).tolist()
    assert all(depth_in_hops(found, site) < np.inf for site in range(n))
    every = ([0, *choice] for choice in product(range(n), repeat=n - 1))
    trees = (p for p in every if all(p[v] != v and depth_in_hops(p, v) < np.inf for v in range(1, n)))
    assert tree_cost(cost, found) == pytest.approx(min(tree_cost(cost, p) for p in trees))


@given(costs(), st.integers(1, 4))
def test_grown_trees_keep_their_height_and_exist_whenever_possible(cost: Matrix, height: int) -> None:
    length = np.where(np.isfinite(cost), 1.0, np.inf)
    found = grown_tree(cost, length, 0, height)
    nearest = shortest_path_tree(length, 0).tolist()
    possible = all(depth_in_hops(nearest, site) <= height for site in range(len(cost)))
    assert (found is not None) == possible
    if found is not None:
        assert all(depth_in_hops(found.tolist(), site) <= height for site in range(len(cost)))
        assert np.isfinite(tree_cost(cost, found.tolist()))


def test_a_shortcut_taken_late_moves_whole_branches_nearer() -> None:
    # The cheap chain 0-1-2-3 leaves 4 out of reach within three hops; 0->3->4 must then be taken instead.
    cost = np.full((5, 5), np.inf)
    cost[0, 1] = cost[1, 2] = cost[2, 3] = 1
    cost[0, 3] = 9
    cost[3, 4] = 1
    length = np.where(np.isfinite(cost), 1.0, np.inf)
    assert grown_tree(cost, length, 0, 3).tolist() == [0, 0, 1, 0, 3]  # type: ignore[union-attr]
