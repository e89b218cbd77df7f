"""The trace file of one process: a bounded queue, and a thread that compresses and writes what is in it.

Threads that move bytes only put items into the queue. Every two seconds the thread hands them to a `Thinner`, which
says what is recorded, and appends that to the file. Items that do not fit into queue or file are dropped and counted,
and a warning is logged. A failing trace never ends a run.

Times in files are the wall time of the writing process: its wall clock at the start, continued by its monotonic clock,
which is never set. `clock` records relate it to the controller's clock (`trace.merge`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import msgspec
from msgspec import structs

from tradewind.errors import BadOption
from tradewind.runtime.threads import close_at_exit, start_thread
from tradewind.trace.files import PACKED_SUFFIX, trace_packer
from tradewind.trace.records import Record
from tradewind.units import format_count, format_size

log = logging.getLogger("tradewind.runtime")

MAX_QUEUED = 100_000
"""The most items that wait to be written; more are dropped."""
MAX_FILE_BYTES = 256 * 2**20
"""The largest file of one process; later records are dropped."""
FLUSH_S = 2.0
"""Interval of writing; a killed process loses the records of this time."""
CLOSE_S = 5.0
"""The most seconds that `close` waits for the disk."""
FIRST_PACKED_SHARE = 0.2
"""By how much compression shrinks records, before it is known."""


@dataclass(frozen=True, slots=True)
class TraceStats:
    """The state of one process's trace."""

    path: str
    written: int
    """Records in the file."""
    dropped: int
    """Records that did not fit into the queue or the file; those that were summed up are not among them."""


@dataclass(frozen=True, slots=True)
class Clock:
    """How the clock of this process compares with a controller's."""

    controller: str
    offset_s: float
    """Seconds by which the controller's monotonic clock is ahead of this process's."""
    error_s: float


@dataclass(frozen=True, slots=True)
class TracePlace:
    """Where a trace is written, and how many bytes all files of the run grow by in a minute; 0: no limit."""

    folder: Path
    minute_bytes: int


class Thinner(Protocol):
    """What decides about items, in the thread that writes; times are this process's monotonic clock."""

    def take(self, item: Any, keep: Callable[[Record], float], /) -> None:
        """Take an item of the queue; `keep` writes a record, and returns about how many bytes it needs in the file."""

    def passed(self, seconds: float, now_s: float, is_last: bool, keep: Callable[[Record], float], /) -> None:
        """Note that all items of the queue were taken, so many seconds after the last time."""


class TraceWriter:
    """The trace file of one process, and the thread that writes it."""

    def __init__(
        self, folder: Path, name: str, thinner: Thinner, clock: Callable[[], Clock | None] | None = None
    ) -> None:
        """Open the file in `folder`; raises BadOption if it cannot be written.

        `clock` returns the comparison with the controller's clock; None: this process runs the controller.
        """
        self.path = folder / f"{quote(name.replace(' ', '-'), safe='')}{PACKED_SUFFIX}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise BadOption(
                f"trace={str(folder)!r}: cannot write {self.path} ({error.strerror}). Give a directory that this "
                "process may create and write."
            ) from None
        self.name = name
        self._thinner = thinner
        self._clock, self._compared = clock, float("inf")
        self._wall_s = time.time() - time.monotonic()
        self._queue: deque[Any] = deque()
        self._closed = threading.Event()
        self._written = self._dropped = self._lost = 0
        """Records in the file; items that did not fit into the queue; records that could not be written."""
        self._bytes = os.fstat(self._file).st_size
        self._packer, self._encoder = trace_packer(), msgspec.json.Encoder()
        self._lines: list[bytes] = []
        self._raw_bytes, self._packed_bytes = 0, 0
        self._broken = ""
        self._lock = threading.Lock()
        self._has_warned = False
        self._began_s = self._ticked_s = time.monotonic()
        if clock is None:
            about = {"phase": "controller", "service_s": self._began_s}
            self._keep(Record("clock", self._began_s, self._began_s, name, **about))  # type: ignore[arg-type]
        self._thread = start_thread(self._run, name="tradewind-trace")
        close_at_exit(self.close)

    def put(self, item: Any) -> None:
        """Queue an item for the thinner."""
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
            self._tick(is_last=False)
        self._tick(is_last=True)
        os.close(self._file)

    def _tick(self, is_last: bool) -> None:
        for _ in range(len(self._queue)):
            self._thinner.take(self._queue.popleft(), self._keep)
        now_s = time.monotonic()
        self._thinner.passed(now_s - self._ticked_s, now_s, is_last, self._keep)
        self._ticked_s = now_s
        self._compare_clocks()
        if is_last and (dropped := self._dropped + self._lost):
            what = f"{format_count(dropped, 'record')} did not fit"
            self._keep(Record("decision", now_s, now_s, self.name, phase="trace", reason=what))
        self._flush(is_last)

    def _compare_clocks(self) -> None:
        found = None if self._clock is None else self._clock()
        if found is not None and found.error_s < self._compared:
            self._compared, now_s = found.error_s, time.monotonic()
            seen_s = now_s + found.offset_s
            about = self.name, found.controller
            self._keep(Record("clock", now_s, now_s + found.error_s, *about, phase="rank", service_s=seen_s))

    def _keep(self, record: Record) -> float:
        """Append a record as a line, in wall time; the controller's time in a clock record is not converted."""
        to_s, service_s = self._wall_s, record.service_s
        if record.kind != "clock" and service_s is not None:
            service_s = _microseconds(service_s + to_s)
        start_s, end_s = _microseconds(record.start_s + to_s), _microseconds(record.end_s + to_s)
        line = self._encoder.encode(structs.replace(record, start_s=start_s, end_s=end_s, service_s=service_s))
        self._lines.append(line)
        share = self._packed_bytes / self._raw_bytes if self._raw_bytes else FIRST_PACKED_SHARE
        return len(line) * share

    def _flush(self, is_last: bool) -> None:
        if self._dropped and not self._has_warned:
            self._has_warned = True
            log.warning("the trace %s is incomplete: records arrive faster than they are written.", self.path)
        lines, self._lines = self._lines, []
        if not lines:
            return
        lines.append(b"")
        raw = b"\n".join(lines)
        data = self._packer.compress(raw) + self._packer.flush(zlib.Z_FINISH if is_last else zlib.Z_SYNC_FLUSH)
        self._raw_bytes += len(raw)
        self._packed_bytes += len(data)
        if not self._broken and self._bytes + len(data) > MAX_FILE_BYTES:
            self._stop(f"it has reached {format_size(MAX_FILE_BYTES)}")
        if self._broken:
            self._lost += len(lines) - 1
            return
        try:
            done = 0
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError as error:
            self._lost += len(lines) - 1
            self._stop(error.strerror or str(error))
            return
        self._bytes += len(data)
        self._written += len(lines) - 1

    def _stop(self, why: str) -> None:
        self._broken = why
        log.warning("the trace %s ends here: %s. The run continues.", self.path, why)


def _microseconds(time_s: float) -> float:
    """A time after 1970, rounded: much quicker than `round`.

    >>> _microseconds(1763448000.1234567)
    1763448000.123457
    """
    return int(time_s * 1e6 + 0.5) / 1e6
