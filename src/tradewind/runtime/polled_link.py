"""A data connection without threads: the poller's thread receives and sends for all connections.

It does what `links.Link` does, in steps that never block. One read fills what is missing of a payload, in its place,
and then a buffer with what follows: headers, and small payloads, which are copied from there. Small frames that are
ready are sent together; `_unsent` is the part of them that is not in the socket's buffer yet.
"""

from __future__ import annotations

import logging
import queue
import select
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tradewind.errors import BadFrame, CorruptFrame
from tradewind.node import events as ev
from tradewind.node.actions import How, Receive, Transmit
from tradewind.runtime.connections import BufferUse
from tradewind.runtime.links import SCRATCH_BYTES, Host, check_received, check_summed, frame_of, transport_of
from tradewind.runtime.liveness import Liveness
from tradewind.runtime.polling import Poller
from tradewind.runtime.sockets import SharedSocket, needs_sums, rest_of, unsent_limit
from tradewind.runtime.stats import Traffic
from tradewind.runtime.threads import is_ending, start_thread
from tradewind.runtime.tls import RECORD_BYTES
from tradewind.wire.frames import FrameKind, next_header

log = logging.getLogger("tradewind.runtime")

READS_A_TURN = 8
"""Reads of a connection before other connections are served: each brings what is missing of a payload, or of a block
that is added, and up to `AHEAD_BYTES` of what follows."""
AHEAD_BYTES = 64 * 1024
"""Bytes that are read beyond the payload that is being received."""
LEAST_AWAITED_BYTES, MOST_AWAITED_BYTES = 8 * 1024, 64 * 1024
"""The rest of a payload is awaited as a whole, within these limits: a frame arrives in several segments, and waking up
for each costs more than reading it. It saves a tenth of the processor time of a round with eight sites on two cores."""
MOST_GATHERED, MOST_GATHERED_BYTES = 64, 32 * 1024
"""The most frames that are sent together. They have at most half of the bytes that the kernel may hold unsent, as much
as it has room for when it reports room: a frame that becomes ready must not wait behind more of them."""
_CAME = select.EPOLLIN | select.EPOLLHUP | select.EPOLLRDHUP | select.EPOLLERR
_GONE = select.EPOLLHUP | select.EPOLLRDHUP | select.EPOLLERR


class Sending(NamedTuple):
    """A frame on its way into the socket's buffer."""

    action: Transmit
    nbytes: int | None
    """The size of its payload; None: its round has ended, and it is skipped."""
    began_s: float


class PolledLink:
    """One data connection to a peer; only `start`, `close` and `attend` may be called outside the poller's thread."""

    users = 1
    """How often `ended` is called."""

    def __init__(
        self,
        host: Host,
        peer: int,
        sock: socket.socket,
        outbox: queue.SimpleQueue[Transmit | None],
        broke: Callable[[Exception], None],
        ended: Callable[[], None],
        poller: Poller,
    ) -> None:
        self.peer = peer
        self._host, self._sock, self._outbox, self._poller = host, sock, outbox, poller
        self._broke, self._ended, self._log = broke, ended, host.flow_log(peer)
        self._shared = SharedSocket(sock, users=1)
        self.liveness, self.buffer_use = Liveness(self._shared), BufferUse(self._shared)
        self.traffic = Traffic()
        self.transport = transport_of(sock)
        self._summed = needs_sums(sock)
        self._over = self._gone = self._readable = self._full = self._takes = False
        """It has ended; the other side has closed it, and the rest is still to be read; there may be something to read;
        the send buffer is full; frames are being taken from the queue until it is empty."""
        self._sending: list[Sending] = []
        self._unsent: list[bytes | memoryview] = []
        self._most_gathered = min(MOST_GATHERED_BYTES, unsent_limit(sock) // 2)
        self._owes_idle = False
        """Whether the driver does not know yet that the next frame may come."""
        self._receiving: Receive | None = None
        self._hidden_bytes = 2 * RECORD_BYTES if self.transport == "tls" else 0
        """The most bytes that have left the kernel and are not decrypted yet."""
        self._awaited = 1
        """Bytes that must have arrived before the kernel reports input (SO_RCVLOWAT)."""
        self._missing = 0
        """Outstanding bytes of the payload that is being received, from the current block on."""
        self._block = memoryview(b"")
        """The memory for the current block of it."""
        self._add: Callable[[int], None] | None = None
        """Adds that many bytes of the scratch buffer to the destination; None: they are not added."""
        self._place = memoryview(b"")
        """What is not filled of it yet; empty while a header is awaited."""
        self._ahead = memoryview(bytearray(AHEAD_BYTES))
        self._at = self._until = 0
        """The part of `_ahead` that is not used yet."""
        self._scratch = np.empty(SCRATCH_BYTES, dtype=np.uint8)

    def start(self) -> None:
        """Start to receive and send."""
        self._sock.setblocking(False)
        self._readable = True  # TLS may have received more than the handshake
        self._poller.add(self, self._sock.fileno())
        self._host.tell(ev.LinkIdle(self.peer))

    def close(self) -> None:
        """Shut the connection down; the poller's thread then ends it."""
        self._shared.wake()

    @property
    def is_receiving(self) -> bool:
        """Whether a payload is arriving."""
        return self._receiving is not None

    def unpace(self) -> None:
        """Let the kernel send as fast as congestion control allows."""
        self._shared.unpace()

    def attend(self) -> None:
        """Note that there is something to send."""
        if not (self._takes and self._poller.is_own_thread):  # else it will see for itself
            self._poller.attend(self)

    def happened(self, what: int) -> None:
        """Handle input, buffer space, or the end of the connection."""
        if what & _CAME:
            self._readable = True
        if what & _GONE:
            self._gone = True
        if what & select.EPOLLOUT:
            self._full = False
        self.go_on()

    def go_on(self) -> None:
        """Send and receive what is possible now."""
        if self._over:
            return
        try:
            if not self._full:
                self._send()
            if self._readable:
                self._receive()
        except (BadFrame, OSError) as error:
            self.traffic.corrupt_frames += isinstance(error, CorruptFrame)
            self._end(error)
        except Exception as error:  # the other connections continue
            log.exception("internal error on a data connection; please report it")
            self._end(error)

    def _end(self, error: Exception) -> None:
        self._over = True
        if self._log is not None:
            self._log.is_over = True
        self._broke(error)
        self._poller.remove(self._sock.fileno())
        if self._receiving is not None:
            self._host.tell(ev.ReceiveFailed(self._receiving))
        for frame in self._sending:  # it may not have arrived, but its buffer is no longer used
            self._host.tell(ev.Transmitted(frame.action))
        self._shared.wake()
        self._shared.leave()
        # In a thread: `ended` may sleep before the next attempt, and other connections must not wait for that.
        if is_ending():  # no thread can be started any more, and there is no next attempt
            self._ended()
        else:
            start_thread(self._ended, name=f"tradewind-end-{self.peer}")

    # --- receiving -----------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        ahead = self._ahead
        for _ in range(READS_A_TURN):
            place = self._place
            missing, room = len(place), AHEAD_BYTES - self._until
            try:
                if missing:  # nothing is ahead
                    count = self._sock.recvmsg_into((place, ahead))[0]
                else:
                    count = self._sock.recv_into(ahead[self._until :])
            except BlockingIOError:
                self._await()
                return
            if not count:
                raise ConnectionResetError("the other side closed the connection")
            if count < missing:
                self._place = place[count:]
            else:
                self._until += count - missing
                if missing:
                    self._block_came()
                self._use_ahead()
            if count < missing + room and not self._gone:  # all input is read, and the poller reports more
                self._await()
                return
        self._poller.attend(self)

    def _use_ahead(self) -> None:
        """Handle headers and payloads that were read ahead, as far as they are complete."""
        while self._at < self._until:
            if self._receiving is None:
                if not self._header_came():
                    return
                continue
            part = self._ahead[self._at : min(self._until, self._at + len(self._place))]
            self._place[: len(part)] = part
            self._place = self._place[len(part) :]
            self._at += len(part)
            if not len(self._place):
                self._block_came()
        self._at = self._until = 0

    def _await(self) -> None:
        """Wait for input: have the kernel report it when enough has arrived."""
        self._readable = False
        missing = len(self._place) - self._hidden_bytes
        least = min(missing, MOST_AWAITED_BYTES) if missing >= LEAST_AWAITED_BYTES else 1
        if least != self._awaited:
            self._awaited = least
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def _header_came(self) -> bool:
        """Handle the next header that was read ahead; returns whether it is complete."""
        found = next_header(self._ahead, self._at, self._until)
        if found is None:
            left = self._until - self._at
            self._ahead[:left] = self._ahead[self._at : self._until]
            self._at, self._until = 0, left
            return False
        header, self._at = found
        if self._summed:
            check_summed(header)
        action = self._host.tell(ev.HeaderReceived(self.peer, header))
        self.liveness.received()
        self.traffic.received_frames += 1
        if header.kind is FrameKind.ACK:
            self._host.arrived(self.peer, self, header)
            return True
        assert action is not None
        self._receiving, self._missing = action, header.payload_bytes
        self._place = self._block = self._place_of(action)
        return True

    def _place_of(self, action: Receive) -> memoryview:
        """The memory that a payload is received into: its destination, or as much of the scratch buffer as it needs."""
        self._add = None
        keeps = action.how in (How.KEEP, How.DISCARD)
        payload = None if keeps else self._host.payload_of(action.header.round)
        if action.buffer is not None:  # kept, or encoded
            place = self._host.keep(action.buffer, action.buffer_bytes)
            if payload is not None:
                taking = payload
                self._add = lambda _: taking.take(action, place)
            return place[: self._missing]
        if payload is not None and action.how is How.STORE:
            return memoryview(payload.result_of(action).data).cast("B")
        if payload is not None:
            self._add = payload.adder_of(action, self._scratch)
        return self._scratch.data[: self._missing]

    def _block_came(self) -> None:
        action = self._receiving
        assert action is not None
        done = action.header.payload_bytes - self._missing
        check_received(self._host, self.traffic, action, self._block, done)
        if self._add is not None:
            self._add(len(self._block))
        self._missing -= len(self._block)
        self._place = self._block = self._scratch.data[: self._missing]
        if self._missing:
            return
        self.traffic.received_bytes += action.header.payload_bytes  # before the round can end
        self._host.tell(ev.Received(action))
        self._receiving = None
        self._host.arrived(self.peer, self, action.header)

    # --- sending -------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        while self._sending or self._gather():
            if self._unsent and not self._push():
                return
            sent, self._sending = self._sending, []
            for frame in sent:
                if frame.nbytes is not None:
                    self.traffic.sent_frames += 1
                    self.traffic.sent_bytes += frame.nbytes
                    if self._log is not None:
                        self._log.sent(frame.action.header, frame.nbytes, frame.began_s)
            self._tell(*(ev.Transmitted(frame.action) for frame in sent))

    def _tell(self, *events: ev.Event) -> None:
        """Tell events that are followed by a look at the queue; and, once for each frame, that the next may come."""
        self._takes = True
        if self._owes_idle:
            self._owes_idle = False
            events = *events, ev.LinkIdle(self.peer)
        self._host.tell(*events)
        self._takes = False

    def _gather(self) -> bool:
        """Take frames from the queue, which are sent together; returns whether there is one."""
        nbytes = 0
        while (action := self._next()) is not None:
            frame = frame_of(self._host, action, self._sock, self._summed)
            began_s = time.monotonic() if self._log is not None else 0.0
            self._sending.append(Sending(action, None if frame is None else len(frame[1]), began_s))
            self._owes_idle = True
            if frame is not None:
                self._unsent += frame if len(frame[1]) else frame[:1]
                nbytes += len(frame[0]) + len(frame[1])
            if nbytes >= self._most_gathered or len(self._sending) == MOST_GATHERED:
                break
            self._tell()
        return bool(self._sending)

    def _next(self) -> Transmit | None:
        """The next frame from the queue; None if there is none."""
        while not self._outbox.empty():
            try:
                action = self._outbox.get_nowait()
            except queue.Empty:  # another connection to the peer was quicker
                return None
            if action is not None:  # None wakes a waiting sender thread, of which there is none here
                return action
        return None

    def _push(self) -> bool:
        """Send what fits into the socket's buffer; returns whether that is all."""
        try:
            sent = self._sock.sendmsg(self._unsent)
        except BlockingIOError:
            sent = 0
        self._unsent = rest_of(self._unsent, sent)
        self._full = bool(self._unsent)
        return not self._full
