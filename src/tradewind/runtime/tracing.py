"""`trace=DIR`: a live run in the simulator's records (`tradewind.trace`), which `tradewind timeline DIR` draws.

Every rank writes its activity (`compute`, `wait`, `sync`, `flow`) to DIR/SITE.jsonl, and the controller its decisions
(`run`, `round`, `decision`, `failure`) to DIR/controller-of-SITE.jsonl. Threads that move bytes only put records into a
bounded queue; a separate thread aggregates frames to flows and writes. Records that do not fit into queue or file are
dropped and counted, and a warning is logged. A failing trace never ends a run.

Times in files are the wall time of the writing process: its wall clock at the start, continued by its monotonic clock,
which is never set. `clock` records relate it to the controller's clock (`trace.merge`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import msgspec
from msgspec import structs

from tradewind.control.options import ControlOptions, Decided, RoundEnded
from tradewind.control.plans.records import network_records, plan_records
from tradewind.errors import BadOption, TradewindError
from tradewind.node.actions import Outcome
from tradewind.runtime.threads import close_at_exit, start_thread
from tradewind.trace.records import Record
from tradewind.units import format_count, format_size
from tradewind.wire import messages as m
from tradewind.wire.frames import FrameHeader, FrameKind

log = logging.getLogger("tradewind.runtime")

MAX_QUEUED = 100_000
"""The most records that wait to be written; more are dropped."""
MAX_FILE_BYTES = 256 * 2**20
"""The largest file of one process; later records are dropped."""
FLUSH_S = 0.5
"""Interval of writing; a killed process loses the records of this time."""
FLOW_IDLE_S = 5.0
"""A flow has ended when its round has ended, or after this time without a frame."""
CLOSE_S = 5.0
"""The most seconds that `close` waits for the disk."""


@dataclass(frozen=True, slots=True)
class TraceStats:
    """The state of one process's trace."""

    path: str
    written: int
    """Records in the file."""
    dropped: int
    """Records that did not fit into the queue or the file."""


@dataclass(frozen=True, slots=True)
class Clock:
    """How the clock of this process compares with a controller's."""

    controller: str
    offset_s: float
    """Seconds by which the controller's monotonic clock is ahead of this process's."""
    error_s: float


@dataclass(slots=True)
class _Sent:
    """A sent frame, or the sum of those of a flow."""

    peer: str
    round: int | None
    shard: int
    phase: str
    began_s: float
    ended_s: float
    nbytes: int


class TraceWriter:
    """The trace file of one process, and the thread that writes it."""

    def __init__(self, folder: Path, name: str, clock: Callable[[], Clock | None] | None = None) -> None:
        """Open the file in `folder`; raises BadOption if it cannot be written.

        `clock` returns the comparison with the controller's clock; None: this process runs the controller.
        """
        self.path = folder / f"{quote(name.replace(' ', '-'), safe='')}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise BadOption(
                f"trace={str(folder)!r}: cannot write {self.path} ({error.strerror}). Give a directory that this "
                "process may create and write."
            ) from None
        self.name = name
        self._clock, self._compared = clock, float("inf")
        self._wall_s = time.time() - time.monotonic()
        self._queue: deque[Record | _Sent] = deque()
        self._closed = threading.Event()
        self._written = self._dropped = self._lost = 0
        """Records in the file; records that did not fit into the queue; records that could not be written."""
        self._bytes = os.fstat(self._file).st_size
        self._lines: list[bytes] = []
        self._flows: dict[tuple[str, int | None, int, str], _Sent] = {}
        self._broken = ""
        self._lock = threading.Lock()
        self._has_warned = False
        if clock is None:
            now_s = time.monotonic()
            self.put(Record("clock", now_s, now_s, name, phase="controller", service_s=now_s))
        self._thread = start_thread(self._run, name="tradewind-trace")
        close_at_exit(self.close)

    def put(self, item: Record | _Sent) -> None:
        """Queue a record or frame; times are this process's monotonic clock."""
        if len(self._queue) < MAX_QUEUED and not self._closed.is_set():
            self._queue.append(item)
        else:
            with self._lock:
                self._dropped += 1

    def stats(self) -> TraceStats:
        """The number of written and dropped records so far."""
        return TraceStats(str(self.path), self._written, self._dropped + self._lost)

    def close(self) -> None:
        """Write the queued records and end the thread; waits at most `CLOSE_S`."""
        self._closed.set()
        self._thread.join(CLOSE_S)

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Write the queue periodically: waking up for every record would cost more than writing it."""
        while not self._closed.wait(FLUSH_S):
            self._drain()
            self._end_flows(lambda flow: flow.ended_s < time.monotonic() - FLOW_IDLE_S)
            self._compare_clocks()
            self._flush()
        self._drain()
        self._end_flows(lambda _: True)
        self._compare_clocks()
        if dropped := self._dropped + self._lost:
            now_s = time.monotonic()
            what = f"{format_count(dropped, 'record')} did not fit"
            self._keep(Record("decision", now_s, now_s, self.name, phase="trace", reason=what))
        self._flush()
        os.close(self._file)

    def _drain(self) -> None:
        for _ in range(len(self._queue)):
            item = self._queue.popleft()
            if isinstance(item, Record):
                self._keep(item)
                if item.kind == "sync":
                    self._end_flows(partial(_is_of, item.round))
                continue
            known = self._flows.setdefault((item.peer, item.round, item.shard, item.phase), item)
            if known is not item:
                known.nbytes += item.nbytes
                known.ended_s = max(known.ended_s, item.ended_s)

    def _end_flows(self, has_ended: Callable[[_Sent], bool]) -> None:
        for key, flow in [(key, flow) for key, flow in self._flows.items() if has_ended(flow)]:
            del self._flows[key]
            self._keep(
                Record(
                    "flow",
                    flow.began_s,
                    flow.ended_s,
                    self.name,
                    flow.peer,
                    flow.round,
                    None,
                    flow.shard,
                    flow.phase,
                    flow.began_s,
                    flow.nbytes,
                    flow.nbytes,
                    outcome="delivered",
                )
            )

    def _compare_clocks(self) -> None:
        found = None if self._clock is None else self._clock()
        if found is not None and found.error_s < self._compared:
            self._compared, now_s = found.error_s, time.monotonic()
            seen_s = now_s + found.offset_s
            about = self.name, found.controller
            self._keep(Record("clock", now_s, now_s + found.error_s, *about, phase="rank", service_s=seen_s))

    def _keep(self, record: Record) -> None:
        """Append a record as a line, in wall time; the controller's time in a clock record is not converted."""
        to_s, service_s = self._wall_s, record.service_s
        if record.kind != "clock" and service_s is not None:
            service_s = round(service_s + to_s, 6)
        start_s, end_s = round(record.start_s + to_s, 6), round(record.end_s + to_s, 6)
        line = msgspec.json.encode(structs.replace(record, start_s=start_s, end_s=end_s, service_s=service_s))
        self._lines.append(line + b"\n")

    def _flush(self) -> None:
        if self._dropped and not self._has_warned:
            self._has_warned = True
            log.warning("the trace %s is incomplete: records arrive faster than they are written.", self.path)
        lines, self._lines = self._lines, []
        if not lines:
            return
        data = b"".join(lines)
        if not self._broken and self._bytes + len(data) > MAX_FILE_BYTES:
            self._stop(f"it has reached {format_size(MAX_FILE_BYTES)}")
        if self._broken:
            self._lost += len(lines)
            return
        try:
            done = 0
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError as error:
            self._lost += len(lines)
            self._stop(error.strerror or str(error))
            return
        self._bytes += len(data)
        self._written += len(lines)

    def _stop(self, why: str) -> None:
        self._broken = why
        log.warning("the trace %s ends here: %s. The run continues.", self.path, why)


def _is_of(number: int | None, flow: _Sent) -> bool:
    return flow.round == number


class RankTrace:
    """The trace of one rank's activity."""

    def __init__(self, writer: TraceWriter) -> None:
        self.writer = writer
        self._lock = threading.Lock()
        self._running = self._steps = 0
        self._idle_s: float | None = None
        """Since when no operation is running; None: one is, or the run has not started."""

    def joined(self, now_s: float) -> None:
        """Note that all ranks have joined: from now on this one computes, unless an operation is running."""
        with self._lock:
            if not self._running:
                self._idle_s = now_s

    def asked(self, now_s: float) -> None:
        """Note that an operation is submitted: since the end of the last one the rank computed."""
        with self._lock:
            self._running += 1
            begun_s, self._idle_s = self._idle_s, None
            if begun_s is None:
                return
            self._steps += 1
            step = self._steps
        self.writer.put(Record("compute", begun_s, now_s, self.writer.name, step=step))

    def ended(self, asked_s: float, started_s: float | None, how: TradewindError | Outcome, now_s: float) -> None:
        """Note that an operation has ended, with the times of its submission and start."""
        with self._lock:
            self._running -= 1
            if not self._running:
                self._idle_s = now_s
        failed = isinstance(how, TradewindError)
        number = None if isinstance(how, TradewindError) else how.round
        is_inline = isinstance(how, Outcome) and how.inline
        outcome, site = "cut short" if failed else "", self.writer.name
        began_s = now_s if started_s is None else started_s
        if is_inline:
            began_s = asked_s  # the start of an inline round is not known to the rank
        else:
            self.writer.put(Record("wait", asked_s, began_s, site, round=number, outcome=outcome))
        if number is not None:
            nbytes = how.nbytes if isinstance(how, Outcome) else 0
            self.writer.put(Record("sync", began_s, now_s, site, round=number, nbytes=nbytes))

    def sent(self, peer: str, header: FrameHeader, began_s: float, ended_s: float) -> None:
        """Note a sent frame, with the times of its begin and end."""
        if not header.payload_bytes:
            return
        is_chunk = header.kind is FrameKind.CHUNK
        phase = header.phase.name.lower() if is_chunk else header.kind.name.lower()
        about = peer, header.round if is_chunk else None, header.shard, phase  # other frames have no known round
        self.writer.put(_Sent(*about, began_s, ended_s, header.payload_bytes))


class RecordSink(Protocol):
    """What takes records, with times of this process's monotonic clock: a file, or the live page."""

    def put(self, item: Record, /) -> None:
        """Take a record; must not block."""

    def close(self) -> None:
        """Take no more records."""


class ControlTrace:
    """The trace of a controller's decisions. Not thread-safe: the controller's driver calls it under its own lock."""

    def __init__(self, sinks: Sequence[RecordSink], options: ControlOptions) -> None:
        self._sinks, self._options = sinks, options
        self._started: dict[int, int] = {}
        """Plan versions of the rounds that have started."""
        self._term = -1
        self._roster: set[str] = set()
        self._names: dict[int, str] = {}
        """Name of each rank that was ever in the roster, by number."""
        self._versions: set[int] = set()
        self._leaving: set[str] = set()
        """Ranks that announced to leave: the other ranks get the same message as for a loss."""
        self._inline = -1
        self._down: dict[tuple[str, str], tuple[float, str]] = {}
        """Lost ranks, and lost links by both ends: since when and why."""

    def received(self, worker: str, message: m.Message, now_s: float) -> None:
        """Note a message from a rank to the controller."""
        match message:
            case m.Leave():
                self._leaving.add(worker)
            case m.Measured(peer, bandwidth_bps, True):
                self._put(Record("link", now_s, now_s, peer, worker, phase="sample", rate_bps=bandwidth_bps))
            case m.LinkChanged(peer, reason, False):
                self._down.setdefault((worker, peer), (now_s, reason))
            case m.LinkChanged(peer) | m.Linked(peer):
                self._up((worker, peer), now_s)
                self._up((peer, worker), now_s)

    def noted(self, action: Decided | RoundEnded, now_s: float) -> None:
        """Note a decision of the controller, or the end of a round."""
        match action:
            case Decided():
                self._decided(action.what, action.reason, now_s, action.about, action.round)
            case RoundEnded():
                about = action.outcome, action.reason
                self._round(action.round, action.started_s, now_s, action.planner, action.nbytes, action.members, about)

    def sent(self, message: m.Message, now_s: float) -> None:
        """Note a message from the controller to a rank, or to several."""
        match message:
            case m.Roster():
                self._joined(message, now_s)
            case m.PlanChanged(version, packed) if version not in self._versions:
                self._versions.add(version)
                for record in plan_records(version, packed.plan, now_s):
                    self._put(record)
            case m.Start():
                self._started[message.round] = message.version
            case m.InlineResult(final=True) if message.round > self._inline:
                self._inline = message.round
                about = "finished", "it was small enough for control messages"
                nbytes, members = len(message.array), tuple(self._names[n] for n in m.numbers_in(message.members))
                self._round(message.round, now_s, now_s, "inline", nbytes, members, about)
            case m.Lost(site, reason) if site in self._roster:
                self._roster.discard(site)
                if site in self._leaving:
                    self._leaving.discard(site)
                    self._decided("leave", reason, now_s, site)
                    return
                self._down.setdefault((site, ""), (now_s, reason))
            case m.Closing(reason) if self._roster:
                self._roster.clear()
                self._decided("close", reason, now_s)

    def close(self) -> None:
        """End the trace; current failures end with it."""
        now_s = time.monotonic()
        for what in list(self._down):
            self._up(what, now_s)
        for sink in self._sinks:
            sink.close()

    def _put(self, record: Record) -> None:
        for sink in self._sinks:
            sink.put(record)

    def _joined(self, roster: m.Roster, now_s: float) -> None:
        if roster.term != self._term:
            self._term, options = roster.term, self._options
            network = "an unknown network" if options.network is None else options.network.name
            scheme = f"{options.policy}+{options.planner or ('given plan' if options.plan else 'default planner')}"
            said = f"{format_count(len(roster.workers), 'rank')}, term {roster.term}"
            about = network, scheme, options.rounds, roster.term
            self._put(Record("run", now_s, now_s, *about, phase="live", reason=said))
            if options.network is not None:
                ranks = [address.site for address in roster.workers]
                for record in network_records(options.network.with_ranks(ranks), now_s):
                    self._put(record)
        self._names |= {address.number: address.site for address in roster.workers}
        for site in sorted({address.site for address in roster.workers} - self._roster):
            self._roster.add(site)
            self._up((site, ""), now_s)
            self._decided("join", f"{site!r} joined", now_s, site)

    def _up(self, what: tuple[str, str], now_s: float) -> None:
        if what in self._down:
            since_s, why = self._down.pop(what)
            phase = "link" if what[1] else "rank"
            self._put(Record("failure", since_s, now_s, *what, phase=phase, reason=why))

    def _decided(self, what: str, why: str, now_s: float, about: str = "", number: int | None = None) -> None:
        self._put(Record("decision", now_s, now_s, about, round=number, phase=what, reason=why))

    def _round(
        self,
        number: int,
        start_s: float,
        end_s: float,
        planner: str,
        nbytes: int,
        members: tuple[str, ...],
        about: tuple[str, str],
    ) -> None:
        outcome, reason = about
        self._put(
            Record(
                "round",
                start_s,
                end_s,
                round=number,
                step=self._started.pop(number, None),
                phase=planner,
                nbytes=nbytes,
                members=members,
                outcome=outcome,
                reason=reason,
            )
        )
