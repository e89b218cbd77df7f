"""One thread for all data connections of a worker whose links are slow.

With two threads a connection (`links`) a worker with seven peers has fourteen, and they hand the interpreter's lock and
the engine's to each other at every frame: with eight sites on two cores that was a sixth of the processor time of a
round. Slow links wait most of the time, and one thread can wait for all of them. Between processes of one machine it
would be the limit: there threads of their own copy at the same time.
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
"""Linux can; elsewhere every connection has its threads."""


class Polled(Protocol):
    """Somebody who is looked after."""

    def happened(self, what: int) -> None:
        """The kernel says that this has changed since it last said so (EPOLLIN and the like)."""
        ...

    def go_on(self) -> None:
        """Do what there is to do."""
        ...


class Poller:
    """The thread. It starts with the first connection, and ends when it is closed and the last one has gone.

    The kernel says only what has changed (EPOLLET): whoever is told that something came or that there is room again
    goes on until nothing is left, or asks to be called again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._polled: dict[int, Polled] = {}
        self._asked: deque[Polled] = deque()
        """Who has something to do, whatever the kernel says."""
        self._thread: Thread | None = None
        self._ident: int | None = None
        self._closed = False

    def add(self, polled: Polled, number: int) -> None:
        """Look after the connection with that file number from now on."""
        with self._lock:
            if self._thread is None:
                self._epoll, self._bell = select.epoll(), os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self._epoll.register(self._bell, select.EPOLLIN)
                self._thread = start_thread(self._run, name="tradewind-poll")
            self._polled[number] = polled
            self._epoll.register(number, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)

    def remove(self, number: int) -> None:
        """That number is about to be closed. To be called in the thread."""
        with self._lock:
            self._epoll.unregister(number)
            del self._polled[number]

    def attend(self, polled: Polled) -> None:
        """Have it called, by the thread, soon."""
        self._asked.append(polled)
        if threading.get_ident() != self._ident:
            self._ring()

    def close(self) -> None:
        """End with the last connection."""
        self._closed = True
        self._ring()

    def _ring(self) -> None:
        with self._lock:
            if self._thread is not None:
                os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        self._ident = threading.get_ident()
        with np.errstate(all="ignore"):  # an infinity is a result like any other
            while not self._ended():
                for number, what in self._epoll.poll(0 if self._asked else -1):
                    if number == self._bell:
                        os.eventfd_read(self._bell)
                    elif (polled := self._polled.get(number)) is not None:  # else it went a moment ago
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
