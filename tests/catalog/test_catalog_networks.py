"""Every catalog network loads, is what PROVENANCE says, and takes only the options it lists."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files

import numpy as np
import pytest

from tradewind.catalog import CatalogEntry, datafiles, list_networks, load_network
from tradewind.catalog.clouds import spread_out
from tradewind.errors import BadOption, TradewindError, UnknownName
from tradewind.formats import network_from_json, network_to_json
from tradewind.geography import FIBRE_KM_PER_MS, great_circle_km
from tradewind.network import Link, Network, Site

ENTRIES = {entry.name: entry for entry in list_networks()}


def reaches_everything(network: Network) -> bool:
    seen, edge = {0}, [0]
    while edge:
        edge = [j for i in edge for j in network.neighbours(i) if j not in seen]
        seen.update(edge)
    return len(seen) == len(network)


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_every_entry_loads_as_listed_and_is_connected(entry: CatalogEntry) -> None:
    network = load_network(entry.name)
    assert (len(network), network.link_count) == (entry.sites, entry.links)
    assert reaches_everything(network)
    assert network.symmetric().link_count == network.link_count, "every link has a way back"
    assert entry.description
    assert entry.source
    assert all(option.meaning for option in entry.options)


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_survives_a_round_trip_through_a_file(name: str) -> None:
    network = load_network(name)
    assert network_from_json(network_to_json(network)) == network


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_options_given_as_text_mean_the_same(entry: CatalogEntry) -> None:
    as_text = {
        option.name: ",".join(map(str, option.default)) if isinstance(option.default, tuple) else str(option.default)
        for option in entry.options
        if option.default is not None
    }
    assert load_network(entry.name, **as_text) == load_network(entry.name)


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
@pytest.mark.parametrize(
    "value", ["", "x", "-1", "nan", "inf", "1e999", 1e999, float("nan"), None, [], {"a": 1}, 10**30]
)
def test_no_option_value_ends_in_anything_but_a_network_or_our_error(entry: CatalogEntry, value: object) -> None:
    for option in entry.options:
        try:
            network = load_network(entry.name, **{option.name: value})
        except TradewindError:
            continue
        assert len(network) > 1


def test_sizes_are_those_of_the_sources() -> None:
    sizes = {name: (entry.sites, entry.links) for name, entry in ENTRIES.items()}
    expected = {
        "gscale": (12, 38),
        "swan": (5, 14),
        "internet2": (9, 26),
        "att": (25, 112),
        "ntt": (42, 174),
        "netstorm9": (9, 26),
        "dtfm-aws10": (10, 90),
        "skyplane": (62, 62 * 61),
        "ec2-hotcloud18": (11, 110),
        "equinix20-like": (20, 282),
        "idn40-like": (40, 462),
        "zoo/cogentco": (197, 2 * 243),
        "zoo/uscarrier": (158, 2 * 189),
        "zoo/deltacom": (113, 2 * 161),
        "sndlib/geant": (22, 72),
        "mtree-skewed": (12, 38),
        "crew-n1": (60, 3540),
    }
    assert {name: sizes[name] for name in expected} == expected
    selected = [name for name in ENTRIES if name.startswith(("zoo/", "sndlib/"))]
    assert len(selected) == 20
    assert sum(ENTRIES[name].sites for name in selected) == 461 + 468
    assert sum(ENTRIES[name].links for name in selected) == 2 * (882 + 593)


def test_known_values_are_where_they_belong() -> None:
    assert load_network("gscale").link("AS2", "US3").bandwidth_bps == 7e9
    assert load_network("gscale").site("EU1").zone == "europe"
    assert load_network("ntt").link("osaka", "tokyo").bandwidth_bps == 659718e6
    assert load_network("netstorm9").link("dc3", "dc1") == Link("dc3", "dc1", 100e6, 0.03, 0.0002)
    capetown = load_network("skyplane").link("aws:af-south-1", "aws:ap-east-1")
    assert capetown.bandwidth_bps == pytest.approx(2.7157e9)
    assert capetown.latency_s == pytest.approx(0.248778 / 2)
    assert load_network("dtfm-aws10").link("Oregon", "Virginia").bandwidth_bps == 0.79e9


def continent(site: Site) -> str | None:
    lat, lon = site.lat or 0.0, site.lon or 0.0
    if lat > -15 and 60 < lon < 150:
        return "asia"
    if lat > 12 and lon < -50:
        return "america"
    return "europe" if lat > 35 and -25 < lon < 40 else None


def test_the_continental_latencies_are_the_medians_that_provenance_claims() -> None:
    mesh = load_network("skyplane")
    zones = np.array([continent(site) for site in mesh.sites])
    for network in (load_network("gscale"), load_network("swan")):
        for link in network.links:
            here, there = (zones == network.site(end).zone for end in (link.src, link.dst))
            between = np.outer(here, there) & (mesh.bandwidth_bps > 0)
            assert link.latency_s == round(float(np.median(mesh.latency_s[between])) * 1e3) / 1e3


@pytest.mark.parametrize("name", ["internet2", "att", "ntt", "zoo/abilene", "zoo/cogentco"])
def test_derived_latency_is_the_great_circle_in_fibre(name: str) -> None:
    network = load_network(name)
    for link in network.links:
        a, b = network.site(link.src), network.site(link.dst)
        if a.lat is None or a.lon is None or b.lat is None or b.lon is None:
            continue
        km = float(great_circle_km(a.lat, a.lon, b.lat, b.lon))
        assert link.latency_s * 1e3 * FIBRE_KM_PER_MS == pytest.approx(km, abs=0.2)


def test_sites_without_coordinates_get_a_middling_latency() -> None:
    network = load_network("zoo/cogentco")
    latencies = sorted(link.latency_s for link in network.links)
    unknown = {site.name for site in network.sites if site.lat is None}
    assert len(unknown) == 11
    for link in network.links:
        if {link.src, link.dst} & unknown:
            assert link.latency_s == pytest.approx(latencies[len(latencies) // 2], abs=1e-4)


def test_shared_labels_are_told_apart_by_their_node() -> None:
    names = load_network("zoo/uscarrier").names
    assert {"Jacksonville#5", "Jacksonville#15"} <= set(names)
    assert "Jacksonville" not in names


def test_topologies_without_bandwidth_take_one() -> None:
    assert {link.bandwidth_bps for link in load_network("zoo/abilene").links} == {1e9}
    assert {link.bandwidth_bps for link in load_network("zoo/abilene", bandwidth_mbps=50).links} == {50e6}
    with pytest.raises(BadOption, match="takes no option 'bandwidth_mbps'"):
        load_network("gscale", bandwidth_mbps=50)


def test_skyplane_can_be_narrowed_down() -> None:
    aws = load_network("skyplane", provider="aws")
    assert len(aws) == 21
    assert {site.provider for site in aws.sites} == {"aws"}
    assert len(load_network("skyplane", provider=("aws", "gcp"))) == 21 + 23
    chosen = load_network("skyplane", regions="gcp:us-east1-b, aws:us-east-1")
    assert chosen.names == ("gcp:us-east1-b", "aws:us-east-1")
    assert chosen.link("gcp:us-east1-b", "aws:us-east-1") == load_network("skyplane").link(*chosen.names)
    for options, error in (
        ({"provider": "ibm"}, UnknownName),
        ({"regions": "aws:moon-1"}, UnknownName),
        ({"regions": "aws:us-east-1,aws:us-east-1"}, BadOption),
        ({"regions": "aws:us-east-1", "count": 1}, BadOption),
        ({"count": 63}, BadOption),
        ({"provider": "aws", "count": 22}, BadOption),
    ):
        with pytest.raises(error):
            load_network("skyplane", **options)


def test_a_smaller_spread_out_choice_is_part_of_every_larger_one() -> None:
    smaller: set[str] = set()
    for count in range(1, 63):
        names = load_network("skyplane", count=count).names
        assert len(names) == count
        assert smaller < set(names)
        smaller = set(names)
    eight = load_network("skyplane", count=8)
    first = load_network("skyplane", regions=load_network("skyplane").names[:8])
    off_diagonal = ~np.eye(8, dtype=bool)
    assert eight.latency_s[off_diagonal].min() > 4 * first.latency_s[off_diagonal].min()


def test_sites_in_one_place_are_not_chosen_twice() -> None:
    assert spread_out(load_network("mesh", n=4, latency_ms=0), 3) == ["w1", "w2", "w3"]


def test_substitutes_are_subgraphs_of_the_measured_mesh() -> None:
    mesh = load_network("skyplane")
    for name in ("equinix20-like", "idn40-like"):
        for link in load_network(name).links:
            assert link == mesh.link(link.src, link.dst)


def test_the_ambiguous_matrix_can_be_read_both_ways() -> None:
    by_source, by_destination = (load_network("ec2-hotcloud18", rows=rows) for rows in ("source", "destination"))
    assert by_source.link("Frankfurt", "Ireland").bandwidth_bps == 350e6
    assert np.array_equal(by_source.bandwidth_bps, by_destination.bandwidth_bps.T)
    assert np.array_equal(by_source.latency_s, by_source.latency_s.T)


def test_unknown_names_and_options_say_what_is_known() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'gscale'"):
        load_network("gscal")
    with pytest.raises(BadOption, match=r"'crew-n2' takes no option 'size'. It takes n, seed, latency_ms"):
        load_network("crew-n2", size=3)
    with pytest.raises(BadOption, match=r"'gscale' takes no option 'n'. It takes none"):
        load_network("gscale", n=3)
    with pytest.raises(BadOption, match=r"Expected `int` >= 2, option `n`"):
        load_network("crew-n2", n=1)
    with pytest.raises(BadOption, match="finite"):
        load_network("crew-n2", latency_ms=float("inf"))
    with pytest.raises(UnknownName, match="moon"):
        load_network("mtree-skewed", topology="moon")


def test_data_files_agree_with_each_other() -> None:
    regions = tuple(row["region"] for row in datafiles.rows("skyplane_regions.csv"))
    assert datafiles.matrix("skyplane_mbps.csv")[0] == datafiles.matrix("skyplane_rtt_ms.csv")[0] == regions
    described = {row["network"]: row["has_bandwidth"] for row in datafiles.rows("graphs.csv")}
    for link in datafiles.rows("graph_links.csv"):
        assert (link["bandwidth_mbps"] != "") == (described[link["network"]] == "yes")
    for table in ("graph_sites.csv", "graph_links.csv"):
        assert {row["network"] for row in datafiles.rows(table)} == set(described)
    data = files("tradewind.catalog") / "data"
    provenance = (data / "PROVENANCE.md").read_text(encoding="utf-8")
    for file in data.iterdir():
        assert file.name in provenance or file.name == "PROVENANCE.md"


def test_the_catalog_does_not_load_heavy_libraries() -> None:
    code = "import sys, tradewind.catalog as c; c.list_networks(); print({'scipy', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
