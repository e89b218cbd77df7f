"""Accepts connections and authenticates the callers.

Callers that have sent nothing wait in the *lobby*, which one thread watches: such a stranger costs a file descriptor
for `FIRST_BYTE_S`. Only a caller whose first byte may begin a handshake gets a thread. Both are limited: the oldest
stranger makes room for a new one, one of the same address first. If all threads are in use, a handshake that has taken
longer than `FIRST_BYTE_S` is ended, and the next one is that of the address with the fewest. So neither silent nor slow
callers keep ranks out.
"""

from __future__ import annotations

import contextlib
import logging
import math
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tradewind.errors import RemoteFault
from tradewind.runtime.addresses import is_own_process, port_of
from tradewind.runtime.forking import close_in_children
from tradewind.runtime.sockets import admit, hang_up, shut_down
from tradewind.runtime.threads import start_thread
from tradewind.wire.handshake import Credentials, Peer

log = logging.getLogger("tradewind.runtime")

FIRST_BYTE_S = 2.0
"""Seconds that a caller has for its first byte, and that a handshake has at least."""
ACCEPT_AGAIN_S = 0.1
WARN_AGAIN_S = 60.0
"""Seconds between two warnings that no connection can be accepted, as without a free file descriptor."""
CLOSE_S = 5.0
"""Seconds that `close` waits for the thread, which does nothing that takes long."""
MAX_STRANGERS = 512
"""The most connections in the lobby."""
MAX_STRANGERS_OF_ADDRESS = 128
"""The most connections of one address in the lobby."""
MAX_HANDSHAKES = 64
"""The most handshakes at a time, each in a thread."""
FIRST_BYTES = (b"T", b"\x16")
"""The first byte of a frame, and that of a TLS connection."""


@dataclass(slots=True, eq=False)
class Caller:
    """A connection that is not authenticated."""

    sock: socket.socket
    address: str
    since_s: float = field(default_factory=time.monotonic)
    """When it was accepted; when its handshake began, once it has."""


class Listener:
    """Listening sockets with one thread for all; calls `admitted` for every authenticated connection."""

    def __init__(
        self,
        socks: Sequence[socket.socket],
        credentials: Credentials,
        handshake_s: float,
        admitted: Callable[[socket.socket, Peer], None],
        purposes: Sequence[str] = ("",),
    ) -> None:
        """`purposes`: what the purpose of a caller must begin with, one of these; others are refused."""
        self._purposes = purposes
        self._socks, self._credentials, self._handshake_s, self._admitted = socks, credentials, handshake_s, admitted
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._warned_s = -math.inf
        self._silent: dict[Caller, None] = {}
        """Callers that have sent nothing, the oldest first; only the thread of this object uses it."""
        self._waiting: list[Caller] = []
        """Callers that have sent something and wait for a thread, the oldest first; likewise."""
        self._greeting: dict[Caller, socket.socket] = {}
        """Callers whose handshake is running, the oldest first, with a second handle: TLS takes the first one over."""
        self._selector = selectors.DefaultSelector()
        self._bell, self._rung = (close_in_children(sock) for sock in socket.socketpair())
        self._selector.register(self._rung, selectors.EVENT_READ)
        self.port = port_of(socks[0])
        for sock in map(close_in_children, socks):
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ)
        self._thread = start_thread(self._run, name="tradewind-accept")

    def close(self) -> None:
        """Stop accepting connections; the listening sockets are closed when this returns."""
        self._closed.set()
        self._ring()
        if self._thread.is_alive():  # a forked child has none
            self._thread.join(CLOSE_S)

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # the thread has ended
            self._bell.send(b"\0")

    def _run(self) -> None:
        while not self._closed.is_set():
            oldest = next(iter(self._silent), None)
            timeout_s = None if oldest is None else max(0.0, oldest.since_s + FIRST_BYTE_S - time.monotonic())
            if self._waiting:
                timeout_s = min(FIRST_BYTE_S, timeout_s if timeout_s is not None else FIRST_BYTE_S)
            for key, _ in self._selector.select(timeout_s):
                if key.data is not None:
                    self._heard(key.data)
                elif key.fileobj is self._rung:
                    self._rung.recv(4096)
                else:
                    while self._accept(key.fileobj):  # type: ignore[arg-type]
                        pass
            self._drop_late()
            self._greet_next()
        # Here, not in `close`: the number of a closed socket could be that of a caller before the selector forgets it.
        for sock in (*self._socks, *(caller.sock for caller in (*self._silent, *self._waiting))):
            hang_up(sock)
        self._selector.close()
        self._bell.close()
        self._rung.close()

    def _accept(self, listening: socket.socket) -> bool:
        """Accept a connection; returns whether there was one."""
        try:
            sock, address = listening.accept()
        except BlockingIOError:
            return False
        except OSError as error:
            if not self._closed.is_set():
                if time.monotonic() > self._warned_s + WARN_AGAIN_S:
                    self._warned_s = time.monotonic()
                    log.warning("cannot accept connections (%s); retrying", error)
                self._closed.wait(ACCEPT_AGAIN_S)
            return False
        if sock.family == socket.AF_UNIX and not is_own_process(sock):
            log.warning("refused a connection from another user of this machine")
            hang_up(sock)
            return True
        caller = Caller(close_in_children(sock), str(address[0]) if address else "this machine")
        self._make_room(caller.address)
        self._silent[caller] = None
        self._selector.register(sock, selectors.EVENT_READ, caller)
        return True

    def _make_room(self, address: str) -> None:
        """Drop the oldest stranger, one of the same address if that has too many; those that only wait come last."""
        while True:
            strangers = [*self._silent, *self._waiting]
            of_address = [caller for caller in strangers if caller.address == address]
            if len(of_address) >= MAX_STRANGERS_OF_ADDRESS:
                oldest = of_address[0]
            elif len(strangers) >= MAX_STRANGERS:
                oldest = strangers[0]
            else:
                return
            was_silent = oldest in self._silent
            if was_silent:
                self._heard(oldest)  # it may have sent something meanwhile
            if oldest in self._silent or not was_silent:
                self._drop(oldest, "too many connections wait")

    def _heard(self, caller: Caller) -> None:
        """Let a caller wait for its handshake if its first byte may begin one."""
        try:
            first = caller.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        if first not in FIRST_BYTES:
            self._drop(caller, "it sent something else than a handshake" if first else "it closed the connection")
            return
        self._selector.unregister(caller.sock)
        del self._silent[caller]
        self._waiting.append(caller)

    def _drop_late(self) -> None:
        now_s = time.monotonic()
        for caller in [caller for caller in self._silent if caller.since_s + FIRST_BYTE_S <= now_s]:
            self._drop(caller, f"it sent nothing for {FIRST_BYTE_S:g} s")

    def _drop(self, caller: Caller, reason: str) -> None:
        if caller in self._silent:
            self._selector.unregister(caller.sock)
            del self._silent[caller]
        else:
            self._waiting.remove(caller)
        log.info("refused a connection from %s: %s", caller.address, reason)
        hang_up(caller.sock)

    def _greet_next(self) -> None:
        """Begin handshakes, that of the address with the fewest first; a slow one makes room if there is none."""
        with self._lock:
            while self._waiting and len(self._greeting) < MAX_HANDSHAKES:
                running = Counter(caller.address for caller in self._greeting)
                caller = min(self._waiting, key=lambda caller: running[caller.address])
                self._waiting.remove(caller)
                caller.since_s = time.monotonic()
                self._greeting[caller] = close_in_children(caller.sock.dup())
                start_thread(self._greet, caller, name="tradewind-greet")
            if self._waiting:
                oldest, handle = next(iter(self._greeting.items()))
                if oldest.since_s + FIRST_BYTE_S <= time.monotonic():
                    shut_down(handle)  # its thread notices, and rings

    def _greet(self, caller: Caller) -> None:
        try:
            sock, peer = admit(caller.sock, self._credentials, time.monotonic() + self._handshake_s, self._purposes)
        except RemoteFault as error:
            log.info("refused a connection from %s: %s", caller.address, error)
            return
        finally:
            self._greeted(caller)
        self._admitted(sock, peer)

    def _greeted(self, caller: Caller) -> None:
        with self._lock:
            self._greeting.pop(caller).close()
        if self._waiting:
            self._ring()
