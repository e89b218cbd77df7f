"""Traces as files: nothing is lost on the way, and other tools can read them."""

from __future__ import annotations

import csv
import io
import json
import sys
import zlib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.catalog import load_network
from tradewind.errors import BadOption, InputError
from tradewind.sim import WorkerOutage, simulate
from tradewind.trace import TRACE_SUFFIXES, Record, Trace, encode_trace, read_trace
from tradewind.trace.files import COLUMNS, trace_packer
from tradewind.trace.records import KINDS

names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
times = st.floats(0, 1e6)
numbers = st.none() | st.integers(0, 10**6)
records = st.builds(
    Record,
    kind=st.sampled_from(KINDS),
    start_s=times,
    end_s=times,
    site=names,
    peer=names,
    round=numbers,
    step=numbers,
    shard=numbers,
    phase=names,
    service_s=st.none() | times,
    nbytes=times,
    sent_bytes=times,
    members=st.lists(names, max_size=4).map(tuple),
    outcome=names,
    reason=names,
    rate_bps=st.none() | st.floats(0, 1e12),
    load=st.none() | st.floats(0, 1),
    retransmits=st.integers(0, 10**6),
    count=st.integers(0, 10**6),
    spent_s=times,
)


@pytest.fixture(scope="module")
def trace() -> Trace:
    network = load_network("mesh", n=5, seed=1)
    faults = [WorkerOutage("w2", 1.0, 2.0)]
    result = simulate(network, "crew", 4, 1, compute=0.1, nbytes=2_000_000, faults=faults, record="flows")
    assert result.trace is not None
    return result.trace


@given(st.lists(records, max_size=8))
@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_any_trace_reads_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, kept: list[Record]
) -> None:
    path = tmp_path_factory.mktemp("trace") / f"trace{suffix}"
    path.write_bytes(encode_trace(Trace(tuple(kept)), suffix))
    assert read_trace(path) == Trace(tuple(kept))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_real_trace_reads_back_as_it_was(tmp_path: Path, trace: Trace, suffix: str) -> None:
    path = tmp_path / f"trace{suffix}"
    path.write_bytes(encode_trace(trace, suffix))
    assert read_trace(path) == trace


def test_a_real_trace_holds_every_kind_of_record(trace: Trace) -> None:
    assert {record.kind for record in trace.records} == set(KINDS) - {"clock", "host", "site", "total"}, (
        "of live runs, and of networks with coordinates"
    )
    assert all(record.reason for record in trace.kind("decision"))
    assert [record.start_s for record in trace.records] == sorted(record.start_s for record in trace.records)
    assert trace.run is not None
    assert (trace.run.site, trace.run.peer) == ("mesh-5-seed1", "crew")


def test_the_csv_is_a_plain_table(trace: Trace) -> None:
    rows = list(csv.reader(io.StringIO(encode_trace(trace, ".csv").decode())))
    assert tuple(rows[0]) == COLUMNS
    assert {len(row) for row in rows} == {len(COLUMNS)}
    assert len(rows) == len(trace.records) + 1


def test_perfetto_gets_slices_on_named_tracks(trace: Trace) -> None:
    document = json.loads(encode_trace(trace, ".json"))
    events = document["traceEvents"]
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert set(processes.values()) == {"workers", "rounds", "links", "failures", "sums"}
    assert {"w1", "w2", "w3", "w4", "w5"} <= set(tracks.values())
    for event in events:
        assert event["ph"] in "MXbei"
        if event["ph"] == "X":
            assert (event["pid"], event["tid"]) in tracks
            assert event["dur"] >= 0
            assert event["ts"] >= 0
    assert sum(e["ph"] == "X" and e["cat"] == "compute" for e in events) == sum(1 for _ in trace.kind("compute"))
    begun, ended = (sorted(e["id"] for e in events if e["ph"] == ph) for ph in "be")
    assert begun == ended == sorted(r.round for r in trace.kind("round") if r.round is not None)
    assert document["otherData"]["scheme"] == "crew"


def test_slices_of_one_worker_do_not_overlap_in_perfetto(trace: Trace) -> None:
    """Two slices that overlap without nesting on one track break the viewer."""
    by_track: dict[int, list[tuple[float, float]]] = {}
    for event in json.loads(encode_trace(trace, ".json"))["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == 1:
            by_track.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in by_track.values():
        spans.sort()
        assert all(a[1] <= b[0] + 0.002 for a, b in pairwise(spans))


def test_parquet_without_pyarrow_says_what_to_do(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadOption, match="pyarrow"):
        encode_trace(trace, ".parquet")


def test_parquet_reads_back_as_it_was(tmp_path: Path, trace: Trace) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "trace.parquet"
    path.write_bytes(encode_trace(trace, ".parquet"))
    assert read_trace(path) == trace


def test_unknown_formats_and_broken_files_are_refused(tmp_path: Path, trace: Trace) -> None:
    with pytest.raises(BadOption, match="cannot be written"):
        encode_trace(trace, ".txt")
    with pytest.raises(InputError, match="Perfetto viewer only"):
        read_trace(tmp_path / "trace.json")
    with pytest.raises(InputError, match="cannot read"):
        read_trace(tmp_path / "missing.jsonl")
    for suffix, text in ((".jsonl", '{"kind": "nonsense"}'), (".jsonl", "}{"), (".csv", "kind,start_s\nflow,abc\n")):
        path = tmp_path / f"broken{suffix}"
        path.write_text(text)
        with pytest.raises(InputError, match="is not a valid trace"):
            read_trace(path)
    assert set(TRACE_SUFFIXES) == {".jsonl", ".csv", ".parquet", ".json"}


def packed(records: list[Record], flush: int) -> bytes:
    packer = trace_packer()
    lines = encode_trace(Trace(tuple(records)), ".jsonl")
    return bytes(packer.compress(lines) + packer.flush(flush))


def test_parts_of_killed_processes_in_a_packed_file_are_read_up_to_where_they_end(tmp_path: Path) -> None:
    """Each process that is started appends a part; a killed one leaves it without an end, or cut in the middle."""
    first, second, third = ([Record("sync", at_s, at_s + 1, "a", round=at_s) for at_s in (n, n + 1)] for n in (0, 2, 4))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(
        packed(first, zlib.Z_SYNC_FLUSH) + packed(second, zlib.Z_SYNC_FLUSH) + packed(third, zlib.Z_FINISH)
    )
    assert read_trace(path) == Trace((*first, *second, *third))
    path.write_bytes(packed(first, zlib.Z_SYNC_FLUSH)[:-6] + packed(third, zlib.Z_FINISH))
    assert read_trace(path).records[-2:] == tuple(third)
    path.write_bytes(b"")
    assert read_trace(path) == Trace(())


def test_a_packed_file_that_is_damaged_or_not_packed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b'{"kind":"sync"}\n')
    with pytest.raises(InputError, match="not compressed"):
        read_trace(path)
    whole = packed([Record("sync", 0, 1, "a")] * 50, zlib.Z_FINISH)
    path.write_bytes(whole[:12] + bytes(255 - byte for byte in whole[12:]))
    with pytest.raises(InputError, match="damaged"):
        read_trace(path)
