"""Reads the control connections of all ranks in one thread.

A round of n ranks makes all of them write at once. A thread for each would have to be woken n times, and all would wait
for the interpreter and for the controller's lock; one thread takes what has arrived from every rank together.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tradewind.errors import BadFrame
from tradewind.runtime.control_sender import ControlSender
from tradewind.runtime.forking import close_in_children
from tradewind.runtime.threads import start_thread
from tradewind.wire import messages as m
from tradewind.wire.frames import MAX_MESSAGE_BYTES, FrameReader
from tradewind.wire.messages import MAX_INLINE_BYTES, MAX_STREAMS, decode_message

log = logging.getLogger("tradewind.runtime")

READ_BYTES = 64 * 1024
MAX_REPORT_BYTES = MAX_INLINE_BYTES * MAX_STREAMS
MAX_REPORT_BYTES_OF_RANK = 1024


def limit_bytes(world: int) -> int:
    """The size of the largest message that a rank of a run with so many ranks may send.

    Its largest message is a report: the roster, and the small arrays of its requests. Decoded, a message of many tiny
    values takes up to 25 times its size in memory, so the limit is far below that of messages of the controller.

    >>> limit_bytes(8), limit_bytes(100_000) == MAX_MESSAGE_BYTES
    (4202496, True)
    """
    return min(MAX_MESSAGE_BYTES, MAX_REPORT_BYTES + MAX_REPORT_BYTES_OF_RANK * world)


@dataclass(slots=True, eq=False)
class Connection:
    """The connection of one rank."""

    worker: str
    sock: socket.socket
    sender: ControlSender
    frames: FrameReader = field(default_factory=FrameReader)
    """With a limit for the messages of ranks (`limit_bytes`)."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """What has arrived on a connection."""

    connection: Connection
    messages: list[m.Message]
    ended: str | None
    """Why the connection has ended; None if it has not."""


class ControlReader:
    """Waits for messages on all connections; `handle` is called with what has arrived on some of them.

    Connections that have ended are closed after that call.
    """

    def __init__(self, handle: Callable[[list[Arrived]], None]) -> None:
        self._handle = handle
        self._selector = selectors.DefaultSelector()
        self._bell, self._rung = (close_in_children(sock) for sock in socket.socketpair())
        self._selector.register(self._rung, selectors.EVENT_READ)
        self._new: deque[Connection | None] = deque()
        """Connections to be read from now on; None: end with the last one."""
        start_thread(self._run, name="tradewind-control-rx")

    def add(self, connection: Connection) -> None:
        """Read a connection from now on, until it ends."""
        self._ring(connection)

    def close(self) -> None:
        """End when the last connection has ended."""
        self._ring(None)

    def _ring(self, what: Connection | None) -> None:
        self._new.append(what)
        with contextlib.suppress(OSError):  # it has ended
            self._bell.send(b"\0")

    def _run(self) -> None:
        reading, is_closing = 0, False
        while reading or not is_closing:
            arrived = []
            for key, _ in self._selector.select():
                if key.data is not None:
                    arrived.append(_read(key.data))
                    continue
                self._rung.recv(READ_BYTES)
                while self._new:
                    connection = self._new.popleft()
                    if connection is None:
                        is_closing = True
                        continue
                    self._selector.register(connection.sock, selectors.EVENT_READ, connection)
                    reading += 1
            if arrived:
                self._handle(arrived)
            for one in arrived:
                if one.ended is not None:
                    self._selector.unregister(one.connection.sock)
                    one.connection.sender.close()
                    reading -= 1
        self._selector.close()
        self._bell.close()
        self._rung.close()


def _read(connection: Connection) -> Arrived:
    messages, worker = list[m.Message](), connection.worker
    try:
        data = connection.sock.recv(READ_BYTES, socket.MSG_DONTWAIT)
        for _, payload in connection.frames.feed(data):
            messages.append(decode_message(payload))
    except BlockingIOError:
        return Arrived(connection, messages, None)
    except BadFrame as error:
        return Arrived(connection, messages, str(error))
    except OSError as error:
        return Arrived(connection, messages, error.strerror or str(error))
    except Exception as error:  # a bug: it must not end the thread that reads all ranks
        log.exception("internal error while reading the connection of %r, which is closed; please report it", worker)
        return Arrived(connection, messages, f"{type(error).__name__}: {error}")
    return Arrived(connection, messages, None if data else "its connection was closed")
