"""A worker: the engine and the client between data connections, the control connection and whoever asks for rounds.

One lock guards engine and client. Effects and actions are carried out after it is let go, in the thread whose event
caused them, except that frames to send go to the sender of their peer. Whatever goes wrong ends in `fail`: all
operations end with the same error, their inputs as they were, and every connection is closed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tradewind.control.deadlines import Deadlines
from tradewind.engine import events as ev
from tradewind.engine.actions import Action, Combine, PeerFaulty, Receive, Release, RoundComplete, Source, Transmit
from tradewind.engine.arithmetic import Array
from tradewind.engine.client import Client, Close, Effect, Failed, Forget, Joined, Open, Outcome, SendControl, Succeeded
from tradewind.engine.engine import Engine
from tradewind.engine.measuring import LinkMeters, MeasuringOptions
from tradewind.engine.payload import RoundPayload
from tradewind.errors import BadFrame, InternalError, PeerLost, RemoteFault, TradewindError
from tradewind.runtime.addresses import HostPort
from tradewind.runtime.links import Link
from tradewind.runtime.listener import Listener
from tradewind.runtime.pool import Pool
from tradewind.runtime.shaping import ShapedNetwork, ShapedSender
from tradewind.runtime.sockets import call, hang_up, shorten_queue
from tradewind.wire import messages as m
from tradewind.wire.frames import FrameHeader, FrameReader
from tradewind.wire.handshake import Credentials, Peer
from tradewind.wire.messages import decode_message, encode_message

log = logging.getLogger("tradewind.runtime")

READ_BYTES = 64 * 1024
CLOCK_READINGS = 4
"""Heartbeats at the start, to compare clocks; the one that is answered most quickly counts."""
Ended = Callable[[TradewindError | Outcome], None]
"""Called when an operation ends, with its error or what came of it."""


@dataclass(slots=True)
class _Submitted:
    own: Array
    result: Array
    ended: Ended
    asked_s: float
    started_s: float | None = None

    def timed(self, outcome: Outcome) -> Outcome:
        """The outcome with how long it took, by our clock."""
        now_s = time.monotonic()
        started_s = now_s if self.started_s is None else self.started_s
        return replace(outcome, waited_s=started_s - self.asked_s, seconds=now_s - started_s)


class Worker:
    """One process's part in a run."""

    def __init__(
        self,
        credentials: Credentials,
        deadlines: Deadlines,
        connections: Callable[[str], int] = lambda _: 1,
        slow_links: bool = False,
        shape: ShapedNetwork | None = None,
        measuring: MeasuringOptions | None = None,
    ) -> None:
        self.credentials, self.deadlines = credentials, deadlines
        self.site = credentials.site
        self.joined = threading.Event()
        """Set when everybody is there, or nothing works any more."""
        self._connections, self._slow_links, self._shape = connections, slow_links, shape
        self._lock = threading.Lock()
        self._client = Client(self.site)
        self._engine: Engine | None = None
        self._roster: tuple[m.Address, ...] = ()
        self._control: socket.socket | None = None
        self._control_lock = threading.Lock()
        self._controller = "the controller"
        self._heard_s = time.monotonic()
        self._listener: Listener | None = None
        self._links: dict[int, list[Link]] = {}
        self._dialled: set[int] = set()
        self._outboxes: dict[int, queue.SimpleQueue[Transmit | None]] = {}
        self._buffers: dict[int, memoryview] = {}
        self._pool = Pool()
        self._payloads: dict[int, RoundPayload] = {}
        self._operations: dict[int, _Submitted] = {}
        self._closed = threading.Event()
        self._measures, self._meters = measuring is not None, LinkMeters(measuring)
        self._meters_lock = threading.Lock()

    # --- starting and ending -------------------------------------------------------------------------------------

    def start(self, controller: HostPort, listening: socket.socket, advertise: str, rank: int) -> None:
        """Listen, call the controller and join; `joined` is set when everybody has."""
        self._listener = Listener(listening, self.credentials, self.deadlines.handshake_s, self._called)
        deadline_s = time.monotonic() + self.deadlines.gather_s
        self._control, peer = call(controller, self.credentials, "control", deadline_s)
        self._controller = f"{peer.site!r} at {controller}"
        self._heard_s = time.monotonic()
        for target, name in ((self._listen_to_controller, "control"), (self._watch, "watch")):
            threading.Thread(target=target, name=f"tradewind-{name}", daemon=True).start()
        self._say(m.Join(advertise, self._listener.port, rank))

    @property
    def roster(self) -> tuple[str, ...]:
        """Everybody, by rank."""
        return tuple(address.site for address in self._roster)

    @property
    def rounds_helped(self) -> int:
        """Rounds of others that this worker carried a part of, without an array of its own."""
        return self._client.rounds_helped

    @property
    def kept_bytes(self) -> int:
        """What is kept for the engine now."""
        return 0 if self._engine is None else self._engine.kept_bytes

    def close(self, error: TradewindError | None = None) -> None:
        """Leave, and end every thread."""
        if self._closed.is_set():
            return
        if error is None and self._client.lost is None:
            self._say(m.Leave())
        self.fail(error or PeerLost(f"{self.site!r} has left the run."))

    def fail(self, error: TradewindError) -> None:
        """Nothing works any more."""
        with self._lock:
            effects = self._client.fail(error)
            self._closed.set()
            links = [link for links in self._links.values() for link in links]
            outboxes = list(self._outboxes.values())
        self._carry_out(effects)
        for link in links:
            link.close()
        for outbox in outboxes:
            for _ in links:
                outbox.put(None)
        if self._listener is not None:
            self._listener.close()
        if self._control is not None:
            hang_up(self._control)
        self.joined.set()

    @property
    def lost(self) -> TradewindError | None:
        """Why nothing works any more, if so."""
        return self._client.lost

    # --- operations ------------------------------------------------------------------------------------------------

    def submit(self, operation: m.Operation, own: Array, result: Array, ended: Ended, part: int | None = None) -> None:
        """Ask for a round of everybody, or a part of a step; `ended` is called once, in a thread of ours."""
        with self._lock:
            number, effects = self._client.submit(operation, part)
            self._operations[number] = _Submitted(own, result, ended, time.monotonic())
        self._carry_out(effects)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendControl(message):
                    self._say(message)
                case Joined(roster):
                    self._roster = roster.workers
                    self._engine = Engine(self.credentials.number, self._client.numbers[self.site])
                    for _ in range(CLOCK_READINGS):
                        self._say(m.Heartbeat(time.monotonic()))
                    self.joined.set()
                case Open():
                    self._open(effect)
                case ev.Explore(peer):
                    self._connect(peer, calls=True)
                    self.tell(effect)
                case Close(round_):
                    if self._engine is not None:
                        self.tell(ev.CloseRound(round_))
                    self._payloads.pop(round_, None)
                case Forget(round_):
                    self.tell(ev.ForgetBelow(round_))
                case Succeeded(operation, outcome):
                    submitted = self._operations.pop(operation)
                    submitted.ended(submitted.timed(outcome))
                case Failed(operation, error):
                    self._operations.pop(operation).ended(error)

    def _open(self, effect: Open) -> None:
        own = result = None
        if effect.operation is not None:
            submitted = self._operations[effect.operation]
            own, result, submitted.started_s = submitted.own, submitted.result, time.monotonic()
        event = effect.event
        self._payloads[event.round] = RoundPayload(event.layout, effect.arithmetic, own, result)
        for peer in event.layout.peers:
            self._connect(peer)
        self.tell(event)

    # --- the control connection --------------------------------------------------------------------------------------

    def _say(self, message: m.Message) -> None:
        assert self._control is not None
        with self._control_lock, contextlib.suppress(OSError):  # its reader finds out, too
            self._control.sendall(encode_message(message, self.credentials.number))

    def _listen_to_controller(self) -> None:
        assert self._control is not None
        reader, reason = FrameReader(), "it closed the connection"
        try:
            while data := self._control.recv(READ_BYTES):
                self._heard_s = time.monotonic()
                for _, payload in reader.feed(data):
                    message = decode_message(payload)
                    if isinstance(message, m.HeartbeatSeen):
                        self._meters.clock.answered(message.sent_s, message.seen_s, time.monotonic())
                    with self._lock:
                        effects = self._client.handle(message)
                    self._carry_out(effects)
                    if self._client.lost is not None:
                        self.fail(self._client.lost)
        except OSError as error:
            reason = error.strerror or str(error)
        except BadFrame as error:
            reason = str(error)
        except TradewindError as error:
            self.fail(error)
        except Exception as error:
            log.exception("a bug")
            self.fail(InternalError(f"{type(error).__name__}: {error}"))
        self.fail(PeerLost(f"the controller {self._controller} was lost ({reason})."))

    def _watch(self) -> None:
        """Signs of life, ours and others'."""
        moved, moved_s = -1, time.monotonic()
        while not self._closed.wait(self.deadlines.heartbeat_s):
            now_s = time.monotonic()
            self._say(m.Heartbeat(now_s))
            if now_s - self._heard_s > self.deadlines.silence_s:
                self.fail(PeerLost(f"the controller {self._controller} was silent for {self.deadlines.silence_s:g} s."))
            with self._lock:
                total = sum(link.moved for links in self._links.values() for link in links)
                waiting = () if self._engine is None else self._engine.waiting_for()
            if total != moved or not waiting:
                moved, moved_s = total, now_s
            elif now_s - moved_s > self.deadlines.silence_s:
                silence = f"nothing came for {self.deadlines.silence_s:g} s although more is due"
                self._trouble(waiting[0], silence)

    def _trouble(self, peer: int, reason: str) -> None:
        """Tell the controller, who decides and tells everybody, us included."""
        if not self._closed.is_set():
            self._say(m.Trouble(self._roster[peer].site, reason[:1000]))

    # --- data connections --------------------------------------------------------------------------------------

    def _connect(self, peer: int, calls: bool = False) -> None:
        """Have a connection to a peer; the one with the lower number calls, unless only the other one needs it."""
        assert self._engine is not None
        with self._lock:
            if peer in self._dialled or peer in self._links or (self._engine.site > peer and not calls):
                return
            self._dialled.add(peer)
        threading.Thread(target=self._dial, args=(peer,), name=f"tradewind-dial-{peer}", daemon=True).start()

    def _dial(self, peer: int) -> None:
        address = self._roster[peer]
        where = HostPort(address.host, address.port)
        try:
            for _ in range(self._connections(address.site)):
                deadline_s = time.monotonic() + self.deadlines.handshake_s
                sock, _ = call(where, self.credentials, "data", deadline_s, address.site)
                self._add_link(peer, sock)
        except RemoteFault as error:
            self._trouble(peer, str(error))

    def _called(self, sock: socket.socket, peer: Peer) -> None:
        """Somebody who knows the secret connected to us."""
        self.joined.wait(self.deadlines.gather_s)
        number = self._client.numbers.get(peer.site)
        if peer.purpose != "data" or number is None or self._closed.is_set():
            hang_up(sock)
            return
        self._add_link(number, sock)

    def _add_link(self, peer: int, sock: socket.socket) -> None:
        with self._lock:
            if self._closed.is_set():
                hang_up(sock)
                return
            if self._slow_links:
                shorten_queue(sock)
            there = self._roster[peer].site
            shaped = None if self._shape is None else ShapedSender(self._shape, self.site, there, sock)
            link = Link(self, peer, sock, self._outbox(peer), shaped)
            self._links.setdefault(peer, []).append(link)
        if self._shape is not None:
            self._shape.watch(self.site, there, link.close)

    def _outbox(self, peer: int) -> queue.SimpleQueue[Transmit | None]:
        if peer not in self._outboxes:
            self._outboxes[peer] = queue.SimpleQueue()
        return self._outboxes[peer]

    def link_broke(self, peer: int, reason: str) -> None:
        """A connection to a peer is gone: nothing is lost unless somebody still needs it."""
        self._trouble(peer, f"its connection to {self.site!r} broke ({reason})")

    # --- for links: the engine, and payloads -------------------------------------------------------------------

    def tell(self, *events: ev.Event) -> list[Action]:
        """Let the engine handle events, and carry out what it asks for, but a `Receive`."""
        assert self._engine is not None
        with self._lock:
            actions: list[Action] = []
            for event in events:
                actions += self._engine.handle(event)
            for action in actions:
                if isinstance(action, Transmit):
                    self._outbox(action.peer).put(action)
        for action in actions:
            match action:
                case Transmit() | Receive():
                    pass
                case Release(buffer):
                    self._pool.give_back(self._buffers.pop(buffer, None))
                case Combine():
                    self._combine(action)
                case RoundComplete(number, version):
                    with self._lock:
                        effects = self._client.completed(number, version)
                    self._carry_out(effects)
                case PeerFaulty(peer, reason):
                    self._trouble(peer, reason)
        return actions

    def _combine(self, action: Combine) -> None:
        payload = self._payloads.get(action.round)
        if payload is not None:
            if action.into is not None and action.into not in self._buffers:
                self.keep(action.into, len(self._buffers[action.parts[0]]))
            payload.combine(action, self._buffers)
        self.tell(ev.Combined(action))

    def arrived(self, peer: int, connection: object, header: FrameHeader) -> None:
        """A whole frame is here: measure its link."""
        if not self._measures:
            return
        with self._meters_lock:
            sample = self._meters.arrived(peer, connection, header, time.monotonic())
        if sample is not None:
            there = self._roster[peer].site
            self._say(m.Measured(there, **dataclasses.asdict(sample)))

    def stamp_us(self) -> int:
        """The time for frames that leave now."""
        return self._meters.clock.stamp_us(time.monotonic())

    def payload_of(self, round_: int) -> RoundPayload | None:
        """The arrays of a round."""
        return self._payloads.get(round_)

    def keep(self, buffer: int, nbytes: int) -> memoryview:
        """Memory for a buffer."""
        self._buffers[buffer] = self._pool.take(nbytes)
        return self._buffers[buffer]

    def bytes_to_send(self, action: Transmit) -> memoryview | None:
        """A chunk's payload."""
        if action.source is Source.NOTHING:
            return memoryview(b"")
        if action.source is Source.KEPT:
            assert action.buffer is not None
            return self._buffers.get(action.buffer)
        if action.source is Source.PADDING:
            return memoryview(bytes(action.header.payload_bytes))
        payload = self._payloads.get(action.header.round)
        return None if payload is None else payload.outgoing(action)
