"""A man in the middle: TCP connections that pass through here, and of which some bytes are changed on the way.

Ranks listen on one loopback address and advertise another one, on which a proxy listens with the same port. It needs no
change in the ranks, and they cannot tell it from a network.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from ranks import free_port
from tradewind.errors import PeerLost
from tradewind.runtime.addresses import HostPort
from tradewind.runtime.dialling import Dialling, dial

LISTENS, ADVERTISED = "127.0.0.1", "127.0.0.2"
READ_BYTES = 64 * 1024
APART_BYTES = 16 * 2**20
"""More than the buffers of the connections on the way hold."""
HANDSHAKE_BYTES = 1500
"""The first bytes of a connection are not changed in either direction: tests of the handshake do that."""


class Tampering:
    """Changes single bytes of each connection, `most` in all, at positions drawn from a seed.

    Two of a connection are far apart: a rank that notices the first closes the connection, and must not leave the
    second unread.
    """

    def __init__(self, seed: int, gap_bytes: int, most: int) -> None:
        self.changed = 0
        """How many bytes were changed."""
        self._draw, self._gap_bytes, self._most = random.Random(seed), gap_bytes, most
        self._lock = threading.Lock()
        self._socks: list[socket.socket] = []
        self._closed = False

    @property
    def is_done(self) -> bool:
        """Whether all bytes were changed."""
        return self.changed >= self._most

    def listen(self, port: int) -> None:
        """Forward what comes for a port of the advertised address to that port of the one that ranks listen on."""
        listening = socket.create_server((ADVERTISED, port))
        self._socks.append(listening)
        threading.Thread(target=self._accept, args=(listening, port), daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        for sock in list(self._socks):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self, listening: socket.socket, port: int) -> None:
        while not self._closed:
            try:
                near, _ = listening.accept()
            except OSError:
                continue
            self._socks.append(near)
            try:
                far = dial(HostPort(LISTENS, port), time.monotonic() + 5.0, Dialling.to_rank("proxy", "rank"))
            except PeerLost:
                near.close()
                continue
            self._socks.append(far)
            far.settimeout(None)
            for sock in (near, far):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tampered: list[socket.socket] = []
            with self._lock:
                places = [HANDSHAKE_BYTES + self._draw.randrange(self._gap_bytes) for _ in range(2)]
            for pair, place in zip(((near, far), (far, near)), places, strict=True):
                threading.Thread(target=self._forward, args=(*pair, place, tampered), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, place: int, tampered: list[socket.socket]) -> None:
        """Forward one direction, of which the byte at `place` is changed unless one of the other direction was.

        `tampered` has the source of the direction in which bytes are changed, when there is one.
        """
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                if passed <= place < passed + len(data):
                    changed = self._change(data, place - passed, source, tampered)
                    data, place = changed or data, place + APART_BYTES * (changed is not None)
                target.sendall(data)
                passed += len(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _change(self, data: bytes, place: int, source: socket.socket, tampered: list[socket.socket]) -> bytes | None:
        """The data with one byte changed; None if all are changed, or one of the other direction was."""
        with self._lock:
            if self.is_done or tampered not in ([], [source]):
                return None
            tampered[:] = [source]
            self.changed += 1
            changed = bytearray(data)
            changed[place] ^= 1 << self._draw.randrange(8)
            return bytes(changed)


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        first = free_port(LISTENS)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                for host in (LISTENS, ADVERTISED):
                    stack.enter_context(socket.create_server((host, port)))
            return first


@contextlib.contextmanager
def tampering(
    world: int, seed: int, gap_bytes: int, most: int, control: bool = False
) -> Iterator[tuple[Tampering, dict[str, Any]]]:
    """A man in the middle; yields it, and arguments for `run_ranks`.

    It stands between ranks, or with `control` between the controller, which rank 0 runs, and all other ranks.
    """
    middle = Tampering(seed, gap_bytes, most)
    try:
        first = free_ports(world + 1)
        each: list[dict[str, Any]] = []
        for rank in range(world):
            port = first + 1 + rank
            if not control:
                middle.listen(port)
            ports = port if rank else f"{first}-{port}"  # the first is the controller's
            each.append({"bind": LISTENS, "ports": ports, "local_sockets": False})
            if control and rank:
                each[-1]["address"] = f"{ADVERTISED}:{first}"
            elif not control:
                each[-1]["advertise"] = ADVERTISED
        if control:
            middle.listen(first)
        yield middle, {"each": each, "address": f"{LISTENS}:{first}"}
    finally:
        middle.close()
