"""Files of one live run become one trace on the controller's clock."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.errors import InputError
from tradewind.trace import Record, Trace, encode_trace, merge_traces, read_trace, trace_files

SHOWS_S = 500.0
"""What the controller's monotonic clock shows at its wall time 1000."""


def control(*more: Record, begun_s: float = 1000.0) -> Trace:
    clock = Record("clock", 1000.0, 1000.0, "controller of a", phase="controller", service_s=SHOWS_S)
    return Trace((clock, Record("run", begun_s, begun_s, "net", "bsp", step=0, phase="live"), *more))


def rank(name: str, ahead_s: float, error_s: float, *more: Record) -> Trace:
    """A file of a rank whose wall time is ahead of the controller's, and which knows that up to an error."""
    at_s = 1002.0 + ahead_s
    seen = Record("clock", at_s, at_s + error_s, name, "controller of a", phase="rank", service_s=SHOWS_S + 2.0)
    worse = Record("clock", at_s, at_s + 9.0, name, "controller of a", phase="rank", service_s=SHOWS_S + 7.0)
    return Trace((worse, seen, *more))


@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4))
def test_what_happened_at_once_is_at_once_whatever_the_hosts_clocks_show(one_s: float, two_s: float) -> None:
    files = [
        rank(
            name,
            ahead_s,
            0.001,
            Record("flow", 1003 + ahead_s, 1004 + ahead_s, name, "c", 0, service_s=1003.5 + ahead_s),
        )
        for name, ahead_s in (("a", one_s), ("b", two_s))
    ]
    merged = merge_traces([*files, control()])
    for flow in merged.trace.kind("flow"):
        assert (flow.start_s, flow.end_s, flow.service_s) == pytest.approx((3.0, 4.0, 3.5), abs=1e-6)
    assert merged.clocks == "clocks: on the controller's, within 1 ms"
    assert not list(merged.trace.kind("clock"))


def test_without_the_controllers_file_or_a_comparison_wall_time_is_used_and_said() -> None:
    wait = Record("wait", 1001.0, 1002.0, "a")
    alone = merge_traces([rank("a", 5.0, 0.001, wait)])
    assert "wall time of each host" in alone.clocks and [r.start_s for r in alone.trace.kind("wait")] == [0.0]
    never = Trace((wait,))
    merged = merge_traces([never, control()])
    assert merged.clocks.endswith("1 of 2 files in the wall time of their hosts")
    assert [r.start_s for r in merged.trace.kind("wait")] == [1.0]


def test_a_directory_with_several_runs_shows_the_latest_and_a_takeover_begins_none() -> None:
    again = Record("run", 2000.0, 2000.0, "net", "bsp", step=0, phase="live")
    taken_over = Record("run", 2010.0, 2010.0, "net", "bsp", step=1, phase="live")
    waits = [Record("wait", at_s, at_s + 1, "a") for at_s in (1001.0, 2005.0, 2011.0)]
    merged = merge_traces([rank("a", 0.0, 0.001, *waits), control(again, taken_over)])
    assert [r.start_s for r in merged.trace.kind("wait")] == [5.0, 11.0]


def test_a_simulated_trace_stays_as_it_is() -> None:
    trace = Trace((Record("run", 0.0, 9.0, "net", "bsp"), Record("wait", 1.0, 2.0, "a")))
    merged = merge_traces([trace])
    assert merged.trace is trace and not merged.clocks


@pytest.mark.parametrize("cut", [1, 2, 20])
def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path, cut: int) -> None:
    records = tuple(Record("wait", float(k), k + 1.0, "a", round=k) for k in range(3))
    path = tmp_path / "a.jsonl"
    whole = encode_trace(Trace(records), ".jsonl")
    path.write_bytes(whole[:-cut])
    assert read_trace(path).records == (records if cut == 1 else records[:-1])
    path.write_bytes(whole[: whole.index(b"\n") - 3])
    with pytest.raises(InputError, match="is not a valid trace"):
        read_trace(path)


def test_a_directory_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no"):
        trace_files([tmp_path])
