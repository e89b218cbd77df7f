"""Sends the controller's messages to one rank, in order, without ever blocking the caller.

A frame that fits into the socket's buffer is sent at once, in the caller's thread. The rest is queued for a thread that
exists only while there is something to send, so a rank that does not read delays no other rank.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque

from tradewind.runtime.sockets import shut_down
from tradewind.runtime.threads import start_thread


class ControlSender:
    """The sending half of a control connection; call `close` when the receiving half has ended, too."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._left: deque[bytes] = deque()
        """Frames, the first perhaps in part, that are not in the socket's buffer yet."""
        self._sending = self._ended = self._closed = False

    @property
    def unsent(self) -> int:
        """The number of queued sends, each of one frame or of several that were given together."""
        with self._lock:
            return len(self._left)

    def send(self, frame: bytes) -> None:
        """Send a frame, or several in one array, at once, or queue it; ignored after `end`."""
        with self._lock:
            if self._ended:
                return
            taken = 0 if self._sending else self._send_now(frame)
            if taken < len(frame):
                self._left.append(frame[taken:])
                self._start_sending()

    def end(self) -> None:
        """Accept no more frames, and close the sending direction after the last queued one."""
        with self._lock:
            self._ended = True
            if not self._sending:
                self._shut_down_sending()

    def cut_off(self) -> None:
        """Shut the socket down, which wakes every thread blocked on it; queued frames are lost."""
        with self._lock:
            self._ended = True
            if not self._closed:
                shut_down(self._sock)

    def close(self) -> None:
        """Close the socket; its file descriptor may be reused at once, so a running sending thread closes it last."""
        self.cut_off()
        with self._lock:
            if not self._sending and not self._closed:
                self._sock.close()
            self._closed = True

    def _send_now(self, frame: bytes) -> int:
        """Send without blocking; returns how many bytes the socket took."""
        try:
            return self._sock.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:  # the reading thread detects it, too
            return len(frame)

    def _start_sending(self) -> None:
        if not self._sending:
            self._sending = True
            start_thread(self._send_queued, name="tradewind-control-tx")

    def _send_queued(self) -> None:
        try:
            while (frame := self._next()) is not None:
                self._sock.sendall(frame)
        except OSError:  # the reading thread detects it, too
            with self._lock:
                self._left.clear()
                self._stop_sending()

    def _next(self) -> bytes | None:
        with self._lock:
            if self._left:
                return self._left.popleft()
            self._stop_sending()
            return None

    def _stop_sending(self) -> None:
        self._sending = False
        if self._closed:
            self._sock.close()
        elif self._ended:
            self._shut_down_sending()

    def _shut_down_sending(self) -> None:
        if not self._closed:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
