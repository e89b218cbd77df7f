"""What the controller says to one worker, in order, without ever waiting for it.

A frame that the socket takes is sent at once, by whoever has something to say. What it does not take is left to a
thread that comes for it and goes: a worker that does not listen holds up nobody.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque

from tradewind.runtime.sockets import shut_down
from tradewind.runtime.threads import start_thread


class ControlSender:
    """The sending half of a control connection; `close` when the receiving half is done with the socket, too."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._left: deque[bytes] = deque()
        """What the socket did not take yet."""
        self._speaking = self._ended = self._closed = False

    @property
    def unsent(self) -> int:
        """How many frames the socket has not taken yet."""
        with self._lock:
            return len(self._left)

    def say(self, frame: bytes) -> None:
        """Send a frame, now or some time."""
        with self._lock:
            if self._ended:
                return
            taken = 0 if self._speaking else self._take(frame)
            if taken < len(frame):
                self._left.append(frame[taken:])
                self._have_it_said()

    def end(self) -> None:
        """Nothing more will be said: the other side hears that after the last frame."""
        with self._lock:
            self._ended = True
            if not self._speaking:
                self._say_goodbye()

    def cut_off(self) -> None:
        """Wake everybody who waits for the socket, whatever is still to be said."""
        with self._lock:
            self._ended = True
            if not self._closed:
                shut_down(self._sock)

    def close(self) -> None:
        """Let go of the socket. Its number may be somebody else's then, so nobody here may use it any more."""
        self.cut_off()
        with self._lock:
            if not self._speaking and not self._closed:
                self._sock.close()
            self._closed = True

    def _take(self, frame: bytes) -> int:
        """How much of it the socket takes without waiting."""
        try:
            return self._sock.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:  # the reader finds out, too
            return len(frame)

    def _have_it_said(self) -> None:
        if not self._speaking:
            self._speaking = True
            start_thread(self._speak, name="tradewind-control-tx")

    def _speak(self) -> None:
        try:
            while (frame := self._next()) is not None:
                self._sock.sendall(frame)
        except OSError:  # the reader finds out, too
            with self._lock:
                self._left.clear()
                self._fall_silent()

    def _next(self) -> bytes | None:
        with self._lock:
            if self._left:
                return self._left.popleft()
            self._fall_silent()
            return None

    def _fall_silent(self) -> None:
        self._speaking = False
        if self._closed:
            self._sock.close()
        elif self._ended:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        if not self._closed:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
