"""Serves the state of a run over HTTP: the page, its changes as server-sent events, JSON, and metrics.

Read-only. On loopback no token is needed, but requests must name a local host, so that a page from elsewhere cannot
read it through the browser (DNS rebinding). On any other address every request needs the token.

| path | answer |
|---|---|
| `/` | the page |
| `/events?since=N` | server-sent events: changes after version N, then each further change |
| `/view?since=N` | the same once, as JSON |
| `/metrics` | metrics for Prometheus, with the extra `metrics` |
"""

from __future__ import annotations

import contextlib
import hmac
import io
import ipaddress
import socket
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from tradewind.dashboard.metrics import encode_metrics
from tradewind.dashboard.model import RunModel
from tradewind.errors import BadOption

TOKEN_VARIABLE = "TRADEWIND_DASHBOARD_TOKEN"
TICK_S = 1.0
"""Interval at which open pages get changes; losses are sent at once."""
QUIET_S = 10.0
"""A comment is sent after this time without a change, so that closed connections are noticed."""
QUIET, END = b": quiet\n\n", b"event: end\ndata: {}\n\n"
LINGER_S = 2.0
"""The most seconds that `close` waits for open pages."""
MAX_STREAMS = 32
"""Pages that may be open at once."""
MAX_CONNECTIONS = 128
"""Connections that may be open at once, each with a thread."""
MAX_CONNECTIONS_OF_ADDRESS = 64
"""Of these, those of one address; all of a tunnel come from one."""
MAX_REQUEST_BYTES = 16384
"""Bytes of a request with its headers."""
ACCEPT_AGAIN_S = 0.1
FIRST_REQUEST_S = 5.0
"""Seconds that a connection has for its first request."""
NEXT_REQUEST_S = 30.0
"""Seconds that it has for the next one, and that it may take to receive a part of an answer."""
PAGE_THREAD = "tradewind-page"
"""The name of all threads that serve it."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")

Respond = tuple[int, str, bytes]


@dataclass(frozen=True, slots=True)
class Update:
    """What changed up to a version, as an event for pages."""

    version: int
    event: bytes
    packed: bytes
    """The event as a piece of any gzip stream, which refers to nothing before it."""


class RunView:
    """A model that one thread feeds and several read.

    Open pages get changes at the same moments, so that all of them are at the same version, and what changed is found,
    encoded and compressed once for all.
    """

    def __init__(self, model: RunModel) -> None:
        self._model, self._changed = model, threading.Condition()
        self._updates: dict[int, Update] = {}
        """To the present version, by the version before."""
        self._shown, self._next_s = 0, 0.0
        """The version that open pages are to show, and the time of the next one."""
        self.closed = False

    def change(self, work: Callable[[RunModel], None]) -> None:
        """Let `work` change the model, and tell open pages that wait for any change, or all if it is urgent."""
        with self._changed:
            before = self._model.version
            work(self._model)
            if self._model.version != before:
                self._updates.clear()
                if before <= self._shown or self._model.urgent_version > before:
                    self._changed.notify_all()

    def close(self) -> None:
        """End the wait of all readers."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def wait(self, since: int, timeout_s: float) -> Update | None:
        """What changed after a version that open pages show; None if nothing within the time.

        Pages get changes every `TICK_S`, urgent ones at once, and all of them when the view is closed.
        """
        end_s = time.monotonic() + timeout_s
        with self._changed:
            if since > self._model.version:  # of an earlier run at this address
                since = 0
            while not self.closed:
                now_s, version = time.monotonic(), self._model.version
                if version > self._shown and (now_s >= self._next_s or self._model.urgent_version > self._shown):
                    self._shown, self._next_s = version, now_s + TICK_S
                if since < self._shown:
                    break
                if now_s >= end_s:
                    return None
                self._changed.wait((min(end_s, self._next_s) if version > self._shown else end_s) - now_s)
            return self._update(since)

    def view(self, since: int = 0) -> bytes:
        """The changes after a version as JSON."""
        return msgspec.json.encode(self.read(lambda model: model.view(since)))

    def read(self, reader: Callable[[RunModel], Any]) -> Any:
        """What `reader` finds in the model."""
        with self._changed:
            return reader(self._model)

    def _update(self, since: int) -> Update:
        if since not in self._updates:
            if len(self._updates) > MAX_STREAMS:
                self._updates.clear()
            version = self._model.version
            event = b"id: %d\ndata: %s\n\n" % (version, msgspec.json.encode(self._model.view(since)))
            self._updates[since] = Update(version, event, _packed(event))
        return self._updates[since]


GZIP_START = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""How a stream of gzip begins (RFC 1952): deflate, without a time and a name."""


def _packed(event: bytes) -> bytes:
    """Data as a piece of a gzip stream.

    >>> zlib.decompressobj(wbits=31).decompress(GZIP_START + _packed(b"one") + _packed(b"two"))
    b'onetwo'
    """
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(event) + packer.flush(zlib.Z_FULL_FLUSH)


class PageServer:
    """The HTTP server of one run."""

    def __init__(
        self,
        host: str,
        port: int,
        view: RunView | None,
        token: str | None = None,
        metrics: Callable[[], tuple[bytes, str]] | None = None,
    ) -> None:
        """Listen; raises BadOption if that is impossible. Beyond loopback `token` must be given.

        Without a view there are only the given metrics; with one they are those of its model.
        """
        self.view, self._serving = view, False
        self._given_metrics = metrics
        self.token = None if is_local(host) else token
        if self.token is None and not is_local(host):
            raise BadOption(
                f"the page must have a token beyond loopback, got none for {host}. Set one, or use :{port}."
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._http = _Server((host, port), self, family)
        except OSError as error:
            raise BadOption(
                f"cannot serve the page on {host}:{port}: {error.strerror or error}. Choose another address or port."
            ) from None
        self.port = int(self._http.server_address[1])
        shown = "localhost" if is_local(host) else f"[{host}]" if ":" in host else host
        self._base = f"http://{shown}:{self.port}/"
        self.url = self.url_of("")

    def url_of(self, path: str) -> str:
        """The address of a path, with the token that it needs."""
        return self._base + path + (f"?token={self.token}" if self.token else "")

    def metrics(self) -> tuple[bytes, str]:
        """The metrics, encoded, and their content type."""
        if self.view is None:
            return self._given_metrics() if self._given_metrics is not None else (b"", "text/plain; charset=utf-8")
        found: tuple[bytes, str] = self.view.read(encode_metrics)
        return found

    def serve(self) -> None:
        """Answer requests until `close` is called."""
        self._serving = True
        self._http.serve_forever(poll_interval=0.5)

    def close(self) -> None:
        """Send open pages the last changes, and stop serving; `serve` returns."""
        if self.view is not None:
            self.view.close()
        self._http.wait_until_left(LINGER_S)
        if self._serving:
            self._http.shutdown()
        self._http.server_close()

    @property
    def open_pages(self) -> int:
        """The number of pages that get changes."""
        return self._http.streams

    def may_read(self, host: str, query: dict[str, list[str]], authorization: str) -> bool:
        """Whether a request with this Host header, query and Authorization header is answered."""
        if self.token is None:
            name = urlsplit(f"//{host}").hostname or ""
            return name in LOCAL_NAMES or is_local(name)
        given = query.get("token", [""])[0] or authorization.removeprefix("Bearer ").strip()
        return hmac.compare_digest(given.encode(), self.token.encode())


def is_local(host: str) -> bool:
    """Whether an address or name is of loopback.

    >>> is_local("127.0.0.1"), is_local("localhost"), is_local("0.0.0.0"), is_local("example.org")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def page_html() -> bytes:
    """The page: one file without references to others."""
    return resources.files("tradewind.dashboard").joinpath("page.html").read_bytes()


def embed(view: bytes) -> bytes:
    """The page with a view inside, as a file that needs no server."""
    place = b'<script type="application/json" id="embedded">null</script>'
    data = view.replace(b"<", b"\\u003c")  # names and reasons must not end the script
    return page_html().replace(place, place.replace(b"null", data))


@dataclass(slots=True)
class _Visit:
    """A connection to the page."""

    address: str
    wait_s: float
    """How long it may wait for a request."""
    since_s: float | None
    """Since when it waits for a request that may be answered; None while one is answered."""


class _Server(ThreadingHTTPServer):
    """Has a thread for each connection, and a limited number of them: the oldest that waits makes room for a new one.

    One that waits for a request that may be answered has sent none, or one without the token.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], page: PageServer, family: socket.AddressFamily) -> None:
        self.address_family = family
        self.page = page
        self.streams, self._changed = 0, threading.Condition()
        self._visits: dict[socket.socket, _Visit] = {}
        """Connections that have not ended, the oldest first."""
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; without a free file descriptor, try again soon instead of at once."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(ACCEPT_AGAIN_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, if there is room."""
        with self._changed:
            has_room = self._make_room(client_address[0])
            if has_room:
                self._visits[request] = _Visit(client_address[0], FIRST_REQUEST_S, time.monotonic())
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection, in a thread with a name that tells what it is for."""
        threading.current_thread().name = PAGE_THREAD
        super().process_request_thread(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._changed:
            self._visits.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections whose request has not come in time; called a few times a second."""
        with self._changed:
            now_s = time.monotonic()
            for sock, visit in list(self._visits.items()):
                if visit.since_s is not None and now_s > visit.since_s + visit.wait_s:
                    self._end(sock)

    def answering(self, request: Any) -> None:
        """Note that a connection has sent a request that may be answered."""
        with self._changed:
            if request in self._visits:
                self._visits[request].since_s = None

    def answered(self, request: Any) -> None:
        """Note that a connection may wait for its next request."""
        with self._changed:
            if request in self._visits and self._visits[request].since_s is None:
                address = self._visits.pop(request).address
                self._visits[request] = _Visit(address, NEXT_REQUEST_S, time.monotonic())

    def _make_room(self, address: str) -> bool:
        """End a connection that waits if there are too many, one of this address if it has too many."""
        of_address = [sock for sock, visit in self._visits.items() if visit.address == address]
        if len(of_address) >= MAX_CONNECTIONS_OF_ADDRESS:
            rivals = of_address
        elif len(self._visits) >= MAX_CONNECTIONS:
            rivals = list(self._visits)
        else:
            return True
        oldest = next((sock for sock in rivals if self._visits[sock].since_s is not None), None)
        if oldest is not None:
            self._end(oldest)
        return oldest is not None

    def _end(self, sock: socket.socket) -> None:
        """Have the thread of a connection end, and close it; the descriptor is its own until then."""
        del self._visits[sock]
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    def enter(self) -> bool:
        """Count one more open page, unless there are too many."""
        with self._changed:
            has_room = self.streams < MAX_STREAMS
            self.streams += has_room
            return has_room

    def leave(self) -> None:
        """Count one less."""
        with self._changed:
            self.streams -= 1
            self._changed.notify_all()

    def wait_until_left(self, timeout_s: float) -> None:
        """Wait until no page is open."""
        with self._changed:
            self._changed.wait_for(lambda: not self.streams, timeout_s)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a connection: its browser has gone."""


class _Limited(io.BufferedReader):
    """Reads lines of a request, and fails if it is too long."""

    left = MAX_REQUEST_BYTES

    def __init__(self, stream: Any) -> None:
        super().__init__(stream.detach())

    def readline(self, size: int | None = -1, /) -> bytes:
        """The next line."""
        line = super().readline(size)
        self.left -= len(line)
        if self.left < 0:
            raise ConnectionAbortedError("the request is too long")
        return line


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = NEXT_REQUEST_S
    rfile: _Limited

    def setup(self) -> None:
        """Limit what is read of a request."""
        super().setup()
        self.rfile = _Limited(self.rfile)

    def handle_one_request(self) -> None:
        """Answer the next request of a connection."""
        self.rfile.left = MAX_REQUEST_BYTES
        super().handle_one_request()
        self.server.answered(self.request)

    def do_GET(self) -> None:
        """Answer a request."""
        page, asked = self.server.page, urlsplit(self.path)
        query = parse_qs(asked.query)
        if not page.may_read(self.headers.get("Host", ""), query, self.headers.get("Authorization", "")):
            self._answer(
                403, "text/plain; charset=utf-8", b"Forbidden: open the address with the token from the log.\n"
            )
            return
        self.server.answering(self.request)
        since = int(found) if (found := query.get("since", ["0"])[0]).isdecimal() else 0
        if asked.path == "/metrics":
            self._metrics()
        elif page.view is None:
            self._answer(404, "text/plain; charset=utf-8", b"Not found. Path: /metrics\n")
        elif asked.path == "/":
            self._answer(200, "text/html; charset=utf-8", page_html())
        elif asked.path == "/view":
            self._answer(200, "application/json", page.view.view(since))
        elif asked.path == "/events":
            last = self.headers.get("Last-Event-ID", "")
            self._stream(page.view, int(last) if last.isdecimal() else since)
        else:
            self._answer(404, "text/plain; charset=utf-8", b"Not found. Paths: / /view /events /metrics\n")

    def _metrics(self) -> None:
        try:
            data, kind = self.server.page.metrics()
        except BadOption as error:
            self._answer(501, "text/plain; charset=utf-8", f"{error}\n".encode())
            return
        self._answer(200, kind, data)

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self._protect()
        self.end_headers()
        self.wfile.write(body)

    def _protect(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header(
            "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
            "img-src data:; frame-ancestors 'none'; base-uri 'none'",
        )

    def _stream(self, view: RunView, since: int) -> None:
        if not self.server.enter():
            self._answer(503, "text/plain; charset=utf-8", b"Too many open pages: close one.\n")
            return
        try:
            self.close_connection = True
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            is_packed = "gzip" in self.headers.get("Accept-Encoding", "")
            if is_packed:
                self.send_header("Content-Encoding", "gzip")
            self._protect()
            self.end_headers()
            self.wfile.write(GZIP_START if is_packed else b"")
            is_over = False
            while not is_over:
                is_over = view.closed  # what changed before is sent once more
                found = view.wait(since, QUIET_S)
                if found is None:
                    self.wfile.write(_packed(QUIET) if is_packed else QUIET)
                else:
                    since = found.version
                    self.wfile.write(found.packed if is_packed else found.event)
            self.wfile.write(_packed(END) if is_packed else END)
        finally:
            self.server.leave()

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests."""
