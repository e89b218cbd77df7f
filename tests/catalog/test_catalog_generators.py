"""The papers' synthetic networks have the properties that the papers state, for any seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.catalog import list_networks, load_network
from tradewind.catalog.generators import mtree_skewed
from tradewind.errors import BadOption
from tradewind.network import Link, Network, Site

seeds = st.integers(0, 2**32)
SEEDED = [entry.name for entry in list_networks() if any(option.name == "seed" for option in entry.options)]


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_gives_one_network_and_another_seed_another(name: str) -> None:
    assert load_network(name, seed=3) == load_network(name, seed="3")
    assert not np.array_equal(load_network(name, seed=3).bandwidth_bps, load_network(name, seed=4).bandwidth_bps)


def test_draws_are_the_same_on_every_machine() -> None:
    assert load_network("crew-n2", n=3, seed=7).bandwidth_bps[1].tolist() == [100e6, 0, 100e6]
    assert load_network("crew-n1", n=3, seed=7).bandwidth_bps[0].tolist() == [0, 51e6, 89e6]
    assert load_network("mtree-skewed", seed=7).link("AS1", "AS2").bandwidth_bps == 270e6
    assert load_network("selective-nics", n=2, seed=7).egress_bps.tolist() == [12.877e9, 18.047e9]


@settings(max_examples=30)
@given(st.floats(0, 1), seeds, st.sampled_from(["gscale", "equinix20-like"]))
def test_skewed_links_follow_the_rule_of_mtree(skewness: float, seed: int, topology: str) -> None:
    base = load_network(topology)
    network = load_network("mtree-skewed", topology=topology, skewness=skewness, seed=seed)
    linked = base.bandwidth_bps > 0
    assert np.array_equal(network.bandwidth_bps > 0, linked), "the links stay where they were"
    assert network.sites == base.sites
    assert np.array_equal(network.bandwidth_bps, network.bandwidth_bps.T)
    assert np.array_equal(network.latency_s, network.latency_s.T)
    mbps, latency_ms = network.bandwidth_bps[linked] / 1e6, network.latency_s[linked] * 1e3
    assert np.all(mbps % 10 == 0)
    assert mbps.min() >= 200 - 100 * skewness - 1e-6
    assert mbps.max() <= 200 + 100 * skewness + 1e-6
    if mbps.min() == mbps.max():
        assert np.all(latency_ms == 225)
        return
    assert latency_ms.min() == 50 and latency_ms.max() == 400
    slope, offset = np.polyfit(1 / mbps, latency_ms, 1)
    assert slope > 0, "the slower a link, the higher its latency"
    np.testing.assert_allclose(latency_ms, slope / mbps + offset, atol=0.01)


def test_every_multiple_of_ten_is_drawn_and_no_other() -> None:
    drawn = np.concatenate(
        [load_network("mtree-skewed", skewness=0.3, seed=seed).bandwidth_bps.ravel() for seed in range(30)]
    )
    assert set(drawn / 1e6) - {0} == {170, 180, 190, 200, 210, 220, 230}


def test_one_way_links_stay_one_way() -> None:
    net = Network.from_links("one", [Site("a"), Site("b"), Site("c")], [Link("b", "a", 1e6), Link("b", "c", 1e6)])
    skewed = mtree_skewed(net, 0.5, seed=1)
    assert [(link.src, link.dst) for link in skewed.links] == [("b", "a"), ("b", "c")]
    assert mtree_skewed(Network("lonely", [Site("a")], [[0.0]]), 0.5, seed=1).link_count == 0
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(BadOption, match="skewness"):
            mtree_skewed(net, bad, seed=1)


@settings(max_examples=20)
@given(st.integers(2, 40), seeds)
def test_crew_meshes_are_full_and_drawn_from_the_stated_values(n: int, seed: int) -> None:
    measured = {link.bandwidth_bps for link in load_network("ec2-hotcloud18").links}
    for name, allowed in (("crew-n1", measured), ("crew-n2", {k * 25e6 for k in range(1, 11)})):
        network = load_network(name, n=n, seed=seed)
        assert network.link_count == n * (n - 1)
        assert {link.bandwidth_bps for link in network.links} <= allowed
        assert not network.latency_s.any()


def test_crew_n2_is_a_normal_draw_with_independent_directions() -> None:
    network = load_network("crew-n2", n=200)
    units = network.bandwidth_bps[~np.eye(200, dtype=bool)] / 25e6
    assert units.mean() == pytest.approx(5, abs=0.02)
    assert units.std() == pytest.approx(math.sqrt(1 + 1 / 12), abs=0.02), "rounding adds a twelfth to the variance"
    upper = np.triu_indices(200, 1)
    correlation = np.corrcoef(network.bandwidth_bps[upper], network.bandwidth_bps.T[upper])[0, 1]
    assert abs(correlation) < 0.03


@settings(max_examples=20)
@given(st.integers(2, 60), st.floats(0.01, 1), seeds)
def test_nics_limit_the_workers_of_selective_reduce(n: int, floor: float, seed: int) -> None:
    network = load_network("selective-nics", n=n, floor=floor, seed=seed)
    gbps = network.egress_bps / 1e9
    assert np.array_equal(network.egress_bps, network.ingress_bps)
    assert gbps.min() >= round(20 * floor, 3) - 0.001
    assert gbps.max() <= 20
    np.testing.assert_allclose(gbps, np.round(gbps, 3), rtol=1e-12)
    for link in network.links[: 3 * n]:
        a, b = network.site(link.src), network.site(link.dst)
        assert link.bandwidth_bps == min(a.egress_bps, b.ingress_bps)
        assert link.latency_s == 0.001


def test_the_slowest_nic_is_one_gigabit_by_default() -> None:
    network = load_network("selective-nics", n=2000)
    assert network.egress_bps.min() == pytest.approx(1e9, rel=0.05)
    assert network.egress_bps.mean() == pytest.approx(10.5e9, rel=0.05)


def capacities(network: Network) -> dict[str, float]:
    return {trunk.name: trunk.capacity_bps / 1e9 for trunk in network.trunks}


def test_the_three_scenarios_of_ds_sync() -> None:
    static, inter, host = (
        load_network("ds-sync-racks", scenario=s) for s in ("static", "inter-rack", "inter-rack-and-host")
    )
    for network, racks in ((static, (4, 4)), (inter, (4, 4)), (host, (5, 3))):
        zones = [site.zone for site in network.sites]
        assert (zones.count("rack0"), zones.count("rack1")) == racks
        assert network.is_symmetric
        assert len(network) == 8
    assert set(capacities(static).values()) == {20}
    assert set(capacities(inter).values()) == set(capacities(host).values()) == {10}
    assert set(inter.egress_bps) == {20e9}
    assert [site.name for site in host.sites if site.egress_bps < 20e9] == ["w4"], "the paper's worker 4"
    assert host.site("w4").egress_bps == host.site("w4").ingress_bps == host.link("w0", "w4").bandwidth_bps == 10e9
    assert {(t.src_zone, t.dst_zone) for t in host.trunks} == {
        ("rack0", "*"),
        ("*", "rack0"),
        ("rack1", "*"),
        ("*", "rack1"),
    }


def test_uplinks_follow_oversubscription_and_background_share() -> None:
    stated = load_network("ds-sync-racks", oversubscription=1)
    assert set(capacities(stated).values()) == {80}
    options = {"hosts": "2,3,4", "oversubscription": 2, "background_share": 0.25}
    three = load_network("ds-sync-racks", scenario="inter-rack", **options)
    assert len(three) == 9
    assert capacities(three) == {
        "rack0-up": 15,
        "rack0-down": 15,
        "rack1-up": 22.5,
        "rack1-down": 22.5,
        "rack2-up": 40,
        "rack2-down": 40,
    }
    for hosts in ("8", "0,8", "-1,3", "9999,2"):
        with pytest.raises(BadOption, match="hosts"):
            load_network("ds-sync-racks", hosts=hosts)


@settings(max_examples=20)
@given(st.integers(2, 20), seeds, st.booleans())
def test_meshes_stay_within_their_limits(n: int, seed: int, symmetric: bool) -> None:
    network = load_network("mesh", n=n, seed=seed, symmetric=symmetric, latency_ms=30)
    bandwidth = network.bandwidth_bps[~np.eye(n, dtype=bool)]
    assert len(bandwidth) == network.link_count
    assert bandwidth.min() >= 20e6
    assert bandwidth.max() <= 155e6
    assert network.is_symmetric == symmetric
    assert {link.latency_s for link in network.links} == {0.03}
    with pytest.raises(BadOption, match="above max_mbps"):
        load_network("mesh", min_mbps=30, max_mbps=20)


@pytest.mark.parametrize("n", [2, 9, 10, 100])
def test_worker_names_sort_in_the_order_of_the_workers(n: int) -> None:
    names = load_network("crew-n2", n=n).names
    assert list(names) == sorted(names)
