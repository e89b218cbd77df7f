"""TLS 1.3 on TCP connections of a run, with certificates on both sides.

The socket stays a plain one, with its options, timeouts and blocking mode; OpenSSL encrypts and decrypts in memory, and
never waits. So one lock serves both directions of a connection, which OpenSSL requires, although one thread may wait
for input while another one sends. OpenSSL releases the interpreter lock, and several connections to a peer use several
cores. What is sent together is encrypted first and given to the kernel at once.

The end of a TLS connection is that of its TCP connection: frames have lengths, and ranks say when they leave.

Until `read_ahead` is called, a connection takes no byte from the kernel beyond the current record, so that the socket
can be given to `aead_socket` after the handshake of the run.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from typing import Any

from tradewind.errors import NoAnswer, NotAdmitted
from tradewind.runtime.certificates import Loaded, SecureCredentials, Validity, names_in
from tradewind.wire.greetings import Refused
from tradewind.wire.handshake import Channel, Credentials
from tradewind.wire.messages import encode_message

RECORD_BYTES = 16 * 1024
"""The most data in one record of TLS."""
RECORD_HEADER_BYTES = 5
"""The last two are the length of the rest of the record."""
BATCH_BYTES = 256 * 1024
"""Data that is encrypted before it is given to the kernel, and the most that is read from the kernel at once."""
_HANDSHAKE_RECORD = b"\x16"


class TlsSocket(socket.socket):
    """A connected TCP socket that encrypts. Use it as any other: only `recv` may return more than it is asked for."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_side: bool) -> None:
        """Take over a connected socket, which is detached; `shake_hands` must follow."""
        timeout = sock.gettimeout()
        super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())
        self.settimeout(timeout)
        self._lock = threading.Lock()
        """Guards OpenSSL's objects."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side)
        self._received = memoryview(bytearray(BATCH_BYTES))
        self._reads_ahead = False
        self._record_head, self._record_left = b"", 0
        """What is known of the header of the record that is being received; outstanding bytes behind the header."""
        self._unsent = memoryview(b"")
        """Encrypted bytes that the kernel has not taken yet."""
        self._unsent_plain = 0
        """How many bytes of the caller these stand for, and headers of records."""

    def shake_hands(self, deadline_s: float) -> None:
        """Perform TLS's handshake; raises TimeoutError or another OSError."""
        done = False
        while not done:
            self._wait_until(deadline_s)
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    super().sendall(self._outgoing.read())  # the alert
                raise
            super().sendall(self._outgoing.read())
            if not done and not self._fill(0):
                raise ConnectionResetError("the other side closed the connection")

    def _wait_until(self, deadline_s: float) -> None:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self.settimeout(left_s)

    def peer_certificate(self) -> tuple[dict[str, Any], bytes]:
        """The verified certificate of the other side, decoded and in DER format."""
        decoded, der = self._tls.getpeercert(), self._tls.getpeercert(True)
        assert decoded and der is not None
        return decoded, der

    def read_ahead(self) -> None:
        """Take all that the kernel has from now on: the connection stays one of TLS."""
        self._reads_ahead, self._record_head, self._record_left = True, b"", 0

    @property
    def holds_bytes(self) -> bool:
        """Whether bytes were taken from the kernel that the caller has not received."""
        with self._lock:
            held = self._incoming.pending or self._tls.pending() or self._unsent
        return bool(held or self._record_head or self._record_left or self._reads_ahead)

    # --- receiving -----------------------------------------------------------------------------------------------

    def _fill(self, flags: int) -> int:
        """Take what the kernel has received; returns how many bytes, 0 at the end of the connection."""
        most = BATCH_BYTES if self._reads_ahead else self._record_left or RECORD_HEADER_BYTES - len(self._record_head)
        count = super().recv_into(self._received[:most], 0, flags & socket.MSG_DONTWAIT)
        if self._record_left:
            self._record_left -= count
        elif not self._reads_ahead:
            self._record_head += self._received[:count]
            if len(self._record_head) == RECORD_HEADER_BYTES:
                self._record_head, self._record_left = b"", int.from_bytes(self._record_head[3:], "big")
        with self._lock:
            self._incoming.write(self._received[:count])
        return count

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive into a contiguous buffer; returns how many bytes, 0 at the end.

        It is filled as far as possible without waiting, so that a non-blocking socket that returns less has no more.
        """
        place = memoryview(buffer).cast("B")
        size = min(nbytes or len(place), len(place))
        waits = bool(flags & socket.MSG_WAITALL) or self.gettimeout() == 0.0
        done = 0
        while True:
            try:
                with self._lock:
                    while done < size:
                        count: Any = self._tls.read(size - done, place[done:size])
                        if not count:
                            return done
                        done += count
                return done
            except ssl.SSLWantReadError:
                pass
            if done and not waits:
                return done
            try:
                if not self._fill(flags):
                    return done
            except BlockingIOError:
                if done:
                    return done
                raise

    def recvmsg_into(
        self, buffers: Iterable[Any], ancbufsize: int = 0, flags: int = 0
    ) -> tuple[int, list[Any], int, Any]:
        """Receive into contiguous buffers, one after the other; returns how many bytes, and what `socket` does."""
        assert not ancbufsize
        done = 0
        for buffer in buffers:
            try:
                count = self.recv_into(buffer, 0, flags)
            except BlockingIOError:
                if done:
                    break
                raise
            done += count
            if count < len(buffer):
                break
        return done, [], 0, None

    def recv(self, size: int, flags: int = 0) -> bytes:  # noqa: ARG002 - what has been decrypted cannot stay behind
        """Receive all that can be decrypted now, at least one byte; empty at the end.

        It may be more than `size`: a selector does not see what stays behind.
        """
        while True:
            parts = []
            with self._lock, contextlib.suppress(ssl.SSLWantReadError):
                while part := self._tls.read(RECORD_BYTES):
                    parts.append(part)
            if parts:
                return b"".join(parts)
            if not self._fill(flags):
                return b""

    # --- sending -------------------------------------------------------------------------------------------------

    def _encrypt(self, parts: Iterable[Any]) -> None:
        """Encrypt the first `BATCH_BYTES` of some parts; a short first part goes into one record with the second."""
        views = [memoryview(part).cast("B") for part in parts]
        if len(views) > 1 and len(views[0]) < RECORD_BYTES:
            cut = RECORD_BYTES - len(views[0])
            views[:2] = memoryview(b"".join((views[0], views[1][:cut]))), views[1][cut:]
        taken = 0
        with self._lock:
            for view in views:
                at, end = 0, min(len(view), BATCH_BYTES - taken)
                while at < end:
                    at += self._tls.write(view[at:end])
                taken += at
            self._unsent, self._unsent_plain = memoryview(self._outgoing.read()), taken

    def sendmsg(self, buffers: Iterable[Any], ancdata: Any = (), flags: int = 0, address: Any = None) -> int:
        """Send the first bytes of some buffers; returns how many.

        Where the kernel does not take all that was encrypted, BlockingIOError is raised, and the next call must begin
        with the same bytes.
        """
        assert not ancdata and address is None
        if not self._unsent:
            self._encrypt(buffers)
        while self._unsent:
            self._unsent = self._unsent[super().send(self._unsent, flags) :]
        return self._unsent_plain

    def send(self, data: Any, flags: int = 0) -> int:
        """Send the first bytes of some data; see `sendmsg`."""
        return self.sendmsg([data], flags=flags)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all data."""
        view = memoryview(data).cast("B")
        while len(view):
            view = view[self.sendmsg([view], flags=flags) :]


def secure(
    sock: socket.socket, credentials: Credentials, server_side: bool, deadline_s: float, other: str
) -> tuple[socket.socket, Channel | None]:
    """Encrypt a new connection if the run does so to its address; returns the socket to use and what TLS says.

    `other` names the other side in errors. Raises NotAdmitted or NoAnswer; the socket is closed then.
    """
    if sock.family == socket.AF_UNIX or not isinstance(credentials, SecureCredentials):
        return sock, None
    try:
        if not credentials.encrypts(str(sock.getpeername()[0])):
            return sock, None
        loaded = credentials.certificates.current()
        if server_side:
            _expect_tls(sock, credentials, deadline_s)
        elif problem := loaded.problem(time.time()):
            raise NotAdmitted(problem)
        secured = TlsSocket(sock, loaded.server if server_side else loaded.client, server_side)
    except (TimeoutError, BlockingIOError):
        sock.close()
        raise NoAnswer(f"{other} sent nothing in time.") from None
    except OSError as error:
        sock.close()
        raise NotAdmitted(f"{other} broke the connection ({error}).") from None
    except NotAdmitted:
        sock.close()
        raise
    try:
        secured.shake_hands(deadline_s)
        return secured, _channel(secured, loaded, server_side)
    except TimeoutError:
        secured.close()
        raise NoAnswer(f"{other} did not complete the TLS handshake in time. It may be busy.") from None
    except OSError as error:
        secured.close()
        raise NotAdmitted(_explain(error, other, loaded)) from None


def _expect_tls(sock: socket.socket, credentials: SecureCredentials, deadline_s: float) -> None:
    """Raise NotAdmitted if the caller does not begin with TLS, and send it the reason."""
    sock.settimeout(max(0.01, deadline_s - time.monotonic()))
    first = sock.recv(1, socket.MSG_PEEK)
    if first and first != _HANDSHAKE_RECORD:
        reason = (
            f"{credentials.site!r} accepts encrypted connections only, and the caller does not use TLS. Set the same "
            "security= and give certificates at all ranks."
        )
        with contextlib.suppress(OSError):
            sock.sendall(encode_message(Refused(reason), credentials.number))
        raise NotAdmitted(reason)


def _channel(secured: TlsSocket, loaded: Loaded, server_side: bool) -> Channel:
    """What TLS says of the other side, and a digest of both certificates that binds the handshake of the run to them.

    The exporter of TLS 1.3, which would bind it to this very connection, is missing in the ssl module.
    """
    decoded, der = secured.peer_certificate()
    names = names_in(decoded)
    valid = Validity.of(f"the certificate of {', '.join(map(repr, names)) or 'no site'}", decoded)
    ends = (der, loaded.der) if server_side else (loaded.der, der)
    binding = hashlib.sha256(b"".join(hashlib.sha256(end).digest() for end in ends)).digest()
    return Channel(names, binding, valid.problem(time.time()) or loaded.ca.problem(time.time()))


def _explain(error: OSError, other: str, loaded: Loaded) -> str:
    reason = getattr(error, "reason", None) or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"{other} has a certificate that {loaded.files.ca} has not signed ({error.verify_message}). Issue all "
            "certificates of a run with one CA."
        )
    if reason == "WRONG_VERSION_NUMBER":
        return f"{other} does not use TLS 1.3. Set the same security= and give certificates at all ranks."
    return f"{other} broke the TLS handshake ({reason}). Check {loaded.files.certificate} and the CA at both ends."
