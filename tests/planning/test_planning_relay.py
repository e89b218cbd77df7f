"""Partial reduce at the limit: flows through relays, their trees, and what both promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import Problem, problems
from tradewind.catalog import load_network
from tradewind.errors import BadOption, InfeasiblePlan
from tradewind.network import Link, Network, Site
from tradewind.planning import planner, planner_options
from tradewind.planning.bound import bound
from tradewind.planning.check import check
from tradewind.planning.cost import cost
from tradewind.planning.flows.relay_flows import Choices, Flows, best_flows, find_choices, phases, possible_roots
from tradewind.planning.flows.relay_trees import trees_from_flows
from tradewind.planning.flows.scatter import scatter_weights, slowest_member_links
from tradewind.planning.host import FREE_HOST
from tradewind.planning.plan import Plan

EXAMPLES = settings(max_examples=30, deadline=None)
MODEL_BYTES = 180_000_000


def make(
    name: str, network: Network, members: tuple[str, ...] | None = None, nbytes: int = MODEL_BYTES, **options: object
) -> Plan:
    return planner(name).function(network, members or network.names, nbytes, planner_options(name, options))


def steady_efficiency(plan: Plan, network: Network) -> float:
    return cost(plan, network).steady_rate_bps / bound(network, plan.members, plan.nbytes).rate_bps


# --- plans ------------------------------------------------------------------------------------------------


@EXAMPLES
@given(problem=problems(), relays=st.integers(0, 5))
def test_plans_are_valid_and_promise_what_cost_confirms(problem: Problem, relays: int) -> None:
    network, members, nbytes = problem
    plan = make("relay", network, members, nbytes, relays_per_pair=relays)
    assert check(plan, network) == ()
    assert plan.rate_bps == pytest.approx(cost(plan, network).steady_rate_bps, rel=1e-9)
    assert steady_efficiency(plan, network) <= 1 + 1e-6


@EXAMPLES
@given(problem=problems())
def test_relays_never_cost_speed(problem: Problem) -> None:
    network, members, _ = problem
    try:
        direct = make("scatter-pipelined", network, members)
    except InfeasiblePlan:
        return
    with_relays = cost(make("relay", network, members), network).steady_rate_bps
    assert with_relays >= 0.99 * (1 - 1e-6) * cost(direct, network).steady_rate_bps


@pytest.mark.parametrize(("p", "limit_share"), [(5, 0.95), (20, 0.95)])
def test_crews_own_setting_is_close_to_the_limit_and_well_ahead_of_crew(p: int, limit_share: float) -> None:
    network = load_network("crew-n2", n=60, seed=1)
    members = network.names[:: 60 // p]
    plan = make("relay", network, members)
    limit = bound(network, members, MODEL_BYTES)
    seconds = cost(plan, network, host=FREE_HOST).seconds
    assert limit.seconds / seconds >= limit_share
    assert len(plan.shards) <= 500
    weights = scatter_weights(*slowest_member_links(network, members))
    crew_s = 8 * MODEL_BYTES * (weights.scatter_s_per_bit + weights.multicast_s_per_bit)
    assert crew_s / seconds >= 2.5


@pytest.mark.parametrize("name", ["crew-n1", "crew-n2"])
def test_with_all_sites_as_members_it_is_an_all_reduce_close_to_the_limit(name: str) -> None:
    network = load_network(name, n=14)
    assert steady_efficiency(make("relay", network), network) >= 0.97


@pytest.mark.parametrize("name", ["swan", "internet2", "selective-nics"])
def test_sparse_networks_and_nics_reach_the_limit_too(name: str) -> None:
    network = load_network(name, n=12) if name == "selective-nics" else load_network(name)
    assert steady_efficiency(make("relay", network), network) >= 0.99


def test_a_helper_carries_what_a_slow_link_cannot() -> None:
    fast = [(x, "h") for x in "ab"] + [("h", x) for x in "ab"]
    links = [Link(a, b, 1e8) for a, b in fast] + [Link("a", "b", 1e6), Link("b", "a", 1e6)]
    network = Network.from_links("detour", [Site(c) for c in "abh"], links)
    plan = make("relay", network, ("a", "b"))
    assert cost(plan, network).steady_rate_bps == pytest.approx(1.01e8, rel=0.011)


def test_a_member_adds_its_own_part_to_what_it_passes_on() -> None:
    """On a line, c carries d's part to b. If it only forwarded, its link would carry two parts at half the rate."""
    links = [Link(x, y, 1e8) for s, d in ("ab", "bc", "cd") for x, y in ((s, d), (d, s))]
    network = Network.from_links("line", [Site(c) for c in "abcd"], links)
    assert cost(make("relay", network), network).steady_rate_bps == pytest.approx(1e8)


def test_the_number_of_shards_can_be_limited_at_little_cost() -> None:
    network = load_network("crew-n1", n=20)
    members = network.names[:8]
    rates = {}
    for most in (10, 60, 400):
        plan = make("relay", network, members, max_shards=most)
        assert check(plan, network) == ()
        assert len(plan.shards) <= most
        rates[most] = cost(plan, network).steady_rate_bps
    assert rates[10] <= rates[60] <= rates[400]
    assert rates[60] >= 0.9 * rates[400]


def test_planning_twice_gives_the_same_plan() -> None:
    network = load_network("crew-n2", n=20)
    assert make("relay", network, network.names[:6]) == make("relay", network, network.names[:6])


def test_a_solver_without_time_gives_no_plan() -> None:
    network = load_network("crew-n2", n=40)
    with pytest.raises(InfeasiblePlan, match="time_limit_s"):
        make("relay", network, network.names[:15], time_limit_s=1e-9)


@pytest.mark.parametrize("options", [{"relays_per_pair": -1}, {"time_limit_s": 0}, {"max_shards": 0}])
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        make("relay", load_network("swan"), **options)


# --- flows and their trees --------------------------------------------------------------------------------


@EXAMPLES
@given(problem=problems())
def test_whatever_members_choose_leads_to_the_root(problem: Problem) -> None:
    network, members, _ = problem
    rows = np.array([network.index[name] for name in members])
    both = phases(network)
    choices = find_choices(both, rows, possible_roots(both, rows), relays=4)
    is_member = np.isin(np.arange(len(network)), rows)
    generator = np.random.default_rng(0)
    for phase, root in {(int(p), int(r)) for p, r in zip(choices.phase, choices.root, strict=True)}:
        here = np.flatnonzero((choices.phase == phase) & (choices.root == root))
        chosen = {int(choices.member[c]): int(choices.hop[c]) for c in generator.permutation(here)}
        assert chosen.keys() == set(rows.tolist()) - {root}
        for site in chosen:
            steps = 0
            while site != root:
                following = chosen[site] if is_member[site] else int(both[phase].onward[site, root])
                assert both[phase].rate_bps[site, following] > 0
                site, steps = following, steps + 1
                assert steps <= len(network)


@EXAMPLES
@given(data=st.data(), members=st.integers(2, 5), root_rate=st.floats(1.0, 100.0))
def test_trees_carry_exactly_the_flows(data: st.DataObject, members: int, root_rate: float) -> None:
    """Each choice's flow is the sum of the trees in which the member makes that choice."""
    root = 9
    sent: list[tuple[int, int, int, float]] = []
    for phase in (0, 1):
        for member in range(members):
            parts = np.array(data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=4)), dtype=float)
            parts = parts + (parts.sum() == 0)
            amounts = (parts / parts.sum() * root_rate).tolist()
            sent += [(phase, member, 10 + k, amount) for k, amount in enumerate(amounts)]
    phases_, members_, hops, amounts_ = (np.array(column) for column in zip(*sent, strict=True))
    choices = Choices(phases_, np.full(len(sent), root), members_, hops, np.zeros(len(sent), dtype=bool))
    flows = Flows(np.array([root_rate]), amounts_)
    trees = trees_from_flows(np.arange(members), np.array([root]), choices, flows)
    assert trees.rate.sum() == pytest.approx(root_rate)
    for phase, member, hop, amount in sent:
        carried = trees.rate[trees.hop[:, phase, member] == hop].sum()
        assert carried == pytest.approx(amount, abs=1e-5 * root_rate)


def test_solutions_keep_every_members_flows_equal_to_the_roots() -> None:
    network = load_network("crew-n2", n=12)
    rows = np.arange(4)
    both = phases(network)
    roots = possible_roots(both, rows)
    choices = find_choices(both, rows, roots, relays=2)
    flows = best_flows(network, both, rows, roots, choices, time_limit_s=60)
    key = (choices.phase * 12 + choices.root) * 12 + choices.member
    total = np.bincount(key, weights=flows.choice_bps, minlength=2 * 144)
    expected = flows.root_bps[np.searchsorted(roots, choices.root)]
    assert total[key] == pytest.approx(expected, abs=1e-6 * flows.root_bps.sum())


# --- chunks -----------------------------------------------------------------------------------------------
