"""Files: the suffix chooses the format, and any content gives a network or one of our own errors."""

from __future__ import annotations

import contextlib
import doctest
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tradewind
from network_files import CSV, ENTITY_BOMB, GML, GRAPHML, JSON
from ranks import run_ranks
from tradewind import catalog, formats
from tradewind.errors import BadNetwork, BadOption, TradewindError, UnknownName
from tradewind.formats import network_from_csv, network_from_gml, network_from_graphml, network_from_json, read_network
from tradewind.runtime import options
from tradewind.runtime.group import Group, connect

CONTENTS = {"net.json": JSON, "net.csv": CSV, "net.graphml": GRAPHML, "net.gml": GML, "NET.GML": GML}
SEEDS = [text.encode() for text in (JSON, CSV, GRAPHML, GML, ENTITY_BOMB)]


@pytest.mark.parametrize("filename", CONTENTS)
def test_the_suffix_decides_the_format(tmp_path: Path, filename: str) -> None:
    (tmp_path / filename).write_text(CONTENTS[filename], encoding="utf-8")
    network = read_network(tmp_path / filename)
    assert network.name == ("gscale" if filename == "net.json" else filename.partition(".")[0])
    assert network.link_count > 0


def test_a_latency_matrix_goes_with_a_csv_file(tmp_path: Path) -> None:
    (tmp_path / "bw.csv").write_text(CSV)
    (tmp_path / "ms.csv").write_text(",a,b,c\na,0,1,2\nb,3,0,\nc,,4,0\n")
    assert read_network(tmp_path / "bw.csv", tmp_path / "ms.csv").link("c", "b").latency_s == 0.004
    with pytest.raises(BadNetwork, match=r"missing\.csv: no such file"):
        read_network(tmp_path / "bw.csv", tmp_path / "missing.csv")


def test_options_that_a_format_does_not_take_are_refused(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_text(JSON)
    with pytest.raises(BadOption, match="latency file"):
        read_network(tmp_path / "net.json", latency_path=tmp_path / "ms.csv")
    with pytest.raises(BadOption, match="default bandwidth"):
        read_network(tmp_path / "net.json", default_bandwidth_bps=1e6)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "large.json").write_bytes(b" " * 11)
    monkeypatch.setattr(formats, "MAX_FILE_BYTES", 10)
    for filename, says in {
        "net.txt": "cannot tell the format",
        "net": "cannot tell the format",
        "none.json": "no such file",
        "folder.json": "is not a file",
        "large.json": "at most",
        "a\0b.json": r"no such file|cannot be read",
        "x" * 5000 + ".json": "cannot be read",
    }.items():
        with pytest.raises(BadNetwork, match=says):
            read_network(tmp_path / filename)


def read_all_ways(data: bytes | str, default_bandwidth_bps: float | None) -> None:
    for read in (network_from_json, network_from_csv):
        with contextlib.suppress(TradewindError):
            read(data)
    for read_graph in (network_from_gml, network_from_graphml):
        with contextlib.suppress(TradewindError):
            read_graph(data, "fuzz", default_bandwidth_bps)
    with contextlib.suppress(TradewindError):
        network_from_csv(CSV, data)


defaults = st.sampled_from([None, 1e6])


@given(st.binary(max_size=300) | st.text(max_size=300), defaults)
@example(b"\xff\xfe" + "graph [ ]".encode("utf-16-le"), None)
@example("\ud800", None)
@example(b"<?xml version='1.0' encoding='utf-16'?><graphml/>", None)
@example(b"<?xml version='1.0' encoding='cp037'?><graphml/>", None)
@example(b"<?xml version='1.0' encoding='shift_jis'?><graphml/>", None)
@example(b"<?xml version='1.0' encoding='base64'?><graphml/>", None)
def test_any_bytes_end_in_a_network_or_in_our_error(data: bytes | str, default_bps: float | None) -> None:
    read_all_ways(data, default_bps)


NASTY = [b"NaN", b"Infinity", b"-1", b"0", b"1e999", b"1e-999", b"1e308", b"9" * 5000, b"null", b"true", b"Mbps"]
NASTY += [b"[", b"]", b"[" * 2000, b'"', b"\\ud800", b"\x00", b"\xff", b"<", b"&", b"&#0;", b"\n", b",", b";", b""]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 12)))
        data[start:end] = draw(st.sampled_from(NASTY) | st.binary(max_size=4))
    return bytes(data)


@settings(max_examples=300)
@given(mutated(), defaults)
def test_damaged_files_end_in_a_network_or_in_our_error(data: bytes, default_bps: float | None) -> None:
    read_all_ways(data, default_bps)


numbers = st.floats() | st.integers() | st.sampled_from([1e308, -0.0, 5e-324, 10**400])
values: Any = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.data())
def test_any_value_in_any_field_ends_in_a_network_or_in_our_error(data: st.DataObject) -> None:
    document = json.loads(JSON)
    part = data.draw(st.sampled_from([document, document["sites"][0], document["links"][0], document["trunks"][0]]))
    part[data.draw(st.sampled_from(sorted(part)))] = data.draw(values)
    with contextlib.suppress(TradewindError):
        network_from_json(json.dumps(document))


def test_the_examples_in_the_documentation_are_true() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "networks.md"
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 10
    assert result.failed == 0


LINKS = "src,dst,mbps,ms\nfra,sin,200,80\nsin,fra,100,80\n"


def test_a_network_is_named_or_a_file_wherever_one_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.csv").write_text(LINKS)
    monkeypatch.chdir(tmp_path)
    for load in (tradewind.load_network, options.load_network):
        for file in ("net.csv", "./net.csv", str(tmp_path / "net.csv"), Path("net.csv")):
            found = load(file)
            assert found is not None and found == tradewind.read_network("net.csv") and found.name == "net"
        assert load("gscale") == catalog.load_network("gscale")
        assert load("zoo/abilene") == catalog.load_network("zoo/abilene"), "a name with a folder is no file"
        with pytest.raises(BadNetwork, match=r"nosuch\.csv: no such file"):
            load("nosuch.csv")
        with pytest.raises(UnknownName, match="zoo/abilene"):
            load("zoo/abilen")


def test_options_are_for_networks_of_the_catalog(tmp_path: Path) -> None:
    (tmp_path / "net.csv").write_text(LINKS)
    with pytest.raises(BadOption, match="is a file, which takes no option 'seed'"):
        tradewind.load_network(tmp_path / "net.csv", seed=3)


def test_a_run_is_given_a_network_by_file_or_name(tmp_path: Path) -> None:
    (tmp_path / "net.csv").write_text(LINKS)

    def body(group: Group) -> tuple[str, float, list[float]]:
        given = sorted(link.bandwidth_bps for link in group.network().network.links)  # nothing is measured yet
        return group.name, float(group.all_reduce(np.ones(1000))[0]), given

    for network in (tmp_path / "net.csv", str(tmp_path / "net.csv")):
        answers = run_ranks(2, body, network=network)
        assert [answer[:2] for answer in answers] == [("fra", 2.0), ("sin", 2.0)]
        assert answers[0][2] == [1e8, 2e8]
    with pytest.raises(UnknownName, match="nosuch"):
        connect("127.0.0.1:1", 0, 1, secret="correct horse", network="nosuch")
