"""A rank's driver: its node between data connections, the control connection and the caller's operations.

One lock guards the node. Its actions are carried out after the lock is let go, in the thread whose event caused them,
except that frames to send go to the sender of their peer. Whatever goes wrong ends in `fail`: all operations end with
the same error, their inputs as they were, and every connection is closed.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence

from tradewind.arithmetic import Array
from tradewind.control.deadlines import Deadlines
from tradewind.errors import PeerLost, TradewindError
from tradewind.node import actions as do
from tradewind.node import events as ev
from tradewind.node.chunk_plane import Action, ChunkPlane, Digest
from tradewind.node.measuring import LinkMeters, LinkSample, MeasuringOptions
from tradewind.node.node import Node, small_array
from tradewind.node.payload import RoundPayload, same_memory
from tradewind.runtime import state_transfer
from tradewind.runtime.addresses import HostPort, is_loopback
from tradewind.runtime.control_link import Control
from tradewind.runtime.listener import Listener
from tradewind.runtime.peers import Connected, Peers
from tradewind.runtime.pool import Pool
from tradewind.runtime.shaping import ShapedNetwork
from tradewind.runtime.sockets import hang_up
from tradewind.runtime.stats import GroupStats, HostedController, Tally
from tradewind.runtime.submitted import Ended, Submitted
from tradewind.runtime.threads import close_at_exit, start_thread
from tradewind.runtime.tracing import Clock, RankTrace
from tradewind.wire import messages as m
from tradewind.wire.frames import FrameHeader
from tradewind.wire.handshake import Credentials, Peer

log = logging.getLogger("tradewind.runtime")

CLOCK_READINGS = 4
"""Heartbeats at the start, to compare clocks; the one that is answered most quickly counts."""

Todo = Action | do.NodeAction


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
        neighbours: bool = False,
        connected: Connected | None = None,
    ) -> None:
        self.credentials, self.deadlines = credentials, deadlines
        self.site = credentials.site
        self.inline_bytes = 0
        """Arrays of at most so many travel in messages."""
        self.trace: RankTrace | None = None
        """What is told what happens here, if anything is."""
        self.joined = threading.Event()
        """Set when everybody is there, or nothing works any more."""
        self._lock = threading.Lock()
        self._plane = ChunkPlane(self.site, credentials.number)
        self._node = Node(self.site, self._plane)
        self.addresses: tuple[m.Address, ...] = ()
        self._peers = Peers(self, credentials, deadlines, connections, slow_links, shape, neighbours, connected)
        self._control: Control | None = None
        self._place = ("", 0, 0)
        self._warned_of_loopback = False
        self.offer: state_transfer.Offer | None = None
        """Gives the current model to whoever joins."""
        self._listener: Listener | None = None
        self._buffers: dict[int, memoryview] = {}
        self._pool = Pool()
        self._operations: dict[int, Submitted] = {}
        self._closed = threading.Event()
        self._seen: queue.SimpleQueue[m.NetworkSeen] = queue.SimpleQueue()
        self._measures, self._meters = measuring is not None, LinkMeters(measuring)
        self._meters_lock = threading.Lock()
        self._tally, self._tally_lock = Tally(), threading.Lock()
        self._samples: dict[str, LinkSample] = {}
        """What the links from peers were last measured to carry, by name."""

    # --- starting and ending -------------------------------------------------------------------------------------

    def start(self, controllers: Sequence[HostPort], socks: Sequence[socket.socket], advertise: str, rank: int) -> None:
        """Listen, call the controller and join; `joined` is set when everybody has."""
        self._listener = Listener(socks, self.credentials, self.deadlines.handshake_s, self._called)
        close_at_exit(self.close)
        self._place = advertise, self._listener.port, rank
        self._control = Control(self, controllers, self.credentials, self.deadlines)
        if (elsewhere := self._control.elsewhere) is not None:
            self._warn_of_loopback(elsewhere)
        start_thread(self._watch, name="tradewind-watch")
        self._control.start()
        if self._closed.is_set():  # meanwhile: the process is ending
            self._control.close()

    def _warn_of_loopback(self, elsewhere: str) -> None:
        """Say so, once, if other hosts cannot reach us, and somebody is on another one."""
        host, port, _ = self._place
        if is_loopback(host) and not self._warned_of_loopback:
            self._warned_of_loopback = True
            log.warning(
                "%r is listening on loopback; set interface= or bind= so that other hosts can reach it (it is told to "
                "others as %s, and %s is on another host).",
                self.site,
                HostPort(host, port),
                elsewhere,
            )

    @property
    def tolerant(self) -> bool:
        """Whether the run goes on without those who are lost."""
        return self._node.tolerant

    def join_message(self) -> m.Join:
        """What to say to a controller first."""
        with self._lock:
            return m.Join(*self._place, self._node.report())

    @property
    def roster(self) -> tuple[str, ...]:
        """Everybody who is there, in the order of their numbers: by rank, and then as they joined."""
        return tuple(address.site for address in self.addresses)

    def stats(self, rank: int, controller: HostedController | None) -> GroupStats:
        """What this process has done so far."""
        with self._tally_lock:
            tally = dataclasses.asdict(self._tally)
        with self._lock:
            engine, node = self._plane.engine, self._node
            kept = (0, 0) if engine is None else (engine.kept_bytes, engine.most_kept_bytes)
            term, helped, pending = node.term, node.rounds_helped, len(node.pending)
        clock = self._meters.clock
        compared = clock.error_s < float("inf")
        peers = self._peers.stats()
        return GroupStats(
            name=self.site,
            rank=rank,
            members=self.roster,
            term=term,
            host=self._place[0],
            port=self._place[1],
            pending=pending,
            helped_rounds=helped,
            kept_bytes=kept[0],
            most_kept_bytes=kept[1],
            clock_offset_s=clock.offset_s if compared else None,
            clock_error_s=clock.error_s if compared else None,
            peers=tuple(links.stats(name, self._samples.get(name)) for name, links in peers.items()),
            controller=controller,
            trace=None if self.trace is None else self.trace.writer.stats(),
            **tally,
        )

    def close(self, error: TradewindError | None = None) -> None:
        """Leave, and end every thread."""
        if self._closed.is_set():
            return
        if error is None and self._node.lost is None and self._control is not None:
            self._control.leave()
        self.fail(error or PeerLost(f"{self.site!r} has left the run."))

    def fail(self, error: TradewindError) -> None:
        """Nothing works any more."""
        with self._lock:
            todo = self._settle(self._node.fail(error))
            self._closed.set()
        self._act(todo)
        self._peers.close()
        if self._listener is not None:
            self._listener.close()
        if self._control is not None:
            self._control.close()
        self.joined.set()
        if self.trace is not None:
            self.trace.writer.close()

    @property
    def lost(self) -> TradewindError | None:
        """Why nothing works any more, if so."""
        return self._node.lost

    def network_seen(self) -> m.NetworkSeen:
        """What the controller knows of the network; to be asked by one thread at a time."""
        if self.lost is not None:
            raise self.lost.fresh()
        self._say(m.NetworkWanted())
        try:
            return self._seen.get(timeout=self.deadlines.patience_s)
        except queue.Empty:
            lost = self.lost or PeerLost("the controller did not say what it knows of the network.")
            raise lost.fresh() from None

    # --- operations ------------------------------------------------------------------------------------------------

    def submit(self, operation: m.Operation, own: Array, result: Array, ended: Ended, part: int | None = None) -> None:
        """Ask for a round of all ranks, or a part of a step; `ended` is called once, in a thread of ours."""
        inline = small_array(operation, own, self.site, self.inline_bytes, len(self.addresses))
        overwrites = same_memory(own, result)
        if overwrites and self.tolerant:
            own, overwrites = own.copy(), False  # a round may have to be done again from the input
        with self._lock:
            number, actions = self._node.submit(operation, (own, result), part, inline, overwrites)
            submitted = self._operations[number] = Submitted(ended, time.monotonic())
            if self.trace is not None:
                self.trace.asked(submitted.asked_s)
            todo = self._settle(actions)
        self._act(todo)

    def _ended(self, how: do.Succeeded | do.Failed) -> None:
        """An operation is over."""
        self._plane.end(how)
        submitted = self._operations.pop(how.operation)
        came = how.error if isinstance(how, do.Failed) else submitted.timed(how.outcome)
        with self._tally_lock:
            self._tally.ended(came)
        if self.trace is not None:
            self.trace.ended(submitted.asked_s, submitted.started_s, came, time.monotonic())
        submitted.ended(came)

    def _join(self, roster: m.Roster) -> None:
        """All ranks are there, or one more."""
        here = self._node.numbers[self.site]
        self._controlled().joined()
        self.addresses = roster.workers
        self._peers.update({address.number: address for address in roster.workers}, here)
        if (elsewhere := next((a for a in roster.workers if not is_loopback(a.host)), None)) is not None:
            self._warn_of_loopback(f"{elsewhere.site!r} at {HostPort(elsewhere.host, elsewhere.port)}")
        if not self.joined.is_set():
            if self.trace is not None:
                self.trace.joined(time.monotonic())
            for _ in range(CLOCK_READINGS):
                self._say(m.Heartbeat(time.monotonic()))
        self.joined.set()

    # --- the control connection --------------------------------------------------------------------------------------

    def _controlled(self) -> Control:
        assert self._control is not None
        return self._control

    def _say(self, message: m.Message) -> None:
        self._controlled().say(message)

    def told(self, message: m.Message) -> None:
        """The controller said something."""
        if isinstance(message, m.HeartbeatSeen):
            self._meters.clock.answered(message.sent_s, message.seen_s, time.monotonic())
        with self._lock:
            todo = self._settle(self._node.told(message))
        self._count(message)
        self._act(todo)
        if self.lost is not None:
            self.fail(self.lost)

    def _count(self, message: m.Message) -> None:
        match message:
            case m.Start(version=version):
                with self._tally_lock:
                    self._tally.plan_version = version
            case m.PlanChanged():
                with self._tally_lock:
                    self._tally.plans += 1
            case m.Halt():
                with self._tally_lock:
                    self._tally.halts += 1

    def give_up(self) -> None:
        """There has been no controller for too long."""
        with self._lock:
            todo = self._settle(self._node.give_up())
        self._act(todo)

    def _watch(self) -> None:
        """Signs of life, ours and others'."""
        said_s = time.monotonic()
        while not self._closed.wait(self.deadlines.keepalive_s):
            if (now_s := time.monotonic()) >= said_s + self.deadlines.heartbeat_s:
                said_s = now_s
                self._controlled().watch(now_s)
            self._peers.watch(self._awaited)

    def _awaited(self) -> tuple[int, ...]:
        """Peers whose chunks some round here still needs."""
        with self._lock:
            return () if self._plane.engine is None else self._plane.engine.waiting_for()

    def trouble(self, peer: int, reason: str, back: bool = False) -> None:
        """Tell the controller, who decides and tells everybody, us included."""
        name = self._peers.name(peer)
        if not self._closed.is_set() and name is not None:
            if not back:
                with self._tally_lock:
                    self._tally.lost_links += 1
                log.warning("%s: the link to %s is lost, plans will avoid it: %s", self.site, name, reason)
            self._say(m.LinkChanged(name, reason[:1000], back))

    def linked(self, peer: int) -> None:
        """Tell the controller that a link works."""
        name = self._peers.name(peer)
        if name is not None:
            self._say(m.Linked(name))

    # --- data connections --------------------------------------------------------------------------------------

    def _called(self, sock: socket.socket, peer: Peer) -> None:
        """Somebody who knows the secret connected to us."""
        self.joined.wait(self.deadlines.gather_s)
        if peer.purpose == state_transfer.PURPOSE:
            state_transfer.give(sock, self.offer, self.deadlines.silence_s)
            return
        number = self._node.numbers.get(peer.site)
        if number is None or self._closed.is_set():
            hang_up(sock)
            return
        self._peers.called(sock, number, peer.purpose)

    def drained(self, peer: int, outbox: queue.SimpleQueue[do.Transmit | None]) -> None:
        """All connections to a peer are gone; what waited for them was never sent."""
        if self._plane.engine is None:
            return
        with self._lock:
            unsent = [outbox.get() for _ in range(outbox.qsize())]
            todo = self._handle(
                ev.LinksBroke(peer), *(ev.Transmitted(action) for action in unsent if action is not None)
            )
        with self._meters_lock:
            self._meters.disconnected(peer)
        self._act(todo)

    # --- for links: the engine, and payloads -------------------------------------------------------------------

    def tell(self, *events: ev.Event) -> do.Receive | None:
        """Let the engine handle events, and carry out what it asks for but for receiving, which is returned."""
        with self._lock:
            todo = self._handle(*events)
        if not todo:
            return None
        self._act(todo)
        return todo[0] if isinstance(todo[0], do.Receive) else None

    def _handle(self, *events: ev.Event) -> list[Todo]:
        """What is to be done about events, under the lock."""
        plane = self._plane
        for event in events:
            plane.handle(event)
        return self._settle(self._node.advance() if plane.has_reports else [])

    def _settle(self, actions: Sequence[do.NodeAction]) -> list[Todo]:
        """What is to be done when the lock is let go. Frames are queued here: it guards which connection is idle."""
        todo: list[Todo] = []
        for action in self._plane.take_actions():
            if isinstance(action, do.Transmit):
                self._peers.put(action)
            else:
                todo.append(action)
        todo += actions
        return todo

    def _act(self, todo: list[Todo]) -> None:
        for action in todo:
            match action:
                case do.Receive():
                    pass
                case do.Release(buffer):
                    self._pool.give_back(self._buffers.pop(buffer, None))
                case do.Combine():
                    self._combine(action)
                case do.SendControl(message):
                    self._say(message)
                case do.Connect(peer):
                    self._peers.want(peer)
                case do.Started(operation):
                    self._operations[operation].start()
                case do.Succeeded() | do.Failed():
                    self._ended(action)
                case Digest(complete, payload):
                    digest = payload.digest(complete.round)
                    with self._lock:
                        self._plane.digested(action, digest)
                        more = self._settle(self._node.advance())
                    self._act(more)
                case do.Joined(roster):
                    self._join(roster)
                case do.Departed(peer):
                    self.addresses = tuple(address for address in self.addresses if address.number != peer)
                    self._peers.forget(peer)
                case do.FindController(reason):
                    log.info("%s looks for another controller: %s", self.site, reason)
                    self._controlled().look_on()
                case do.PeerFaulty(peer, reason):
                    self._peers.drop(peer, reason)
                case m.NetworkSeen():
                    self._seen.put(action)

    def _combine(self, action: do.Combine) -> None:
        payload = self._plane.payloads.get(action.round)
        if payload is not None:
            if action.into is not None and action.into not in self._buffers:
                self.keep(action.into, len(self._buffers[action.parts[0]]))
            payload.combine(action, self._buffers)
        self.tell(ev.Combined(action))

    def arrived(self, peer: int, connection: object, header: FrameHeader) -> None:
        """A whole frame is here: measure its link."""
        if not self._measures or not header.chunks:  # a keepalive says nothing about its link's rate
            return
        with self._meters_lock:
            sample = self._meters.arrived(peer, connection, header, time.monotonic())
        if sample is not None and (there := self._peers.name(peer)) is not None:
            self._samples[there] = sample
            self._say(m.Measured(there, **dataclasses.asdict(sample)))
            self._say(m.Heartbeat(time.monotonic()))  # latencies are as good as clocks are compared

    @property
    def traces(self) -> bool:
        """Whether what is sent is traced."""
        return self.trace is not None

    def sent(self, peer: int, header: FrameHeader, began_s: float) -> None:
        """A frame has left."""
        name = self._peers.name(peer)
        if self.trace is not None and name is not None:
            self.trace.sent(name, header, began_s, time.monotonic())

    def compare_clocks(self) -> Clock | None:
        """How our clock compares with that of the first controller that we were connected to."""
        control, clock = self._control, self._meters.clock
        if control is None or clock.error_s == float("inf") or control.site != control.first_site:
            return None
        return Clock(control.site, clock.offset_s, clock.error_s)

    def stamp_us(self) -> int:
        """The time for frames that leave now; 0 where nobody measures."""
        if not self._measures:
            return 0
        return self._meters.clock.stamp_us(time.monotonic())

    def payload_of(self, round_: int) -> RoundPayload | None:
        """The arrays of a round."""
        return self._plane.payloads.get(round_)

    def keep(self, buffer: int, nbytes: int) -> memoryview:
        """Memory for a buffer."""
        self._buffers[buffer] = self._pool.take(nbytes)
        return self._buffers[buffer]

    def bytes_to_send(self, action: do.Transmit) -> memoryview | None:
        """A chunk's payload."""
        if action.source is do.Source.NOTHING:
            return memoryview(b"")
        if action.source is do.Source.KEPT:
            assert action.buffer is not None
            return self._buffers.get(action.buffer)
        if action.source is do.Source.PADDING:
            return memoryview(bytes(action.header.payload_bytes))
        return self._plane.outgoing(action)
