"""Helpers for blocking sockets: options, connecting, handshakes, and sending and receiving complete frames."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence

from tradewind.errors import BadFrame, NoAnswer, NotAdmitted
from tradewind.native.aead import aead
from tradewind.runtime.addresses import HostPort, is_own_process, neighbour_address
from tradewind.runtime.aead_socket import AeadSocket
from tradewind.runtime.certificates import SecureCredentials
from tradewind.runtime.dialling import Dialling, dial
from tradewind.runtime.forking import close_in_children
from tradewind.runtime.tls import TlsSocket, secure
from tradewind.wire.frame_keys import CONTRIBUTION_BYTES
from tradewind.wire.frames import (
    HEADER_BYTES,
    FrameHeader,
    decode_header,
    payload_length,
    rest_bytes,
)
from tradewind.wire.handshake import (
    DATA_PURPOSE,
    MAX_HANDSHAKE_BYTES,
    NONCE_BYTES,
    Channel,
    ClientHandshake,
    Credentials,
    Handshake,
    Peer,
    ServerHandshake,
)

log = logging.getLogger("tradewind.runtime")

NEIGHBOUR_BUFFER_BYTES = 416 * 1024
"""With 208 KiB, the default, there are three times as many context switches; 2 MiB exceeds the cache."""
_SIOCOUTQNSD = 0x894B
_TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)
SO_MAX_PACING_RATE = getattr(socket, "SO_MAX_PACING_RATE", 47)
UNPACED = 2**32 - 1
"""The rate that stands for no limit, in bytes/s."""


def shorten_queue(sock: socket.socket, nbytes: int) -> None:
    """Limit the unsent bytes in the kernel, for slow links; on fast ones that only costs wake-ups."""
    with contextlib.suppress(OSError):  # optional: not every kernel has it
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, nbytes)


def unsent_limit(sock: socket.socket) -> int:
    """The most unsent bytes in the kernel, as `shorten_queue` has set it; 0: not known."""
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT)
    except OSError:
        return 0


def pace(sock: socket.socket, bytes_per_s: int) -> None:
    """Let the kernel's TCP send at most at this rate; `UNPACED`: as congestion control allows."""
    with contextlib.suppress(OSError):  # optional: not every kernel has it
        sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=I", min(bytes_per_s, UNPACED)))


def needs_sums(sock: socket.socket) -> bool:
    """Whether payloads need checksums: not if they are encrypted, nor where they stay in the memory of one kernel."""
    return sock.family != socket.AF_UNIX and not isinstance(sock, TlsSocket | AeadSocket)


def has_unsent(sock: socket.socket) -> bool:
    """Whether the kernel holds bytes that it has not sent yet because the link is busy."""
    try:
        return any(fcntl.ioctl(sock.fileno(), _SIOCOUTQNSD, b"\0\0\0\0"))
    except OSError:  # the system does not support it, or the connection has ended
        return False


def set_timeout(sock: socket.socket, seconds: float) -> None:
    """Set the timeout of every receive and send in the kernel, so that the socket stays blocking; 0: no timeout."""
    whole, part = int(seconds), int(seconds % 1 * 1e6)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", whole, part))


def receive_into(sock: socket.socket, place: memoryview) -> None:
    """Fill a contiguous buffer; raises ConnectionError if the other side closes the connection."""
    missing, count = place.nbytes, 0
    while missing:
        # Almost always the first call fills it completely, and no view is needed.
        view = place if missing == place.nbytes else place.cast("B")[-missing:]
        count = sock.recv_into(view, 0, socket.MSG_WAITALL)
        if count == 0:
            raise ConnectionResetError("the other side closed the connection")
        missing -= count


def rest_of(parts: list[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    """The unsent rest of some parts of which `sent` bytes have been sent.

    >>> [bytes(part) for part in rest_of([b"head", b"body"], 6)]
    [b'dy']
    """
    if sent == sum(map(len, parts)):  # almost always
        return []
    left = [memoryview(part).cast("B") for part in parts]
    while sent >= len(left[0]):
        sent -= len(left.pop(0))
    left[0] = left[0][sent:]
    return [*left]


def send_all(sock: socket.socket, parts: list[bytes | memoryview]) -> None:
    """Send all parts, almost always with one system call."""
    while parts:
        parts = rest_of(parts, sock.sendmsg(parts))


def receive_header(sock: socket.socket, buffer: memoryview) -> FrameHeader:
    """Receive the header of the next frame; `buffer` is scratch memory for it."""
    fixed = buffer[:HEADER_BYTES]
    receive_into(sock, fixed)
    rest = rest_bytes(fixed)
    end = HEADER_BYTES + rest
    receive_into(sock, buffer[HEADER_BYTES:end])
    return decode_header(buffer[:end])


def _receive_exactly(sock: socket.socket, nbytes: int, deadline_s: float, other: str) -> bytes:
    data, missing = bytearray(nbytes), nbytes
    while missing:
        left = deadline_s - time.monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        count = sock.recv_into(memoryview(data)[-missing:])
        if not count:
            raise NotAdmitted(f"{other} closed the connection during the handshake.")
        missing -= count
    return bytes(data)


def shake_hands(sock: socket.socket, handshake: Handshake, deadline_s: float, other: str) -> Peer:
    """Perform a handshake and return the authenticated peer; `other` names the other side in errors.

    Raises NotAdmitted, NoAnswer or BadFrame, and sends the reason to the other side if there is one.
    """
    try:
        if isinstance(handshake, ClientHandshake):
            sock.sendall(handshake.start())
        while handshake.peer is None:
            # Exactly one frame: bytes after the last one are not part of the handshake.
            fixed = _receive_exactly(sock, HEADER_BYTES, deadline_s, other)
            answer = handshake.receive(fixed)
            if payload_length(fixed) > MAX_HANDSHAKE_BYTES:
                raise BadFrame(
                    f"{other} announced {payload_length(fixed)} bytes in the handshake, expected at most "
                    f"{MAX_HANDSHAKE_BYTES}."
                )
            body = _receive_exactly(sock, rest_bytes(fixed) + payload_length(fixed), deadline_s, other)
            answer += handshake.receive(body)
            if answer:
                sock.sendall(answer)
    except TimeoutError:
        raise NoAnswer(f"{other} did not answer the handshake in time. It may be busy, or not be Tradewind.") from None
    except (NotAdmitted, BadFrame):
        with contextlib.suppress(OSError):
            sock.sendall(handshake.last_words)
        raise
    except OSError as error:
        raise NotAdmitted(f"{other} broke the connection during the handshake ({error}).") from None
    sock.settimeout(None)
    return handshake.peer


def dial_neighbour(address: HostPort, run: str, site: str, again: bool = False) -> socket.socket | None:
    """Connect through a Unix socket if that rank is on this machine, in the same network namespace; else None.

    A listener of another user is not that rank, whatever its name is: None, and TCP finds the right process. So it does
    where a listener has no room for another connection, which blocking calls would wait for without a limit. `again`:
    what another user's listener is has been logged.
    """
    path = neighbour_address(run, site, address.port)
    if path is None:
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.connect(path)
        sock.setblocking(True)
        if is_own_process(sock):
            return sock
        if not again:
            log.warning("another user of this machine listens at the local address of %r; TCP is used instead", site)
    except OSError:
        pass
    sock.close()
    return None


def tune(sock: socket.socket) -> None:
    """Set options: TCP sends small frames at once; Unix sockets have larger buffers, for fewer context switches."""
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NEIGHBOUR_BUFFER_BYTES)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _keying(credentials: Credentials, channel: Channel | None) -> bytes:
    """This side's part of the keys of encrypted frames; empty if it does not use them."""
    wants = channel is not None and isinstance(credentials, SecureCredentials) and credentials.aead_frames
    return secrets.token_bytes(CONTRIBUTION_BYTES) if wants and aead() is not None else b""


def _settled(sock: socket.socket, handshake: Handshake) -> socket.socket:
    """The socket to use after the handshake: one that encrypts frames, if both sides do."""
    if isinstance(sock, TlsSocket):
        if (keys := handshake.frame_keys()) is None:
            sock.read_ahead()
        else:
            found = aead()
            assert found is not None
            sock = AeadSocket(sock, keys, found)
    return close_in_children(sock)


def call(
    address: HostPort,
    credentials: Credentials,
    purpose: str,
    deadline_s: float,
    dialling: Dialling,
    expected: str | None = None,
    local: str | None = None,
    answer_s: float = 0.0,
) -> tuple[socket.socket, Peer]:
    """Connect to an address and authenticate; returns the socket and the peer.

    `expected` is the name that the peer must have. `local` is the name under which it listens on a Unix socket, which
    is used if the peer is on this machine; None: TCP only. Connecting ends at `deadline_s`. A process that has accepted
    the connection may be busy, so the handshake has at least `answer_s` seconds, even beyond the deadline. Raises
    PeerLost, NotAdmitted, NoAnswer or BadFrame.
    """
    near = None if local is None else dial_neighbour(address, credentials.run, local)
    sock, other = near or dial(address, deadline_s, dialling), f"the process listening at {address}"
    if near is None and local is not None and (near := dial_neighbour(address, credentials.run, local, True)):
        hang_up(sock)  # that process was still starting
        sock = near
    answered_s = max(deadline_s, time.monotonic() + answer_s)
    sock, channel = secure(close_in_children(sock), credentials, False, answered_s, other)
    keying = _keying(credentials, channel) if purpose.startswith(DATA_PURPOSE) else b""
    try:
        tune(close_in_children(sock))
        handshake = ClientHandshake(credentials, purpose, secrets.token_bytes(NONCE_BYTES), expected, channel, keying)
        peer = shake_hands(sock, handshake, answered_s, other)
        return _settled(sock, handshake), peer
    except BaseException:
        sock.close()
        raise


def admit(
    sock: socket.socket, credentials: Credentials, deadline_s: float, purposes: Sequence[str] = ("",)
) -> tuple[socket.socket, Peer]:
    """Authenticate the caller of an accepted connection; returns the socket to use, and the peer.

    A caller whose purpose begins with none of `purposes` is refused. Raises NotAdmitted, NoAnswer or BadFrame; the
    connection is closed then.
    """
    sock, channel = secure(sock, credentials, True, deadline_s, "a caller")
    try:
        keying = _keying(credentials, channel)
        handshake = ServerHandshake(credentials, secrets.token_bytes(NONCE_BYTES), channel, keying, purposes)
        peer = shake_hands(sock, handshake, deadline_s, "a caller")
        tune(sock)
        return _settled(sock, handshake), peer
    except BaseException:
        hang_up(sock)
        raise


def shut_down(sock: socket.socket) -> None:
    """Shut a socket down in both directions, which wakes blocked threads; the last user must close it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class SharedSocket:
    """A socket of several threads. The last one to leave closes it, since its file descriptor may be reused at once."""

    def __init__(self, sock: socket.socket, users: int) -> None:
        self._sock, self._users, self._lock = sock, users, threading.Lock()

    def wake(self) -> None:
        """Shut the socket down, which wakes every thread that is blocked on it."""
        with self._lock:
            if self._users:
                shut_down(self._sock)

    def option(self, level: int, name: int, nbytes: int) -> bytes:
        """The result of `getsockopt`; empty if the socket is closed or has no such option."""
        with self._lock, contextlib.suppress(OSError):
            if self._users:
                return self._sock.getsockopt(level, name, nbytes)
        return b""

    def unpace(self) -> None:
        """End the limit that `pace` has set."""
        with self._lock:
            if self._users:
                pace(self._sock, UNPACED)

    def leave(self) -> None:
        """Release the socket for one thread; the last release closes it."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._sock.close()


def hang_up(sock: socket.socket) -> None:
    """Shut down and close a socket that no other thread uses: its file descriptor may be reused at once."""
    shut_down(sock)
    sock.close()
