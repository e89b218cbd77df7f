"""The keeper's interpreter, started early.

Much of what `lab up` takes is interpreters that start and load: ours, and the keeper's. They can do it at the same
time: who will want a lab soon says so (`early`), and a process loads all that a keeper needs, then waits to be told
which lab it is. This module itself loads nothing of weight.
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
    """A process that splits a keeper off when it is told to."""

    process: subprocess.Popen[bytes]
    owner: socket.socket
    """A lab that was not released ends with it."""

    def hand_over(self, directory: Path, lock: int) -> None:
        """Say which lab it is to start; the lock lives on in the keeper."""
        socket.send_fds(self.owner, [os.fsencode(directory)], [lock])

    def give_up(self) -> None:
        """There will be no lab."""
        self.owner.close()
        self.process.kill()
        self.process.communicate()


_begun: list[Starter] = []


@contextmanager
def early() -> Iterator[Starter]:
    """A lab will be wanted in here; if not, what has begun, which is given, ends."""
    begun = _start()
    _begun.append(begun)
    try:
        yield begun
    finally:
        while _begun:
            _begun.pop().give_up()


def take() -> Starter:
    """What has begun, or begins now."""
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
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # only a single thread may enter a user namespace
        )
    return Starter(process, here)


def wait_to_be_told(owner: int) -> Path | None:
    """In the starter: the lab's directory, in which our words go from now on; None where there will be no lab."""
    with socket.socket(fileno=os.dup(owner)) as connection:
        path, _lock, _, _ = socket.recv_fds(connection, LONGEST_PATH, 1, socket.MSG_CMSG_CLOEXEC)
    if not path:
        return None
    directory = Path(os.fsdecode(path))
    log = os.open(directory / "keeper.log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.dup2(log, 2)
    os.close(log)
    return directory
