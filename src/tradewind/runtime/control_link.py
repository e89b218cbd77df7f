"""The connection to the controller: messages out, messages in, and another controller when this one is lost.

In a strict run a lost controller is the end. In a tolerant one the worker calls the same one again, then the others in
turn, and reports to whoever answers. A controller that is there but does not act (a standby, or one that most workers
have left) sends no roster: after a while the next one is tried. Without any for `patience_s` the worker goes on alone,
and goes on trying.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from tradewind.control.deadlines import Deadlines
from tradewind.errors import BadFrame, InternalError, NoAnswer, NotAdmitted, PeerLost, RemoteFault, TradewindError
from tradewind.runtime.addresses import HostPort
from tradewind.runtime.dialling import Dialling
from tradewind.runtime.sockets import call, shut_down
from tradewind.runtime.threads import Thread, start_thread
from tradewind.wire import messages as m
from tradewind.wire.frames import FrameReader
from tradewind.wire.handshake import Credentials
from tradewind.wire.messages import decode_message, encode_message

log = logging.getLogger("tradewind.runtime")

READ_BYTES = 64 * 1024
FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 2.0
LONGEST_GOODBYE_S = 2.0
"""So long a worker that leaves waits for a controller that may not be there."""


class ControlHost(Protocol):
    """What the connection needs of its worker."""

    @property
    def tolerant(self) -> bool:
        """Whether the run goes on without a controller."""
        ...

    def told(self, message: m.Message) -> None:
        """The controller said something."""
        ...

    def join_message(self) -> m.Join:
        """What to say to a controller first."""
        ...

    def give_up(self) -> None:
        """There has been no controller for too long."""
        ...

    def fail(self, error: TradewindError) -> None:
        """Nothing works any more."""
        ...


class ControlLink:
    """One connection to one controller."""

    def __init__(
        self, address: HostPort, credentials: Credentials, deadline_s: float, dialling: Dialling, answer_s: float
    ) -> None:
        self._credentials = credentials
        self._sock, peer = call(address, credentials, "control", deadline_s, dialling, answer_s=answer_s)
        self._lock, self._ending = threading.Lock(), threading.Lock()
        self._ended = False
        self.site = peer.site
        """The controller's name."""
        self.controller = f"{peer.site!r} at {address}"
        self.is_elsewhere = False
        """Whether the controller is on another host: on our own both ends have the same address."""
        with contextlib.suppress(OSError):  # it may have hung up already
            self.is_elsewhere = self._sock.getsockname()[0] != self._sock.getpeername()[0]
        self.heard_s = time.monotonic()

    def say(self, message: m.Message) -> None:
        """Send a message; whoever reads finds out if that does not work."""
        with self._lock:
            self._send(message)

    def begin(self, publish: Callable[[], m.Join]) -> None:
        """Send the first message. Others may say something as soon as it is published, and that goes after it."""
        with self._lock:
            self._send(publish())

    def _send(self, message: m.Message) -> None:
        with contextlib.suppress(OSError):
            self._sock.sendall(encode_message(message, self._credentials.number))

    def read(self, handle: Callable[[m.Message], None]) -> TradewindError | str:
        """Have every message handled until the connection ends: how it ended, or what a message led to."""
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
            log.exception("a bug")
            return InternalError(f"{type(error).__name__}: {error}")
        return "it closed the connection"

    def end(self) -> None:
        """Wake whoever reads, who is the one to `close`."""
        with self._ending:
            if not self._ended:
                shut_down(self._sock)

    def close(self) -> None:
        """Let go of the socket, which nobody reads any more. Its number may be somebody else's then."""
        self.end()  # whoever is in the middle of saying something
        with self._lock, self._ending:
            self._ended = True
            self._sock.close()


class Control:
    """The connection to whichever controller acts."""

    def __init__(
        self, host: ControlHost, controllers: Sequence[HostPort], credentials: Credentials, deadlines: Deadlines
    ) -> None:
        self._host, self._controllers = host, tuple(controllers)
        self._credentials, self._deadlines = credentials, deadlines
        self._closed = threading.Event()
        self._listener: Thread | None = None
        self._which = 0
        self._dialled: dict[HostPort, Dialling] = {}
        """Controllers that have not answered so far."""
        self._link = self._first_link()
        self.first_site = self._link.site
        """The name of the controller that answered first."""
        self._called_s = time.monotonic()
        self._acts = False
        """Whether the controller that we are connected to has sent a roster."""
        self._orphaned_s: float | None = None
        """Since when nobody acts for us, if somebody did before."""

    @property
    def elsewhere(self) -> str | None:
        """The controller, as named in messages, if it is on another host."""
        return f"the controller {self._link.controller}" if self._link.is_elsewhere else None

    @property
    def site(self) -> str:
        """The name of the controller that we are connected to."""
        return self._link.site

    def start(self) -> None:
        """Join, and listen."""
        self._link.begin(self._host.join_message)
        self._listener = start_thread(self._listen, name="tradewind-control")

    def say(self, message: m.Message) -> None:
        """Send a message, if anybody is there."""
        self._link.say(message)

    def leave(self) -> None:
        """Say goodbye, and wait until it is heard: the controller answers by closing the connection.

        Only then may data connections be closed. Else a peer that finds one broken may be the first to say so, and
        everybody is told of a broken connection where somebody has left.
        """
        self._closed.set()
        self.say(m.Leave())
        if self._listener is not None and threading.current_thread() is not self._listener:
            self._listener.join(min(LONGEST_GOODBYE_S, self._deadlines.handshake_s))

    def close(self) -> None:
        """End."""
        self._closed.set()
        self._link.end()

    def joined(self) -> None:
        """A roster came: this controller acts."""
        self._acts, self._orphaned_s = True, None

    def look_on(self) -> None:
        """Try the next controller."""
        self._which += 1
        self._link.end()

    def watch(self, now_s: float) -> None:
        """Say that we live, and see whether the controller does; to be called now and then."""
        self.say(m.Heartbeat(now_s))
        silence_s = self._deadlines.silence_s
        if now_s - self._link.heard_s > silence_s:
            if self._is_the_end:
                self._host.fail(PeerLost(f"the controller {self._link.controller} was silent for {silence_s:g} s."))
            self._link.end()
        if not self._acts and len(self._controllers) > 1 and now_s - self._called_s > silence_s:
            self.look_on()
        if self._orphaned_s is not None and now_s - self._orphaned_s > self._deadlines.patience_s:
            self._host.give_up()

    @property
    def _is_the_end(self) -> bool:
        """Whether a lost controller is: nobody else can act, and the run does not go on without, as far as we know."""
        return not self._host.tolerant and len(self._controllers) == 1

    def _listen(self) -> None:
        while not self._closed.is_set():
            how = self._link.read(self._host.told)
            self._link.close()
            if self._closed.is_set():
                return
            if isinstance(how, TradewindError):
                self._host.fail(how)
            elif self._is_the_end:
                self._host.fail(PeerLost(f"the controller {self._link.controller} was lost ({how})."))
            if self._closed.is_set():
                return
            self._called_s = math.inf  # until somebody answers there is nobody to look on from
            if self._acts:
                self._acts, self._orphaned_s = False, time.monotonic()
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
        """From now on it is the link. What is said later is news; all before is in the report, which follows."""
        self._link = link
        return self._host.join_message()

    def _call(self, limit_s: float) -> ControlLink:
        address = self._controllers[self._which % len(self._controllers)]
        dialling = self._dialled.setdefault(
            address, Dialling.to_controller(self._credentials.site, self._deadlines.patience_s)
        )
        deadline_s, answer_s = time.monotonic() + limit_s, self._deadlines.admission_s
        link = ControlLink(address, self._credentials, deadline_s, dialling, answer_s)
        self._dialled.clear()
        return link

    def _first_link(self) -> ControlLink:
        """The first controller; where it cannot be reached, one that stands by, as long as a run may take to begin.

        One that refuses us may be another run's, or another program, and is the end if all do. One that does not
        answer may just be busy. If no host sends any answer at all for `patience_s`, none can be reached.
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
