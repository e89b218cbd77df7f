"""Early start of the keeper's interpreter.

Much of the time of `lab up` is the start of two interpreters: the caller's and the keeper's. To start them in parallel,
a caller that will need a lab enters `early`: a process then imports all that a keeper needs, and waits for the lab's
directory. This module itself imports nothing that loads slowly.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LONGEST_PATH = 4096


@dataclass
class Starter:
    """A process that forks a keeper when it receives the lab's directory."""

    process: subprocess.Popen[bytes]
    owner: socket.socket
    """Socket to the keeper; closing it ends a lab that was not released."""

    def hand_over(self, directory: Path, lock: int) -> None:
        """Send the lab's directory and lock; the keeper holds the lock from then on."""
        socket.send_fds(self.owner, [os.fsencode(directory)], [lock])

    def give_up(self) -> None:
        """End the process, because no lab is needed."""
        self.owner.close()
        self.process.kill()
        self.process.communicate()


_begun: list[Starter] = []


@contextmanager
def early() -> Iterator[Starter]:
    """A context that starts a keeper's process early, and ends it if no lab was started inside; yields that process."""
    begun = _start()
    _begun.append(begun)
    try:
        yield begun
    finally:
        while _begun:
            _begun.pop().give_up()


def take() -> Starter:
    """The process that `early` started, or a new one."""
    return _begun.pop() if _begun else _start()


def _start() -> Starter:
    here, there = socket.socketpair()
    with there:
        process = subprocess.Popen(
            [sys.executable, "-m", "tradewind.lab.keeper"],
            stdin=there.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # NEW_USER needs a single-threaded process
        )
    return Starter(process, here)


def receive_directory(owner: int) -> Path | None:
    """Wait for the lab's directory, and write stderr to its log from then on; None if no lab is needed."""
    with socket.socket(fileno=os.dup(owner)) as connection:
        path, _lock, _, _ = socket.recv_fds(connection, LONGEST_PATH, 1, socket.MSG_CMSG_CLOEXEC)
    if not path:
        return None
    directory = Path(os.fsdecode(path))
    log = os.open(directory / "keeper.log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.dup2(log, 2)
    os.close(log)
    return directory
