"""Connections of strangers, however many and however slow, do not keep ranks out."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ranks import SECRET, free_port, run_ranks
from tradewind.runtime.group import Group, connect
from tradewind.runtime.listener import MAX_HANDSHAKES
from tradewind.runtime.options import options_by_field
from tradewind.wire.frames import FrameHeader, FrameKind, encode_header

HEAD = encode_header(FrameHeader(FrameKind.MESSAGE, 1, payload_bytes=100), payload=bytes(100))
"""The begin of a frame whose rest never comes."""


@contextlib.contextmanager
def callers(port: int, count: int, said: bytes) -> Iterator[None]:
    """So many connections to a port, made as soon as it is listened on, which send `said` and stay open."""
    socks: list[socket.socket] = []
    until_s = time.monotonic() + 20.0
    while len(socks) < count:
        try:
            socks.append(socket.create_connection(("127.0.0.1", port), 5))
        except ConnectionRefusedError:
            assert time.monotonic() < until_s
            time.sleep(0.01)
            continue
        with contextlib.suppress(OSError):
            socks[-1].sendall(said)
    try:
        yield
    finally:
        for sock in socks:
            sock.close()


@pytest.mark.parametrize(
    ("count", "said"),
    [(1500, b""), (MAX_HANDSHAKES + 6, HEAD[:20]), (2 * MAX_HANDSHAKES, b"GET / HTTP/1.1\r\n\r\n")],
    ids=["silent", "half a header", "another protocol"],
)
def test_a_run_begins_while_strangers_hold_connections(count: int, said: bytes) -> None:
    """To the controller before the second rank joins, and to that rank before the first one calls it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    port = free_port()
    joined = threading.Barrier(2)

    def run(rank: int) -> float:
        with contextlib.ExitStack() as stack:
            if rank:
                stack.enter_context(callers(port, count, said))
            group = stack.enter_context(connect(f"127.0.0.1:{port}", rank, 2, options, secret=SECRET))
            if rank:
                stack.enter_context(callers(group.stats().port, count, said))
            joined.wait(30.0)
            return float(group.all_reduce(np.ones(50_000))[0])

    options = options_by_field({"local_sockets": False, "inline_bytes": 0})
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [2.0, 2.0]


def test_a_silent_caller_is_closed_soon_and_a_rank_is_not() -> None:
    def body(group: Group) -> tuple[bytes, float]:
        with socket.create_connection(("127.0.0.1", group.stats().port), 10) as stranger:
            stranger.settimeout(10.0)
            said = stranger.recv(1)
        return said, float(group.all_reduce(np.ones(10))[0])

    assert run_ranks(2, body) == [(b"", 2.0)] * 2
