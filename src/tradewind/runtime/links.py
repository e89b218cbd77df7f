"""Data connections with two threads each, a receiver and a sender, which never hold the node's lock during a payload.

The receiver asks the node for the destination of a payload when it has the header: the result, a kept buffer, or, block
by block through a scratch buffer that stays in the cache, addition to a buffer. The sender takes frames from the queue
of its peer, which all connections to that peer share.
"""

from __future__ import annotations

import logging
import queue
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol

import numpy as np

from tradewind.errors import BadFrame, CorruptFrame
from tradewind.native import Addition, can_sum, kernels
from tradewind.node import events as ev
from tradewind.node.actions import How, Receive, Transmit
from tradewind.node.payload import RoundPayload
from tradewind.runtime.aead_socket import AeadSocket
from tradewind.runtime.connections import BufferUse
from tradewind.runtime.liveness import Liveness
from tradewind.runtime.shaping import ShapedSender
from tradewind.runtime.sockets import SharedSocket, has_unsent, needs_sums, receive_header, receive_into, send_all
from tradewind.runtime.stats import Traffic
from tradewind.runtime.threads import start_thread
from tradewind.runtime.tls import TlsSocket
from tradewind.wire.frames import (
    BLOCK_BYTES,
    HEADER_BYTES,
    MAX_REST_BYTES,
    FrameHeader,
    FrameKind,
    check_payload,
    encode_header,
    header_for,
)

log = logging.getLogger("tradewind.runtime")

SCRATCH_BYTES = BLOCK_BYTES
"""Each block is verified in the scratch buffer before it is added."""
Transport = Literal["tcp", "tls", "tls-aead", "unix"]


class SentLog(Protocol):
    """Where a connection notes what it sends; for its sender only."""

    is_over: bool
    """Whether the connection has ended."""

    def sent(self, header: FrameHeader, nbytes: int, began_s: float) -> None:
        """Note that a frame with so many bytes of payload was sent, beginning at `began_s`."""
        ...


class Host(Protocol):
    """The driver that owns a data connection, as far as the connection uses it."""

    def tell(self, *events: ev.Event) -> Receive | None:
        """Let the node handle events and execute its actions, except for a `Receive`, which is returned."""
        ...

    def arrived(self, peer: int, connection: object, header: FrameHeader) -> None:
        """Note that a complete frame has arrived."""
        ...

    def flow_log(self, peer: int) -> SentLog | None:
        """Where a new connection to a peer notes what it sends; None: nowhere."""
        ...

    def stamp_us(self) -> int:
        """The timestamp for frames that are sent now, in microseconds; 0 if links are not measured."""
        ...

    def payload_of(self, round_: int) -> RoundPayload | None:
        """The arrays of a round; None if it has ended."""
        ...

    def is_wanted(self, action: Receive) -> bool:
        """Whether the chunk that is being received is still needed: its round may have been halted or have ended."""
        ...

    def keep(self, buffer: int, nbytes: int) -> memoryview:
        """Memory for a kept chunk."""
        ...

    def bytes_to_send(self, action: Transmit) -> memoryview | None:
        """The payload of a frame; None if its round has ended and the payload is not needed."""
        ...


def transport_of(sock: socket.socket) -> Transport:
    """How a connection carries bytes."""
    if isinstance(sock, AeadSocket):
        return "tls-aead"
    return "tls" if isinstance(sock, TlsSocket) else "unix" if sock.family == socket.AF_UNIX else "tcp"


def frame_of(
    host: Host, action: Transmit, sock: socket.socket, summed: bool, kernel_queues: bool = True
) -> tuple[bytes, memoryview] | None:
    """Header and payload of a frame that is sent now; None if its round has ended.

    `summed`: the header has checksums of the payload. `kernel_queues`: frames wait for the link in the socket's send
    queue, and the header records whether any do.
    """
    body = host.bytes_to_send(action)
    if body is None:
        return None
    sent_us = host.stamp_us()
    queued = bool(sent_us) and kernel_queues and has_unsent(sock)
    header = header_for(action.header, len(body))
    return encode_header(header, sent_us, queued, body if summed else None), body


def check_received(host: Host, traffic: Traffic, action: Receive, part: memoryview, start: int = 0) -> None:
    """Raise CorruptFrame if a part of a payload, from byte `start`, was changed on the way, and count it.

    The sender of a chunk that is not needed any more may overwrite it while it is being sent: that is only counted.
    """
    try:
        check_payload(action.header, part.cast("B"), start)
    except CorruptFrame:
        if host.is_wanted(action):
            raise
        traffic.corrupt_frames += 1


def check_summed(header: FrameHeader) -> None:
    """Raise BadFrame if a payload without checksums is announced on a connection that needs them."""
    if header.payload_bytes and not header.sums:
        raise BadFrame(f"a {header.kind.name} frame has no checksums, which this connection needs.")


class Link:
    """One data connection to a peer."""

    users = 2
    """How often `ended` is called."""

    def __init__(
        self,
        host: Host,
        peer: int,
        sock: socket.socket,
        outbox: queue.SimpleQueue[Transmit | None],
        broke: Callable[[Exception], None],
        ended: Callable[[], None],
        shaped: ShapedSender | None = None,
    ) -> None:
        self.peer = peer
        self._host, self._sock, self._outbox, self._shaped = host, sock, outbox, shaped
        self._broke, self._ended, self._log = broke, ended, host.flow_log(peer)
        self._summed = needs_sums(sock)
        self._crosses_network = shaped is None and sock.family != socket.AF_UNIX
        self._shared = SharedSocket(sock, self.users)
        self.liveness, self.buffer_use = Liveness(self._shared), BufferUse(self._shared)
        self.traffic = Traffic()
        self.transport = transport_of(sock)
        self._kernels = None if self.transport in ("tls", "tls-aead") else kernels()
        self._sealed = sock if isinstance(sock, AeadSocket) else None
        self._receiving: Receive | None = None
        """The payload that is being received, if any."""
        self._scratch = np.empty(SCRATCH_BYTES, dtype=np.uint8)

    def start(self) -> None:
        """Start the receiver and the sender; each calls `ended` when it ends."""
        for target, name in ((self._receive, "rx"), (self._send, "tx")):
            start_thread(target, name=f"tradewind-{name}-{self.peer}")

    @property
    def is_receiving(self) -> bool:
        """Whether a payload is arriving."""
        return self._receiving is not None

    def unpace(self) -> None:
        """Let the kernel send as fast as congestion control allows."""
        self._shared.unpace()

    def attend(self) -> None:
        """Note that there is something to send. Does nothing: the sender waits on the queue."""

    def close(self) -> None:
        """Make both threads end."""
        self._shared.wake()
        if self._shaped is not None:
            self._shaped.close()

    # --- receiving -----------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            with np.errstate(all="ignore"):  # infinities and NaN are valid results
                self._receive_frames()
        except (BadFrame, OSError) as error:
            self.traffic.corrupt_frames += isinstance(error, CorruptFrame)
            self._broke(error)
        except Exception as error:  # a bug: the peer must still be taken for unreachable over this connection
            log.exception("internal error on a data connection; please report it")
            self._broke(error)
        finally:
            self.close()
            if self._receiving is not None:
                self._host.tell(ev.ReceiveFailed(self._receiving))
            self._shared.leave()
            self._ended()

    def _receive_frames(self) -> None:
        sock, host = self._sock, self._host
        scratch = memoryview(bytearray(HEADER_BYTES + MAX_REST_BYTES))
        while True:
            header = receive_header(sock, scratch)
            if self._summed:
                check_summed(header)
            action = host.tell(ev.HeaderReceived(self.peer, header))
            self.liveness.received()
            self.traffic.received_frames += 1
            if header.kind is not FrameKind.ACK:
                assert action is not None
                self._receiving = action
                self._receive_payload(action)
                self.traffic.received_bytes += header.payload_bytes  # before the round can end
                host.tell(ev.Received(action))
                self._receiving = None
            host.arrived(self.peer, self, header)

    def _receive_payload(self, action: Receive) -> None:
        nbytes = action.header.payload_bytes
        keeps = action.how in (How.KEEP, How.DISCARD)
        payload = None if keeps else self._host.payload_of(action.header.round)
        if action.buffer is not None:  # kept, or encoded
            place = self._host.keep(action.buffer, action.buffer_bytes)
            self._receive_all(action, place[:nbytes])
            if payload is not None:
                payload.take(action, place)
        elif payload is None:
            for start in range(0, nbytes, SCRATCH_BYTES):
                self._receive_block(action, self._scratch.data[: nbytes - start], start)
        elif action.how is How.STORE:
            self._receive_all(action, memoryview(payload.result_of(action).data).cast("B"))
        elif (adding := self._addition(payload, action)) is None:
            payload.add(action, self._scratch, partial(self._receive_block, action))
        elif self._sealed is not None:
            self._sealed.receive_added(nbytes, adding)
        else:
            self._receive_natively(action, self._scratch.data, adding)

    def _receive_all(self, action: Receive, place: memoryview) -> None:
        """Receive a payload into its place, where it is verified block by block while each is in the cache."""
        if self._kernels is not None and action.header.sums and can_sum(len(place)):
            self._receive_natively(action, place)
            return
        step = BLOCK_BYTES if action.header.sums else len(place)
        for start in range(0, len(place), step):
            self._receive_block(action, place[start : start + step], start)

    def _addition(self, payload: RoundPayload, action: Receive) -> Addition | None:
        """How the kernels add a payload while it is received; None if they cannot."""
        header = action.header
        if self._sealed is not None:  # only a relayed payload has checksums as well: those of its first sender
            return None if header.sums else payload.addition(action)
        if self._kernels is None or (header.sums and not can_sum(header.payload_bytes)):
            return None
        return payload.addition(action)

    def _receive_natively(self, action: Receive, place: memoryview, adding: Addition | None = None) -> None:
        """Receive a payload with one call, into its place, or through it if it is added."""
        assert self._kernels is not None
        header, start = action.header, 0
        fd, nbytes = self._sock.fileno(), header.payload_bytes
        while (start := self._kernels.receive(fd, place, start, nbytes, header.sums, adding)) < nbytes:
            block = place[: nbytes - start] if adding is not None else place[start : start + BLOCK_BYTES]
            check_received(self._host, self.traffic, action, block, start)
            start += len(block)  # the chunk is not needed any more

    def _receive_block(self, action: Receive, place: memoryview, start: int = 0) -> None:
        """Receive and verify a part of a payload, from byte `start`."""
        receive_into(self._sock, place)
        check_received(self._host, self.traffic, action, place, start)

    # --- sending -------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        host = self._host
        action: Transmit | None = None
        try:
            host.tell(ev.LinkIdle(self.peer))
            while (action := self._outbox.get()) is not None:
                frame = frame_of(host, action, self._sock, self._summed, self._crosses_network)
                if frame is not None:
                    began_s = time.monotonic() if self._log is not None else 0.0
                    self._send_frame(*frame)
                    if self._log is not None:
                        self._log.sent(action.header, len(frame[1]), began_s)
                    self.traffic.sent_frames += 1
                    self.traffic.sent_bytes += len(frame[1])
                host.tell(ev.Transmitted(action), ev.LinkIdle(self.peer))
        except OSError as error:
            self._broke(error)
        except Exception as error:
            log.exception("internal error on a data connection; please report it")
            self._broke(error)
        finally:
            self.close()
            if action is not None:  # it may not have arrived, but its buffer is no longer used
                host.tell(ev.Transmitted(action))
            if self._log is not None:
                self._log.is_over = True
            self._shared.leave()
            self._ended()

    def _send_frame(self, head: bytes, body: memoryview) -> None:
        if self._shaped is not None:
            self._shaped.send(head, body)
        else:
            send_all(self._sock, [head, body] if len(body) else [head])
