"""The controller on real sockets: one thread that reads, one for timers, one lock around the state machine.

Messages are sent by the thread whose received messages caused them (`ControlSender`), and the timer thread is woken
only if it would wake up too late by itself: on idle cores every thread that has to be woken adds to the time of a small
round.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

from tradewind.control import Controller, ControlOptions
from tradewind.control.controller import Action, Disconnect, Send
from tradewind.control.options import Decided, RoundEnded
from tradewind.control.plans.versions import PlanWanted
from tradewind.errors import PeerLost, TradewindError, as_own_error
from tradewind.runtime.activity import ACTIVITY_S
from tradewind.runtime.addresses import HostPort, PortRange, controller_name, listen_for_neighbours, listen_on, port_of
from tradewind.runtime.certificates import SecureCredentials
from tradewind.runtime.control_reader import READ_BYTES, Arrived, Connection, ControlReader, limit_bytes
from tradewind.runtime.control_sender import ControlSender
from tradewind.runtime.dialling import Notices
from tradewind.runtime.forking import OwnerProcess
from tradewind.runtime.listener import Listener
from tradewind.runtime.live import LiveRun
from tradewind.runtime.planning_process import PlanningProcess
from tradewind.runtime.report import RunReport
from tradewind.runtime.report import log as run_log
from tradewind.runtime.sockets import set_timeout
from tradewind.runtime.stats import HostedController
from tradewind.runtime.threads import close_at_exit, start_thread
from tradewind.runtime.trace_file import TracePlace, TraceWriter
from tradewind.runtime.tracing import ControlThinner, ControlTrace, RecordSink, controller_rate
from tradewind.wire import messages as m
from tradewind.wire.frames import FrameReader
from tradewind.wire.handshake import CONTROL_PURPOSE, Credentials, Peer
from tradewind.wire.messages import encode_message

log = logging.getLogger("tradewind.runtime")

WARNED_OF = ("set aside", "take back", "avoid link", "waits end at")
"""Decisions that a user should know of without a trace."""

LINGER_S = 1.0
FIRST_NOTICE_S = 10.0
"""Seconds before the first warning about missing ranks: hosts do not start at the same time."""
PLANNING_S = 30.0
"""How long `close` waits for a plan that is made in this process: a thread in a solver must not outlive Python."""


class ControlServer:
    """A controller that listens on a TCP port and serves ranks."""

    def __init__(
        self,
        host: str,
        port: int,
        credentials: Credentials,
        options: ControlOptions,
        ports: PortRange | None = None,
        trace: TracePlace | None = None,
        dashboard: HostPort | None = None,
    ) -> None:
        """Listen and start; port 0 means a free one, of `ports` if given.

        Decisions are traced to `trace`, and the live page is served at `dashboard`, if given.
        """
        self._credentials, self._owner = credentials, OwnerProcess()
        self._controller = Controller(options, time.monotonic())
        self._changed = threading.Condition()
        self._senders: dict[str, ControlSender] = {}
        self._ending: list[tuple[float, ControlSender]] = []
        """Connections to disconnected ranks, and when each is closed: a stopped process never closes its own end."""
        self._limit_bytes = limit_bytes(options.world)
        self._hang_up_s = options.deadlines.handshake_s
        self._closed = False
        self._wakes_at_s = 0.0
        """When the timer thread wakes up by itself."""
        self._report = RunReport(options) if run_log.isEnabledFor(logging.INFO) else None
        self.host = host
        socks = self._listen(port, ports)
        self._trace: ControlTrace | None = None
        self._live: LiveRun | None = None
        try:
            sinks: list[RecordSink] = []
            if trace is not None:
                thinner = ControlThinner(controller_rate(trace.minute_bytes))
                sinks.append(TraceWriter(trace.folder, credentials.site, thinner))
            if dashboard is not None:
                self._live = LiveRun(options, lambda: self.stats().snapshot, dashboard)
                sinks.append(self._live.feed)
            if sinks:
                self._trace = ControlTrace(sinks, options)
        except TradewindError:
            for sock in socks:
                sock.close()
            raise
        self._reader = ControlReader(self._arrived)
        admission_s = options.deadlines.admission_s
        self._listener = Listener(socks, credentials, admission_s, self._serve, (CONTROL_PURPOSE,))
        self.port = self._listener.port
        self._notices = Notices(FIRST_NOTICE_S)
        self._wanted: queue.SimpleQueue[PlanWanted | None] = queue.SimpleQueue()
        start_thread(self._watch, name="tradewind-control-time")
        self._planning = PlanningProcess()
        self._planner = start_thread(self._make_plans, name="tradewind-control-plans")
        if self._live is not None:
            self._live.start()
        try:
            close_at_exit(self._close_at_exit)
        except PeerLost as error:
            self.close(str(error))
            raise

    @property
    def over(self) -> str | None:
        """Why the run has ended; None while it is running."""
        return self._controller.closed.reason if self._controller.closed else None

    def stats(self) -> HostedController:
        """A snapshot of the controller, and the number of unsent messages by rank."""
        with self._changed:
            unsent = {worker: sender.unsent for worker, sender in sorted(self._senders.items())}
            snapshot = self._controller.snapshot(time.monotonic())
            return HostedController(self.host, self.port, unsent, snapshot, self._planning.pid)

    @property
    def live(self) -> LiveRun | None:
        """The state of the run that its page shows; None without `dashboard`."""
        return self._live

    def change(self, work: Callable[[Controller, float], list[Action]]) -> None:
        """Call `work` with the controller and the time, and execute the actions it returns: for tests and benchmarks.

        It runs under the lock that guards the controller.
        """
        with self._changed:
            self._do(work(self._controller, time.monotonic()))
            self._changed.notify_all()

    def wait(self) -> str:
        """Wait until the run has ended; returns the reason."""
        with self._changed:
            self._changed.wait_for(lambda: self._controller.closed is not None and not self._senders)
        return self.over or ""

    def close(self, reason: str) -> None:
        """End the run and wait up to `LINGER_S` for the last messages to arrive. Does nothing in a forked child."""
        if not self._owner.is_here:
            return
        with self._changed:
            if self._closed:
                return
            self._do(self._controller.close(reason))
            if self._report is not None:
                self._report.end()
            for sender in self._senders.values():
                sender.end()
            self._changed.wait_for(lambda: not self._senders, timeout=LINGER_S)
            self._closed = True
            for sender in (*self._senders.values(), *(sender for _, sender in self._ending)):
                sender.cut_off()
            self._changed.notify_all()
        self._listener.close()
        self._reader.close()
        self._wanted.put(None)
        self._planning.close()
        self._planner.join(PLANNING_S)
        if self._report is not None:
            self._report.wait(PLANNING_S)
        if self._trace is not None:
            self._trace.close()
        if self._live is not None:
            self._live.close()

    def _close_at_exit(self) -> None:
        self.close("the process of the controller ended")

    def _serve(self, sock: socket.socket, peer: Peer) -> None:
        worker, sender = peer.site, ControlSender(sock)
        with self._changed:
            if self._closed:
                sender.close()
                return
            actions = self._controller.connected(worker, time.monotonic())
            refused = any(isinstance(action, Disconnect) and action.worker == worker for action in actions)
            if not refused:
                before = self._senders.pop(worker, None)
                if before is not None:  # a rank that reconnected before its loss was noticed
                    before.cut_off()
                self._senders[worker] = sender
                self._do(actions)
                self._reader.add(Connection(worker, sock, sender, FrameReader(self._limit_bytes)))
                self._changed.notify_all()
        if refused:
            self._refuse(sock, sender, actions)
            sender.close()

    def _refuse(self, sock: socket.socket, sender: ControlSender, actions: list[Action]) -> None:
        """Send the reason and wait until it is read: closing a socket with unread input discards sent data."""
        for action in actions:
            if isinstance(action, Send):
                sender.send(encode_message(action.message, self._credentials.number))
        sender.end()
        with contextlib.suppress(OSError):
            set_timeout(sock, LINGER_S)
            while sock.recv(READ_BYTES):
                pass

    def _listen(self, port: int, ports: PortRange | None) -> list[socket.socket]:
        """The listening sockets: TCP, and a Unix socket for ranks on this machine, whose messages take half the time.

        A rank that finds no Unix socket takes TCP, so it is there first if ranks know the port already.
        """
        beside = self._listen_beside(port) if port else None
        try:
            sock = listen_on(self.host, port, ports)
        except TradewindError:
            if beside is not None:
                beside.close()
            raise
        beside = beside if port else self._listen_beside(port_of(sock))
        return [sock] if beside is None else [sock, beside]

    def _listen_beside(self, port: int) -> socket.socket | None:
        if isinstance(self._credentials, SecureCredentials):
            return None
        return listen_for_neighbours(self._credentials.run, controller_name(self.host), port)

    def ready(self, worker: str, message: m.Ready) -> list[m.InlineResult] | None:
        """Handle a request of the rank of this process with its array, and return its results; None: it must be sent.

        Results are there if the request was the last one of its round. Only in a strict run, where a result ends its
        round: `Commit` would have to follow it on the same way.
        """
        with self._changed:
            if self._closed or self._controller.options.is_tolerant or worker not in self._senders:
                return None
            results: list[m.InlineResult] = []
            self._handle(partial(self._received, worker, message, time.monotonic()), (worker, results))
            self._wake_timer(False)
            return results

    def _arrived(self, arrived: list[Arrived]) -> None:
        """Handle what ranks have sent, and connections that have ended, together."""
        with self._changed:
            self._handle(partial(self._events, arrived))
            self._wake_timer(any(one.ended is not None for one in arrived))

    def _wake_timer(self, has_changed: bool) -> None:
        """Wake the timer thread, and threads that wait for the end, if they have something to do."""
        if has_changed or self._controller.closed or self._controller.wake_at_s < self._wakes_at_s:
            self._changed.notify_all()

    def _events(self, arrived: list[Arrived]) -> list[Action]:
        actions: list[Action] = []
        for one in arrived:
            worker, now_s = one.connection.worker, time.monotonic()
            if self._senders.get(worker) is not one.connection.sender:
                continue  # the rank was sent away, or has connected again
            for message in one.messages if not self._closed else ():
                actions += self._received(worker, message, now_s)
            if one.ended is not None:
                del self._senders[worker]
                actions += self._controller.disconnected(worker, one.ended, now_s)
        return actions

    def _received(self, worker: str, message: m.Message, now_s: float) -> list[Action]:
        if self._report is not None:
            self._report.received(worker, message, now_s)
        if self._trace is not None:
            self._trace.received(worker, message, now_s)
        if self._live is not None:
            self._live.feed.received(worker, message, now_s)
        if isinstance(message, m.Activity):
            return []  # for the page only
        return self._controller.received(worker, message, now_s)

    def _handle(self, event: Callable[[], list[Action]], near: tuple[str, list[m.InlineResult]] | None = None) -> None:
        """Have the controller handle an event, and do what it asks for; if it fails, the run ends with the reason.

        Ranks would otherwise wait for a controller whose thread has ended. `near`: a rank, and where its results go.
        """
        try:
            self._do(event(), near)
        except Exception as error:
            log.exception("the controller failed")
            self._do(self._controller.close(f"the controller failed: {as_own_error(error)}"))

    def _do(self, actions: list[Action], near: tuple[str, list[m.InlineResult]] | None = None) -> None:
        """Execute actions. Nothing here blocks.

        A message to several ranks is encoded and noted once, and all messages to one rank are sent together.
        """
        encoded: dict[int, bytes] = {}
        frames: dict[str, list[bytes]] = {}
        for action in actions:
            match action:
                case PlanWanted():
                    self._wanted.put(action)
                case Decided() | RoundEnded():
                    if isinstance(action, Decided) and action.what in WARNED_OF:
                        log.warning("the controller: %s %s: %s", action.what, action.about, action.reason)
                    if self._trace is not None:
                        self._trace.noted(action, time.monotonic())
                case Send(worker, m.InlineResult() as message) if near is not None and worker == near[0]:
                    near[1].append(message)  # noted when it is sent to another member
                case Send(worker, message) if worker in self._senders:
                    frame = encoded.get(id(message))
                    if frame is None:
                        frame = encoded[id(message)] = encode_message(message, self._credentials.number)
                        self._note_sent(message)
                    frames.setdefault(worker, []).append(frame)
                    if self._live is not None and isinstance(message, m.Roster):
                        wanted = m.ActivityWanted(ACTIVITY_S)
                        frames[worker].append(encode_message(wanted, self._credentials.number))
                case Disconnect(worker) if worker in self._senders:
                    sender = self._senders.pop(worker)
                    sender.send(b"".join(frames.pop(worker, ())))
                    sender.end()
                    self._ending.append((time.monotonic() + self._hang_up_s, sender))
        for worker, waiting in frames.items():
            self._senders[worker].send(waiting[0] if len(waiting) == 1 else b"".join(waiting))

    def _note_sent(self, message: m.Message) -> None:
        if self._report is not None:
            self._report.sent(message, time.monotonic())
        if self._trace is not None:
            self._trace.sent(message, time.monotonic())
        if self._live is not None:
            self._live.feed.sent(message, time.monotonic())

    def _make_plans(self) -> None:
        """Have requested plans made without the lock, so that rounds do not wait for them."""
        while (wanted := self._wanted.get()) is not None and not self._closed:
            made = self._planning.make(wanted)
            with self._changed:
                self._handle(partial(self._controller.planned, made, time.monotonic()))
                self._changed.notify_all()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                now_s = time.monotonic()
                self._warn_of_missing(now_s)
                while self._ending and self._ending[0][0] <= now_s:
                    self._ending.pop(0)[1].cut_off()
                if self._controller.wake_at_s <= now_s:
                    self._handle(partial(self._controller.tick, now_s))
                    self._changed.notify_all()
                    continue
                self._wakes_at_s = min(now_s + 1.0, self._controller.wake_at_s)
                self._changed.wait(self._wakes_at_s - now_s)

    def _warn_of_missing(self, now_s: float) -> None:
        """Log, at growing intervals, that the run cannot start because ranks have not joined."""
        came = self._controller.gathered
        if came is not None and self._notices.due(now_s):
            log.warning(
                "%d of %d ranks have joined within %.0f s (%s). The controller listens on %s: start the others, and "
                "check that they can reach that address (interface= or bind=) and port (ports=).",
                len(came),
                self._controller.options.world,
                now_s - self._notices.began_s,
                ", ".join(came) or "none",
                HostPort(self.host, self.port),
            )
