"""What a process that knows the secret can make a rank or the controller use is limited."""

from __future__ import annotations

import queue
import socket
import threading
import time
import tracemalloc

import pytest

from frames import body_of
from ranks import SECRET, run_ranks
from tradewind.errors import BadFrame
from tradewind.runtime.addresses import HostPort
from tradewind.runtime.control_reader import limit_bytes
from tradewind.runtime.dialling import Dialling
from tradewind.runtime.group import Group
from tradewind.runtime.peers import MAX_LINKS
from tradewind.runtime.sockets import call
from tradewind.runtime.state_transfer import MAX_TRANSFERS, PURPOSE
from tradewind.wire import messages as m
from tradewind.wire.frames import FrameHeader, FrameKind, FrameReader, encode_header
from tradewind.wire.handshake import Credentials


def test_a_message_of_fifteen_megabytes_is_refused_before_it_has_come() -> None:
    header = encode_header(FrameHeader(FrameKind.MESSAGE, 1, payload_bytes=15_000_000), payload=bytes(15_000_000))
    with pytest.raises(BadFrame, match=f"at most {limit_bytes(8)} bytes here, got 15000000"):
        list(FrameReader(limit_bytes(8)).feed(header))


def test_the_largest_message_of_a_rank_takes_a_bounded_amount_of_memory() -> None:
    """Many short names are the most expensive thing that a message can hold."""
    names = tuple(f"{number:x}" for number in range(0x1000, 0x2000))
    repeated = limit_bytes(8) // 5 // len(names)
    report = m.Report(0, 0, (), 1, electorates=(names,) * repeated)
    body = body_of(m.encode_message(m.Join("host", 1, 0, report), 1))
    assert 0.9 * limit_bytes(8) < len(body) <= limit_bytes(8)
    tracemalloc.start()
    try:
        m.decode_message(body)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("purpose", "most"), [(f"data {time.time() + 1e6!r}", MAX_LINKS), (PURPOSE, MAX_TRANSFERS)], ids=["data", "state"]
)
def test_a_peer_cannot_open_hundreds_of_connections(purpose: str, most: int) -> None:
    """Each would have its threads; those beyond the limit are closed at once, and the others stay."""
    done, ports = threading.Event(), queue.SimpleQueue[int]()

    def body(group: Group) -> int:
        if group.rank == 0:
            ports.put(group.stats().port)
            return 0 if done.wait(60.0) else -1
        where = HostPort("127.0.0.1", ports.get(timeout=30.0))
        own = Credentials("tradewind", "rank1", SECRET.encode())
        try:
            socks = [
                call(where, own, purpose, time.monotonic() + 10, Dialling.to_rank("rank1", "rank0"))[0]
                for _ in range(3 * most)
            ]
            threads = [thread for thread in threading.enumerate() if thread.name.startswith("tradewind-rx")]
            assert len(threads) <= 2 * MAX_LINKS
            return sum(is_open(sock) for sock in socks)
        finally:
            done.set()

    _, still_open = run_ranks(2, body, [{}, {}], tolerant=True, local_sockets=False)
    assert 0 < still_open <= most


def is_open(sock: socket.socket) -> bool:
    sock.settimeout(0.2)
    try:
        return sock.recv(4096) != b""
    except TimeoutError:
        return True
    except OSError:
        return False
    finally:
        sock.close()
