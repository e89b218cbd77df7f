"""State transfer: a rank that joins receives the current state from all members at once, over separate connections.

The joining rank asks every member for the version of the state that it offers, then for a snapshot of the newest one. A
member answers with the version, length and digest of its snapshot, which it keeps until the connection ends; a member
that is behind waits until it has that version. Members with the same digest are the sources: each sends slices, with a
digest of their own (`node.slices` decides which). If a source is lost, the others send what it has not; it is called
again, too. At the end the digest of the whole is checked. Members whose states differ, as under policies that average
in groups, are not mixed: the largest group with one digest is used. The controller is not involved.
"""

from __future__ import annotations

import logging
import math
import socket
import struct
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import xxhash

from tradewind.errors import BadFrame, PeerLost, RemoteFault, TradewindError
from tradewind.node.slices import SliceSchedule
from tradewind.runtime.addresses import HostPort
from tradewind.runtime.dialling import Dialling
from tradewind.runtime.report import log as run_log
from tradewind.runtime.sockets import call, hang_up, receive_into, send_all, set_timeout, shut_down
from tradewind.runtime.threads import pause, start_thread
from tradewind.units import format_duration, format_size
from tradewind.wire.handshake import Credentials
from tradewind.wire.messages import Address

log = logging.getLogger("tradewind.runtime")

PURPOSE = "state"
MAX_STATE_BYTES = 2**40
MAX_TRANSFERS = 16
"""The most transfers from one member at a time."""
MAX_REQUEST_BYTES = 16 * 2**20
"""The longest slice that a member sends in one piece."""
ATTEMPTS = 3
"""How often a source is called, and how often a transfer begins again if all its sources are lost."""
ASK_AGAIN_S = 0.005
LOGGED_S = 5.0
"""Interval at which a long transfer is logged."""
GRACE_S = 2.0
"""Seconds that members have to answer after the first one did; others are no sources."""
VERSION, SNAPSHOT, SLICE = 1, 2, 3
"""Requests: the version of the offer; a snapshot of at least a version; bytes of that snapshot."""
NONE = -1
"""The version of a member that offers nothing."""
_REQUEST = struct.Struct("!BqQ")
_VERSION = struct.Struct("!q")
_SNAPSHOT = struct.Struct("!qQ16s")
_SLICE = struct.Struct("!QQ")

Offer = Callable[[], bytes | bytearray | memoryview]
"""Returns the current state, which must not change afterwards; called in a separate thread for each request."""
Version = Callable[[], int]
"""Returns the version of the state that the offer would return now, at least 0; negative: there is none yet."""


class Snapshot:
    """The state of a member as it was offered to ranks that join."""

    def __init__(self, version: int, data: memoryview) -> None:
        self.version, self.data = version, data
        self.digest = xxhash.xxh3_128_digest(data)


class Offers:
    """What this rank offers to ranks that join."""

    def __init__(self) -> None:
        self.offer: Offer | None = None
        self.version: Version | None = None
        self._lock = threading.Lock()
        self._last: weakref.ref[Snapshot] | None = None
        """The last snapshot, which serves several ranks that join at the same version."""

    def current(self) -> int:
        """The version that is offered now; `NONE` if nothing is."""
        if self.offer is None:
            return NONE
        try:
            return 0 if self.version is None else max(NONE, int(self.version()))
        except Exception:
            log.exception("the version given to offer_state raised an error; the rank that joins asks other members")
            return NONE

    def snapshot(self, version: int, patience_s: float) -> Snapshot | None:
        """A snapshot of at least this version, waiting for it; None if there is none in time, or the offer raises."""
        until_s = time.monotonic() + patience_s
        while (current := self.current()) < version:
            if current == NONE or time.monotonic() > until_s:
                return None
            pause(ASK_AGAIN_S)
        with self._lock:
            last = None if self._last is None else self._last()
            if last is not None and self.version is not None and last.version == self.current():
                return last
            taken = self._take()
            self._last = None if taken is None else weakref.ref(taken)
            return taken

    def _take(self) -> Snapshot | None:
        """A snapshot of the current version; None if there is no offer, it raises, or versions change all the time."""
        for _ in range(ATTEMPTS):
            offer, version = self.offer, self.current()
            if offer is None or version == NONE:
                return None
            try:
                data = memoryview(offer()).cast("B")
            except Exception:
                log.exception("the function given to offer_state raised an error; the rank that joins asks another one")
                return None
            if self.current() == version:
                return Snapshot(version, data)
        return None


def give(sock: socket.socket, offers: Offers, silence_s: float) -> None:
    """Answer the requests of a rank that joins until it ends the connection."""
    request = bytearray(_REQUEST.size)
    kept: Snapshot | None = None
    try:
        set_timeout(sock, silence_s)
        while True:
            receive_into(sock, memoryview(request))
            kind, first, length = _REQUEST.unpack(request)
            if kind == VERSION:
                sock.sendall(_VERSION.pack(offers.current()))
            elif kind == SNAPSHOT:
                kept = offers.snapshot(first, silence_s / 2)
                told = (NONE, 0, b"") if kept is None else (kept.version, len(kept.data), kept.digest)
                sock.sendall(_SNAPSHOT.pack(*told))
            elif kind == SLICE and kept is not None and first >= 0 and length <= MAX_REQUEST_BYTES:
                piece = kept.data[first : first + length]
                send_all(sock, [_SLICE.pack(first, xxhash.xxh3_64_intdigest(piece)), piece])
            else:
                return  # not what a rank that joins asks
    except (OSError, TradewindError):
        pass  # the rank that joins has ended, or has everything
    finally:
        hang_up(sock)


@dataclass(frozen=True, slots=True)
class FetchedState:
    """A state that was received from other ranks."""

    data: bytearray
    version: int
    """The version that the members gave it; 0 if they gave none."""
    sources: tuple[str, ...]
    """The ranks that sent it."""
    resent: int = 0
    """The slices that were received a second time, from another source."""


class _Source:
    """A connection to one member, and what it offers."""

    def __init__(self, address: Address, credentials: Credentials, limits_s: tuple[float, float]) -> None:
        self.name, self._address, self._credentials = address.site, address, credentials
        self._handshake_s, self._silence_s = limits_s
        self._sock: socket.socket | None = None
        self._lock = threading.Lock()
        self.is_ended = False
        """Whether its thread is to close it."""
        self.offered: tuple[int, int, bytes] = (NONE, 0, b"")
        """Version, length and digest of the member's snapshot."""

    def call(self) -> bool:
        """Connect; returns whether the member answered."""
        where = HostPort(self._address.host, self._address.port)
        dialling = Dialling.to_rank(self._credentials.site, self.name)
        try:
            sock, _ = call(where, self._credentials, PURPOSE, time.monotonic() + self._handshake_s, dialling, self.name)
            set_timeout(sock, self._silence_s)
        except (RemoteFault, OSError):
            return False
        with self._lock:
            self._sock = sock
        if self.is_ended:
            self.end()
        return True

    def version(self) -> int:
        """The version of the member's offer."""
        (version,) = _VERSION.unpack(self._ask(_REQUEST.pack(VERSION, 0, 0), _VERSION.size))
        return int(version)

    def take_snapshot(self, version: int) -> tuple[int, int, bytes]:
        """Let the member take a snapshot of at least this version."""
        version, length, digest = _SNAPSHOT.unpack(self._ask(_REQUEST.pack(SNAPSHOT, version, 0), _SNAPSHOT.size))
        if length > MAX_STATE_BYTES:
            raise BadFrame(f"{self.name!r} offers a state of {length} bytes, expected at most {MAX_STATE_BYTES}.")
        self.offered = version, length, digest
        return self.offered

    def request(self, spans: Sequence[tuple[int, int]]) -> None:
        """Ask for slices."""
        if spans:
            self._connected().sendall(b"".join(_REQUEST.pack(SLICE, first, length) for first, length in spans))

    def receive(self, place: memoryview) -> int:
        """Receive the next slice, whose length is that of `place`; returns its first byte."""
        sock, head = self._connected(), bytearray(_SLICE.size)
        receive_into(sock, memoryview(head))
        first, digest = _SLICE.unpack(head)
        receive_into(sock, place)
        if xxhash.xxh3_64_intdigest(place) != digest:
            raise BadFrame(f"a slice of the state of {self.name!r} was damaged in transfer: its digest does not match.")
        return int(first)

    def end(self) -> None:
        """Wake the thread that uses this connection, which then closes it."""
        self.is_ended = True
        with self._lock:
            if self._sock is not None:
                shut_down(self._sock)

    def close(self) -> None:
        """Close the connection; called by the thread that uses it."""
        with self._lock:
            sock, self._sock = self._sock, None
        if sock is not None:
            hang_up(sock)

    def _connected(self) -> socket.socket:
        if self._sock is None:
            raise ConnectionResetError("the connection was closed")
        return self._sock

    def _ask(self, request: bytes, nbytes: int) -> memoryview:
        answer = memoryview(bytearray(nbytes))
        self._connected().sendall(request)
        receive_into(self._connected(), answer)
        return answer


class _Transfer:
    """One state on its way from several sources; each has a thread."""

    def __init__(self, sources: Sequence[_Source], rates_bps: Mapping[str, float]) -> None:
        self.offered = sources[0].offered
        _, nbytes, self._digest = self.offered
        self._schedule = SliceSchedule(nbytes, {source.name: rates_bps.get(source.name) for source in sources})
        self._sources = sources
        self._changed = threading.Condition()
        self._data = bytearray(nbytes)
        self._resent = 0
        self._serving = len(sources)

    def run(self) -> FetchedState | None:
        """Receive all slices; None if all sources are lost before."""
        for source in self._sources:
            start_thread(self._serve, source, name=f"tradewind-state-{source.name}")
        began_s = time.monotonic()
        with self._changed:
            while not self._changed.wait_for(lambda: not self._schedule.missing or not self._serving, LOGGED_S):
                self._log_progress(time.monotonic() - began_s)
        for source in self._sources:
            source.end()  # their threads end by themselves: one may be calling a lost source for seconds
        if self._schedule.missing:
            return None
        if xxhash.xxh3_128_digest(self._data) != self._digest:
            raise BadFrame("the received state was damaged: the digest of the whole does not match.")
        senders = tuple(sorted(name for name, nbytes in self._schedule.sent_by.items() if nbytes))
        return FetchedState(self._data, self.offered[0], senders, self._resent)

    def _log_progress(self, elapsed_s: float) -> None:
        """Log how much has arrived, and how much longer the rest takes at this pace."""
        total, done = len(self._data), min(len(self._data), sum(self._schedule.sent_by.values()))
        if 0 < done < total:
            left = format_duration(elapsed_s * (total - done) / done)
            run_log.info("%s of %s of the state have arrived, %s left", format_size(done), format_size(total), left)

    def _serve(self, source: _Source) -> None:
        """Receive from one source until nothing is missing; call it again if its connection breaks."""
        scratch = memoryview(bytearray(self._schedule.slice_bytes))
        try:
            for attempt in range(ATTEMPTS):
                try:
                    if attempt:
                        self._again(source)
                    self._receive_from(source, scratch)
                    return
                except (OSError, BadFrame) as error:
                    with self._changed:
                        self._schedule.lost(source.name)
                        ended = not self._schedule.missing
                        self._changed.notify_all()
                    if ended:
                        return
                    log.info("the state transfer from %r broke (%s)", source.name, error)
                finally:
                    source.close()
        finally:
            with self._changed:
                self._serving -= 1
                self._changed.notify_all()

    def _again(self, source: _Source) -> None:
        if not source.call() or source.take_snapshot(self.offered[0]) != self.offered:
            raise ConnectionResetError("it does not offer this state any more")
        with self._changed:
            self._schedule.add(source.name)

    def _receive_from(self, source: _Source, scratch: memoryview) -> None:
        schedule, asked = self._schedule, list[int]()
        while True:
            with self._changed:
                wanted = schedule.ask(source.name, time.monotonic()) if schedule.missing else []
                while not wanted and not asked:
                    if not schedule.missing:
                        return
                    self._changed.wait()  # another source may be lost, or slow
                    wanted = schedule.ask(source.name, time.monotonic()) if schedule.missing else []
            source.request([schedule.span(index) for index in wanted])
            asked += wanted
            first, length = schedule.span(asked[0])
            if source.receive(scratch[:length]) != first:
                raise BadFrame(f"{source.name!r} sent another slice than it was asked for.")
            with self._changed:
                if schedule.arrived(source.name, asked.pop(0), time.monotonic()):
                    self._data[first : first + length] = scratch[:length]
                else:
                    self._resent += 1
                self._changed.notify_all()


def ask(
    members: Iterable[Address],
    credentials: Credentials,
    limits_s: tuple[float, float],
    rates_bps: Mapping[str, float],
    newer_than: int = NONE,
) -> FetchedState | None:
    """The newest state that members offer, if it is newer than a version; None if no member offers one.

    `limits_s`: for connecting, and for the silence of a member. `rates_bps`: known rates of the links from members.
    Raises PeerLost if all sources are lost again and again.
    """
    others = [address for address in members if address.site != credentials.site]
    for _ in range(ATTEMPTS):
        sources = [_Source(address, credentials, limits_s) for address in others]
        try:
            offering = _choose(sources, newer_than, rates_bps)
            if not offering:
                return None
            if (state := _Transfer(offering, rates_bps).run()) is not None:
                return state
        finally:
            for source in sources:
                if not source.is_ended:  # else a thread uses it, and closes it
                    source.close()
    raise PeerLost(
        f"the state could not be fetched: all members that offer it were lost, {ATTEMPTS} times. Check their "
        "processes, and join again."
    )


def _choose(sources: Sequence[_Source], newer_than: int, rates_bps: Mapping[str, float]) -> list[_Source]:
    """The connected sources that have the newest version with one content; the largest such group."""
    versions = _on_each(sources, lambda source: source.version() if source.call() else NONE, GRACE_S)
    newest = max(versions.values(), default=NONE)
    if newest <= newer_than:
        return []
    offering = [source for source in sources if versions[source.name] != NONE and not source.is_ended]
    _on_each(offering, lambda source: source.take_snapshot(newest)[0])
    by_content: dict[tuple[int, int, bytes], list[_Source]] = defaultdict(list)
    for source in offering:
        if source.offered[0] > newer_than:
            by_content[source.offered].append(source)
    return max(
        by_content.values(),
        key=lambda found: (found[0].offered[0], len(found), sum(rates_bps.get(s.name, 0.0) for s in found)),
        default=[],
    )


def _on_each(sources: Sequence[_Source], do: Callable[[_Source], int], grace_s: float = math.inf) -> dict[str, int]:
    """The results of a question to all sources at once; `NONE` for those that break the connection.

    After the first useful answer the others have `grace_s`: a member may be lost although the roster has it.
    """
    answers = dict.fromkeys((source.name for source in sources), NONE)

    def run(source: _Source) -> None:
        try:
            answers[source.name] = do(source)
        except (OSError, TradewindError) as error:
            log.info("%r offers no state (%s)", source.name, error)
            source.offered = (NONE, 0, b"")
            source.close()
        if source.is_ended:
            source.close()

    threads = [start_thread(run, source, name=f"tradewind-state-{source.name}") for source in sources]
    until_s = math.inf
    while (alive := [thread for thread in threads if thread.is_alive()]) and time.monotonic() < until_s:
        alive[0].join(ASK_AGAIN_S)
        if until_s == math.inf and max(answers.values()) != NONE:
            until_s = time.monotonic() + grace_s
    for thread, source in zip(threads, sources, strict=True):
        if thread.is_alive():
            source.end()  # its thread closes it
    return dict(answers)
