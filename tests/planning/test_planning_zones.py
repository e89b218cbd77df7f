"""Zones are found where there are any, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.catalog import load_network
from tradewind.network import Network, Site
from tradewind.planning.zones import detect_zones, with_zones
from tradewind.policy.racks import racks_of


@st.composite
def placed(draw: st.DrawFn) -> tuple[Network, set[frozenset[str]]]:
    """Sites in zones, near each other inside and at least five times as far outside, by latency or by bandwidth."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 6), min_size=2, max_size=5).filter(lambda sizes: max(sizes) > 1))
    zone = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    n = len(zone)
    near = zone[:, None] == zone[None, :]
    far = draw(st.floats(5, 100))
    noise = random.uniform(1.0, 1.3, (n, n))
    by_latency = draw(st.booleans())
    latency_s = np.where(near, 1e-3, 1e-3 * far) * noise if by_latency else 1e-3 * noise
    bandwidth_bps = 1e9 * noise if by_latency else np.where(near, 1e9, 1e9 / far) * noise
    names = [f"s{i}" for i in range(n)]
    network = Network("placed", [Site(name) for name in names], bandwidth_bps * (1 - np.eye(n)), latency_s)
    return network, {frozenset(names[i] for i in np.flatnonzero(zone == z)) for z in range(len(sizes))}


@settings(deadline=None)
@given(placed())
def test_zones_that_are_clearly_apart_are_found_exactly(case: tuple[Network, set[frozenset[str]]]) -> None:
    network, zones = case
    if len(network) > 2:
        assert {frozenset(zone) for zone in detect_zones(network).zones} == zones


@settings(deadline=None)
@given(st.integers(2, 12), st.integers(0, 1000))
def test_sites_that_are_alike_have_no_zones(n: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rates, latency_s = (random.uniform(1.0, 1.5, (n, n)) for _ in range(2))
    network = Network("alike", [Site(f"s{i}") for i in range(n)], 1e8 * rates * (1 - np.eye(n)), 1e-2 * latency_s)
    assert detect_zones(network).zones == ()
    assert with_zones(network) == network


def test_the_shuffle_policy_gets_the_zones_that_were_detected_as_racks() -> None:
    ms = np.array([[0, 1, 40, 40], [1, 0, 40, 40], [40, 40, 0, 1], [40, 40, 1, 0]])
    network = Network("two", [Site(n) for n in "abcd"], 1e8 * (ms > 0), ms / 1e3)
    assert not racks_of(network, "abcd")
    assert list(racks_of(with_zones(network), "abcd").values()) == [("a", "b"), ("c", "d")]


def test_zones_that_sites_name_stay() -> None:
    ms = np.array([[0, 1, 40, 40], [1, 0, 40, 40], [40, 40, 0, 1], [40, 40, 1, 0]])
    sites = [Site("a", zone="eu"), Site("b"), Site("c"), Site("d")]
    zones = [site.zone for site in with_zones(Network("two", sites, 1e8 * (ms > 0), ms / 1e3)).sites]
    assert zones == ["eu", "zone of a", "zone of c", "zone of c"]


@pytest.mark.parametrize("name", ["gscale", "swan", "netstorm9"])
def test_sparse_networks_are_no_trouble(name: str) -> None:
    network = load_network(name)
    found = detect_zones(network)
    assert sorted(site for zone in found.zones for site in zone) in ([], sorted(network.names))
