"""Forked children: a run belongs to the process that joined it.

A forked child, such as a DataLoader worker, has its parent's sockets and none of its threads. Peers would attribute
what it sends to its parent, and a socket that it keeps open hides its parent's death from them. So a child closes its
copies of the sockets at once, which does not affect its parent, and using a group in it raises ForkedProcess.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol, TypeVar

from tradewind.errors import ForkedProcess


class Closable(Protocol):
    """A socket, or a connection of `multiprocessing`."""

    def close(self) -> None:
        """Close this process's copy."""


Socket = TypeVar("Socket", bound=Closable)

_sockets: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_in_children(sock: Socket) -> Socket:
    """Register a socket whose copies forked children close; returns the socket."""
    _sockets.add(sock)
    return sock


class OwnerProcess:
    """The process in which an object was created."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether it is the current process, not one forked from it."""
        return os.getpid() == self._pid

    def check(self, what: str) -> None:
        """Raise ForkedProcess in a forked child; `what` names the object in the message."""
        if not self.is_here:
            raise ForkedProcess(
                f"{what} belongs to process {self._pid}, from which this process, {os.getpid()}, was forked. "
                "Use it in that process only, or call connect() here to join a run as another rank."
            )


def _close_copies() -> None:
    for sock in list(_sockets):
        with contextlib.suppress(OSError):
            sock.close()  # no shutdown: the connection belongs to the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)
