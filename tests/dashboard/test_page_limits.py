"""Connections to the page and to metrics of ranks, however many and however slow, are limited and keep no one out."""

from __future__ import annotations

import contextlib
import http.client
import resource
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tradewind.dashboard import server as serving
from tradewind.dashboard.model import RunModel
from tradewind.dashboard.server import (
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_OF_ADDRESS,
    MAX_REQUEST_BYTES,
    MAX_STREAMS,
    PAGE_THREAD,
    PageServer,
    RunView,
)
from tradewind.trace.records import Record

STRANGERS = 600
LONGEST_S = 20.0


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    """A page whose limits of time do not act."""
    monkeypatch.setattr(serving, "FIRST_REQUEST_S", 600.0)
    yield from served(RunView(RunModel()))


def served(view: RunView | None, token: str | None = None) -> Iterator[PageServer]:
    server = PageServer("127.0.0.1", 0, view, token, lambda: (b"a 1", "text/plain"))
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield server
    server.close()
    thread.join()


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * STRANGERS + 500)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def calls(stack: contextlib.ExitStack, server: PageServer, address: str, count: int) -> list[socket.socket]:
    """So many connections from an address, which stay open."""
    made = []
    for _ in range(count):
        where = "127.0.0.1", server.port
        made.append(stack.enter_context(socket.create_connection(where, LONGEST_S, source_address=(address, 0))))
    return made


def status(server: PageServer, path: str = "/view") -> int:
    """The status of the answer to a request."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=LONGEST_S)) as visitor:
        visitor.request("GET", path)
        return visitor.getresponse().status


def threads() -> int:
    """How many threads answer connections; `serve` runs in another one."""
    return sum(thread.name == PAGE_THREAD for thread in threading.enumerate())


def wait_until_at_most(count: int) -> None:
    """Wait until no more threads answer connections than that: one whose connection has ended may not have."""
    until_s = time.monotonic() + LONGEST_S
    while threads() > count:
        assert time.monotonic() < until_s, f"{threads()} threads"
        threading.Event().wait(0.01)


@pytest.mark.parametrize("only_metrics", [False, True], ids=["page", "metrics of a rank"])
def test_silent_connections_have_few_threads_and_keep_no_one_out(
    only_metrics: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "FIRST_REQUEST_S", 600.0)
    view = None if only_metrics else RunView(RunModel())
    with many_files(), contextlib.ExitStack() as stack, contextlib.contextmanager(served)(view) as server:
        calls(stack, server, "127.0.0.1", STRANGERS)
        assert status(server, "/metrics" if only_metrics else "/view") == 200
        wait_until_at_most(MAX_CONNECTIONS_OF_ADDRESS)


def test_an_address_and_all_addresses_hold_so_many_connections(page: PageServer) -> None:
    """The oldest that wait make room, of the same address first."""
    with contextlib.ExitStack() as stack:
        others = calls(stack, page, "127.0.0.3", 3)
        held = calls(stack, page, "127.0.0.2", MAX_CONNECTIONS_OF_ADDRESS + 5)
        assert all(sock.recv(1) == b"" for sock in held[:5])
        held += calls(stack, page, "127.0.0.4", MAX_CONNECTIONS - 3 - MAX_CONNECTIONS_OF_ADDRESS + 2)
        assert all(sock.recv(1) == b"" for sock in others[:2])
        wait_until_at_most(MAX_CONNECTIONS)
        assert threads() == MAX_CONNECTIONS


def test_an_open_page_makes_no_room_for_silent_connections(page: PageServer) -> None:
    with contextlib.ExitStack() as stack:
        (shown,) = calls(stack, page, "127.0.0.2", 1)
        shown.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = shown.makefile("rb")
        assert b"200" in answer.readline()
        calls(stack, page, "127.0.0.2", 2 * MAX_CONNECTIONS_OF_ADDRESS)
        assert page.view is not None
        page.view.change(lambda model: model.add(Record("compute", 0, 1, "ams")))
        assert any(b"ams" in line for line in answer)


def test_so_many_pages_get_changes_and_no_more(page: PageServer) -> None:
    with contextlib.ExitStack() as stack:
        shown = calls(stack, page, "127.0.0.2", MAX_STREAMS + 1)
        for sock in shown:
            sock.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            said = sock.recv(100)
            assert (b"503" if sock is shown[-1] else b"200") in said


@pytest.mark.parametrize("said", [b"", b"GET", b"GET /view HTTP/1.1\r\nHost: elsewhere\r\n\r\n"])
def test_a_connection_without_a_request_that_is_answered_ends_soon(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much it sends: a byte now and then, or requests that are refused."""
    monkeypatch.setattr(serving, "FIRST_REQUEST_S", 0.3)
    with contextlib.contextmanager(served)(RunView(RunModel())) as server, contextlib.ExitStack() as stack:
        (sock,) = calls(stack, server, "127.0.0.1", 1)
        with contextlib.suppress(ConnectionError):
            while True:
                sock.sendall(said)
                sock.settimeout(LONGEST_S if not said else 0.05)
                with contextlib.suppress(TimeoutError):
                    if not sock.recv(4096):
                        break


def test_a_long_request_ends_its_connection(page: PageServer) -> None:
    with contextlib.ExitStack() as stack:
        (sock,) = calls(stack, page, "127.0.0.1", 1)
        sock.sendall(
            b"GET /view HTTP/1.1\r\nHost: localhost\r\n" + 3 * (b"A: " + bytes(MAX_REQUEST_BYTES // 3) + b"\r\n")
        )
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
