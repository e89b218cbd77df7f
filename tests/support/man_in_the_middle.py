"""A man in the middle changes bytes of a data connection of two ranks: how many changes they noticed."""

from __future__ import annotations

import contextlib
import math
import random
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certificate_files import issue, options
from drill_ranks import drill_on_loopback
from proxies import HIDDEN, Proxy
from ranks import free_port
from tradewind.runtime.certificate_authority import Authority

TRANSPORTS = ("tls-aead", "tls", "tcp")
SURVIVED_BYTES = 4_000_000
"""A connection that carries so much after a change goes on: the changed chunk was not needed any more."""


class Tampering(Proxy):
    """Changes one byte of each connection, at a random place after the handshake."""

    def __init__(self, port: int, seed: int = 0) -> None:
        self.changed = 0
        self._random, self._lock, self._armed = random.Random(seed), threading.Lock(), threading.Event()
        super().__init__(port)

    def arm(self) -> None:
        """Change bytes from now on."""
        self._armed.set()

    def disarm(self) -> None:
        """Only forward from now on."""
        self._armed.clear()

    def forward(self, source: socket.socket, sink: socket.socket, is_call: bool, shared: threading.Event) -> None:
        """Pass bytes on, and change one of both directions; another one if the connection goes on for long."""
        del is_call
        at, passed = self._draw(), 0
        has_changed = False
        while data := bytearray(source.recv(65536)):
            passed += len(data)
            if has_changed and passed > SURVIVED_BYTES:
                has_changed, at, passed = False, self._draw(), 0
                shared.clear()
            if self._armed.is_set() and not shared.is_set() and passed > at:
                with self._lock:
                    if not shared.is_set():
                        data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
                        self.changed += 1
                        has_changed, passed = True, 0
                        shared.set()
            sink.sendall(data)

    def _draw(self) -> int:
        with self._lock:
            return self._random.randrange(20_000, 400_000)


@dataclass(frozen=True)
class Noticed:
    """What two ranks noticed of changed bytes; that their results were right is asserted."""

    transport: str
    changed: int
    """Bytes that were changed, one at a time."""
    broken: int
    """Connections that broke."""
    unneeded: int
    """Changes in chunks of halted rounds, which are counted and break nothing."""
    rounds: int
    """Rounds whose result both ranks had."""
    seconds: float

    @property
    def all_noticed(self) -> bool:
        """Whether no change was missed."""
        return self.broken + self.unneeded >= self.changed


def change_bytes(
    transport: str, changes: int, folder: Path, patience_s: float, within_s: float = math.inf, longest: int = 50
) -> Noticed:
    """Let two ranks average until so many bytes were changed, and three rounds more, which take at most `within_s`.

    Raises AssertionError if a result is wrong, or if connections go on for `longest` rounds a change.
    """
    authority = Authority.create("drill")
    files = [issue(authority, folder, f"rank{n}") for n in range(2)]
    port, began_s = free_port(), time.monotonic()

    def own(rank: int) -> dict[str, Any]:
        hidden = {"bind": HIDDEN, "advertise": "127.0.0.1", "ports": port} if rank else {}
        mode = options(files[rank], "secret" if transport == "tcp" else "tls")
        return {**mode, **hidden, "connections": 1, "aead": transport == "tls-aead"}

    with contextlib.closing(Tampering(port)) as man:
        address = f"127.0.0.1:{free_port()}"
        with drill_on_loopback(2, address, own, {"pause_s": 0.0}, patience_s=patience_s) as run:
            run.rounds(2, 2)
            man.arm()
            for _ in range(longest * changes):
                run.rounds(1, 2)
                if man.changed >= changes:
                    break
            else:
                raise AssertionError(f"connections go on although {man.changed} bytes were changed")
            man.disarm()
            run.rounds(3, 2, within_s=within_s)
            run.stop()
            heard = [said for rank in run.ranks for said in rank.heard]
            told = next(said for said in run.ranks[1].heard if "broken" in said)
            assert told["transports"] == [transport]
            corrupt = sum(sum(said["corrupt"].values()) for said in heard if "corrupt" in said)
            closing = sum("changed on the way" in said.get("warning", "") for said in heard)
            rounds = len({said["round"] for said in heard if "step" in said and not said["alone"]})
            seconds = time.monotonic() - began_s
            return Noticed(transport, man.changed, told["broken"]["rank0"], corrupt - closing, rounds, seconds)
