"""Connections of strangers, however many and however slow, do not keep ranks out."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ranks import SECRET, free_port, run_ranks
from tradewind.runtime import listener as listening
from tradewind.runtime.addresses import HostPort, listen_on
from tradewind.runtime.dialling import Dialling
from tradewind.runtime.group import Group, connect
from tradewind.runtime.listener import MAX_HANDSHAKES, MAX_STRANGERS, MAX_STRANGERS_OF_ADDRESS, Listener
from tradewind.runtime.options import options_by_field
from tradewind.runtime.sockets import call
from tradewind.wire.frames import HEADER_BYTES, FrameHeader, FrameKind, encode_header
from tradewind.wire.handshake import MAX_HANDSHAKE_BYTES, Credentials

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


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """A listener that does not close silent or slow callers by time, so that only its other limits act."""
    monkeypatch.setattr(listening, "FIRST_BYTE_S", 600.0)
    listener = Listener([listen_on("127.0.0.1", 0)], credentials("fra"), 600.0, lambda sock, _: sock.close())
    yield listener
    listener.close()


def credentials(name: str) -> Credentials:
    return Credentials("run", name, SECRET.encode())


def calls_from(
    stack: contextlib.ExitStack, port: int, address: str, count: int, said: bytes = b""
) -> list[socket.socket]:
    """So many connections from an address, which send `said` and stay open."""
    made = []
    for _ in range(count):
        sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20, source_address=(address, 0)))
        sock.sendall(said)
        made.append(sock)
    return made


def are_closed(socks: list[socket.socket]) -> bool:
    """Whether the other side closes all of these connections."""
    return all(sock.recv(1) == b"" for sock in socks)


def are_open(socks: list[socket.socket]) -> bool:
    """Whether none of these connections is closed now."""
    for sock in socks:
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.recv(1)
            return False
    return True


def test_a_listener_closes_its_sockets_while_callers_come() -> None:
    """The descriptor of a closed listening socket may be that of the next caller."""
    for _ in range(100):
        socks = [listen_on("127.0.0.1", 0) for _ in range(4)]
        listener = Listener(socks, credentials("fra"), 600.0, lambda sock, _: sock.close())
        with contextlib.ExitStack() as stack:
            for number in range(20):
                with contextlib.suppress(OSError):
                    where = socks[number % 4].getsockname()
                    stack.enter_context(contextlib.closing(socket.create_connection(where, 5)))
            listener.close()
        assert all(sock.fileno() == -1 for sock in socks)


class Full(socket.socket):
    """A listening socket of a process that has no free file descriptor."""

    tried = 0

    def accept(self) -> tuple[socket.socket, object]:
        """Fail."""
        self.tried += 1
        raise OSError(errno.EMFILE, "Too many open files")


def test_a_process_without_free_descriptors_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "ACCEPT_AGAIN_S", 0.001)
    full = Full(fileno=listen_on("127.0.0.1", 0).detach())
    where = full.getsockname()
    listener = Listener([full], credentials("fra"), 600.0, lambda sock, _: sock.close())
    with socket.create_connection(where, 20):
        until_s = time.monotonic() + 20.0
        while full.tried < 20 and time.monotonic() < until_s:
            time.sleep(0.001)
        listener.close()
    assert full.tried >= 20
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "cannot accept connections ([Errno 24] Too many open files); retrying"
    ]


def test_an_address_holds_so_many_connections_and_no_more(patient: Listener) -> None:
    with contextlib.ExitStack() as stack:
        others = calls_from(stack, patient.port, "127.0.0.3", 3)
        held = calls_from(stack, patient.port, "127.0.0.2", MAX_STRANGERS_OF_ADDRESS + 5)
        assert are_closed(held[:5]) and are_open(held[5:]), "the oldest make room"
        assert are_open(others), "those of another address stay"


def test_all_strangers_hold_so_many_connections_and_no_more(patient: Listener) -> None:
    with contextlib.ExitStack() as stack:
        held: list[socket.socket] = []
        while len(held) < MAX_STRANGERS + 5:
            address = f"127.0.1.{1 + len(held) // 100}"
            held += calls_from(stack, patient.port, address, min(100, MAX_STRANGERS + 5 - len(held)))
        assert are_closed(held[:5]) and are_open(held[5:])


def test_so_many_handshakes_have_a_thread_and_an_address_with_fewer_comes_first(patient: Listener) -> None:
    admitted: list[str] = []

    def call_as_rank() -> None:
        address, dialling = HostPort("127.0.0.1", patient.port), Dialling.to_controller("ams")
        sock, peer = call(address, credentials("ams"), "control", time.monotonic() + 60.0, dialling)
        admitted.append(peer.site)
        sock.close()

    with contextlib.ExitStack() as stack:
        slow = calls_from(stack, patient.port, "127.0.0.2", MAX_HANDSHAKES + 20, HEAD[:20])
        until_s = time.monotonic() + 20.0
        while greeters() < MAX_HANDSHAKES and time.monotonic() < until_s:
            time.sleep(0.01)
        rank = threading.Thread(target=call_as_rank)
        rank.start()
        for sock in slow[:5]:
            until_s = time.monotonic() + 20.0
            while greeters() > MAX_HANDSHAKES and time.monotonic() < until_s:
                time.sleep(0.01)  # the thread of a handshake that has ended may not have
            assert greeters() <= MAX_HANDSHAKES
            sock.close()
            rank.join(2.0)
        assert admitted == ["fra"], "although 20 others have waited for longer"


def test_a_message_of_the_handshake_is_refused_by_its_length_before_it_has_come(patient: Listener) -> None:
    size = MAX_HANDSHAKE_BYTES + 1
    header = encode_header(FrameHeader(FrameKind.MESSAGE, 1, payload_bytes=size), payload=bytes(size))
    with contextlib.ExitStack() as stack:
        (caller,) = calls_from(stack, patient.port, "127.0.0.2", 1, header[:HEADER_BYTES])
        answer = b"".join(iter(lambda: caller.recv(4096), b""))
        assert b"at most" in answer or not answer, "the connection was closed although its payload never came"


def greeters() -> int:
    """The number of threads that serve handshakes."""
    return sum(thread.name == "tradewind-greet" for thread in threading.enumerate())
