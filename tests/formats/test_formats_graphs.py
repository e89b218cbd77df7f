"""GraphML and GML give the same network, and what cannot be one is refused."""

from __future__ import annotations

import pytest

from network_files import ENTITY_BOMB, GML, GRAPHML
from tradewind.errors import BadNetwork, BadOption
from tradewind.formats import network_from_gml, network_from_graphml
from tradewind.network import Network


@pytest.mark.parametrize("network", [network_from_gml(GML), network_from_graphml(GRAPHML)], ids=["gml", "graphml"])
def test_a_graph_file_is_read_as_documented(network: Network) -> None:
    assert network.names == ("Paris", "Café", "None#7", "None#8")
    assert (network.site("Paris").lat, network.site("Paris").lon) == (48.86, 2.35)
    assert network.link_count == 6, "two ways for each of three neighbours"
    both = network.link("Paris", "Café")
    assert both.bandwidth_bps == 15e9, "parallel edges add up"
    assert both.latency_s == 0.009, "and have the highest latency that is given"
    assert network.link("Café", "Paris").bandwidth_bps == 15e9
    lossy = network.link("None#7", "Paris")
    assert (lossy.bandwidth_bps, lossy.latency_s, lossy.loss) == (2.5e9, 0.007, 0.01)
    assert network.link("None#7", "None#8").bandwidth_bps == 100e6
    assert network.link("None#7", "None#8").latency_s == 0.008, "no coordinates: the median of the others, 7 and 9"


def test_both_formats_give_the_same_network() -> None:
    assert network_from_gml(GML, name="x") == network_from_graphml(GRAPHML, name="x")


def test_a_missing_latency_follows_from_the_coordinates() -> None:
    network = network_from_gml(GML.replace("latency 9", ""))
    assert network.link("Paris", "Café").latency_s == pytest.approx(1106 / 200 / 1e3, rel=0.01)


def test_directed_edges_go_one_way_only() -> None:
    gml = "graph [ directed 1 node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 bandwidth 1 ] ]"
    assert [(link.src, link.dst) for link in network_from_gml(gml).links] == [("0", "1")]
    graphml = GRAPHML.replace('<edge source="7" target="8"/>', '<edge source="7" target="8" directed="true"/>')
    network = network_from_graphml(graphml)
    assert network.link_count == 5
    assert network.link("None#7", "None#8").bandwidth_bps == 100e6
    assert network_from_graphml(GRAPHML.replace('"undirected"', '"directed"')).link_count == 4


def test_a_default_bandwidth_fills_in_only_what_is_missing() -> None:
    gml = GML.replace("capacity 100", "")
    with pytest.raises(BadNetwork, match=r"edge None#7-None#8 has no bandwidth .* pass a default"):
        network_from_gml(gml, "zoo.gml")
    network = network_from_gml(gml, "zoo.gml", default_bandwidth_bps=3e6)
    assert network.link("None#7", "None#8").bandwidth_bps == 3e6
    assert network.link("None#7", "Paris").bandwidth_bps == 2.5e9
    with pytest.raises(BadOption, match="default bandwidth"):
        network_from_gml(gml, "zoo.gml", default_bandwidth_bps=0)


def test_site_attributes_are_read() -> None:
    gml = 'graph [ node [ id 0 zone "east" provider "aws" egress_mbps 5 ingress_mbps "1Gbps" lat -3 lng 4 ] ]'
    site = network_from_gml(gml).sites[0]
    assert (site.zone, site.provider, site.egress_bps, site.ingress_bps) == ("east", "aws", 5e6, 1e9)
    assert (site.lat, site.lon) == (-3, 4)


@pytest.mark.parametrize(
    ("gml", "says"),
    [
        ("", "has 0 records"),
        ("graph [ ", "ends in the middle"),
        ("graph [ node ]", "expected a value"),
        ("] graph [ ]", "expected a value"),
        ('"graph" [ ]', "expected a key"),
        ('graph [ node [ id 0 label "x ] ]', "line 1: a quote is not closed"),
        ("graph [ ]", "no sites"),
        ("graph [ ] graph [ ]", "has 2 records"),
        ("graph [ node [ label 3 ] ]", "needs 'id'"),
        ("graph [ node [ id 0 ] node [ id 0 ] ]", "node '0' is defined twice"),
        ("graph [ node [ id 0 ] edge [ source 0 ] ]", "needs 'target'"),
        ("graph [ node [ id 0 ] edge [ source 0 target 5 bandwidth 1 ] ]", "node '5', which is not in the file"),
        ("graph [ node [ id 0 ] edge [ source 0 target 0 bandwidth 1 ] ]", "link to itself"),
        ("graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 bandwidth -1 ] ]", "'-1Mbps'"),
        ("graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 bandwidth 1 loss x ] ]", "got 'x'"),
        ("graph [ node [ id 0 lat 3 ] ]", "only one of lat and lon"),
        ("graph [ node [ id 0 lat 300 lon 5 ] ]", "must be in [-"),
        ("graph [ node [ id 0 lat 1e999 lon 5 ] ]", "expected a finite number"),
        ("graph [ node [ id 0 lat NaN lon 5 ] ]", "expected a finite number"),
        ("a [ " * 100_000, "at most 100 levels"),
        ("graph [ " + "".join(f"node [ id {i} ]" for i in range(5001)) + " ]", "5001 sites"),
    ],
)
def test_bad_gml_is_refused_with_the_reason(gml: str, says: str) -> None:
    with pytest.raises(BadNetwork, match=r"zoo\.gml") as caught:
        network_from_gml(gml, "zoo.gml")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("graphml", "says"),
    [
        ("", "not valid XML"),
        ("<graphml>", "not valid XML"),
        ("<html/>", "expected a <graph> element"),
        ("<graphml><graph/></graphml>", "no sites"),
        ("<graphml><graph/><graph/></graphml>", "more than one graph"),
        ("<graphml><graph><node/></graph></graphml>", "<node> needs the attribute 'id'"),
        ('<graphml><graph><node id="a"/><node id="a"/></graph></graphml>', "defined twice"),
        ('<graphml><graph><node id="a"/><edge source="a"/></graph></graphml>', "<edge> needs the attribute 'target'"),
        ("<graphml><graph><hyperedge/></graph></graphml>", "hyperedge"),
        (ENTITY_BOMB, "document type declaration"),
        ('<!DOCTYPE x SYSTEM "file:///secret"><graphml/>', "document type declaration"),
        ("<a>" * 100_000, "at most 100 levels"),
        ("<graphml>&nope;</graphml>", "not valid XML"),
    ],
)
def test_bad_graphml_is_refused_with_the_reason(graphml: str, says: str) -> None:
    for data in (graphml, graphml.encode()):
        with pytest.raises(BadNetwork, match=r"zoo\.graphml") as caught:
            network_from_graphml(data, "zoo.graphml")
        assert says in str(caught.value)


def test_graphml_may_be_in_any_declared_encoding() -> None:
    latin = GRAPHML.replace("utf-8", "iso-8859-1").replace("&#233;", "é").encode("latin-1")
    assert network_from_graphml(latin).names[1] == "Café"
    with pytest.raises(BadNetwork, match="not valid XML"):
        network_from_graphml(GRAPHML.replace("utf-8", "klingon").encode())
