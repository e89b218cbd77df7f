"""The driver of one rank: connects its node with the data connections, the control connection and the caller.

One lock guards the node. Its actions are executed after the lock is released, in the thread whose event caused them;
only frames are queued for the sender of their peer. Every fatal error ends in `fail`: all operations end with the same
error and unchanged inputs, and every connection is closed.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace

import numpy as np

from tradewind.arithmetic import COPY, Array
from tradewind.control.deadlines import Deadlines
from tradewind.errors import PeerLost, TradewindError, as_own_error
from tradewind.node import actions as do
from tradewind.node import events as ev
from tradewind.node.actions import Outcome
from tradewind.node.chunk_plane import Action, ChunkPlane, Digest
from tradewind.node.measuring import LinkMeters, LinkSample, MeasuringOptions
from tradewind.node.node import Arrays, Node, small_array
from tradewind.node.payload import RoundPayload
from tradewind.node.served import ServedArray
from tradewind.runtime import state_transfer
from tradewind.runtime.activity import ACTIVITY_S, ActivityMeter
from tradewind.runtime.addresses import HostPort, is_loopback
from tradewind.runtime.certificates import SecureCredentials
from tradewind.runtime.connections import ConnectionCounts
from tradewind.runtime.control_link import Control
from tradewind.runtime.control_server import ControlServer
from tradewind.runtime.listener import Listener
from tradewind.runtime.options import LAB_VARIABLE
from tradewind.runtime.peers import Connected, Peers
from tradewind.runtime.rank_metrics import RankMetrics
from tradewind.runtime.shaping import ShapedNetwork
from tradewind.runtime.sockets import hang_up
from tradewind.runtime.stats import GroupStats, HostedController, Tally
from tradewind.runtime.threads import close_at_exit, start_thread
from tradewind.runtime.trace_file import Clock
from tradewind.runtime.tracing import FlowLog, RankTrace
from tradewind.wire import messages as m
from tradewind.wire.encoded_copy import EncodedCopy
from tradewind.wire.frames import FrameHeader
from tradewind.wire.handshake import DATA_PURPOSE, Credentials, Peer

log = logging.getLogger("tradewind.runtime")

POOL_BYTES = 16 * 2**20
"""The most memory that the pool holds for reuse."""
CLOCK_READINGS = 4
"""Heartbeats at the start, to compare clocks; the one with the shortest round trip counts."""

clear_text_hosts: set[str] = set()
"""Hosts that this process sends to without encryption, which it has said."""

Todo = Action | do.NodeAction


class Pool:
    """Returned payload buffers, kept for reuse: fresh memory pages cost more than the bytes written to them.

    Sizes are rounded up to powers of two. A run whose members change has chunks of ever new sizes: with a list for each
    size, memory that fits none of the next chunks would be held, up to the limit.

    >>> pool = Pool()
    >>> first = pool.take(1000)
    >>> pool.give_back(first)
    >>> other = pool.take(900)
    >>> other.obj is first.obj, len(other), pool.held_bytes
    (True, 900, 0)
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Array]] = {}
        self.held_bytes = 0
        """Memory that is held for reuse."""
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> memoryview:
        """A buffer of that size with undefined content."""
        room_bytes = 1 << max(0, nbytes - 1).bit_length()
        with self._lock:
            free = self._free.get(room_bytes)
            whole = free.pop() if free else None
            if whole is not None:
                self.held_bytes -= room_bytes
        if whole is None:
            whole = np.empty(room_bytes, dtype=np.uint8)
        return memoryview(whole.data)[:nbytes]

    def give_back(self, buffer: memoryview | None) -> None:
        """Return a buffer that is no longer used, if any."""
        if buffer is None:
            return
        whole: Array = buffer.obj  # type: ignore[assignment]  # `take` made it of one
        with self._lock:
            if self.held_bytes + whole.nbytes > POOL_BYTES and whole.nbytes not in self._free:
                self._free.clear()  # the sizes have changed: the held buffers are unlikely to be used again
                self.held_bytes = 0
            if self.held_bytes + whole.nbytes <= POOL_BYTES:
                self._free.setdefault(whole.nbytes, []).append(whole)
                self.held_bytes += whole.nbytes


Ended = Callable[[TradewindError | Outcome], None]
"""Called when an operation ends, with its error or outcome."""


@dataclass(slots=True)
class Submitted:
    """An operation that a caller waits for: its callback, and when it was submitted and started."""

    ended: Ended
    asked_s: float
    started_s: float | None = None

    def start(self) -> None:
        """Record that its round has started; only the first start counts."""
        self.started_s = self.started_s or time.monotonic()

    def timed(self, outcome: Outcome) -> Outcome:
        """The outcome with the waiting time and the duration, by the clock of this rank."""
        now_s = time.monotonic()
        started_s = now_s if self.started_s is None else self.started_s
        return replace(outcome, waited_s=started_s - self.asked_s, seconds=now_s - started_s)


class Worker:
    """The driver of one rank of a run."""

    def __init__(
        self,
        credentials: Credentials,
        deadlines: Deadlines,
        connections: ConnectionCounts,
        slow_links: bool = False,
        shape: ShapedNetwork | None = None,
        measuring: MeasuringOptions | None = None,
        neighbours: bool = False,
        connected: Connected | None = None,
    ) -> None:
        self.credentials, self.deadlines = credentials, deadlines
        self.site = credentials.site
        self.inline_bytes = 0
        """The size of the largest array that travels in control messages (an inline round)."""
        self.trace: RankTrace | None = None
        """The trace of this rank, if one is written."""
        self.metrics: RankMetrics | None = None
        """The server of this rank's metrics, if it has one."""
        self.joined = threading.Event()
        """Set when all ranks have joined, or when the run has failed."""
        self._lock = threading.Lock()
        self._served_lock = threading.Lock()
        """Guards the arrays that this rank serves, which several ranks change at once."""
        self._plane = ChunkPlane(self.site, credentials.number)
        self._node = Node(self.site, self._plane)
        self.addresses: tuple[m.Address, ...] = ()
        self._neighbours = neighbours
        """Whether processes on this machine are connected through Unix sockets."""
        self._peers = Peers(self, credentials, deadlines, connections, slow_links, shape, neighbours, connected)
        self._control: Control | None = None
        self._own: ControlServer | None = None
        """The controller of this process, if it is the only one of the run."""
        self._handed_back: deque[Todo] = deque()
        """What follows from results that this controller returned; one thread at a time acts on it."""
        self._acting = threading.Lock()
        self._place = ("", 0, 0)
        self._warned_of_loopback = False
        self.offers = state_transfer.Offers()
        """The current state for ranks that join."""
        self._listener: Listener | None = None
        self._buffers: dict[int, memoryview] = {}
        self._pool = Pool()
        self._operations: dict[int, Submitted] = {}
        self._closed = threading.Event()
        self._settled = threading.Event()
        """Clear while this rank has used a result that other ranks may still be receiving."""
        self._settled.set()
        self._seen: queue.SimpleQueue[m.NetworkSeen] = queue.SimpleQueue()
        self._measures, self._meters = measuring is not None, LinkMeters(measuring)
        self._meters_lock = threading.Lock()
        self._tally, self._tally_lock = Tally(), threading.Lock()
        self._transfers = threading.Semaphore(state_transfer.MAX_TRANSFERS)
        self._reports_activity = self._watches_activity = False
        self._activity_s = ACTIVITY_S
        self._samples: dict[str, LinkSample] = {}
        """The last measurement of the link from each peer, by the peer's name."""

    # --- starting and ending -------------------------------------------------------------------------------------

    def start(
        self,
        controllers: Sequence[HostPort],
        socks: Sequence[socket.socket],
        advertise: str,
        rank: int,
        own: ControlServer | None = None,
    ) -> None:
        """Listen, connect to the controller and join; `joined` is set when all ranks have.

        `own`: the controller of this process, if it is the only one of the run.
        """
        purposes = DATA_PURPOSE, state_transfer.PURPOSE
        self._listener = Listener(socks, self.credentials, self.deadlines.handshake_s, self._called, purposes)
        close_at_exit(self.close)
        self._place = advertise, self._listener.port, rank
        self._own = own
        self._control = Control(self, controllers, self.credentials, self.deadlines, self._neighbours)
        if (elsewhere := self._control.elsewhere) is not None:
            self._warn_of_loopback(elsewhere)
        start_thread(self._watch, name="tradewind-watch")
        self._control.start()
        if self._closed.is_set():  # the process began to exit meanwhile
            self._control.close()

    def _warn_of_loopback(self, elsewhere: str) -> None:
        """Log once that this rank listens on loopback although `elsewhere` is on another host."""
        host, port, _ = self._place
        if is_loopback(host) and not self._warned_of_loopback:
            self._warned_of_loopback = True
            log.warning(
                "%r is listening on loopback; set interface= or bind= so that other hosts can reach it (it advertises "
                "%s, and %s is on another host).",
                self.site,
                HostPort(host, port),
                elsewhere,
            )

    def _warn_of_clear_text(self, roster: m.Roster) -> None:
        """Log that what this rank sends to other hosts is not encrypted, once for each of them in this process.

        Each process group of PyTorch is a run of its own.
        """
        others = (a for a in roster.workers if not is_loopback(a.host) and a.host != self._place[0])
        beyond = [a for a in others if a.host not in clear_text_hosts]
        is_encrypted = isinstance(self.credentials, SecureCredentials)
        in_lab = LAB_VARIABLE in os.environ  # the hosts of a lab are namespaces of this one
        if beyond and not is_encrypted and not in_lab:
            clear_text_hosts.update(a.host for a in beyond)
            log.warning(
                "%r sends gradients and weights unencrypted beyond this host, to %r at %s and others: an "
                "attacker on the path can read and change them. Give certificates (docs/guides/security.md), or use "
                "a VPN.",
                self.site,
                beyond[0].site,
                HostPort(beyond[0].host, beyond[0].port),
            )

    @property
    def tolerant(self) -> bool:
        """Whether the run continues without lost ranks."""
        return self._node.tolerant

    def join_message(self) -> m.Join:
        """The first message to a controller."""
        with self._lock:
            return m.Join(*self._place, self._node.report())

    @property
    def roster(self) -> tuple[str, ...]:
        """The names of all present ranks in the order of their numbers: by rank, then as they joined."""
        return tuple(address.site for address in self.addresses)

    def stats(self, rank: int, controller: HostedController | None) -> GroupStats:
        """The counters and current state of this rank."""
        with self._tally_lock:
            tally = asdict(self._tally)
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
        """Leave the run and close everything; running operations fail with `error`."""
        if self._closed.is_set():
            if self.trace is not None:  # another thread may have ended the run, and still be writing
                self.trace.writer.close()
            return
        if error is None and self._node.lost is None and self._control is not None:
            self._settled.wait(self.deadlines.patience_s)  # a rank that leaves ends a strict run for the others
            self._control.leave()
        self.fail(error or PeerLost(f"{self.site!r} has left the run."))

    def fail(self, error: TradewindError) -> None:
        """End the run on this rank: all operations fail with `error`, and every connection is closed."""
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
        if self.metrics is not None:
            self.metrics.close()

    @property
    def lost(self) -> TradewindError | None:
        """The error with which the run ended on this rank, if it has."""
        return self._node.lost

    def network_seen(self) -> m.NetworkSeen:
        """The controller's link estimates; to be called by one thread at a time."""
        if self.lost is not None:
            raise self.lost.fresh()
        self._send(m.NetworkWanted())
        try:
            return self._seen.get(timeout=self.deadlines.patience_s)
        except queue.Empty:
            lost = self.lost or PeerLost(
                f"the controller did not send its link estimates within {self.deadlines.patience_s:g} s."
            )
            raise lost.fresh() from None

    # --- operations ------------------------------------------------------------------------------------------------

    def submit(
        self,
        operation: m.Operation,
        own: Array,
        result: Array,
        ended: Ended,
        part: int | None = None,
        share: m.Share | None = None,
        residual: Array | None = None,
        encoded: EncodedCopy | None = None,
    ) -> None:
        """Submit an operation of all ranks, or one part of a step; `ended` is called once, in a driver thread.

        `residual` gets what encoding at this rank loses, `encoded` the encoded form of the result.
        """
        inline = small_array(operation, own, self.site, self.inline_bytes, len(self.addresses))
        overwrites = operation.op != COPY and np.may_share_memory(own, result)
        if overwrites and self.tolerant:
            own, overwrites = own.copy(), False  # a round may have to be repeated from the input
        with self._lock:
            arrays = Arrays(own, result, residual, encoded)
            number, actions = self._node.submit(operation, arrays, part, inline, overwrites, share)
            submitted = self._operations[number] = Submitted(ended, time.monotonic())
            if self.trace is not None:
                self.trace.asked(submitted.asked_s)
            todo = self._settle(actions)
        self._act(todo)

    @property
    def has_server(self) -> bool:
        """Whether ranks exchange with a server instead of averaging with each other."""
        return self._node.has_server

    def served(self, key: str) -> ServedArray:
        """The array that ranks exchange with a server under this key."""
        return self._plane.served(key)

    def _ended(self, how: do.Succeeded | do.Failed) -> None:
        """Finish an operation that has succeeded or failed, and call its callback."""
        submitted = self._operations.pop(how.operation)
        try:
            with self._served_lock if self.has_server else nullcontext():
                self._plane.end(how)
        except Exception as error:  # the run fails with it; the node has ended this operation already
            submitted.ended(as_own_error(error))
            raise
        came = how.error if isinstance(how, do.Failed) else submitted.timed(how.outcome)
        with self._tally_lock:
            self._tally.ended(came)
        if self.trace is not None:
            plan = self._tally.plan_version
            self.trace.ended(submitted.asked_s, submitted.started_s, came, plan, time.monotonic())
        submitted.ended(came)

    def _join(self, roster: m.Roster) -> None:
        """Apply a roster: all ranks have joined, or one more has."""
        here = self._node.numbers[self.site]
        self._controlled().joined()
        self.addresses = roster.workers
        self._peers.update({address.number: address for address in roster.workers}, here)
        if (elsewhere := next((a for a in roster.workers if not is_loopback(a.host)), None)) is not None:
            self._warn_of_loopback(f"{elsewhere.site!r} at {HostPort(elsewhere.host, elsewhere.port)}")
        self._warn_of_clear_text(roster)
        if not self.joined.is_set():
            if self.trace is not None:
                self.trace.joined(time.monotonic())
                self._watch_activity()
            for _ in range(CLOCK_READINGS):
                self._send(m.Heartbeat(time.monotonic()))
        self.joined.set()

    # --- the control connection --------------------------------------------------------------------------------------

    def _controlled(self) -> Control:
        assert self._control is not None
        return self._control

    def _send(self, message: m.Message) -> None:
        self._controlled().send(message)

    def _hand_over(self, message: m.Message) -> bool:
        """Give a request with its array to the controller of this process; False: it must be sent.

        Its results are handled under the same lock, so that nothing which the controller sends later overtakes them.
        One thread at a time acts on them: they may make this rank request the next round, which may end at once, and
        the calls would nest as deep as there are rounds.
        """
        if self._own is None or not isinstance(message, m.Ready) or message.array is None:
            return False
        try:
            with self._lock:
                results = self._own.ready(self.site, message)
                for result in results or ():
                    self._handed_back += self._settle(self._node.told(result))
        except Exception as error:
            self._fail_unexpectedly(error)
            return True
        while self._handed_back and self._acting.acquire(blocking=False):
            try:
                while self._handed_back:
                    self._act([self._handed_back.popleft()])
            except Exception as error:  # of any operation, not of the one that this thread submits
                self._fail_unexpectedly(error)
            finally:
                self._acting.release()
        if self.lost is not None:
            self.fail(self.lost)
        return results is not None

    def _fail_unexpectedly(self, error: Exception) -> None:
        """End the run with an error of the controller of this process, or of handling its results."""
        if not isinstance(error, TradewindError):
            log.exception("internal error while handling a result of the controller; please report it")
        self.fail(as_own_error(error))

    def received(self, message: m.Message) -> None:
        """Handle a message from the controller."""
        if isinstance(message, m.ActivityWanted):
            self._reports_activity, self._activity_s = True, message.every_s
            self._watch_activity()
            return
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

    def _watch_activity(self) -> None:
        """Trace and report what this rank sends and how busy its host is from now on, unless that is done already."""

        def watch() -> None:
            meter = ActivityMeter()
            while not self._closed.wait(self._activity_s):
                activity = meter.read(self._peers.stats())
                if self.trace is not None:
                    self.trace.counted(activity, time.monotonic())
                if self._reports_activity:
                    self._send(activity)

        if not self._watches_activity:
            self._watches_activity = True
            start_thread(watch, name="tradewind-activity")

    def give_up(self) -> None:
        """Stop waiting for a controller: there has been none for `patience_s`."""
        with self._lock:
            todo = self._settle(self._node.give_up())
        self._act(todo)

    def _watch(self) -> None:
        """Send heartbeats and keepalives, and check those of the controller and the peers."""
        said_s = time.monotonic()
        while not self._closed.wait(self.deadlines.keepalive_s):
            if (now_s := time.monotonic()) >= said_s + self.deadlines.heartbeat_s:
                said_s = now_s
                self._controlled().watch(now_s)
                if isinstance(self.credentials, SecureCredentials):
                    self.credentials.certificates.current()  # warns about certificates that expire
            self._peers.watch(self._awaited)
            with self._lock:
                received = self._peers.received()
                todo = self._settle(self._node.look(received, now_s, self.deadlines.heartbeat_s))
            self._act(todo)

    def _awaited(self) -> tuple[int, ...]:
        """Peers whose chunks some round on this rank still needs."""
        with self._lock:
            return () if self._plane.engine is None else self._plane.engine.waiting_for()

    def trouble(self, peer: int, reason: str, back: bool = False) -> None:
        """Report a lost link to the controller, or with `back` one that works again; the controller decides."""
        name = self._peers.name(peer)
        if not self._closed.is_set() and name is not None:
            if not back:
                with self._tally_lock:
                    self._tally.lost_links += 1
                log.warning("%s: the link to %s is lost and plans will avoid it: %s", self.site, name, reason)
            self._send(m.LinkChanged(name, reason[:1000], back))

    def linked(self, peer: int) -> None:
        """Report to the controller that a data connection to a peer was made."""
        name = self._peers.name(peer)
        if name is not None:
            self._send(m.Linked(name))

    # --- data connections --------------------------------------------------------------------------------------

    def _called(self, sock: socket.socket, peer: Peer) -> None:
        """Serve a connection from an authenticated peer: a data connection, or requests for the state."""
        self.joined.wait(self.deadlines.gather_s)
        if peer.purpose == state_transfer.PURPOSE:
            if not self._transfers.acquire(blocking=False):
                hang_up(sock)  # the rank that joins asks another member
                return
            try:
                state_transfer.give(sock, self.offers, self.deadlines.silence_s)
            finally:
                self._transfers.release()
            return
        number = self._node.numbers.get(peer.site)
        if number is None or self._closed.is_set():
            hang_up(sock)
            return
        self._peers.called(sock, number, peer.purpose)

    def drained(self, peer: int, outbox: queue.SimpleQueue[do.Transmit | None]) -> None:
        """Report to the node that all connections to a peer are closed and the frames in `outbox` were not sent."""
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
        """Let the node handle events and execute its actions, except for a `Receive`, which is returned."""
        with self._lock:
            todo = self._handle(*events)
        if not todo:
            return None
        self._act(todo)
        return todo[0] if isinstance(todo[0], do.Receive) else None

    def _handle(self, *events: ev.Event) -> list[Todo]:
        """The actions that follow from events; called with the lock held."""
        plane = self._plane
        for event in events:
            plane.handle(event)
        return self._settle(self._node.advance() if plane.has_reports else [])

    def _settle(self, actions: Sequence[do.NodeAction]) -> list[Todo]:
        """The actions to execute after the lock is released. Frames are queued at once: the lock guards idle links."""
        todo: list[Todo] = []
        for action in self._plane.take_actions():
            if isinstance(action, do.Transmit):
                self._peers.put(action)
            else:
                todo.append(action)
        for told in actions:
            if isinstance(told, do.Started):  # at once: another thread may end the operation
                self._operations[told.operation].start()
            else:
                todo.append(told)
        if self._node.is_settled != self._settled.is_set():
            (self._settled.set if self._node.is_settled else self._settled.clear)()
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
                    if not self._hand_over(message):
                        self._send(message)
                case do.Connect(peer):
                    self._peers.want(peer)
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
                    log.info("%s tries the next controller: %s", self.site, reason)
                    self._controlled().try_next()
                case do.PeerFaulty(peer, reason):
                    self._peers.drop(peer, reason)
                case m.NetworkSeen():
                    self._seen.put(action)

    def _combine(self, action: do.Combine) -> None:
        payload = self._plane.payloads.get(action.round)
        if payload is not None:
            if action.made is not None and action.made not in self._buffers:
                self.keep(action.made, max(action.room, len(self._buffers[action.parts[0]])))
            if payload.exchange is None:
                payload.combine(action, self._buffers)
            else:
                with self._served_lock:
                    payload.combine(action, self._buffers)
        self.tell(ev.Combined(action))

    def arrived(self, peer: int, connection: object, header: FrameHeader) -> None:
        """Measure the link that a complete frame arrived on."""
        if not self._measures or not header.chunks:  # a keepalive says nothing about its link's rate
            return
        with self._meters_lock:
            sample = self._meters.arrived(peer, connection, header, time.monotonic())
        if sample is not None and (there := self._peers.name(peer)) is not None:
            self._samples[there] = sample
            self._send(m.Measured(there, **asdict(sample)))
            self._send(m.Heartbeat(time.monotonic()))  # latency estimates need compared clocks

    def flow_log(self, peer: int) -> FlowLog | None:
        """Where a new connection to a peer notes what it sends; None without a trace."""
        return None if self.trace is None else self.trace.flow_log(peer)

    def peer_name(self, peer: int) -> str | None:
        """The name of a peer by its number; None if it is not in the roster."""
        return self._peers.name(peer)

    def compare_clocks(self) -> Clock | None:
        """How the clock of this rank compares with that of its first controller; None if unknown, or after a change."""
        control, clock = self._control, self._meters.clock
        if control is None or clock.error_s == float("inf") or control.site != control.first_site:
            return None
        return Clock(control.site, clock.offset_s, clock.error_s)

    def stamp_us(self) -> int:
        """The timestamp for frames that are sent now, in microseconds; 0 if links are not measured."""
        if not self._measures:
            return 0
        return self._meters.clock.stamp_us(time.monotonic())

    def payload_of(self, round_: int) -> RoundPayload | None:
        """The arrays of a round; None if it has ended."""
        return self._plane.payloads.get(round_)

    def is_wanted(self, action: do.Receive) -> bool:
        """Whether the chunk that is being received is still needed."""
        with self._lock:
            return self._plane.engine is not None and self._plane.engine.wants(action)

    def keep(self, buffer: int, nbytes: int) -> memoryview:
        """Memory for a kept chunk."""
        self._buffers[buffer] = self._pool.take(nbytes)
        return self._buffers[buffer]

    def bytes_to_send(self, action: do.Transmit) -> memoryview | None:
        """The payload of a frame; None if its round has ended and the payload is not needed."""
        if action.source is do.Source.NOTHING:
            return memoryview(b"")
        if action.source is do.Source.KEPT:
            assert action.buffer is not None
            kept = self._buffers.get(action.buffer)
            return None if kept is None else self._plane.kept(action, kept)
        if action.source is do.Source.PADDING:
            return memoryview(bytes(action.header.payload_bytes))
        return self._plane.outgoing(action)
