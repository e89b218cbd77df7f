"""Our JSON format: what is written comes back, and what is not a network is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from network_files import JSON
from tradewind.errors import BadNetwork
from tradewind.formats import network_from_json, network_to_document, network_to_json
from tradewind.network import Link, Network, Site, Trunk


def example(**changes: Any) -> str:
    return json.dumps(json.loads(JSON) | changes)


def example_link(**changes: Any) -> str:
    return example(links=[{"src": "AS1", "dst": "AS2", "bandwidth_mbps": 200} | changes])


def example_site(**changes: Any) -> str:
    return example(sites=[{"name": "AS1", "zone": "asia"} | changes, {"name": "AS2"}])


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8).filter(
    lambda name: name == name.strip()
)
rates = st.floats(1e-3, 1e15)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    site_names = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    caps = st.one_of(st.just(math.inf), rates)
    sites = [
        Site(
            name,
            draw(st.sampled_from([None, "east", "west"])),
            draw(st.none() | st.just("aws")),
            *draw(st.sampled_from([(None, None), (1.25, -71.05)])),
            egress_bps=draw(caps),
            ingress_bps=draw(caps),
            ranks=draw(st.integers(1, 9)),
        )
        for name in site_names
    ]
    pairs = [(a, b) for a in site_names for b in site_names if a != b]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    links = [
        Link(a, b, draw(rates), draw(st.floats(0, 10)), draw(st.floats(0, 1, exclude_max=True))) for a, b in chosen
    ]
    zones = sorted({site.zone for site in sites if site.zone})
    trunks = [Trunk(f"{zone}-out", zone, "*", draw(rates)) for zone in zones]
    return Network.from_links(draw(names), sites, links, trunks)


def test_the_documented_example_means_what_it_says() -> None:
    network = network_from_json(JSON)
    assert network.link("AS1", "AS2") == Link("AS1", "AS2", 200e6, 0.05, 0.0)
    assert network.site("AS1") == Site("AS1", "asia", None, 1.3, 103.8, egress_bps=1e9)
    assert network.trunks == (Trunk("asia-out", "asia", "*", 400e6),)


@given(networks())
def test_a_network_comes_back_from_its_file(network: Network) -> None:
    once = network_from_json(network_to_json(network))
    assert once.names == network.names
    assert [(s.zone, s.provider, s.lat, s.lon) for s in once.sites] == [
        (s.zone, s.provider, s.lat, s.lon) for s in network.sites
    ]
    for ours, theirs in (
        (once.bandwidth_bps, network.bandwidth_bps),
        (once.latency_s, network.latency_s),
        (once.egress_bps, network.egress_bps),
        ([t.capacity_bps for t in once.trunks], [t.capacity_bps for t in network.trunks]),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=4e-16, atol=0)
    assert np.array_equal(once.loss, network.loss)


@given(networks())
def test_a_network_from_a_file_comes_back_exactly(network: Network) -> None:
    read = network_from_json(network_to_json(network))
    assert network_from_json(network_to_json(read)) == read


@given(st.lists(st.integers(1, 10**15 - 1).map(lambda digits: digits / 1e6), min_size=1))
def test_numbers_in_a_file_are_written_back_as_they_were(numbers: list[float]) -> None:
    for number in numbers:
        written = json.loads(network_to_json(network_from_json(example_link(bandwidth_mbps=number, latency_ms=number))))
        assert (written["links"][0]["bandwidth_mbps"], written["links"][0]["latency_ms"]) == (number, number)


def test_what_is_written_is_plain_json_with_one_item_on_a_line() -> None:
    text = network_to_json(network_from_json(JSON)).decode()
    assert json.loads(text)["links"][0]["bandwidth_mbps"] == 200
    assert text.count("\n") == 11
    assert network_to_document(network_from_json(text)).sites[1].egress_mbps is None


def test_a_byte_order_mark_is_no_problem() -> None:
    assert network_from_json(b"\xef\xbb\xbf" + JSON.encode()).name == "gscale"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[]", "Expected `object`, got `array`"),
        ("[" * 100_000, "Expected `object`"),
        ('{"name": "x", "sites": ' + "[" * 100_000, "Expected `object`"),
        (example(sites=[]), "no sites"),
        (example(name=""), "the name of a network must be"),
        (example(color="red"), "unknown field `color`"),
        (example_site(egres_mbps=3), "unknown field `egres_mbps`"),
        (example_site(egress_mbps=0), "egress"),
        (example_site(egress_mbps=1e303), "too large"),
        (example_site(lat=91, lon=0), "must be in [-"),
        (example_site(lat=1), "only one of lat and lon"),
        (example_site(name=5), "Expected `str`, got `int`"),
        (example_link(bandwidth_mbps=0), "bandwidth 0"),
        (example_link(bandwidth_mbps="200"), "Expected `float`, got `str`"),
        (example_link(bandwidth_mbps=True), "Expected `float`, got `bool`"),
        (example_link(bandwidth_mbps=1e305), "bandwidth inf"),
        (example_link(latency_ms=-1), "latency"),
        (example_link(loss=1), "loss"),
        (example_link(dst="AS1"), "link to itself"),
        (example_link(dst="AS9"), "'AS9' is not one of its sites"),
        (JSON.replace("200", "NaN"), "not valid JSON"),
        (JSON.replace("200", "-Infinity"), "not valid JSON"),
        (JSON.replace("200", "1e999"), "out of range"),
        (JSON.replace("asia-out", "\ud800"), "not valid JSON"),
    ],
)
def test_bad_files_are_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(BadNetwork, match=r"net\.json") as caught:
        network_from_json(text, "net.json")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("data", "says"),
    [(b"\xff\xfe{\x00", "UTF-16"), (b'{"name": "\xe9"}', "UTF-8"), (b"\x00\x01\x02", "not a text file")],
)
def test_other_encodings_and_binary_files_are_refused(data: bytes, says: str) -> None:
    with pytest.raises(BadNetwork, match=says):
        network_from_json(data, "net.json")


def test_prices_of_sites_become_prices_of_links_unless_a_link_has_its_own() -> None:
    by_class = {"internet": 0.09, "provider": 0.02, "zone": 0.01}
    about = (("a", "x", "us", by_class), ("b", "x", "us", 0.05), ("c", "y", "us", None), ("d", "x", "eu", None))
    keys = ("name", "provider", "zone", "egress_usd_per_gb")
    pairs = ["ab", "ac", "ad", "ba", "bc", "ca"]
    links = [{"src": p[0], "dst": p[1], "bandwidth_mbps": 1, **({"usd_per_gb": 0} if p == "bc" else {})} for p in pairs]
    sites = [dict(zip(keys, values, strict=True)) for values in about]
    network = network_from_json(json.dumps({"name": "priced", "sites": sites, "links": links}))
    assert [network.link(*pair).usd_per_gb for pair in pairs] == [0.01, 0.09, 0.02, 0.05, 0.0, 0.0]
    assert network_from_json(network_to_json(network)) == network
