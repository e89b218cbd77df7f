"""Plans between the fastest and the cheapest, and prices of egress."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.catalog import load_network
from tradewind.errors import ImpossibleProblem
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.check import ensure_valid
from tradewind.planning.cost import cost
from tradewind.planning.pareto import LEAST_SAVING, choose, offers

THREE_CLOUDS = (
    "aws:us-east-1",
    "aws:us-west-2",
    "aws:eu-west-1",
    "azure:eastus",
    "azure:westeurope",
    "azure:westus",
    "gcp:us-east4-a",
    "gcp:europe-west4-a",
    "gcp:us-west1-a",
)


def priced(seed: int, n: int) -> Network:
    rng = np.random.default_rng(seed)
    rates, prices = rng.uniform(1e8, 1e9, (n, n)), rng.choice([0.0, 0.01, 0.02, 0.09], (n, n))
    present = rng.random((n, n)) < 0.7
    present |= np.eye(n, k=1, dtype=bool)
    rates = rates * (present | present.T) * (1 - np.eye(n))
    return Network("priced", [Site(f"s{i}") for i in range(n)], rates, usd_per_gb=prices + 0.001)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6), st.data())
def test_offers_are_valid_and_each_slower_one_is_cheaper(seed: int, n: int, data: st.DataObject) -> None:
    network = priced(seed, n)
    members = sorted(data.draw(st.sets(st.sampled_from(network.names), min_size=2)))
    found = offers(network, 10_000_000, members, "optimal")
    for offer in found:
        ensure_valid(offer.plan, network)
        assert set(offer.plan.members) == set(members)
        assert offer.usd == pytest.approx(network.egress_usd(cost(offer.plan, network).link_bytes))
    for fast, cheap in pairwise(found):
        assert fast.seconds <= cheap.seconds and cheap.usd < fast.usd * (1 - LEAST_SAVING)
    assert choose(found, "time") is found[0] and choose(found, "cost") is found[-1]


@pytest.mark.parametrize("seed", range(5))
def test_the_cheapest_offer_costs_at_most_a_little_more_than_the_cheapest_tree(seed: int) -> None:
    network = priced(seed, 4)
    found = offers(network, 1_000_000_000, planner="optimal")
    price, present = network.usd_per_gb + network.usd_per_gb.T, network.bandwidth_bps > 0
    pairs = [(i, j) for i, j in permutations(range(4), 2) if i < j and present[i, j]]
    trees = (chosen for chosen in permutations(pairs, 3) if _spans(chosen))
    least = min(sum(price[edge] for edge in tree) for tree in trees)
    assert found[-1].usd <= least * (1 + 2 * LEAST_SAVING) + 1e-9


def _spans(edges: tuple[tuple[int, int], ...]) -> bool:
    reached = {0}
    for _ in edges:
        reached |= {end for edge in edges if reached & set(edge) for end in edge}
    return reached == {0, 1, 2, 3}


def test_three_clouds_save_a_third_of_the_price_for_a_tenth_of_the_time() -> None:
    found = offers(load_network("skyplane", regions=THREE_CLOUDS), 10_000_000_000, planner="optimal")
    fastest, mix = found[0], choose(found, "mix")
    assert mix.usd < 0.7 * fastest.usd and mix.seconds < 1.2 * fastest.seconds


def test_sites_that_are_no_members_are_passed_only_on_the_way() -> None:
    """a and c have a link to b only; d and e lead nowhere."""
    names, pairs = "abcde", ("ab", "bc", "bd", "de")
    rates = np.zeros((5, 5))
    for pair in pairs:
        i, j = map(names.index, pair)
        rates[i, j] = rates[j, i] = 1e8
    network = Network("tree", [Site(name) for name in names], rates, usd_per_gb=np.full((5, 5), 0.1))
    for offer in offers(network, 10_000_000, ["a", "c"], "star"):
        assert set(offer.plan.sites) == {"a", "b", "c"}


def test_equally_cheap_trees_share_the_load() -> None:
    network = Network("even", [Site(f"s{i}") for i in range(6)], 1e8 * (1 - np.eye(6)), usd_per_gb=np.full((6, 6), 0.1))
    alone = cost(make_plan("spanning-tree", network, 100_000_000), network).seconds
    assert offers(network, 100_000_000, planner="star")[0].seconds < 0.5 * alone


def test_a_network_without_prices_is_refused() -> None:
    with pytest.raises(ImpossibleProblem, match="no prices of egress"):
        offers(load_network("netstorm9"), 10**6)
