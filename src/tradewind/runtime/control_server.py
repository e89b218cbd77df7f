"""The controller on real sockets: a thread a worker, one for the time, one lock around the state machine.

What the controller says leaves in the thread whose message led to it (`sender`), and the thread that watches the time
is woken only when it would wake up too late by itself: on idle cores every other thread that has to be woken up adds to
the time of a small round.
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
from pathlib import Path

from tradewind.control import Controller, ControlOptions
from tradewind.control.controller import Action, Disconnect, Send
from tradewind.control.options import Decided, RoundEnded
from tradewind.control.plans.versions import PlanWanted
from tradewind.errors import BadFrame, PeerLost, TradewindError, as_own_error
from tradewind.runtime.addresses import HostPort, PortRange, listen_on
from tradewind.runtime.control_sender import ControlSender
from tradewind.runtime.dialling import Notices
from tradewind.runtime.forking import OwnerProcess
from tradewind.runtime.listener import Listener
from tradewind.runtime.report import RunReport
from tradewind.runtime.report import log as run_log
from tradewind.runtime.sockets import set_timeout
from tradewind.runtime.stats import HostedController
from tradewind.runtime.threads import close_at_exit, start_thread
from tradewind.runtime.tracing import ControlTrace, TraceWriter
from tradewind.wire import messages as m
from tradewind.wire.frames import FrameReader
from tradewind.wire.handshake import Credentials, Peer
from tradewind.wire.messages import decode_message, encode_message

log = logging.getLogger("tradewind.runtime")

READ_BYTES = 64 * 1024
LINGER_S = 1.0
FIRST_NOTICE_S = 10.0
"""So long ranks may take to join before that is worth a word: hosts do not start at the same time."""
PLANNING_S = 30.0
"""How long `close` waits for a plan that is being made: a thread in a solver must not outlive the interpreter."""


class ControlServer:
    """A controller that listens."""

    def __init__(
        self,
        host: str,
        port: int,
        credentials: Credentials,
        options: ControlOptions,
        ports: PortRange | None = None,
        trace: Path | None = None,
    ) -> None:
        """`trace`: the directory to write what it decides to."""
        self._credentials, self._owner = credentials, OwnerProcess()
        self._controller = Controller(options, time.monotonic())
        self._changed = threading.Condition()
        self._senders: dict[str, ControlSender] = {}
        self._ending: list[tuple[float, ControlSender]] = []
        """Connections to workers that were sent away, and when each is cut off: a frozen worker never hangs up."""
        self._hang_up_s = options.deadlines.handshake_s
        self._closed = False
        self._wakes_at_s = 0.0
        """When the thread that watches the time does by itself."""
        self._report = RunReport(options) if run_log.isEnabledFor(logging.INFO) else None
        sock = listen_on(host, port, ports)
        self._trace: ControlTrace | None = None
        if trace is not None:
            try:
                self._trace = ControlTrace(TraceWriter(trace, credentials.site), options)
            except TradewindError:
                sock.close()
                raise
        self.host = host
        self._listener = Listener([sock], credentials, options.deadlines.admission_s, self._serve)
        self.port = self._listener.port
        self._notices = Notices(FIRST_NOTICE_S)
        self._wanted: queue.SimpleQueue[PlanWanted | None] = queue.SimpleQueue()
        start_thread(self._watch, name="tradewind-control-time")
        self._planner = start_thread(self._make_plans, name="tradewind-control-plans")
        try:
            close_at_exit(self._close_at_exit)
        except PeerLost as error:
            self.close(str(error))
            raise

    @property
    def over(self) -> str | None:
        """Why the run is over, if it is."""
        return self._controller.closed.reason if self._controller.closed else None

    def stats(self) -> HostedController:
        """What the controller knows, and what is still to be sent."""
        with self._changed:
            unsent = {worker: sender.unsent for worker, sender in sorted(self._senders.items())}
            return HostedController(self.host, self.port, unsent, self._controller.snapshot(time.monotonic()))

    def change(self, work: Callable[[Controller, float], list[Action]]) -> None:
        """Let `work` change the controller, given the time, and carry its actions out: for tests and benchmarks.

        It runs under the lock that guards the controller, as everything does that happens to it.
        """
        with self._changed:
            self._do(work(self._controller, time.monotonic()))
            self._changed.notify_all()

    def wait(self) -> str:
        """Until the run is over; returns why."""
        with self._changed:
            self._changed.wait_for(lambda: self._controller.closed is not None and not self._senders)
        return self.over or ""

    def close(self, reason: str) -> None:
        """End the run, and give what was sent a moment to arrive. In a forked child it does nothing."""
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
        self._wanted.put(None)
        self._planner.join(PLANNING_S)
        if self._report is not None:
            self._report.wait(PLANNING_S)
        if self._trace is not None:
            self._trace.close()

    def _close_at_exit(self) -> None:
        self.close("the process of the controller ended")

    def _serve(self, sock: socket.socket, peer: Peer) -> None:
        worker, sender = peer.site, ControlSender(sock)
        with self._changed:
            actions = self._controller.connected(worker, time.monotonic())
            refused = any(isinstance(action, Disconnect) and action.worker == worker for action in actions)
            if not refused:
                before = self._senders.pop(worker, None)
                if before is not None:  # a worker that came back before we noticed that it was gone
                    before.cut_off()
                self._senders[worker] = sender
                self._do(actions)
                self._changed.notify_all()
        if refused:
            self._refuse(sock, sender, actions)
        else:
            reason = self._read(sock, worker)
            with self._changed:
                if self._senders.get(worker) is sender:
                    del self._senders[worker]
                    self._do(self._controller.disconnected(worker, reason, time.monotonic()))
                self._changed.notify_all()
        sender.close()

    def _refuse(self, sock: socket.socket, sender: ControlSender, actions: list[Action]) -> None:
        """Say why, and wait until it is heard: whoever closes with something unread takes back what was said."""
        for action in actions:
            if isinstance(action, Send):
                sender.say(encode_message(action.message, self._credentials.number))
        sender.end()
        with contextlib.suppress(OSError):
            set_timeout(sock, LINGER_S)
            while sock.recv(READ_BYTES):
                pass

    def _read(self, sock: socket.socket, worker: str) -> str:
        """Handle a worker's messages until it is gone; returns how it went."""
        reader = FrameReader()
        try:
            while data := sock.recv(READ_BYTES):
                for _, payload in reader.feed(data):
                    message = decode_message(payload)
                    with self._changed:
                        if self._closed:
                            return "this controller has ended"
                        if self._report is not None:
                            self._report.heard(worker, message, time.monotonic())
                        if self._trace is not None:
                            self._trace.heard(worker, message, time.monotonic())
                        self._handle(partial(self._controller.received, worker, message, time.monotonic()))
                        if self._controller.closed or self._controller.wake_at_s < self._wakes_at_s:
                            self._changed.notify_all()
        except BadFrame as error:
            return str(error)
        except OSError as error:
            return error.strerror or str(error)
        return "its connection was closed"

    def _handle(self, event: Callable[[], list[Action]]) -> None:
        """Have the controller handle an event, and do what it asks for; if it fails, the run ends with the reason.

        Ranks would otherwise wait for a controller whose thread has ended.
        """
        try:
            self._do(event())
        except Exception as error:
            log.exception("the controller failed")
            self._do(self._controller.close(f"the controller failed: {as_own_error(error)}"))

    def _do(self, actions: list[Action]) -> None:
        """Carry actions out. Nothing here waits for anybody."""
        said: m.Message | None = None
        frame = b""
        for action in actions:
            match action:
                case PlanWanted():
                    self._wanted.put(action)
                case Decided() | RoundEnded():
                    if self._trace is not None:
                        self._trace.noted(action, time.monotonic())
                case Send(worker, message) if worker in self._senders:
                    if message is not said:  # the same to everybody is encoded once
                        said, frame = message, encode_message(message, self._credentials.number)
                    self._senders[worker].say(frame)
                    if self._report is not None:
                        self._report.said(message, time.monotonic())
                    if self._trace is not None:
                        self._trace.said(message, time.monotonic())
                case Disconnect(worker) if worker in self._senders:
                    sender = self._senders.pop(worker)
                    sender.end()
                    self._ending.append((time.monotonic() + self._hang_up_s, sender))

    def _make_plans(self) -> None:
        """New plans for a changed network, beside everything else: nobody waits for them."""
        while (wanted := self._wanted.get()) is not None and not self._closed:
            made = wanted.make()
            with self._changed:
                self._handle(partial(self._controller.planned, made, time.monotonic()))
                self._changed.notify_all()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                now_s = time.monotonic()
                self._tell_who_is_missing(now_s)
                while self._ending and self._ending[0][0] <= now_s:
                    self._ending.pop(0)[1].cut_off()
                if self._controller.wake_at_s <= now_s:
                    self._handle(partial(self._controller.tick, now_s))
                    self._changed.notify_all()
                    continue
                self._wakes_at_s = min(now_s + 1.0, self._controller.wake_at_s)
                self._changed.wait(self._wakes_at_s - now_s)

    def _tell_who_is_missing(self, now_s: float) -> None:
        """Say, now and then, that a run cannot begin because ranks have not joined."""
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
