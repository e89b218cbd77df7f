"""`trace=DIR`: what a live run writes is what happened, and nothing that happens to a trace ends the run."""

from __future__ import annotations

import collections
import itertools
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli import succeed_json, tradewind
from ranks import SECRET, free_port, run_ranks
from tradewind.dashboard import RunModel
from tradewind.errors import BadOption
from tradewind.network import Network, Site
from tradewind.runtime.group import Group, connect
from tradewind.runtime.stats import GroupStats
from tradewind.runtime.tracing import RankTrace
from tradewind.trace import Merged, Record, Trace, merge_traces, read_trace, trace_files
from tradewind.wire import messages as m
from tradewind.wire.frames import FrameHeader, FrameKind

TRIANGLE = Network("triangle", [Site(n) for n in "abc"], 1e9 * (1 - np.eye(3)))
ROUNDS = 5


def traced(tmp_path: Path) -> Merged:
    return merge_traces([read_trace(path) for path in trace_files([tmp_path])])


def run_traced(tmp_path: Path, **options: Any) -> tuple[list[GroupStats], Trace]:
    groups: list[Group] = []

    def body(group: Group) -> None:
        groups.append(group)
        for _ in range(ROUNDS):
            group.all_reduce(np.ones(100_000, np.float32))
        group.all_reduce(np.ones(3))

    answers = run_ranks(3, body, trace=tmp_path, **options)
    assert answers == [None] * 3, answers
    return [group.stats() for group in groups], traced(tmp_path).trace


@pytest.mark.parametrize(
    "options", [{}, {"network": TRIANGLE, "local_sockets": False, "connections": 2}, {"tolerant": True}]
)
def test_records_agree_with_the_stats_of_every_rank(tmp_path: Path, options: dict[str, Any]) -> None:
    found, trace = run_traced(tmp_path, **options)
    synced = collections.Counter(record.site for record in trace.kind("sync"))
    moved: collections.Counter[tuple[str, str]] = collections.Counter()
    for flow in trace.kind("flow"):
        moved[flow.site, flow.peer] += int(flow.sent_bytes)
    for stats in found:
        assert synced[stats.name] == stats.rounds == ROUNDS + 2
        assert {p.name: p.sent_bytes for p in stats.peers} == {p.name: moved[stats.name, p.name] for p in stats.peers}
        assert stats.trace is not None and stats.trace.dropped == 0
        waits = sum(record.seconds for record in trace.kind("wait") if record.site == stats.name)
        assert waits == pytest.approx(stats.waited_s, abs=1e-3)
    rounds = list(trace.kind("round"))
    numbers = [
        r.round for r in rounds if r.round is not None
    ]  # those of rounds that were announced, and then were others, are left out
    assert numbers == sorted(set(numbers)) and len(rounds) == ROUNDS + 2
    assert {r.outcome for r in rounds} == {"finished"}
    assert sum(r.nbytes for r in rounds) == found[0].array_bytes
    assert trace.run is not None and trace.run.start_s == 0.0
    phases = collections.Counter(record.phase for record in trace.kind("decision"))
    assert phases["join"] == 3 and phases["start"] == ROUNDS + 2 and phases["plan"] >= 1


def test_a_rank_never_waits_synchronises_and_computes_at_once_where_rounds_follow_each_other(tmp_path: Path) -> None:
    _, trace = run_traced(tmp_path)
    for site in {record.site for record in trace.kind("sync")}:
        spans = sorted(
            (r.start_s, r.end_s) for r in trace.records if r.site == site and r.kind in ("compute", "wait", "sync")
        )
        assert all(end_s <= next_s + 1e-5 for (_, end_s), (next_s, _) in itertools.pairwise(spans))
    for round_ in trace.kind("round"):
        syncs = [r for r in trace.kind("sync") if r.round == round_.round]
        slack_s = 0.01  # clocks of one process are compared by heartbeats as well
        assert len(syncs) == 3 and all(r.end_s >= round_.end_s - slack_s for r in syncs)


def test_inline_rounds_are_there_although_nothing_travels_between_ranks(tmp_path: Path) -> None:
    def body(group: Group) -> None:
        for _ in range(4):
            group.all_reduce(np.ones(10))

    run_ranks(2, body, trace=tmp_path, inline_bytes=16 * 1024)
    trace = traced(tmp_path).trace
    assert [(r.phase, r.nbytes, r.members) for r in trace.kind("round")][:4] == [("inline", 80, ("rank0", "rank1"))] * 4
    assert sum(1 for _ in trace.kind("sync")) == 10 and not list(trace.kind("flow"))


def test_a_trace_of_few_bytes_sums_up_what_it_does_not_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is saved at the start, so that all but the first rounds of the first second are summed up."""
    monkeypatch.setattr("tradewind.trace.thinning.SAVED_S", 0.001)
    found, trace = run_traced(tmp_path, trace_minute_bytes=100, network=TRIANGLE)
    model = RunModel.of(trace)
    sums = list(trace.kind("total"))
    assert {record.phase for record in sums} >= {"sync", "wait", "flow", "round"}
    assert model.finished_rounds == ROUNDS + 2 > sum(1 for _ in trace.kind("round"))
    for stats in found:
        sent = {peer.name: peer.sent_bytes for peer in stats.peers if peer.sent_bytes}
        assert sent == {dst: link.sent_bytes for (src, dst), link in model.links.items() if src == stats.name}
        assert model.sites[stats.name].spent_s["wait"] == pytest.approx(stats.waited_s, abs=1e-3)
    rows = {row["worker"]: row for row in succeed_json("timeline", tmp_path)}
    waited = [(rows[stats.name]["wait_seconds"], stats.waited_s) for stats in found]
    assert all(0 < drawn <= known + 1e-3 for drawn, known in waited), "clocks may differ by more than such a short run"
    assert tradewind("timeline", tmp_path, "--export", tmp_path / "run.json").exit_code == 0
    (replayed,) = succeed_json("replay", tmp_path, "--scheme", "bsp+ring", "--seconds", "5")
    assert replayed["rounds"] > 0


def test_a_trace_holds_the_load_of_hosts(tmp_path: Path) -> None:
    def body(group: Group) -> None:
        end_s = time.monotonic() + 30
        own = tmp_path / f"{group.stats().name}.jsonl.gz"
        while not any(read_trace(own).kind("host")) and time.monotonic() < end_s:
            time.sleep(0.05)

    run_ranks(2, body, trace=tmp_path)
    loads = [record for record in traced(tmp_path).trace.kind("host") if record.site == "rank0"]
    assert loads and all(0.0 <= (record.load or 0.0) <= 1.0 for record in loads)


def test_retransmissions_are_traced_when_they_grow_and_explain_a_slow_round(tmp_path: Path) -> None:
    """The file of a rank with its host's counters is enough for the cause of a slow round in a finished trace."""
    rank = RankTrace(tmp_path, "a", lambda: None, {1: "b"}.get, None)
    log = rank.flow_log(1)
    for again in (0, 0, 7, 7):
        rank.counted(m.Activity((("b", 10_000_000, again),), load=0.25, other_bps=0.0), time.monotonic())
    log.sent(FrameHeader(FrameKind.CHUNK, 1, payload_bytes=5_000_000, round=4), 5_000_000, time.monotonic())
    rank.writer.close()
    trace = read_trace(rank.writer.path)
    assert [(r.site, r.peer, r.retransmits) for r in trace.kind("link") if r.phase == "counted"] == [("a", "b", 7)]
    assert [r.load for r in trace.kind("host")] == [0.25] * 4
    assert [(r.round, r.sent_bytes) for r in trace.kind("flow")] == [(4, 5_000_000)]
    begin_s = max(r.end_s for r in trace.records)
    model = RunModel()
    for number in range(4):
        model.add(Record("flow", number, number + 1, "a", "b", number, sent_bytes=5e6, outcome="delivered"))
        model.add(Record("round", number, number + 1, round=number, nbytes=5e6, outcome="finished"))
    for record in trace.records:
        model.add(record)
    model.add(Record("flow", begin_s - 5, begin_s, "a", "b", 4, sent_bytes=5e6, outcome="delivered"))
    model.add(Record("round", begin_s - 5, begin_s, round=4, nbytes=5e6, outcome="finished"))
    assert [(found.cause, found.about) for found in model.diagnoses] == [("retransmissions", "a -> b")]


def test_timeline_draws_a_live_run_on_one_clock(tmp_path: Path) -> None:
    run_traced(tmp_path / "run")
    picture = tmp_path / "run.svg"
    done = tradewind("timeline", tmp_path / "run", "--links", "--out", picture)
    assert done.exit_code == 0 and "clocks: on the controller's, within" in done.stderr
    assert "rank0 &gt; rank1" in picture.read_text()
    rows = succeed_json("timeline", tmp_path / "run")
    assert [row["worker"] for row in rows] == ["rank0", "rank1", "rank2"]
    assert all(row["sync_seconds"] > 0 and row["compute_seconds"] > 0 for row in rows)


RANK = """
import sys, time, numpy as np, tradewind
from tradewind import Tolerance
rank, address, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
with tradewind.connect(address, rank, 3, trace=folder, tolerance=Tolerance(tolerant=True, patience_s=8.0)) as group:
    for number in range(10_000):
        group.average(np.ones(100_000, np.float32))
        if len(group.names) == 2:
            break
    print(group.stats().rounds, flush=True)
    group.average(np.ones(1000))
"""


def test_a_rank_that_is_killed_leaves_a_readable_file_and_its_end_is_in_the_trace(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    environment = {**os.environ, "TRADEWIND_SECRET": SECRET}
    run = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen([*run, str(rank), address, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    try:
        its_file, until_s = tmp_path / "rank2.jsonl.gz", time.monotonic() + 30
        while not (its_file.exists() and any(read_trace(its_file).kind("sync"))):
            assert time.monotonic() < until_s, "nothing was written"
            time.sleep(0.05)
        ranks[2].send_signal(signal.SIGKILL)
        for rank in ranks[:2]:
            said, _ = rank.communicate(timeout=60)
            assert rank.returncode == 0 and int(said) > 0
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    killed = read_trace(its_file)
    assert list(killed.kind("sync")) and {r.site for r in killed.records} == {"rank2"}
    trace = traced(tmp_path).trace
    (down,) = [r for r in trace.kind("failure") if not r.peer]
    assert down.site == "rank2" and down.reason and down.seconds > 0
    left = {r.site for r in trace.kind("decision") if r.phase == "leave"}
    assert left and left <= {"rank0", "rank1"}, "which is no failure"
    assert max(r.end_s for r in trace.kind("sync") if r.site == "rank0") > down.start_s
    assert tradewind("timeline", tmp_path, "--out", tmp_path / "run.png").exit_code == 0


def test_a_directory_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("not a directory")
    address = f"127.0.0.1:{free_port()}"
    for _ in range(2):  # and nothing is left behind on the port
        with pytest.raises(BadOption, match=r"trace=.*file.*cannot write.*Give a directory"):
            connect(address, 0, 1, secret=SECRET, trace=taken)
    with connect(address, 0, 1, secret=SECRET, trace=tmp_path / "new" / "folder") as group:
        group.barrier()
    assert len(trace_files([tmp_path / "new" / "folder"])) == 2


@pytest.mark.parametrize(("name", "most"), [("MAX_FILE_BYTES", 600), ("MAX_QUEUED", 0)])
def test_what_does_not_fit_is_dropped_counted_and_said_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, most: int
) -> None:
    monkeypatch.setattr(f"tradewind.runtime.trace_file.{name}", most)
    monkeypatch.setattr("tradewind.runtime.trace_file.FLUSH_S", 0.0)
    with caplog.at_level(logging.WARNING):
        found, _ = run_traced(tmp_path)
    assert all(stats.rounds == ROUNDS + 2 and stats.failed == 0 for stats in found)
    assert all(stats.trace is not None and stats.trace.dropped > 0 for stats in found)
    assert all(path.stat().st_size < 10_000 for path in trace_files([tmp_path]))
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("the trace")]
    assert len(said) == len(set(said)) == 4, "once for each file"


FULL = """
import resource, sys, numpy as np, tradewind
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
import tradewind.runtime.trace_file as trace_file
trace_file.FLUSH_S = 0.0
with tradewind.connect("127.0.0.1:0", 0, 1, trace=sys.argv[1]) as group:
    for _ in range(200):
        group.all_reduce(np.ones(10_000))
    print(group.stats().alone)
print(group.stats().trace.dropped > 0)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on files")
def test_a_disk_that_is_full_is_a_warning_and_what_was_written_is_readable(tmp_path: Path) -> None:
    environment = {**os.environ, "TRADEWIND_SECRET": SECRET}
    run = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stdout.split() == ["200", "True"], done.stderr
    assert "ends here: File too large. The run continues." in done.stderr
    assert any(read_trace(tmp_path / "rank0.jsonl.gz").kind("wait"))
