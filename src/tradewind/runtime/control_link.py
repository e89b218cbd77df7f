"""A rank's connection to the controller, and the failover to another controller when it is lost.

In a strict run with one controller its loss ends the run. In a tolerant run the rank calls the same controller again,
then the others in turn, and reports to the first that answers. A controller that is not active (a standby, or one that
a majority of ranks has left) sends no roster: after `silence_s` the next one is tried. Without an active controller for
`patience_s` the rank continues alone, and keeps trying.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from tradewind.control.deadlines import Deadlines
from tradewind.errors import BadFrame, InternalError, NoAnswer, NotAdmitted, PeerLost, RemoteFault, TradewindError
from tradewind.runtime.addresses import HostPort, controller_name
from tradewind.runtime.certificates import SecureCredentials
from tradewind.runtime.dialling import Dialling
from tradewind.runtime.sockets import call, shut_down
from tradewind.runtime.threads import Thread, start_thread
from tradewind.wire import messages as m
from tradewind.wire.frames import FrameReader
from tradewind.wire.handshake import CONTROL_PURPOSE, Credentials
from tradewind.wire.messages import decode_message, encode_message

log = logging.getLogger("tradewind.runtime")

READ_BYTES = 64 * 1024
FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 2.0
LONGEST_GOODBYE_S = 2.0
"""The most seconds that a leaving rank waits for the controller to confirm."""


class ControlHost(Protocol):
    """The driver that owns the control connection, as far as the connection uses it."""

    @property
    def tolerant(self) -> bool:
        """Whether the run continues without a controller."""
        ...

    def received(self, message: m.Message) -> None:
        """Handle a message from the controller."""
        ...

    def join_message(self) -> m.Join:
        """The first message to a controller."""
        ...

    def give_up(self) -> None:
        """Stop waiting for a controller: there has been none for `patience_s`."""
        ...

    def fail(self, error: TradewindError) -> None:
        """End the run on this rank with an error."""
        ...


class ControlLink:
    """One connection to one controller."""

    def __init__(
        self,
        address: HostPort,
        credentials: Credentials,
        deadline_s: float,
        dialling: Dialling,
        answer_s: float,
        local: bool = False,
    ) -> None:
        self._credentials = credentials
        near = controller_name(address.host) if local and not isinstance(credentials, SecureCredentials) else None
        self._sock, peer = call(address, credentials, CONTROL_PURPOSE, deadline_s, dialling, None, near, answer_s)
        self._lock, self._ending = threading.Lock(), threading.Lock()
        self._ended = False
        self.site = peer.site
        """The name of the controller."""
        self.controller = f"{peer.site!r} at {address}"
        self.is_elsewhere = False
        """Whether the controller is on another host: on the same host both ends have the same address."""
        with contextlib.suppress(OSError):  # the controller may have closed the connection already
            is_local = self._sock.family == socket.AF_UNIX
            self.is_elsewhere = not is_local and self._sock.getsockname()[0] != self._sock.getpeername()[0]
        self.heard_s = time.monotonic()

    def send(self, message: m.Message) -> None:
        """Send a message; the reading thread detects a broken connection."""
        with self._lock:
            self._write(message)

    def begin(self, publish: Callable[[], m.Join]) -> None:
        """Send the first message, made by `publish`, before any message that other threads send after its call."""
        with self._lock:
            self._write(publish())

    def _write(self, message: m.Message) -> None:
        with contextlib.suppress(OSError):
            self._sock.sendall(encode_message(message, self._credentials.number))

    def read(self, handle: Callable[[m.Message], None]) -> TradewindError | str:
        """Handle every message until the connection ends; returns the reason, or the error that a message caused."""
        reader = FrameReader()
        try:
            while data := self._sock.recv(READ_BYTES):
                self.heard_s = time.monotonic()
                for _, payload in reader.feed(data):
                    handle(decode_message(payload))
        except OSError as error:
            return error.strerror or str(error)
        except BadFrame as error:
            return str(error)
        except TradewindError as error:
            return error
        except Exception as error:
            log.exception("internal error while handling a message of the controller; please report it")
            return InternalError(f"{type(error).__name__}: {error}")
        return "it closed the connection"

    def end(self) -> None:
        """Wake the reading thread, which then calls `close`."""
        with self._ending:
            if not self._ended:
                shut_down(self._sock)

    def close(self) -> None:
        """Close the socket when no thread reads it any more; its file descriptor may be reused at once."""
        self.end()  # a thread that is blocked in a send
        with self._lock, self._ending:
            self._ended = True
            self._sock.close()


class Control:
    """The connection to the active controller, and the search for it."""

    def __init__(
        self,
        host: ControlHost,
        controllers: Sequence[HostPort],
        credentials: Credentials,
        deadlines: Deadlines,
        local: bool = False,
    ) -> None:
        """Connect to a controller; `local`: through a Unix socket if it is on this machine."""
        self._host, self._controllers = host, tuple(controllers)
        self._credentials, self._deadlines, self._local = credentials, deadlines, local
        self._closed = threading.Event()
        self._listener: Thread | None = None
        self._which = 0
        self._dialled: dict[HostPort, Dialling] = {}
        """Controllers that have not answered since the last successful call."""
        self._link = self._first_link()
        self.first_site = self._link.site
        """The name of the controller that answered first."""
        self._called_s = time.monotonic()
        self._acts = False
        """Whether the connected controller has sent a roster, which makes it the active one."""
        self._orphaned_s: float | None = None
        """When the active controller was lost; None while there is one, or before the first."""
        self._alone = False
        """Whether there has been none for `patience_s`."""

    @property
    def elsewhere(self) -> str | None:
        """A description of the controller for log messages if it is on another host; None if it is on this one."""
        return f"the controller {self._link.controller}" if self._link.is_elsewhere else None

    @property
    def site(self) -> str:
        """The name of the connected controller."""
        return self._link.site

    def start(self) -> None:
        """Send the join message and start the reading thread."""
        self._link.begin(self._host.join_message)
        self._listener = start_thread(self._listen, name="tradewind-control")

    def send(self, message: m.Message) -> None:
        """Send a message; it is lost if no controller is connected."""
        self._link.send(message)

    def leave(self) -> None:
        """Send `Leave` and wait until the controller confirms by closing the connection.

        Data connections must stay open until then. Otherwise a peer may report a broken connection first, and the run
        treats an orderly departure as a lost link.
        """
        self._closed.set()
        self.send(m.Leave())
        if self._listener is not None and threading.current_thread() is not self._listener:
            self._listener.join(min(LONGEST_GOODBYE_S, self._deadlines.handshake_s))

    def close(self) -> None:
        """End the connection and the search for a controller."""
        self._closed.set()
        self._link.end()

    def joined(self) -> None:
        """Note that a roster arrived: the connected controller is active."""
        self._acts, self._orphaned_s = True, None
        if self._alone:
            self._alone = False
            log.warning("%s follows the controller %s again", self._credentials.site, self._link.controller)

    def try_next(self) -> None:
        """Try the next controller."""
        self._which += 1
        self._link.end()

    def watch(self, now_s: float) -> None:
        """Send a heartbeat and check that the controller is not silent; to be called every `heartbeat_s`."""
        self.send(m.Heartbeat(now_s))
        silence_s = self._deadlines.silence_s
        if now_s - self._link.heard_s > silence_s:
            if self._is_irreplaceable:
                self._host.fail(PeerLost(f"the controller {self._link.controller} was silent for {silence_s:g} s."))
            self._link.end()
        if not self._acts and len(self._controllers) > 1 and now_s - self._called_s > silence_s:
            self.try_next()
        if self._orphaned_s is not None and now_s - self._orphaned_s > self._deadlines.patience_s:
            if not self._alone:
                self._alone = True
                log.warning(
                    "%s has had no controller for %.0f s: it goes on alone, without synchronising, and keeps looking",
                    self._credentials.site,
                    now_s - self._orphaned_s,
                )
            self._host.give_up()

    @property
    def _is_irreplaceable(self) -> bool:
        """Whether losing the controller ends the run: the run is strict and has no standby."""
        return not self._host.tolerant and len(self._controllers) == 1

    def _listen(self) -> None:
        while not self._closed.is_set():
            how = self._link.read(self._host.received)
            self._link.close()
            if self._closed.is_set():
                return
            if isinstance(how, TradewindError):
                self._host.fail(how)
            elif self._is_irreplaceable:
                self._host.fail(PeerLost(f"the controller {self._link.controller} was lost ({how})."))
            if self._closed.is_set():
                return
            self._called_s = math.inf  # `try_next` applies to a connected controller only
            if self._acts:
                self._acts, self._orphaned_s = False, time.monotonic()
                lost = self._credentials.site, self._link.controller, how
                log.warning("%s has lost the controller %s (%s) and looks for one", *lost)
            self._find()

    def _find(self) -> None:
        """Call controllers in turn until one answers, and report to it."""
        delay_s = FIRST_RETRY_S
        while not self._closed.wait(delay_s):
            for _ in self._controllers:
                try:
                    link = self._call(self._deadlines.handshake_s / 4)
                except RemoteFault:
                    self._which += 1
                    continue
                self._called_s = time.monotonic()
                link.begin(partial(self._publish, link))
                if self._closed.is_set():
                    self._link.close()
                return
            delay_s = min(LONGEST_RETRY_S, self._deadlines.heartbeat_s, 2 * delay_s)

    def _publish(self, link: ControlLink) -> m.Join:
        """Make `link` the current one; returns the join message, which reports everything that happened before."""
        self._link = link
        return self._host.join_message()

    def _call(self, limit_s: float) -> ControlLink:
        address = self._controllers[self._which % len(self._controllers)]
        dialling = self._dialled.setdefault(
            address, Dialling.to_controller(self._credentials.site, self._deadlines.patience_s)
        )
        deadline_s, answer_s = time.monotonic() + limit_s, self._deadlines.admission_s
        link = ControlLink(address, self._credentials, deadline_s, dialling, answer_s, self._local)
        self._dialled.clear()
        return link

    def _first_link(self) -> ControlLink:
        """Connect to the first controller, or to a standby if it cannot be reached, within `reach_s`.

        A controller that refuses may belong to another run, or be another program: the attempt ends if all refuse. A
        controller that does not answer may only be busy. It also ends if no host answers at all for `patience_s`.
        """
        if len(self._controllers) == 1:
            return self._call(self._deadlines.reach_s)
        until_s, refused = time.monotonic() + self._deadlines.reach_s, 0
        while True:
            try:
                return self._call(self._deadlines.handshake_s / 4)
            except RemoteFault as error:
                is_refused = isinstance(error, NotAdmitted) and not isinstance(error, NoAnswer)
                refused = refused + 1 if is_refused else 0
                silent = [d for d in self._dialled.values() if d.is_silent(time.monotonic())]
                if len(self._controllers) in (refused, len(silent)) or time.monotonic() > until_s:
                    raise
                self._which += 1
