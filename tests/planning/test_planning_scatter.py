"""CREW's scatter: the weights of its linear program, its plans, and the shares for overlapping phases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from networks import Problem, problems
from tradewind.catalog import load_network
from tradewind.errors import InfeasiblePlan
from tradewind.network import Link, Network, Site, Trunk
from tradewind.planning import planner, planner_options
from tradewind.planning.check import check
from tradewind.planning.cost import cost
from tradewind.planning.flows.scatter import Vector, scatter_weights, slowest_member_links
from tradewind.planning.plan import Plan

EXAMPLES = settings(max_examples=60, deadline=None)
THREE = Network("three", [Site(c) for c in "abc"], np.array([[0, 2, 3], [4, 0, 5], [6, 7, 0]]) * 1e6)


def make(name: str, network: Network, members: tuple[str, ...] | None = None, **options: object) -> Plan:
    return planner(name).function(network, members or network.names, 10**6, planner_options(name, options))


def program_2(to_bps: Vector, from_bps: Vector) -> float:
    """CREW's linear program (2) as it is written, for a tensor of one bit: the least T_scatter + T_multicast."""
    n = len(to_bps)
    inverse = np.r_[1 / to_bps, 1 / from_bps]
    rows = np.zeros((2 * n, n + 2))
    rows[np.arange(2 * n), np.r_[np.arange(n), np.arange(n)]] = inverse
    rows[:n, n] = rows[n:, n + 1] = -1
    sums_to_1 = np.r_[np.ones(n), 0, 0][None, :]
    gain = np.r_[np.zeros(n), 1, 1]
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    result = linprog(gain, A_ub=rows, b_ub=np.zeros(2 * n), A_eq=sums_to_1, b_eq=[1], method="highs-ds", options=tight)
    assert result.status == 0
    return float(result.fun)


# --- weights ----------------------------------------------------------------------------------------------


@pytest.mark.mechanism("CREW IV-A LP (2), weights of the aggregators")
@EXAMPLES
@given(data=st.data(), n=st.integers(1, 12), values=st.sampled_from((st.integers(1, 4), st.floats(0.1, 10.0))))
def test_weights_are_the_optimum_of_the_linear_program(
    data: st.DataObject, n: int, values: st.SearchStrategy[float]
) -> None:
    to_bps, from_bps = (np.array(data.draw(st.lists(values, min_size=n, max_size=n)), dtype=float) for _ in range(2))
    found = scatter_weights(to_bps, from_bps)
    assert found.shares.sum() == pytest.approx(1, abs=1e-12)
    assert (found.shares > 0).all()
    assert found.scatter_s_per_bit == pytest.approx((found.shares / to_bps).max(), rel=1e-9)
    assert found.multicast_s_per_bit == pytest.approx((found.shares / from_bps).max(), rel=1e-9)
    best = program_2(to_bps, from_bps)
    assert found.scatter_s_per_bit + found.multicast_s_per_bit == pytest.approx(best, rel=1e-9)


def test_bandwidths_of_very_different_size_are_still_optimal() -> None:
    generator = np.random.default_rng(3)
    to_bps, from_bps = 10 ** generator.uniform(3, 11, (2, 40))
    found = scatter_weights(to_bps, from_bps)
    total = found.scatter_s_per_bit + found.multicast_s_per_bit
    ratios = np.sort(to_bps / from_bps)
    assert total == pytest.approx(min((1 + r) / np.minimum(to_bps, r * from_bps).sum() for r in ratios), rel=1e-12)


def test_a_member_needs_no_link_to_itself() -> None:
    to_bps, from_bps = slowest_member_links(THREE, ("a", "b"))
    assert to_bps.tolist() == [4e6, 2e6, 3e6]
    assert from_bps.tolist() == [2e6, 4e6, 6e6]


# --- plans ------------------------------------------------------------------------------------------------


@pytest.mark.mechanism("CREW II-B, original partial reduce (OPR): only initiators aggregate")
@pytest.mark.mechanism("CREW III, idle sites aggregate")
@pytest.mark.parametrize("name", ["scatter", "opr", "scatter-pipelined"])
@EXAMPLES
@example(problem=(THREE, ("a", "b"), 10**6))  # with a site that is linked to all, and not a member
@given(problem=problems())
def test_aggregators_are_exactly_sites_with_links_to_and_from_all_members(name: str, problem: Problem) -> None:
    network, members, _ = problem
    rows = [network.index[m] for m in members]

    def connected(site: int) -> bool:
        others = [i for i in rows if i != site]
        return bool(network.bandwidth_bps[others, site].all() and network.bandwidth_bps[site, others].all())

    sites = members if name == "opr" else network.names
    able = {site for site in sites if connected(network.index[site])}
    if not able:
        with pytest.raises(InfeasiblePlan):
            make(name, network, members)
        return
    plan = make(name, network, members)
    assert check(plan, network) == ()
    roots = {shard.root for shard in plan.shards}
    assert roots <= able if name == "scatter-pipelined" else roots == able
    for shard in plan.shards:
        assert {edge[0] for edge in shard.reduce} == set(members) - {shard.root}
        assert all(edge == (edge[0], shard.root) for edge in shard.reduce)


def test_opr_is_scatter_when_every_site_is_a_member() -> None:
    network = load_network("crew-n2", n=12)
    assert make("opr", network).shards == make("scatter", network).shards


@pytest.mark.mechanism("CREW IV-A, even blocks (E-D) for comparison")
def test_even_weights_are_even() -> None:
    network = load_network("crew-n2", n=12)
    plan = make("scatter", network, network.names[:4], weights="even")
    assert {shard.fraction for shard in plan.shards} == {1 / 12}


def test_one_phase_after_the_other_takes_what_the_program_says_where_phases_cannot_mix() -> None:
    """With all aggregators outside P, no link carries both phases; then all shares end each phase together."""
    links = [Link(a, b, mbps * 1e6) for a, b, mbps in (("a", "x", 4), ("b", "x", 5), ("x", "a", 2), ("x", "b", 9))]
    links += [Link(a, b, mbps * 1e6) for a, b, mbps in (("a", "y", 1), ("b", "y", 3), ("y", "a", 9), ("y", "b", 9))]
    network = Network.from_links("two-by-two", [Site(c) for c in "abxy"], links)
    plan = make("scatter", network, ("a", "b"))
    assert [shard.fraction for shard in plan.shards] == pytest.approx([0.8, 0.2])
    assert cost(plan, network, pipelined=False).seconds == pytest.approx(8 * (0.2 + 0.4))


# --- overlapping phases -----------------------------------------------------------------------------------


def overlapped_by_the_book(network: Network, members: tuple[str, ...]) -> float:
    """The best pipelined rate of stars on a full mesh without NICs and trunks, row by row."""
    n, rows = len(network), [network.index[m] for m in members]
    constraints, capacity = [], []
    for i in rows:
        for j in range(n):
            for src, dst, carried in ((i, j, {j}), (j, i, {j})):
                if src == dst:
                    continue
                if src in rows and dst in rows:
                    carried = {src, dst}
                row = np.zeros(n)
                row[list(carried)] = 1
                constraints.append(row)
                capacity.append(network.bandwidth_bps[src, dst] / 1e8)
    result = linprog(-np.ones(n), A_ub=np.array(constraints), b_ub=capacity, method="highs-ds")
    return float(-result.fun) * 1e8


@pytest.mark.parametrize("seed", range(4))
def test_overlapping_stars_reach_the_optimum_and_cost_confirms_it(seed: int) -> None:
    network = load_network("crew-n1", n=14, seed=seed)
    members = network.names[:5]
    plan = make("scatter-pipelined", network, members)
    assert plan.rate_bps == pytest.approx(cost(plan, network).steady_rate_bps, rel=1e-12)
    assert plan.rate_bps == pytest.approx(overlapped_by_the_book(network, members), rel=1e-6)


@EXAMPLES
@given(problem=problems())
def test_planning_for_the_overlap_is_never_slower_than_crews_weights(problem: Problem) -> None:
    network, members, _ = problem
    try:
        crew = make("scatter", network, members)
    except InfeasiblePlan:
        return
    overlapped = cost(make("scatter-pipelined", network, members), network).steady_rate_bps
    assert overlapped >= cost(crew, network).steady_rate_bps * (1 - 1e-6)


def test_a_trunk_moves_the_work_to_the_side_with_the_members() -> None:
    zones = {"a": "x", "b": "x", "c": "x", "far": "y"}
    sites = [Site(name, zone=zone) for name, zone in zones.items()]
    trunks = [Trunk("out", "x", "y", 1e6), Trunk("back", "y", "x", 1e6)]
    network = Network("trunk", sites, 1e8 * (1 - np.eye(4)), trunks=trunks)
    plan = make("scatter-pipelined", network, ("a", "b", "c"))
    shares = {shard.root: shard.fraction for shard in plan.shards}
    assert shares.pop("far", 0.0) < 0.01
    assert shares.keys() == {"a", "b", "c"}
    assert cost(plan, network).steady_rate_bps > 10 * cost(make("scatter", network, ("a", "b", "c")), network).rate_bps
