"""A proxy between ranks: it takes the connections to one of them, and passes on what a drill lets pass."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod

HIDDEN = "127.0.0.2"
"""Where the rank behind the proxy listens; others are told the address of the proxy, with the same port."""


class Proxy(ABC):
    """Passes connections to a port of loopback on to the same port of `HIDDEN`."""

    def __init__(self, port: int) -> None:
        self._port, self._open = port, True
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    @abstractmethod
    def forward(self, source: socket.socket, sink: socket.socket, is_call: bool, shared: threading.Event) -> None:
        """Pass one direction of a connection on until it ends; `is_call`: from the side that made the connection.

        `shared` is one for both directions.
        """

    def close(self) -> None:
        """Accept no more connections."""
        self._open = False
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while self._open:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection((HIDDEN, self._port), timeout=10.0)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            threading.Thread(target=self._serve, args=(near, far), daemon=True).start()

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        shared = threading.Event()
        back = threading.Thread(target=self._forward, args=(far, near, False, shared), daemon=True)
        with near, far:
            back.start()
            self._forward(near, far, True, shared)
            back.join()

    def _forward(self, source: socket.socket, sink: socket.socket, is_call: bool, shared: threading.Event) -> None:
        with contextlib.suppress(OSError, EOFError):
            self.forward(source, sink, is_call, shared)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
