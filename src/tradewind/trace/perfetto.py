"""Conversion of a trace to trace events for the Perfetto viewer (ui.perfetto.dev) and chrome://tracing.

Ranks are threads of one process and show what each does: compute, wait, sync. Links are threads of another and show the
flows that each carries. Rounds are asynchronous slices of a third, because they overlap. Failures are slices and
decisions are instant events.
What a trace only sums up is in a process of its own, a slice for each interval. Times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tradewind.trace.records import Record, Trace

WORKERS, ROUNDS, LINKS, FAILURES, SUMS = 1, 2, 3, 4, 5
_PROCESSES = {WORKERS: "workers", ROUNDS: "rounds", LINKS: "links", FAILURES: "failures", SUMS: "sums"}


def perfetto_events(trace: Trace) -> dict[str, Any]:
    """Return the trace as a JSON object in the trace event format."""
    threads = _Threads()
    events = [event for record in trace.records for event in _events(record, threads)]
    run = trace.run
    other = {} if run is None else {"network": run.site, "scheme": run.peer, "options": run.reason}
    return {"traceEvents": [*threads.names(), *events], "displayTimeUnit": "ms", "otherData": other}


class _Threads:
    """Thread numbers of tracks, in the order in which they appear."""

    def __init__(self) -> None:
        self._number: dict[tuple[int, str], int] = {}

    def of(self, process: int, name: str) -> int:
        return self._number.setdefault((process, name), len(self._number) + 1)

    def names(self) -> Iterator[dict[str, Any]]:
        for process, name in _PROCESSES.items():
            yield {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}
        ordered = sorted(self._number)
        for position, (process, name) in enumerate(ordered):
            thread = self._number[process, name]
            yield {"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
            yield {
                "name": "thread_sort_index",
                "ph": "M",
                "pid": process,
                "tid": thread,
                "args": {"sort_index": position},
            }


def _events(record: Record, threads: _Threads) -> Iterable[dict[str, Any]]:
    match record.kind:
        case "compute" | "wait" | "sync":
            suffix = "" if record.round is None else f" {record.round}"
            name = f"{record.kind}{suffix}" if record.kind == "sync" else record.kind
            yield _slice(record, name, WORKERS, threads.of(WORKERS, record.site), record.start_s)
        case "flow":
            link = threads.of(LINKS, f"{record.site}->{record.peer}")
            begin_s = record.start_s if record.service_s is None else record.service_s
            yield _slice(record, f"round {record.round} {record.phase}", LINKS, link, begin_s)
        case "round":
            track = threads.of(ROUNDS, "rounds")
            name = f"round {record.round}: {len(record.members)} members"
            shared = {"name": name, "cat": "round", "id": record.round, "pid": ROUNDS, "tid": track}
            yield {**shared, "ph": "b", "ts": _us(record.start_s), "args": _details(record)}
            yield {**shared, "ph": "e", "ts": _us(record.end_s)}
        case "total":
            name = f"{record.count} {record.phase}, {record.spent_s:.3f} s"
            what = f"{record.site}->{record.peer}" if record.peer else record.site or "rounds"
            yield _slice(record, name, SUMS, threads.of(SUMS, f"{what} {record.phase}"), record.start_s)
        case "failure":
            what = f"{record.site}->{record.peer}" if record.peer else record.site
            yield _slice(record, f"{what} down", FAILURES, threads.of(FAILURES, what), record.start_s)
        case "decision":
            yield {
                "name": record.phase,
                "cat": "decision",
                "ph": "i",
                "s": "g",
                "ts": _us(record.start_s),
                "pid": ROUNDS,
                "tid": threads.of(ROUNDS, "decisions"),
                "args": _details(record),
            }


def _slice(record: Record, name: str, process: int, thread: int, begin_s: float) -> dict[str, Any]:
    return {
        "name": name,
        "cat": record.kind,
        "ph": "X",
        "ts": _us(begin_s),
        "dur": max(0.0, _us(record.end_s) - _us(begin_s)),
        "pid": process,
        "tid": thread,
        "args": _details(record),
    }


def _details(record: Record) -> dict[str, Any]:
    """Return the details that the viewer shows for a selected event."""
    shown = {
        "round": record.round,
        "step": record.step,
        "shard": record.shard,
        "bytes": record.nbytes or None,
        "sent_bytes": record.sent_bytes or None,
        "members": " ".join(record.members) or None,
        "outcome": record.outcome or None,
        "reason": record.reason or None,
    }
    return {key: value for key, value in shown.items() if value is not None}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
