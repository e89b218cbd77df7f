"""Data connections whose frames the kernels in C encrypt, under keys that both ends have made inside TLS.

TLS authenticates the ends and protects the handshake of the run; then the same TCP connection carries frames under
AES-256-GCM, block by block (`native/aead.h`). One call encrypts and sends a whole frame, or receives, verifies and adds
a payload, without the interpreter's lock, where a call of `ssl` receives 16 KiB. Decision 40 says what protects what.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from tradewind.errors import BadFrame, CorruptFrame
from tradewind.native import SEALED_BYTES, Addition
from tradewind.native.aead import Aead
from tradewind.runtime.forking import OwnerProcess
from tradewind.runtime.tls import TlsSocket
from tradewind.wire.frame_keys import BLOCKS_OF_KEY, FrameKeys, KeyChain
from tradewind.wire.frames import HEADER_BYTES


class _Direction:
    """One direction of a connection: its keys, one after the other.

    Every use is inside `with`, which excludes others; it is never used again after one that raised an exception.
    """

    def __init__(self, aead: Aead, chain: KeyChain, seals: bool, blocks_of_key: int) -> None:
        self._lock = threading.Lock()
        self.scratch = np.empty(SEALED_BYTES, np.uint8)
        self._aead, self._chain, self._seals, self._blocks_of_key = aead, chain, seals, blocks_of_key
        self.change_key()

    def change_key(self) -> None:
        self.state = self._aead.direction(*self._chain.take(), self._blocks_of_key, self._seals)

    def __enter__(self) -> _Direction:
        self._lock.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.state.broken = 1
        self._lock.release()


class AeadSocket(socket.socket):
    """A connected, blocking TCP socket for encrypted frames. It cannot carry anything else, nor be shared by processes.

    What is received must be asked for as it was sent: header, path and payload one by one.
    """

    def __init__(self, sock: TlsSocket, keys: FrameKeys, aead: Aead, blocks_of_key: int = BLOCKS_OF_KEY) -> None:
        """Take over the socket of a TLS connection after the handshake of the run; it is detached.

        Raises BadFrame if the other side has sent more inside TLS.
        """
        if sock.holds_bytes:
            raise BadFrame("more bytes arrived inside TLS than those of the handshake.")
        super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())
        self.setblocking(True)
        self._owner, self._kernels = OwnerProcess(), aead.kernels
        self._sending = _Direction(aead, keys.sending, True, blocks_of_key)
        self._receiving = _Direction(aead, keys.receiving, False, blocks_of_key)

    # --- sending -------------------------------------------------------------------------------------------------

    def sendmsg(self, buffers: Iterable[Any], ancdata: Any = (), flags: int = 0, address: Any = None) -> int:
        """Send a frame: its header, with its path, and its payload; returns the size of both."""
        assert not ancdata and not flags and address is None
        self._owner.check("a data connection")  # a copy of this process would use the same nonces
        head, *body = (np.frombuffer(part, np.uint8) for part in buffers)
        parts = [part for part in (head[:HEADER_BYTES], head[HEADER_BYTES:], *body) if part.nbytes]
        size, done = sum(part.nbytes for part in parts), 0
        with self._sending as sending:
            while done < size:
                done = self._kernels.send_sealed(sending.state, self.fileno(), parts, done, sending.scratch)
                if done < size:
                    sending.change_key()
        return size

    def sendall(self, data: Any, flags: int = 0) -> NoReturn:  # noqa: ARG002 - the interface of sockets
        """Raise OSError, as for any connection that cannot be used: only frames can be sent."""
        raise OSError(errno.EOPNOTSUPP, "this connection carries encrypted frames only")

    send = sendto = sendfile = recv = recvfrom = recvmsg = recvfrom_into = recvmsg_into = sendall  # type: ignore[assignment]

    # --- receiving -----------------------------------------------------------------------------------------------

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:  # noqa: ARG002 - it always fills
        """Fill a buffer with a header, a path, a payload, or the next blocks of one; returns its size."""
        place = np.frombuffer(buffer, np.uint8)
        if nbytes and nbytes != place.nbytes:
            raise ValueError(f"{nbytes} bytes into a buffer of {place.nbytes}")
        if not place.flags.writeable:
            raise ValueError("the buffer is read-only")
        return self._receive(place, place.nbytes, None)

    def receive_added(self, nbytes: int, adding: Addition) -> None:
        """Receive a payload and add its blocks, each one after it was verified."""
        self._receive(None, nbytes, adding)

    def _receive(self, place: Any, nbytes: int, adding: Addition | None) -> int:
        self._owner.check("a data connection")
        done = 0
        with self._receiving as receiving:
            while done < nbytes:
                try:
                    span = done, nbytes
                    done = self._kernels.receive_sealed(
                        receiving.state, self.fileno(), place, span, receiving.scratch, adding
                    )
                except OSError as error:
                    if error.errno == errno.EBADMSG:
                        raise CorruptFrame(
                            "bytes of an encrypted frame were changed on the way, left out, or repeated: its tag does "
                            "not match."
                        ) from None
                    raise
                if done < nbytes:
                    receiving.change_key()
        return nbytes
