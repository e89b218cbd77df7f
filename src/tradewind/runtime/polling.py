"""One thread that serves all data connections of a rank with slow links.

With two threads per connection (`links`) a rank with seven peers has fourteen, and they pass the interpreter lock and
the node's lock to each other at every frame: with eight sites on two cores that was a sixth of the processor time of a
round. Slow links are idle most of the time, and one thread can wait for all of them. Between processes of one machine a
single thread would be the bottleneck, so there every connection has its own threads, which copy in parallel.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from typing import Protocol

import numpy as np

from tradewind.runtime.threads import Thread, start_thread

CAN_POLL = hasattr(select, "epoll") and hasattr(os, "eventfd")
"""Whether the system has epoll and eventfd (Linux); elsewhere every connection has its own threads."""


class Polled(Protocol):
    """A connection that the poller serves."""

    def happened(self, what: int) -> None:
        """Handle the events (EPOLLIN and others) that the kernel reports."""
        ...

    def go_on(self) -> None:
        """Send and receive what is possible now."""
        ...


class Poller:
    """The polling thread. It starts with the first connection, and ends after `close` with the last one.

    The kernel reports each change once (EPOLLET): a connection that is called for input or buffer space must go on
    until nothing is left, or ask to be called again with `attend`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._polled: dict[int, Polled] = {}
        self._asked: deque[Polled] = deque()
        """Connections that asked to be called."""
        self._thread: Thread | None = None
        self._ident: int | None = None
        self._closed = False

    def add(self, polled: Polled, number: int) -> None:
        """Serve the connection with file descriptor `number` from now on."""
        with self._lock:
            if self._thread is None:
                self._epoll, self._bell = select.epoll(), os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self._epoll.register(self._bell, select.EPOLLIN)
                self._thread = start_thread(self._run, name="tradewind-poll")
            self._polled[number] = polled
            self._epoll.register(number, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)

    def remove(self, number: int) -> None:
        """Stop serving a file descriptor before it is closed; to be called in the polling thread."""
        with self._lock:
            self._epoll.unregister(number)
            del self._polled[number]

    def attend(self, polled: Polled) -> None:
        """Have the polling thread call `go_on` of a connection soon."""
        self._asked.append(polled)
        if not self.is_own_thread:
            self._ring()

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller runs in the polling thread."""
        return threading.get_ident() == self._ident

    def close(self) -> None:
        """End the thread when the last connection has been removed."""
        self._closed = True
        self._ring()

    def _ring(self) -> None:
        with self._lock:
            if self._thread is not None:
                os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        self._ident = threading.get_ident()
        with np.errstate(all="ignore"):  # infinities and NaN are valid results
            while not self._ended():
                for number, what in self._epoll.poll(0 if self._asked else -1):
                    if number == self._bell:
                        os.eventfd_read(self._bell)
                    elif (polled := self._polled.get(number)) is not None:  # else it was just removed
                        polled.happened(what)
                for _ in range(len(self._asked)):
                    self._asked.popleft().go_on()

    def _ended(self) -> bool:
        if not self._closed:
            return False
        with self._lock:
            if self._polled:
                return False
            self._thread = self._ident = None
            self._epoll.close()
            os.close(self._bell)
            return True
