"""Drill: a proxy that answers, passes keepalives on and loses chunks; the controller finds the link by who waits.

Nothing on the link itself tells: its packets are acknowledged, its keepalives arrive, and all processes are alive.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import IO, Any

import pytest

from drill_ranks import SPARE_S, drill_on_loopback
from failing import SECRET
from proxies import HIDDEN, Proxy
from ranks import free_port
from tradewind.wire.frames import HEADER_BYTES, FrameKind, decode_header, rest_bytes

WORLD, PATIENCE_S = 4, 4.0


class Swallowing(Proxy):
    """Passes frames on, and loses the chunks of the rank that calls once it is told to."""

    def __init__(self, port: int) -> None:
        self.swallowed = 0
        self.swallows = threading.Event()
        super().__init__(port)

    def forward(self, source: socket.socket, sink: socket.socket, is_call: bool, shared: threading.Event) -> None:
        """Pass on frame by frame."""
        del shared
        with source.makefile("rb") as stream:
            while True:
                head = read(stream, HEADER_BYTES)
                head += read(stream, rest_bytes(head))
                header = decode_header(head)
                body = read(stream, header.payload_bytes)
                if is_call and self.swallows.is_set() and header.kind is FrameKind.CHUNK:
                    self.swallowed += 1
                else:
                    sink.sendall(head + body)


def read(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data


@pytest.mark.slow
def test_rounds_go_around_a_proxy_that_loses_chunks_and_answers_everything() -> None:
    port = free_port()

    def own(rank: int) -> dict[str, Any]:
        hidden = {"bind": HIDDEN, "advertise": "127.0.0.1", "ports": port} if rank == 1 else {}
        return {**hidden, "connections": 1, "local_sockets": False, "planner": "ring", "tolerant": True}

    proxy = Swallowing(port)
    address = f"127.0.0.1:{free_port()}"
    more = {"pause_s": 0.05, "secret": SECRET}
    with contextlib.closing(proxy), drill_on_loopback(WORLD, address, own, more, patience_s=PATIENCE_S) as run:
        run.rounds(3, WORLD)
        since_s = time.monotonic()
        proxy.swallows.set()
        why = run.warned(0, "waits end at", since_s + PATIENCE_S / 2 + SPARE_S)
        assert proxy.swallowed, "the fault did not fire"
        assert "the controller: waits end at rank0: nothing has moved" in why and "'rank1' waits for chunk" in why
        assert "avoid link rank0 - rank1: nothing came through it" in run.warned(
            0, "avoid link", since_s + 1.2 * PATIENCE_S + SPARE_S
        )
        run.rounds(3, WORLD, within_s=SPARE_S)  # around the link
        proxy.swallows.clear()
        run.stop()
