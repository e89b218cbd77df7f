"""Drill: a man in the middle changes bytes of a data connection; every change is noticed, and no result is wrong."""

from __future__ import annotations

import contextlib
import math
import random
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from certificate_files import issue, options
from drill_ranks import drill_on_loopback
from proxies import HIDDEN, Proxy
from ranks import free_port
from tradewind.native.aead import aead, why_no_aead
from tradewind.runtime.certificate_authority import Authority

PATIENCE_S = 6.0
FEW = 5
"""Changes of the tests that are not slow, which have no deadline: they run beside others."""
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


@pytest.mark.parametrize(
    ("transport", "changes"),
    [
        pytest.param(transport, changes, marks=[pytest.mark.slow] * (changes > FEW))
        for changes in (FEW, 200)
        for transport in ("tls-aead", "tls", "tcp")
    ],
)
def test_every_changed_byte_is_noticed_and_no_result_is_wrong(transport: str, changes: int, tmp_path: Path) -> None:
    if transport == "tls-aead" and aead() is None:
        pytest.skip(why_no_aead())
    security = "secret" if transport == "tcp" else "tls"
    authority = Authority.create("drill")
    files = [issue(authority, tmp_path, f"rank{n}") for n in range(2)]
    port = free_port()

    def own(rank: int) -> dict[str, Any]:
        hidden = {"bind": HIDDEN, "advertise": "127.0.0.1", "ports": port} if rank else {}
        return {**options(files[rank], security), **hidden, "connections": 1, "aead": transport == "tls-aead"}

    man = Tampering(port)
    with contextlib.closing(man):
        address = f"127.0.0.1:{free_port()}"
        with drill_on_loopback(2, address, own, {"pause_s": 0.0}, patience_s=PATIENCE_S) as run:
            run.rounds(2, 2)
            man.arm()
            for _ in range(50 * changes):
                run.rounds(1, 2)
                if man.changed >= changes:
                    break
            else:
                pytest.fail(f"connections go on although {man.changed} bytes were changed")
            man.disarm()
            run.rounds(3, 2, within_s=math.inf if changes == FEW else 2 * PATIENCE_S)
            run.stop()
            heard = [said for rank in run.ranks for said in rank.heard]
            told = next(said for said in run.ranks[1].heard if "broken" in said)
            assert told["transports"] == [transport]
            corrupt = sum(sum(said["corrupt"].values()) for said in heard if "corrupt" in said)
            closing = sum("changed on the way" in said.get("warning", "") for said in heard)
            unneeded = corrupt - closing  # chunks of halted rounds are counted, and break nothing
            assert told["broken"]["rank0"] + unneeded >= man.changed >= changes, "a change was not noticed"
