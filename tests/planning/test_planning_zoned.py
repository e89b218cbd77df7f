"""`zoned`: valid on every network, near the limit on large ones, and laid zones first where zones are fast inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from networks import Problem, problems
from tradewind.errors import BadOption
from tradewind.network import Network, Site
from tradewind.planning import checked_plan, make_plan
from tradewind.planning.bound import bound
from tradewind.planning.check import check
from tradewind.planning.cost import cost
from tradewind.planning.fill import LEAST_CHUNK_BYTES
from tradewind.planning.plan import Plan
from tradewind.planning.quick_bound import quick_bound_bps
from tradewind.planning.zones import zone_labels

NBYTES = 1_000_000_000


def random_network(sites: int, degree: int, seed: int, asymmetry: float = 0.0, zones: int = 1) -> Network:
    """A cycle and random links; in several zones those inside are 20 times as fast, and no site knows its zone."""
    rng = np.random.default_rng(seed)
    zone = np.sort(np.arange(sites) % zones)
    ring = np.arange(sites)
    present = np.zeros((sites, sites), dtype=bool)
    present[ring, np.roll(ring, 1)] = True
    for site in range(sites):
        near = np.flatnonzero((zone == zone[site]) & (ring != site))
        present[site, rng.choice(near, degree // 2)] = True
        present[site, rng.choice(np.flatnonzero(ring != site), 1)] = True
    present |= present.T
    factor = np.exp(np.triu(rng.uniform(-0.5, 0.5, (sites, sites)), 1))
    factor = np.triu(factor, 1) + np.triu(factor, 1).T
    factor *= np.exp(asymmetry * rng.uniform(-1, 1, (sites, sites)))
    inside = (zone[:, None] == zone[None, :]) & (zones > 1)
    bandwidth = np.where(present, np.where(inside, 2e9, 1e8) * factor, 0.0)
    return Network("random", [Site(f"s{i:04}") for i in range(sites)], bandwidth, np.where(inside, 1e-3, 2e-2))


def rate_bps(plan: Plan, network: Network) -> float:
    return cost(plan, network).steady_rate_bps


@given(problems())
@settings(max_examples=40, deadline=None)
def test_plans_are_valid_and_the_limit_is_never_below_what_is_reached(problem: Problem) -> None:
    network, members, _ = problem
    plan = checked_plan("zoned", network, NBYTES, members, trees=8, max_trees=16)
    assert check(plan, network) == ()
    assert plan.rate_bps is not None and plan.proven_rate_bps is not None
    limit_bps = bound(network, members, NBYTES).rate_bps
    assert rate_bps(plan, network) <= limit_bps * (1 + 1e-6)
    assert plan.rate_bps <= rate_bps(plan, network) * (1 + 1e-6)
    if members == network.names:
        assert plan.proven_rate_bps >= rate_bps(checked_plan("optimal", network, NBYTES), network) * (1 - 1e-5)


@pytest.mark.parametrize("asymmetry", [0.0, 0.3])
def test_large_tensors_among_120_sites_reach_95_percent_of_the_limit(asymmetry: float) -> None:
    network = random_network(120, 8, 1, asymmetry)
    plan = checked_plan("zoned", network, 100 * NBYTES)
    assert rate_bps(plan, network) >= 0.95 * quick_bound_bps(network, network.names)
    assert "of the limit" in plan.reason


def test_zones_that_are_fast_inside_are_found_and_connected_first() -> None:
    network = random_network(96, 8, 3, zones=8)
    assert zone_labels(network).tolist() == np.sort(np.arange(96) % 8).tolist()
    plan = checked_plan("zoned", network, NBYTES)
    assert "zones first (8 zones)" in plan.reason
    zone = dict(zip(network.names, zone_labels(network).tolist(), strict=True))
    for shard in plan.shards:
        for tree in (shard.reduce, shard.broadcast):
            assert sum(zone[route[0]] != zone[route[-1]] for route in tree) == 7
    assert rate_bps(plan, network) >= 0.95 * quick_bound_bps(network, network.names, zone_labels(network))


def test_zones_of_the_network_file_are_taken_as_they_are() -> None:
    sites = [Site("a", zone="x"), Site("b", zone="y"), Site("c", zone="x"), Site("d")]
    network = Network("named", sites, 1e8 * (1 - np.eye(4)))
    labels = zone_labels(network)
    assert labels[0] == labels[2] and len(set(labels.tolist())) == 3
    assert (zone_labels(network.subnetwork(["d"])) == 0).all()


def test_equal_trees_are_one_shard() -> None:
    pair = Network("pair", [Site("a"), Site("b")], [[0, 1e8], [1e8, 0]])
    plan = checked_plan("zoned", pair, NBYTES)
    assert len(plan.shards) <= 2
    assert plan.rate_bps == pytest.approx(1e8)


def test_more_trees_are_laid_only_where_they_are_needed() -> None:
    network = random_network(40, 6, 2)
    few = checked_plan("zoned", network, NBYTES, gap=0.5, trees=4)
    many = checked_plan("zoned", network, NBYTES, gap=0.001, trees=4, max_trees=64)
    assert len(few.shards) == 4 < len(many.shards)
    assert rate_bps(many, network) > rate_bps(few, network)


@pytest.mark.parametrize("wrong", [{"trees": 0}, {"trees": 9, "max_trees": 8}, {"gap": 1.0}, {"time_limit_s": 0}])
def test_invalid_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        checked_plan("zoned", random_network(5, 2, 1), NBYTES, **wrong)


@pytest.mark.parametrize(("sites", "zones", "asymmetry"), [(128, 4, 0.0), (64, 1, 0.3)])
def test_few_trees_with_the_best_rates_reach_95_percent_of_the_limit(sites: int, zones: int, asymmetry: float) -> None:
    """With equal rates, reduced to what fits, 64 trees carry less."""
    network = random_network(sites, 8, 1, asymmetry, zones)
    plan = checked_plan("zoned", network, 100 * NBYTES, max_trees=64)
    assert rate_bps(plan, network) >= 0.95 * quick_bound_bps(network, network.names, zone_labels(network))


@pytest.mark.parametrize("sites", [70, 128])
def test_small_tensors_get_few_trees_of_low_latency(sites: int) -> None:
    network = random_network(sites, 6, 1)
    for nbytes in (1000, 64 * 1024):
        plan, quickest = (make_plan(name, network, nbytes) for name in ("zoned", "optimal"))
        assert len(plan.shards) <= max(1, nbytes // LEAST_CHUNK_BYTES)
        assert plan.predicted is not None and quickest.predicted is not None
        assert plan.predicted.seconds <= 1.15 * quickest.predicted.seconds
