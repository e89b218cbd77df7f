"""CSV matrices and lists of links: cells, units, orientation, and what is refused."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from network_files import CSV
from tradewind.errors import BadNetwork, BadOption
from tradewind.formats import network_from_csv
from tradewind.formats.prices import with_prices_from_csv
from tradewind.network import Network, Site


def test_rows_are_sources_and_cells_take_units() -> None:
    network = network_from_csv(CSV, name="three")
    assert network.name == "three"
    assert {(link.src, link.dst): link.bandwidth_bps for link in network.links} == {
        ("a", "b"): 200e6,
        ("a", "c"): 1.5e9,
        ("b", "a"): 100e6,
        ("c", "b"): 20e6,
    }
    assert not network.latency_s.any()


@pytest.mark.parametrize("delimiter", [";", "\t"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_semicolons_tabs_and_any_line_end_work(delimiter: str, newline: str) -> None:
    text = CSV.replace(",", delimiter).replace("\n", newline)
    assert network_from_csv(text) == network_from_csv(CSV)


def test_rows_may_come_in_any_order_and_blank_lines_do_not_matter() -> None:
    shuffled = ",a,b,c\nc,0,2.5 MB/s,\n\na,,200,1.5Gbps\n,,,\nb,100,0,-\n"
    assert network_from_csv(shuffled) == network_from_csv(CSV)


def test_latencies_are_matched_by_name() -> None:
    latency = ",c,b,a\na,30,10,0\nb,,0,11ms\nc,0,0.5s,\n"
    network = network_from_csv(CSV, latency)
    assert [(link.src, link.dst, link.latency_s) for link in network.links] == [
        ("a", "b", 0.01),
        ("a", "c", 0.03),
        ("b", "a", 0.011),
        ("c", "b", 0.5),
    ]


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 5000), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_any_matrix_of_numbers_is_read_cell_by_cell(mbps: list[list[int]]) -> None:
    sites = [f"s{i}" for i in range(len(mbps))]
    for i in range(len(mbps)):
        mbps[i][i] = 0
    lines = [",".join(["", *sites]), *(",".join([s, *map(str, row)]) for s, row in zip(sites, mbps, strict=True))]
    assert np.array_equal(network_from_csv("\n".join(lines)).bandwidth_bps, np.array(mbps) * 1e6)


@pytest.mark.parametrize(
    ("bandwidth", "says"),
    [
        ("", "not a matrix"),
        ("hello", "not a matrix"),
        (",a,b\n", "not a matrix"),
        (",a,b\na,,1\n", "no row for site 'b'"),
        (",a,b\na,,1\na,,1\n", "row 3 is for 'a': expected one row for each name in the header"),
        (",a,b\na,,1\nz,1,\n", "row 3 is for 'z'"),
        (",a,b\na,1\nb,1,\n", "row 2 ('a') has 1 cells for 2 sites"),
        (",a,a\na,,1\n", "exactly once, but it has 'a'"),
        (",a,\na,,1\n", "exactly once, but it has ''"),
        (",a,b\na,7,1\nb,1,\n", "a->a is '7', but a site has no link to itself"),
        (",a,b\na,,fast\nb,1,\n", "a->b: 'fast' is not a rate"),
        (",a,b\na,,nan\nb,1,\n", "a->b: 'nan'"),
        (",a,b\na,,1e999\nb,1,\n", "a->b: '1e999Mbps'"),
        (",a,b\na,,-3\nb,1,\n", "a->b: '-3Mbps'"),
        (",a,b\na,,1_000\nb,1,\n", "a->b: '1_000'"),
        (",a,b\na,,5 parsec\nb,1,\n", "'parsec' is not a unit of rate"),
        (',a,b\na,,"1\nb,1,\n', "not valid CSV"),
        ("," + ",".join(f"s{i}" for i in range(5001)) + "\ns0,1\n", "5001 sites"),
    ],
)
def test_bad_matrices_are_refused_with_the_cell(bandwidth: str, says: str) -> None:
    with pytest.raises(BadNetwork, match=r"bw\.csv") as caught:
        network_from_csv(bandwidth, source="bw.csv")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("latency", "says"),
    [
        (",a,b,d\na,0,1,1\nb,1,0,1\nd,1,1,0\n", "site 'c' is in only one"),
        (",a,b,c\na,0,,3\nb,1,0,1\nc,1,1,0\n", "no latency for link a->b"),
        (",a,b,c\na,0,-1,3\nb,1,0,1\nc,1,1,0\n", "a->b: '-1'"),
        (",a,b,c\na,0,1e999,3\nb,1,0,1\nc,1,1,0\n", "a->b: '1e999'"),
        (",a,b,c\na,0,1lightyear,3\nb,1,0,1\nc,1,1,0\n", "a->b: '1lightyear'"),
    ],
)
def test_bad_latencies_are_refused_with_the_cell(latency: str, says: str) -> None:
    with pytest.raises(BadNetwork, match=r"ms\.csv") as caught:
        network_from_csv(CSV, latency, "bw.csv", "ms.csv")
    assert says in str(caught.value)


EDGES = "src,dst,mbps,ms\na,b,200,10\na,c,1.5Gbps,30\nb,a,100,11ms\nc,b,2.5 MB/s,0.5s\n"


def test_a_list_of_links_gives_the_same_network_as_matrices() -> None:
    latency = ",c,b,a\na,30,10,0\nb,,0,11ms\nc,0,0.5s,\n"
    assert network_from_csv(EDGES) == network_from_csv(CSV, latency)
    assert network_from_csv(EDGES, name="three").name == "three"


@pytest.mark.parametrize(
    "header",
    [
        "Source,Target,Bandwidth_Mbps,Latency_ms",
        "from,to,bandwidth,delay",
        "SRC,Destination,capacity_mbps,latency",
        "src,dest,capacity,delay_ms",
    ],
)
def test_columns_may_have_any_of_their_usual_names(header: str) -> None:
    assert network_from_csv(EDGES.replace("src,dst,mbps,ms", header)) == network_from_csv(EDGES)


def test_columns_come_in_any_order_and_units_follow_the_header() -> None:
    network = network_from_csv("loss;gbps;dst;price;src\n0.01;2;b;0.09;a\n0;300Mbps;a;0;b\n")
    assert [(link.src, link.dst, link.bandwidth_bps, link.latency_s, link.loss) for link in network.links] == [
        ("a", "b", 2e9, 0.0, 0.01),
        ("b", "a", 300e6, 0.0, 0.0),
    ]


def test_a_matrix_with_sites_of_such_names_is_still_a_matrix() -> None:
    assert network_from_csv("to,src,dst\nsrc,,5\ndst,5,\n").names == ("src", "dst")


names = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=8)


@given(
    st.lists(names, min_size=2, max_size=6, unique=True).flatmap(
        lambda sites: st.dictionaries(
            st.tuples(st.sampled_from(sites), st.sampled_from(sites)).filter(lambda ends: ends[0] != ends[1]),
            st.tuples(st.floats(0.001, 1e6), st.floats(0, 1e4)),
            min_size=1,
        )
    ),
    st.permutations(["src", "dst", "mbps", "ms"]),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_any_list_of_links_is_read_link_by_link(
    links: dict[tuple[str, str], tuple[float, float]], columns: list[str], delimiter: str, newline: str
) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, delimiter=delimiter, lineterminator=newline)
    writer.writeheader()
    for (src, dst), (mbps, ms) in links.items():
        writer.writerow({"src": src, "dst": dst, "mbps": repr(mbps), "ms": repr(ms)})
    network = network_from_csv(text.getvalue())
    found: dict[tuple[str, str], object] = {
        (link.src, link.dst): (link.bandwidth_bps, link.latency_s) for link in network.links
    }
    assert found == {ends: (pytest.approx(mbps * 1e6), pytest.approx(ms / 1e3)) for ends, (mbps, ms) in links.items()}


@given(st.text(max_size=200))
def test_whatever_follows_the_header_is_a_network_or_refused_by_name(rest: str) -> None:
    try:
        network = network_from_csv("src,dst,mbps,ms\n" + rest, source="links.csv")
    except BadNetwork as error:
        assert "links.csv" in str(error)
    else:
        assert network.links


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("", "nor a list of links"),
        ("a,b,5\n", "line 2 has 3 cells, expected 4 as in the header"),
        ("a,b,5,1\n\nb,a,5\n", "line 4 has 3 cells"),
        ("a,b,5,1,9\n", "line 2 has 5 cells"),
        ("a,b,5,1\nb,a,,1\n", "line 3: bandwidth of b->a: ''"),
        ("a,b,5,\n", "line 2: latency of a->b: ''"),
        ("a,b,0,1\n", "line 2: bandwidth of a->b"),
        ("a,b,-5,1\n", "line 2: bandwidth of a->b: '-5Mbps'"),
        ("a,b,fast,1\n", "line 2: bandwidth of a->b: 'fast' is not a rate"),
        ("a,b,nan,1\n", "line 2: bandwidth of a->b: 'nan'"),
        ("a,b,5,-1\n", "line 2: latency of a->b: '-1'"),
        ("a,a,5,1\n", "line 2: source and destination are both 'a'"),
        (",b,5,1\n", "line 2: the source is empty"),
        ("a,,5,1\n", "line 2: the destination is empty"),
        ("a,b,5,1\nb,a,5,1\na,b,6,1\n", "line 4: link a->b is already in line 2"),
        ('a,b,"5,1\n', "not valid CSV"),
    ],
)
def test_bad_links_are_refused_with_the_line(rows: str, says: str) -> None:
    with pytest.raises(BadNetwork, match=r"links\.csv") as caught:
        network_from_csv("src,dst,mbps,ms\n" + rows, source="links.csv")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("src,dst,mbps,rtt\na,b,5,1\n", "line 1: column 'rtt' is unknown"),
        ("src,dst,mbps,rtt\na,b,5,1\n", "write half of a round-trip time"),
        ("src,dst,mbps,bandwidth\na,b,5,1\n", "columns 'mbps' and 'bandwidth' both give the bandwidth"),
        ("src,from,dst,mbps\na,b,c,1\n", "columns 'src' and 'from' both give the source"),
        ("src,dst,mbps,loss\na,b,5,1\n", "line 2: loss of a->b: '1' must be at least 0 and below 1"),
        ("src,dst,mbps,price\na,b,5,cheap\n", "line 2: price of a->b: expected a finite number, got 'cheap'"),
        ("src,dst,mbps,price\na,b,5,-1\n", "line 2: price of a->b: '-1' must be at least 0"),
        ("src,dst,mbps\n" + "".join(f"s{i},t{i},1\n" for i in range(2501)), "has 5002 sites"),
    ],
)
def test_bad_columns_are_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(BadNetwork, match=r"links\.csv") as caught:
        network_from_csv(text, source="links.csv")
    assert says in str(caught.value)


def test_a_list_of_links_takes_no_latency_matrix() -> None:
    with pytest.raises(BadOption, match=r"its own latencies\. Leave out ms\.csv"):
        network_from_csv(EDGES, ",a\na,\n", latency_source="ms.csv")


def test_a_file_of_prices_names_links_by_pattern_provider_and_zone_and_later_rows_win() -> None:
    sites = [
        Site("a1", provider="a", zone="us"),
        Site("a2", provider="a", zone="eu"),
        Site("b1", provider="b", zone="us"),
    ]
    network = Network("three", sites, 1e6 * (1 - np.eye(3)))
    rows = ["*,*,0.09", "*,same provider,0.02", "provider=b,zone=us,0.5", "a?,b1,0.08"]
    found = with_prices_from_csv(network, "src,dst,usd_per_gb\n" + "\n".join(rows))
    assert found.usd_per_gb.tolist() == [[0, 0.02, 0.08], [0.02, 0, 0.08], [0.5, 0.09, 0]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1 must be src,dst,usd_per_gb"),
        ("src,dst,price\n", "line 1 must be src,dst,usd_per_gb"),
        ("src,dst,usd_per_gb\na,b", "row 2 has 2 cells"),
        ("src,dst,usd_per_gb\na,b,much", "row 2: .*much"),
        ("src,dst,usd_per_gb\na,b,-1", "at least 0"),
        ("src,dst,usd_per_gb\na,x,1", "names no link"),
    ],
)
def test_a_wrong_file_of_prices_is_refused_with_its_row(text: str, says: str) -> None:
    network = Network("pair", [Site("a"), Site("b")], 1e6 * (1 - np.eye(2)))
    with pytest.raises(BadNetwork, match=says):
        with_prices_from_csv(network, text)


def test_a_list_of_links_may_have_prices() -> None:
    assert network_from_csv("src,dst,mbps,usd_per_gb\na,b,5,0.02").link("a", "b").usd_per_gb == 0.02
