"""Drill: a proxy that answers, passes keepalives on and loses chunks; the controller finds the link by who waits.

Nothing on the link itself tells: its packets are acknowledged, its keepalives arrive, and all processes are alive.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

import pytest

from drill_ranks import drill_on_loopback
from failing import SECRET
from ranks import free_port
from tradewind.wire.frames import HEADER_BYTES, FrameKind, decode_header, rest_bytes

HIDDEN = "127.0.0.2"
"""Where rank 1 listens; others are told the address of the proxy."""
WORLD, PATIENCE_S = 4, 4.0


class Proxy:
    """Passes connections to rank 1 on, frame by frame, and loses the chunks of one peer once it is told to."""

    def __init__(self, port: int) -> None:
        self.swallowed = 0
        self.swallows = threading.Event()
        self._port, self._open = port, True
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

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
        back = threading.Thread(target=self._forward, args=(far, near, False), daemon=True)
        with near, far:
            back.start()
            self._forward(near, far, True)
            back.join()

    def _forward(self, source: socket.socket, sink: socket.socket, loses: bool) -> None:
        with contextlib.suppress(OSError, EOFError), source.makefile("rb") as stream:
            while True:
                head = self._read(stream, HEADER_BYTES)
                head += self._read(stream, rest_bytes(head))
                header = decode_header(head, len(head) - HEADER_BYTES)
                body = self._read(stream, header.payload_bytes)
                if loses and self.swallows.is_set() and header.kind is FrameKind.CHUNK:
                    self.swallowed += 1
                else:
                    sink.sendall(head + body)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _read(stream: Any, count: int) -> bytes:
        data: bytes = stream.read(count)
        if len(data) < count:
            raise EOFError
        return data


@pytest.mark.slow
def test_rounds_go_around_a_proxy_that_loses_chunks_and_answers_everything() -> None:
    port = free_port()

    def own(rank: int) -> dict[str, Any]:
        hidden = {"bind": HIDDEN, "advertise": "127.0.0.1", "ports": port} if rank == 1 else {}
        return {**hidden, "connections": 1, "local_sockets": False, "planner": "ring", "tolerant": True}

    proxy = Proxy(port)
    address = f"127.0.0.1:{free_port()}"
    more = {"pause_s": 0.05, "secret": SECRET}
    with contextlib.closing(proxy), drill_on_loopback(WORLD, address, own, more, patience_s=PATIENCE_S) as run:
        run.rounds(3, WORLD)
        proxy.swallows.set()
        why = run.warned(0, "waits end at")
        assert proxy.swallowed, "the fault did not fire"
        assert "the controller: waits end at rank0: nothing has moved" in why and "'rank1' waits for chunk" in why
        assert "avoid link rank0 - rank1: nothing came through it" in run.warned(0, "avoid link")
        run.rounds(3, WORLD)  # around the link
        proxy.swallows.clear()
        run.stop()
