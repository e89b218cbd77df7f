"""The controller on real sockets: one thread a worker, one for the time, one lock around the state machine."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time

from tradewind.control import Controller, ControlOptions
from tradewind.control.controller import Action, Disconnect, Send
from tradewind.control.plans import PlanWanted
from tradewind.errors import BadFrame, TradewindError
from tradewind.runtime.addresses import listen_on
from tradewind.runtime.listener import Listener
from tradewind.runtime.sockets import hang_up, set_timeout
from tradewind.wire.frames import FrameReader
from tradewind.wire.handshake import Credentials, Peer
from tradewind.wire.messages import decode_message, encode_message

log = logging.getLogger("tradewind.runtime")

READ_BYTES = 64 * 1024
LINGER_S = 1.0


class ControlServer:
    """A controller that listens."""

    def __init__(self, host: str, port: int, credentials: Credentials, options: ControlOptions) -> None:
        self._credentials = credentials
        self._controller = Controller(options, time.monotonic())
        self._changed = threading.Condition()
        self._sockets: dict[str, socket.socket] = {}
        self._closed = False
        sock = listen_on(host, port)
        self.host = host
        self._listener = Listener(sock, credentials, options.deadlines.handshake_s, self._serve)
        self.port = self._listener.port
        self._wanted: queue.SimpleQueue[PlanWanted | None] = queue.SimpleQueue()
        for target, name in ((self._watch, "control-time"), (self._make_plans, "control-plans")):
            threading.Thread(target=target, name=f"tradewind-{name}", daemon=True).start()

    @property
    def over(self) -> str | None:
        """Why the run is over, if it is."""
        return self._controller.closed.reason if self._controller.closed else None

    def wait(self) -> str:
        """Until the run is over; returns why."""
        with self._changed:
            self._changed.wait_for(lambda: self._controller.closed is not None and not self._sockets)
        return self.over or ""

    def close(self, reason: str) -> None:
        """End the run, and give what was sent a moment to arrive."""
        with self._changed:
            self._do(self._controller.close(reason))
            for sock in self._sockets.values():
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)
            self._changed.wait_for(lambda: not self._sockets, timeout=LINGER_S)
            self._closed = True
            for sock in self._sockets.values():
                hang_up(sock)
            self._changed.notify_all()
        self._wanted.put(None)
        self._listener.close()

    def _serve(self, sock: socket.socket, peer: Peer) -> None:
        worker = peer.site
        with self._changed:
            if worker not in self._sockets:
                self._sockets[worker] = sock
                set_timeout(sock, self._controller.deadlines.patience_s)
            self._do(self._controller.connected(worker, time.monotonic()), {worker: sock})
            if self._sockets.get(worker) is not sock:
                hang_up(sock)
                return
            self._changed.notify_all()
        reason = self._read(sock, worker)
        with self._changed:
            if self._sockets.get(worker) is sock:
                del self._sockets[worker]
                self._do(self._controller.disconnected(worker, reason, time.monotonic()))
            self._changed.notify_all()
        hang_up(sock)

    def _read(self, sock: socket.socket, worker: str) -> str:
        """Handle a worker's messages until it is gone; returns how it went."""
        reader = FrameReader()
        try:
            while data := sock.recv(READ_BYTES):
                for _, payload in reader.feed(data):
                    message = decode_message(payload)
                    with self._changed:
                        self._do(self._controller.received(worker, message, time.monotonic()))
                        self._changed.notify_all()
        except BadFrame as error:
            return str(error)
        except OSError as error:
            return error.strerror or str(error)
        except TradewindError as error:
            log.exception("the controller failed")
            with self._changed:
                self._do(self._controller.close(f"the controller failed: {error}"))
            return str(error)
        return "its connection was closed"

    def _do(self, actions: list[Action], strangers: dict[str, socket.socket] | None = None) -> None:
        """Carry actions out; who is refused may not be one of ours."""
        for action in actions:
            if isinstance(action, PlanWanted):
                self._wanted.put(action)
                continue
            sock = (strangers or {}).get(action.worker) or self._sockets.get(action.worker)
            if sock is None:
                continue
            match action:
                case Send(_, message):
                    with contextlib.suppress(OSError):  # its reader finds out, too
                        sock.sendall(encode_message(message, self._credentials.number))
                case Disconnect(worker):
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_WR)
                    if self._sockets.get(worker) is sock:
                        del self._sockets[worker]

    def _make_plans(self) -> None:
        """New plans for a changed network, beside everything else: nobody waits for them."""
        while (wanted := self._wanted.get()) is not None:
            made = wanted.make()
            with self._changed:
                self._do(self._controller.planned(made, time.monotonic()))
                self._changed.notify_all()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                now_s = time.monotonic()
                if self._controller.wake_at_s <= now_s:
                    self._do(self._controller.tick(now_s))
                    self._changed.notify_all()
                    continue
                self._changed.wait(min(1.0, self._controller.wake_at_s - now_s))
