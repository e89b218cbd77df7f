"""CSV matrices: cells, units, orientation, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from network_files import CSV
from tradewind.errors import BadNetwork
from tradewind.formats import network_from_csv


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
        (",a,b\na,,1\na,,1\n", "row 3 is for 'a', which is not in the header, or comes twice"),
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
