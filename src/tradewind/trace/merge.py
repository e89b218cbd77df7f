"""The files of one live run as one trace, on the controller's clock.

Every process of a run writes its own file, in its own wall time. Clocks of hosts differ, so a rank's file says in
`clock` records what the controller's monotonic clock showed at a moment of its own, and how wrong that may be (half the
round trip of the heartbeat that told it). The controller's file says what that clock shows in its wall time. With both,
a rank's times move onto the controller's clock. Where one is missing, a file keeps its wall time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from tradewind.trace.records import Record, Trace
from tradewind.units import format_duration


@dataclass(frozen=True)
class Merged:
    """A trace whose times begin with the run, and how well they agree."""

    trace: Trace
    clocks: str
    """How the clocks of its files were aligned, in words; empty for a trace of the simulator."""


def merge_traces(traces: Sequence[Trace]) -> Merged:
    """One trace of all of them. Files of a live run are aligned, and hold only the latest run that was written there.

    >>> rank = Trace((Record("clock", 50.0, 50.1, "a", "c", phase="rank", service_s=7.0), Record("wait", 51, 52, "a")))
    >>> control = Trace((Record("clock", 30.0, 30.0, "c", phase="controller", service_s=5.0),
    ...                  Record("run", 31.0, 31.0, "net", "bsp", step=0, phase="live")))
    >>> merged = merge_traces([rank, control])
    >>> [(record.kind, record.start_s) for record in merged.trace.records]
    [('run', 0.0), ('wait', 2.0)]
    >>> merged.clocks
    "clocks: on the controller's, within 100 ms"
    """
    if not any(record.kind == "clock" for trace in traces for record in trace.records):
        return Merged(traces[0] if len(traces) == 1 else Trace.of(r for t in traces for r in t.records), "")
    bases = {
        clock.site: clock.start_s - clock.service_s
        for trace in traces
        for clock in trace.kind("clock")
        if clock.phase == "controller" and clock.service_s is not None
    }
    shifts = [_shift(trace, bases) for trace in traces]
    records = [
        _moved(record, shift.by_s)
        for trace, shift in zip(traces, shifts, strict=True)
        for record in trace.records
        if record.kind != "clock"
    ]
    begin_s = max((r.start_s for r in records if r.kind == "run" and not r.step), default=None)
    if begin_s is None:
        begin_s = min((record.start_s for record in records), default=0.0)
    kept = Trace.of(_moved(record, -begin_s) for record in records if record.end_s >= begin_s)
    return Merged(kept, _describe(shifts))


@dataclass(frozen=True)
class _Shift:
    """What is added to a file's times."""

    by_s: float
    error_s: float | None
    """None: it could not be aligned."""


def _shift(trace: Trace, bases: dict[str, float]) -> _Shift:
    clocks = list(trace.kind("clock"))
    if any(clock.phase == "controller" for clock in clocks):
        return _Shift(0.0, 0.0)
    known = [clock for clock in clocks if clock.peer in bases and clock.service_s is not None]
    if not known:
        return _Shift(0.0, None)
    best = min(known, key=lambda clock: clock.seconds)
    assert best.service_s is not None
    return _Shift(best.service_s + bases[best.peer] - best.start_s, best.seconds)


def _moved(record: Record, by_s: float) -> Record:
    if not by_s:
        return record
    service_s = None if record.service_s is None else record.service_s + by_s
    return structs.replace(record, start_s=record.start_s + by_s, end_s=record.end_s + by_s, service_s=service_s)


def _describe(shifts: Sequence[_Shift]) -> str:
    errors = [shift.error_s for shift in shifts if shift.error_s is not None]
    alone = len(shifts) - len(errors)
    if not errors:
        return "clocks: the wall time of each host, because no controller's file is there"
    said = f"clocks: on the controller's, within {format_duration(max(errors))}"
    return said if not alone else f"{said}; {alone} of {len(shifts)} files in the wall time of their hosts"
