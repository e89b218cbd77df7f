"""A simulated rank: the production node on virtual connections.

Invariants are checked at every step, and violations raise `InternalError`: no chunk is applied twice, no buffer is used
after it was released, and kept data stays within its bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tradewind.arithmetic import Array
from tradewind.errors import InternalError, TradewindError
from tradewind.node import events as ev
from tradewind.node.actions import (
    Combine,
    Departed,
    Failed,
    FindController,
    How,
    NodeAction,
    Outcome,
    PeerFaulty,
    Receive,
    Release,
    SendControl,
    Source,
    Started,
    Succeeded,
    Transmit,
)
from tradewind.node.chunk_plane import ChunkPlane, Digest
from tradewind.node.collectives import CollectiveCall
from tradewind.node.engine.engine import Engine
from tradewind.node.node import Node, small_array
from tradewind.node.payload import RoundPayload
from tradewind.planning.windows import KEPT_BYTES
from tradewind.sim.chunks.links import Connection, Frame
from tradewind.sim.clock import Clock, Priority
from tradewind.wire import messages as m
from tradewind.wire.codecs import NONE
from tradewind.wire.frames import HEADER_BYTES, FrameHeader, FrameKind, header_for

RUN = 1
SPOILT = 77
"""The value written where a chunk was only partly received."""
ADD_BPS = 16e9
"""The rate at which sums are computed: finite, so that other events can happen meanwhile."""


class SimulatedWorker:
    """One simulated rank."""

    def __init__(self, name: str, clock: Clock, say: Callable[[str, m.Message], None], random: np.random.Generator):
        self.name, self.clock, self._say, self._random = name, clock, say, random
        self.plane = ChunkPlane(name, RUN)
        self.node = Node(name, self.plane)
        self.inline_bytes = 0
        """Arrays of at most this many bytes use inline rounds."""
        self.outgoing: dict[int, list[Connection]] = {}
        self.results: dict[int, Array | TradewindError] = {}
        """The result or error of each operation that has ended."""
        self.ended_s: dict[int, float] = {}
        self.most_kept_bytes = 0
        self._idle: dict[int, list[Connection]] = {}
        self._outputs: dict[int, Array] = {}
        self._shown: dict[int, Array] = {}
        """The results of collectives with their own dtype: they are copied as bytes."""
        self._buffers: dict[int, bytearray] = {}
        self._applied: set[tuple[object, ...]] = set()
        self._started: dict[int, int] = {}
        """Rounds that the controller has started here, with the last version: no other one may change a result."""
        self._finished: dict[int, int] = {}
        """The version of each round that it has finished."""
        self._own: set[int] = set()
        """Rounds that it is a member of."""
        self.dead = False
        """Whether it was killed; it then ignores all events."""
        self.controller_searches = 0
        """The number of times that its controller turned out not to act."""
        self.outcomes: dict[int, Outcome] = {}
        self.opened: Callable[[SimulatedWorker, int, Outcome], None] | None = None
        """Called when a round opens, with its outcome if there are no losses."""
        self.ended: Callable[[str], None] | None = None
        """Called with its name when an operation has ended."""
        self.hung_up: Callable[[str], None] | None = None
        """Called when it closes connections, which the peer will detect."""
        self._reading: dict[int, dict[int, Receive]] = {}
        """Payloads that are being read, by peer."""
        self._reads = 0
        self._received: dict[int, int] = {}
        """Payloads that have begun to arrive, by peer."""
        self._leaving: dict[Connection, Transmit] = {}
        self._most_rounds = 0

    @property
    def engine(self) -> Engine | None:
        """Its engine, from the first roster on."""
        return self.plane.engine

    # --- operations and control --------------------------------------------------------------------------------

    def submit(self, array: Array, op: str, in_place: bool = False, part: int | None = None, codec: str = NONE) -> int:
        """Submit an all-reduce, or a step with members that the policy chooses; returns the operation's number."""
        operation = m.Operation(len(array), array.itemsize, array.dtype.name, op, codec=codec)
        return self.ask(operation, array, array if in_place else np.zeros_like(array), part)

    def collect(self, call: CollectiveCall, op: str) -> None:
        """Submit a collective other than the all-reduce."""
        operation = call.operation(op, None)
        call.copy_own()
        own, result = call.arrays(operation)
        self._shown[self.ask(operation, own, result)] = call.result

    def shown(self, number: int, result: Array) -> Array:
        """The result of an operation as the caller sees it."""
        return self._shown.get(number, result)

    def ask(self, operation: m.Operation, own: Array, result: Array, part: int | None = None) -> int:
        """Submit an operation with its input and the array for its result; returns its number."""
        try:
            inline = small_array(operation, own, self.name, self.inline_bytes, len(self.node.numbers))
            number, actions = self.node.submit(operation, (own, result), part, inline, own is result)
        except TradewindError as error:
            number = max(self.results, default=-1) + 1
            self._end(number, error)
            return number
        self._outputs[number] = result
        self._do(actions)
        return number

    def told(self, message: m.Message) -> None:
        """Handle a message of the controller."""
        if isinstance(message, m.Start):
            self._started[message.round] = message.version
        elif isinstance(message, m.Commit):
            started = self._started.get(message.round)
            if message.round in self._own and self._finished.get(message.round) != started:
                raise InternalError(f"{self.name} is to commit version {started} of round {message.round} unfinished.")
        self._do(self.node.told(message))
        self._check_ahead()

    def _check_ahead(self) -> None:
        """Check that rounds whose first chunks were sent, and that did not start, are closed with their operation."""
        ahead = [number for number in self.plane.payloads if number not in self._started]
        if len(ahead) > len(self.node.pending):
            raise InternalError(f"{self.name} keeps rounds {ahead} open that have not started.")

    def _check_started(self, round_: int) -> None:
        if round_ not in self._started:
            raise InternalError(f"{self.name}: a chunk of round {round_} is applied before the round has started.")

    def give_up(self) -> None:
        """Handle that there has been no controller for too long."""
        self._do(self.node.give_up())

    def look(self, every_s: float) -> None:
        """Report rounds in which nothing moves."""
        self._do(self.node.look(self._received, self.clock.now_s, every_s))

    def _do(self, actions: list[NodeAction]) -> None:
        """Perform the node's actions."""
        self._act()
        if self.plane.has_reports:  # a round that was complete when it was opened again has its digest now
            actions = [*actions, *self.node.advance()]
        for action in actions:
            match action:
                case SendControl(message):
                    if isinstance(message, m.Finished) and message.round in self._started:
                        self._finished[message.round] = message.version
                    self._say(self.name, message)
                case Departed(peer):
                    self.broke(peer)
                    if self.hung_up is not None:
                        self.hung_up(self.name)
                case FindController():
                    self.controller_searches += 1
                case Started(operation, number):
                    self._own.add(number)
                    if self.opened is not None:
                        self.opened(self, operation, self.node.outcome(operation))
                case Succeeded(operation, outcome):
                    self.outcomes[operation] = outcome
                    self.plane.end(action)
                    self._end(operation, self._outputs.pop(operation))
                case Failed(operation, error):
                    self.plane.end(action)
                    del self._outputs[operation]
                    self._end(operation, error)

    def _end(self, operation: int, how: Array | TradewindError) -> None:
        self.results[operation], self.ended_s[operation] = how, self.clock.now_s
        if self.ended is not None:
            self.ended(self.name)

    # --- data --------------------------------------------------------------------------------------------------

    def connect(self, peer: int, connections: list[Connection]) -> None:
        """Use new connections to a peer."""
        self.outgoing[peer] = connections
        self._idle[peer] = list(connections)
        self._reading.setdefault(peer, {})
        for _ in connections:
            self.tell(ev.LinkIdle(peer))

    def broke(self, peer: int) -> None:
        """Handle the loss of all connections to a peer, with partly read payloads and frames in transit."""
        connections = self.outgoing.pop(peer, [])
        if not connections:
            return
        self._idle[peer] = []
        self.tell(ev.LinksBroke(peer))
        for connection in connections:
            connection.cut = True
            action = self._leaving.pop(connection, None)
            if action is not None:
                self.tell(ev.Transmitted(action))
        reading, self._reading[peer] = self._reading.get(peer, {}), {}
        for receive in reading.values():
            self._spoil(receive)
            self.tell(ev.ReceiveFailed(receive))

    def _spoil(self, action: Receive) -> None:
        """Mark a payload that was partly added or stored when the connection broke: it must not reach any result."""
        payload = self.plane.payloads.get(action.header.round)
        if payload is not None and action.how in (How.ADD, How.STORE):
            chunk = payload.result_of(action)
            chunk[: (len(chunk) + 1) // 2] = SPOILT

    def frame_came(self, peer: int, frame: Frame, wire: object = None) -> None:  # noqa: ARG002 - for subclasses that measure
        """Handle a frame that was read; header and payload are processed as a socket's reader does."""
        header: FrameHeader = frame.what
        receive = self.tell(ev.HeaderReceived(peer, header))
        if header.kind is FrameKind.ACK:
            return
        assert receive is not None
        self._reads += 1
        self._reading.setdefault(peer, {})[self._reads] = receive
        self._received[peer] = self._received.get(peer, 0) + 1
        due_s = self.clock.now_s + self._work_s(len(frame.body))
        self.clock.at(due_s, Priority.ARRIVAL, self._read, (peer, self._reads, frame.body))

    def _read(self, what: tuple[int, int, bytes]) -> None:
        peer, number, body = what
        action = self._reading[peer].pop(number, None)
        if action is None or self.dead:  # the connection broke in the middle of it
            return
        if action.buffer is not None:
            self._buffers[action.buffer][: len(body)] = body
        if action.how is not How.KEEP and action.how is not How.DISCARD and action.header.round in self.plane.payloads:
            self.apply(action, self.plane.payloads[action.header.round], body)
        self.tell(ev.Received(action))

    def apply(self, action: Receive, payload: RoundPayload, body: bytes) -> None:
        """Apply a payload to its array; raises `InternalError` if it is applied twice."""
        h = action.header
        origin = h.path[0] if h.path else action.peer
        mark = (h.round, h.plan_version, h.shard, h.phase, h.index, origin)
        if mark in self._applied:
            raise InternalError(f"{self.name}: chunk {mark} is applied twice.")
        self._applied.add(mark)
        self._check_started(h.round)
        if action.buffer is not None:
            payload.take(action, self._buffers[action.buffer])
        elif action.how is How.ADD:
            coming = np.frombuffer(body, np.uint8)
            payload.add(action, np.empty(len(body), np.uint8), lambda block, _: np.copyto(np.asarray(block), coming))
        else:
            payload.result_of(action)[:] = payload.items(bytearray(body))

    def tell(self, event: ev.Event) -> Receive | None:
        """Pass an event to the engine and perform its actions, except receiving, which is returned."""
        self.plane.handle(event)
        receive = self._act()
        if self.plane.has_reports:
            self._do(self.node.advance())
        return receive

    def _act(self) -> Receive | None:
        """Perform the data plane's actions."""
        received, changed = None, False
        while actions := self.plane.take_actions():
            changed = True
            for action in actions:
                match action:
                    case Receive(buffer=buffer):
                        received = action
                        if buffer is not None:
                            self._buffers[buffer] = bytearray(action.buffer_bytes)
                    case Combine():
                        self._begin_to_combine(action)
                    case Transmit():
                        self._transmit(action)
                    case Release(buffer):
                        del self._buffers[buffer]
                    case Digest(complete, payload):
                        self.plane.digested(action, payload.digest(complete.round))
                    case PeerFaulty(peer, reason):
                        raise InternalError(f"{self.name} calls {peer} faulty: {reason}")
        if changed:  # otherwise no buffer came or went
            self._check_kept()
        return received

    def _check_kept(self) -> None:
        if self.engine is None:
            return
        kept, self._most_rounds = self.engine.kept_bytes, max(self._most_rounds, len(self.plane.payloads))
        self.most_kept_bytes = max(self.most_kept_bytes, kept)
        if kept > KEPT_BYTES * (1 + max(1, self._most_rounds + len(self.node.pending))):  # 1: scattered
            raise InternalError(f"{self.name} keeps {kept} bytes.")
        if kept != sum(map(len, self._buffers.values())):
            raise InternalError(f"{self.name} counts {kept} kept bytes wrongly.")

    def _begin_to_combine(self, action: Combine) -> None:
        if action.made is not None and action.made not in self._buffers:
            self._buffers[action.made] = bytearray(max(action.room, len(self._buffers[action.parts[0]])))
        nbytes = sum(len(self._buffers[part]) for part in action.parts)
        self.clock.at(self.clock.now_s + self._work_s(nbytes), Priority.ARRIVAL, self._combine, action)

    def _combine(self, action: Combine) -> None:
        if self.dead:
            return
        if action.round in self.plane.payloads:
            if action.into is None:
                self._check_started(action.round)
            self.plane.payloads[action.round].combine(action, self._buffers)
        self.tell(ev.Combined(action))

    def _transmit(self, action: Transmit) -> None:
        body: bytes | bytearray | memoryview = b""
        if action.source is Source.KEPT:
            assert action.buffer is not None
            body = self.plane.kept(action, self._buffers[action.buffer])
        elif action.source is Source.PADDING:
            body = bytes(action.header.payload_bytes)
        elif action.source is not Source.NOTHING:
            sent = self.plane.outgoing(action)
            lost = b"" if action.header.kind is not FrameKind.SCATTER else bytes(action.header.payload_bytes)
            body = lost if sent is None else sent
        idle = self._idle[action.peer]
        connection = idle.pop(int(self._random.integers(len(idle))) if len(idle) > 1 else 0)
        frame = Frame(header_for(action.header, len(body)), bytes(body), HEADER_BYTES + len(body))
        self._leaving[connection] = action
        connection.send(frame, lambda: self._left(action, connection))

    def _left(self, action: Transmit, connection: Connection) -> None:
        if self.dead or self._leaving.pop(connection, None) is None:
            return
        self._idle[action.peer].append(connection)
        self.tell(ev.Transmitted(action))
        self.tell(ev.LinkIdle(action.peer))

    def _work_s(self, nbytes: int) -> float:
        return float(8.0 * nbytes / ADD_BPS * (0.5 + self._random.random()))

    def story(self) -> dict[str, Any]:
        """Its state, for error messages."""
        rounds = () if self.engine is None else self.engine.open_rounds
        return {"worker": self.name, "pending": self.node.pending, "open rounds": rounds}
