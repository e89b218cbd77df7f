"""Accepts connections and authenticates the callers; a caller without the secret costs a thread for a short time."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence

from tradewind.errors import RemoteFault
from tradewind.runtime.addresses import is_own_process
from tradewind.runtime.forking import close_in_children
from tradewind.runtime.sockets import admit, hang_up
from tradewind.runtime.threads import start_thread
from tradewind.wire.handshake import Credentials, Peer

log = logging.getLogger("tradewind.runtime")

MAX_HANDSHAKES = 64
"""The most handshakes at a time; further connections wait in the kernel."""


class Listener:
    """Listening sockets with one accepting thread each; calls `admitted` for every authenticated connection."""

    def __init__(
        self,
        socks: Sequence[socket.socket],
        credentials: Credentials,
        handshake_s: float,
        admitted: Callable[[socket.socket, Peer], None],
    ) -> None:
        self._socks, self._credentials, self._handshake_s, self._admitted = socks, credentials, handshake_s, admitted
        self._handshakes = threading.Semaphore(MAX_HANDSHAKES)
        self._closed = threading.Event()
        self.port = int(socks[0].getsockname()[1])
        for sock in map(close_in_children, socks):
            start_thread(self._accept, sock, name="tradewind-accept")

    def close(self) -> None:
        """Stop accepting connections."""
        self._closed.set()
        for sock in self._socks:
            hang_up(sock)

    def _accept(self, listening: socket.socket) -> None:
        while not self._closed.is_set():
            self._handshakes.acquire()
            try:
                sock, address = listening.accept()
            except OSError as error:
                self._handshakes.release()
                if self._closed.is_set():
                    return
                log.warning("cannot accept a connection (%s); retrying", error)
                time.sleep(0.1)
                continue
            if sock.family == socket.AF_UNIX and not is_own_process(sock):
                log.warning("refused a connection from another user of this machine")
                hang_up(sock)
                self._handshakes.release()
                continue
            arguments = (close_in_children(sock), str(address[0]) if address else "this machine")
            start_thread(self._greet, *arguments, name="tradewind-greet")

    def _greet(self, sock: socket.socket, address: str) -> None:
        try:
            sock, peer = admit(sock, self._credentials, time.monotonic() + self._handshake_s)
        except RemoteFault as error:
            log.info("refused a connection from %s: %s", address, error)
            return
        finally:
            self._handshakes.release()
        self._admitted(sock, peer)
