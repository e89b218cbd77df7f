"""A run belongs to the process that joined it.

A forked child, such as a DataLoader's worker, has its parent's sockets and none of its threads. What it sent would be
taken for its parent's, and a socket that it keeps open hides from the peers that its parent has died. So a child closes
its copies of the sockets at once, which its parent does not notice, and whatever it asks of a group is refused.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref

from tradewind.errors import ForkedProcess

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_children(sock: socket.socket) -> socket.socket:
    """The same socket, of which forked children close their copy."""
    _sockets.add(sock)
    return sock


class OwnerProcess:
    """The process in which something was made."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether that is this process, not one that was forked from it."""
        return os.getpid() == self._pid

    def check(self, what: str) -> None:
        """Refuse to go on in a forked child."""
        if not self.is_here:
            raise ForkedProcess(
                f"{what} belongs to process {self._pid}, from which this process, {os.getpid()}, was forked. "
                "Use it in that process only, or call connect() here to join a run as another rank."
            )


def _close_copies() -> None:
    for sock in list(_sockets):
        with contextlib.suppress(OSError):
            sock.close()  # no shutdown: the connection is the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)
