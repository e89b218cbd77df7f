"""Data connections put frames together however their bytes arrive: cut anywhere, or several frames in one read.

What they send is what the driver gave them, in its order, also where several frames are sent together.
"""

from __future__ import annotations

import contextlib
import fcntl
import queue
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from certificate_files import issue
from tradewind.errors import BadFrame, CorruptFrame
from tradewind.node import events as ev
from tradewind.node.actions import How, Receive, Source, Transmit
from tradewind.node.payload import RoundPayload
from tradewind.runtime.addresses import HostPort, listen_on
from tradewind.runtime.certificate_authority import Authority
from tradewind.runtime.certificates import make_credentials
from tradewind.runtime.dialling import Dialling
from tradewind.runtime.links import Link
from tradewind.runtime.listener import Listener
from tradewind.runtime.polled_link import AHEAD_BYTES, PolledLink
from tradewind.runtime.polling import CAN_POLL, Poller
from tradewind.runtime.sockets import call, needs_sums, shorten_queue
from tradewind.wire.frames import BLOCK_BYTES, FrameHeader, FrameKind, FrameReader, encode_header
from tradewind.wire.handshake import Peer

pytestmark = [
    pytest.mark.usefixtures("with_and_without_kernels"),
    pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel what was read"),
]
LONGEST_S = 30.0
BUG_BYTES = 301
"""The size of a payload that the driver fails to handle."""
PATHS = [Link, PolledLink] if CAN_POLL else [Link]


class Kept:
    """A driver that keeps every payload."""

    def __init__(self) -> None:
        self.came: list[tuple[FrameHeader, bytes]] = []
        """Frames that are complete, in order."""
        self.failed: list[FrameHeader] = []
        self.changed = threading.Condition()
        self._places: dict[int, memoryview] = {}

    def tell(self, *events: ev.Event) -> Receive | None:
        for event in events:
            match event:
                case ev.HeaderReceived(peer, header) if header.kind is not FrameKind.ACK:
                    if header.payload_bytes == BUG_BYTES:
                        raise ZeroDivisionError("a bug")
                    return Receive(How.KEEP, peer, header, buffer=len(self.came))
                case ev.ReceiveFailed(action):
                    self.failed.append(action.header)
        return None

    def arrived(self, peer: int, connection: object, header: FrameHeader) -> None:  # noqa: ARG002
        place = self._places.pop(len(self.came), memoryview(b""))
        with self.changed:
            self.came.append((header, bytes(place)))
            self.changed.notify_all()

    def flow_log(self, peer: int) -> None:  # noqa: ARG002
        return None

    def stamp_us(self) -> int:
        return 0

    def payload_of(self, round_: int) -> RoundPayload | None:
        raise AssertionError(f"round {round_} has no arrays here")

    def is_wanted(self, action: Receive) -> bool:  # noqa: ARG002
        return True

    def keep(self, buffer: int, nbytes: int) -> memoryview:
        self._places[buffer] = memoryview(bytearray(nbytes))
        return self._places[buffer]

    def bytes_to_send(self, action: Transmit) -> memoryview | None:
        raise AssertionError(f"nothing is sent here, got {action}")


class Receiver:
    """A data connection of the given class that receives what is written to a socket."""

    def __init__(self, kind: type[Link] | type[PolledLink], sender: socket.socket, sock: socket.socket) -> None:
        self.host, self.errors = Kept(), list[Exception]()
        self._sender, self._sock, self._left = sender, sock, threading.Semaphore(0)
        outbox = queue.SimpleQueue[Transmit | None]()
        self._poller = Poller()
        if kind is PolledLink:
            self.link: Link | PolledLink = PolledLink(
                self.host, 3, sock, outbox, self.errors.append, self._left.release, self._poller
            )
        else:
            self.link = Link(self.host, 3, sock, outbox, self.errors.append, self._left.release)
        self._outbox = outbox

    def write(self, *parts: bytes) -> None:
        """Send parts, each after the connection has taken the one before from the kernel."""
        for part in parts:
            self._sender.sendall(part)
            while any(fcntl.ioctl(self._sock.fileno(), termios.FIONREAD, bytes(4))):
                time.sleep(0)

    def wait_for(self, frames: int) -> list[tuple[FrameHeader, bytes]]:
        """The frames that have come, when there are so many or the connection has ended."""
        with self.host.changed:
            self.host.changed.wait_for(lambda: len(self.host.came) >= frames or self.errors, LONGEST_S)
        return self.host.came

    def wait_for_end(self) -> None:
        """Wait until the connection has ended by itself."""
        for number in range(self.link.users):
            assert self._left.acquire(timeout=LONGEST_S)
            if not number:
                self._outbox.put(None)

    def close(self) -> None:
        self.link.close()
        self._outbox.put(None)
        self._poller.close()
        self._sender.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sender = socket.create_connection(listening.getsockname())
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sender, listening.accept()[0]


@contextlib.contextmanager
def receiving(
    kind: type[Link] | type[PolledLink], ends: tuple[socket.socket, socket.socket], first: bytes = b""
) -> Iterator[Receiver]:
    """A data connection, which finds `first` when it reads for the first time."""
    sender, sock = ends
    sender.sendall(first)
    found = Receiver(kind, sender, sock)
    try:
        while first and struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))[0] < len(first):
            time.sleep(0)
        found.link.start()
        yield found
    finally:
        found.close()


def payload_of(index: int, nbytes: int) -> bytes:
    return (bytes((index + at) % 251 for at in range(251)) * (nbytes // 251 + 1))[:nbytes]


def frame(index: int, nbytes: int, summed: bool = True, path: tuple[int, ...] = ()) -> bytes:
    payload = payload_of(index, nbytes)
    header = FrameHeader(FrameKind.CHUNK, 7, nbytes, 1, 2, index=index, chunks=9, path=path, hop=bool(path))
    return encode_header(header, payload=payload if summed else None) + payload


def frames(summed: bool = True) -> list[bytes]:
    """Frames of all shapes: with and without path, payload, and kernels for its size."""
    acknowledgement = encode_header(FrameHeader(FrameKind.ACK, 7, index=1, chunks=9))
    return [frame(1, 10, summed), acknowledgement, frame(2, 300, summed, (3, 4, 5)), acknowledgement]


def indices(came: Sequence[tuple[FrameHeader, bytes]]) -> list[int]:
    """What arrived, each payload verified: the index of a chunk, 0 for an acknowledgement."""
    for header, payload in came:
        assert payload == payload_of(header.index, header.payload_bytes)
    return [header.index if header.payload_bytes else 0 for header, _ in came]


@pytest.mark.parametrize("kind", PATHS)
def test_frames_may_be_cut_at_every_byte(kind: type[Link] | type[PolledLink]) -> None:
    stream, sent = b"".join(frames()), 0
    with receiving(kind, tcp_pair()) as receiver:
        for cut in range(1, len(stream)):
            receiver.write(stream[:cut], stream[cut:])
            sent += 4
            assert indices(receiver.wait_for(sent)[-4:]) == [1, 0, 2, 0], cut
        assert receiver.link.traffic.received_frames == len(receiver.host.came) == sent


@pytest.mark.parametrize("kind", PATHS)
def test_frames_may_come_byte_by_byte(kind: type[Link] | type[PolledLink]) -> None:
    stream = b"".join(frames())
    with receiving(kind, tcp_pair()) as receiver:
        receiver.write(*(stream[at : at + 1] for at in range(len(stream))))
        assert indices(receiver.wait_for(4)) == [1, 0, 2, 0]


@pytest.mark.parametrize("kind", PATHS)
def test_frames_on_tls_may_be_cut_anywhere(kind: type[Link] | type[PolledLink], tmp_path: Path) -> None:
    stream, sent = b"".join(frames(summed=False)), 0
    with tls_pair(tmp_path) as ends, receiving(kind, ends) as receiver:
        for cut in range(1, len(stream), 7):
            receiver.write(stream[:cut], stream[cut:])
            sent += 4
            assert indices(receiver.wait_for(sent)[-4:]) == [1, 0, 2, 0], cut


@contextlib.contextmanager
def tls_pair(folder: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of an encrypted connection, made as ranks do it."""
    authority, ends = Authority.create("test"), queue.SimpleQueue[socket.socket]()

    def admitted(sock: socket.socket, _: Peer) -> None:
        ends.put(sock)

    client, server = (
        make_credentials("run", name, b"correct horse battery", "tls", issue(authority, folder, name), False)
        for name in ("ams", "fra")
    )
    listener = Listener([listen_on("127.0.0.1", 0)], server, LONGEST_S, admitted)
    where, dialling = HostPort("127.0.0.1", listener.port), Dialling.to_rank("ams", "fra")
    sock, _ = call(where, client, "data 1.0", time.monotonic() + LONGEST_S, dialling)
    try:
        assert not needs_sums(sock)
        yield sock, ends.get(timeout=LONGEST_S)
    finally:
        listener.close()


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("nbytes", [BLOCK_BYTES, 2 * BLOCK_BYTES + 100, AHEAD_BYTES - 68, AHEAD_BYTES])
def test_blocks_and_frames_may_end_anywhere_in_a_read(kind: type[Link] | type[PolledLink], nbytes: int) -> None:
    """Payloads of one and several blocks, and such that end with the bytes that are read ahead."""
    stream = frame(1, nbytes) + frame(2, 10) + frame(3, nbytes)
    with receiving(kind, tcp_pair()) as receiver:
        for sent, cut in enumerate((1, 59, 60, 68, 69, nbytes, nbytes + 68, nbytes + 70, nbytes + 200, len(stream))):
            receiver.write(stream[:cut], stream[cut:])
            assert indices(receiver.wait_for(3 * sent + 3)[-3:]) == [1, 2, 3], cut


@pytest.mark.parametrize("kind", PATHS)
def test_more_small_frames_than_one_read_brings(kind: type[Link] | type[PolledLink]) -> None:
    count = 4 * AHEAD_BYTES // 378
    with receiving(kind, tcp_pair()) as receiver:
        receiver.write(b"".join(frame(n % 9, 310) for n in range(count)))
        assert indices(receiver.wait_for(count)) == [n % 9 for n in range(count)]


@pytest.mark.parametrize("kind", PATHS)
def test_a_changed_byte_in_the_second_of_three_frames_in_one_read(kind: type[Link] | type[PolledLink]) -> None:
    one, two, three = frame(1, 300), frame(2, 300, path=(1, 2, 3)), frame(3, 300)
    for place in [*range(80), 200, len(two) - 1]:  # header, path, checksums, payload
        changed = bytearray(two)
        changed[place] ^= 1
        with receiving(kind, tcp_pair(), one + bytes(changed) + three) as receiver:
            receiver.wait_for_end()
            assert indices(receiver.host.came) == [1], place
            assert isinstance(receiver.errors[0], BadFrame), place
            assert [header.index for header in receiver.host.failed] == ([2] if place >= 74 else [])
            is_corrupt = isinstance(receiver.errors[0], CorruptFrame)
            assert is_corrupt == (place >= 3) and receiver.link.traffic.corrupt_frames == is_corrupt, place


@pytest.mark.parametrize("kind", PATHS)
def test_an_internal_error_breaks_its_connection(kind: type[Link] | type[PolledLink]) -> None:
    """A peer whose connection has ended without a sign would be waited for."""
    with receiving(kind, tcp_pair(), frame(1, 300) + frame(2, BUG_BYTES)) as receiver:
        receiver.wait_for_end()
        assert indices(receiver.host.came) == [1]
        assert isinstance(receiver.errors[0], ZeroDivisionError)


class Giving(Kept):
    """A driver that gives frames to a connection: one whenever it may send the next."""

    def __init__(self, sizes: Sequence[int | None]) -> None:
        """`sizes`: of the payloads; None: the round of that frame has ended when it is sent."""
        super().__init__()
        self.outbox = queue.SimpleQueue[Transmit | None]()
        self.link: Link | PolledLink | None = None
        self.given, self.transmitted = 0, list[int]()
        self._sizes, self._idle, self._taken = sizes, 0, 0

    def tell(self, *events: ev.Event) -> None:
        for event in events:
            match event:
                case ev.Transmitted(action):
                    with self.changed:
                        self.transmitted.append(action.header.index)
                        self.changed.notify_all()
                case ev.LinkIdle():
                    assert self._idle == self._taken, "each frame that was taken makes room for one"
                    self._idle += 1
                    if self.given == len(self._sizes):
                        return
                    nbytes = self._sizes[self.given] or 1
                    header = FrameHeader(FrameKind.CHUNK, 7, nbytes, 1, 2, index=self.given, chunks=len(self._sizes))
                    self.given += 1
                    self.outbox.put(Transmit(3, header, Source.KEPT))
                    if self.link is not None:
                        self.link.attend()

    def bytes_to_send(self, action: Transmit) -> memoryview | None:
        self._taken += 1
        nbytes = self._sizes[action.header.index]
        return None if nbytes is None else memoryview(payload_of(action.header.index, nbytes))

    def wait_for(self, frames: int) -> None:
        """Wait until so many frames were transmitted."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.transmitted) >= frames, LONGEST_S)


class Noting(socket.socket):
    """A socket that notes how many bytes it is asked to send at once."""

    asked: list[int]

    def sendmsg(self, buffers: Any, *more: Any) -> int:
        self.asked.append(sum(map(len, buffers)))
        return super().sendmsg(buffers, *more)


@contextlib.contextmanager
def giving(
    kind: type[Link] | type[PolledLink], sizes: Sequence[int | None], most_unsent: int
) -> Iterator[tuple[Giving, Noting, socket.socket]]:
    """A data connection to which all its frames are given, its socket, and the other end."""
    end, there = tcp_pair()
    sock = Noting(fileno=end.detach())
    sock.asked = []
    there.settimeout(LONGEST_S)
    shorten_queue(sock, most_unsent)
    host, errors, poller, left = Giving(sizes), list[Exception](), Poller(), threading.Semaphore(0)
    about = host, 3, sock, host.outbox, errors.append, left.release
    host.link = PolledLink(*about, poller) if kind is PolledLink else Link(*about)
    try:
        host.link.start()
        yield host, sock, there
    finally:
        there.close()
        host.link.close()
        host.outbox.put(None)
        poller.close()
        for _ in range(host.link.users):
            assert left.acquire(timeout=LONGEST_S)


@pytest.mark.parametrize("kind", PATHS)
def test_frames_are_sent_in_the_order_in_which_they_are_given(kind: type[Link] | type[PolledLink]) -> None:
    sizes = [*(40 + n for n in range(200)), None, 5000, None, None, 70_000, 300_000, 10, *[9000] * 20]
    with giving(kind, sizes, 128 * 1024) as (host, sock, there):
        came, reader = list[tuple[FrameHeader, bytes]](), FrameReader()
        while len(came) < len(sizes) - 3:
            came += reader.feed(there.recv(2**16))
        host.wait_for(len(sizes))
        assert [(h.index, body) for h, body in came] == [
            (n, payload_of(n, size)) for n, size in enumerate(sizes) if size is not None
        ]
        assert host.transmitted == list(range(len(sizes)))
        assert host.link is not None and host.link.traffic.sent_frames == len(came)
        if kind is PolledLink:
            assert len(sock.asked) < 100, "small frames are sent together"


@pytest.mark.skipif(not CAN_POLL, reason="other connections send one by one")
def test_frames_sent_together_have_at_most_half_of_what_the_kernel_may_hold() -> None:
    with giving(PolledLink, [1000] * 500, 16 * 1024) as (host, sock, there):
        missing = 500 * len(frame(0, 1000))
        while missing:
            missing -= len(there.recv(missing))
        host.wait_for(500)
        assert max(sock.asked) <= 8 * 1024 + 1068 and max(sock.asked) > 2 * 1068


@pytest.mark.parametrize("kind", PATHS)
def test_each_frame_that_was_given_is_over_when_the_connection_breaks(kind: type[Link] | type[PolledLink]) -> None:
    with giving(kind, [1000] * 50_000, 128 * 1024) as (host, _, there):
        host.wait_for(10)
        there.close()
    rest = [host.outbox.get_nowait() for _ in range(host.outbox.qsize())]  # the end of the queue may be among them
    waiting = [action.header.index for action in rest if action is not None]
    assert sorted(host.transmitted + waiting) == list(range(host.given)) and host.given < 50_000
