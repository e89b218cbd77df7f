"""Drill: strangers hold many connections open while a run starts."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading

import pytest

from drill_ranks import drill_on_loopback
from ranks import free_port

STRANGERS = 1500
STARTED_S = 60.0


@pytest.mark.slow
def test_a_run_starts_while_strangers_hold_connections_open() -> None:
    port = free_port()
    held: list[socket.socket] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, STRANGERS + 500), hard))
    stop = threading.Event()

    def crowd() -> None:
        while len(held) < STRANGERS and not stop.is_set():
            try:
                held.append(socket.create_connection(("127.0.0.1", port), timeout=1.0))
            except OSError:
                stop.wait(0.01)

    stranger = threading.Thread(target=crowd)
    stranger.start()
    try:
        with drill_on_loopback(3, f"127.0.0.1:{port}", patience_s=6.0) as run:
            run.rounds(2, 3, within_s=STARTED_S)
            assert held, "the fault did not fire while the run started"
            stranger.join(STARTED_S)
            assert len(held) == STRANGERS, "the fault did not fire"
            run.rounds(2, 3, within_s=STARTED_S)
            run.stop()
    finally:
        stop.set()
        stranger.join()
        for sock in held:
            with contextlib.suppress(OSError):
                sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
