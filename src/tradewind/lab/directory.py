"""Where a lab keeps what others need to find it: a directory of its own, and a lock that says whether it lives.

    BASE/NAME/lock        locked for as long as the keeper lives: the kernel lets go when it dies, however it dies
    BASE/NAME/keeper.pid  its number, valid while the lock is held
    BASE/NAME/setup.json  what to build
    BASE/NAME/lab.json    what was built: `lab exec` and all others read it
    BASE/NAME/socket      where the keeper listens
    BASE/NAME/keeper.log  what it said

A number on its own may have gone to another process; one whose lock is held has not. So a lab that is gone is never
taken for one that lives, and nobody else's process is ever ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tradewind.errors import BadOption, RemoteFault, UnknownName

DEFAULT_NAME = "lab"
KILL_S = 10.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_MAX_SOCKET_PATH = 100


def base_directory() -> Path:
    """Where this user's labs are: nobody else may write there."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        base = Path(runtime) / "tradewind-lab"
    else:
        base = Path(tempfile.gettempdir()) / f"tradewind-lab-{os.geteuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    about = base.stat()
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise BadOption(f"{base} belongs to somebody else, or others may write there. Remove it, or set TMPDIR.")
    return base


@contextlib.contextmanager
def _locked(base: Path) -> Iterator[None]:
    """Only one at a time makes or removes labs."""
    with (base / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class LabDirectory:
    """The directory of one lab."""

    path: Path

    @property
    def name(self) -> str:
        """Of the lab."""
        return self.path.name

    @property
    def is_alive(self) -> bool:
        """Whether its keeper lives, or somebody is starting it."""
        try:
            with (self.path / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def kill(self) -> None:
        """End the keeper, and with it every process and interface of the lab, and remove the directory."""
        with contextlib.suppress(OSError, ValueError):
            keeper = os.pidfd_open(int((self.path / "keeper.pid").read_text()))
            try:
                if self.is_alive:  # so the number is still the keeper's, and what we opened is the keeper
                    signal.pidfd_send_signal(keeper, signal.SIGKILL)
                    select.select([keeper], [], [], KILL_S)
            finally:
                os.close(keeper)
        if self.is_alive:
            raise RemoteFault(f"lab {self.name!r} did not end within {KILL_S:g} s; see {self.path / 'keeper.log'}.")
        shutil.rmtree(self.path, ignore_errors=True)


def create(name: str) -> tuple[LabDirectory, int]:
    """A directory for a new lab, locked; the lock lives as long as the descriptor, here or in a child."""
    if not _NAME.fullmatch(name):
        raise BadOption(f"{name!r} is no name for a lab: use up to 40 letters, digits, dots and dashes.")
    base = base_directory()
    if len(str(base / name / "socket")) > _MAX_SOCKET_PATH:
        raise BadOption(f"{base / name} is too long for a socket. Set XDG_RUNTIME_DIR or TMPDIR to a shorter path.")
    with _locked(base):
        _sweep(base)
        made = LabDirectory(base / name)
        if made.is_alive:
            raise BadOption(f"lab {name!r} is up already. Use `tradewind lab down`, or another --name.")
        made.path.mkdir(mode=0o700)
        lock = os.open(made.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return made, lock


def find(name: str) -> LabDirectory:
    """The directory of a lab that is up."""
    living = {lab.name: lab for lab in list_labs()}
    if name not in living:
        if not living:
            raise (
                UnknownName("running lab", name, ())
                if name != DEFAULT_NAME
                else BadOption("no lab is up. Start one: tradewind lab up NETWORK.")
            )
        raise UnknownName("running lab", name, living)
    return living[name]


def list_labs() -> list[LabDirectory]:
    """All labs of this user that are up."""
    found = (LabDirectory(path) for path in sorted(base_directory().iterdir()) if path.is_dir())
    return [lab for lab in found if lab.is_alive]


def sweep() -> list[str]:
    """Remove what labs that died have left; their names."""
    base = base_directory()
    with _locked(base):
        return _sweep(base)


def _sweep(base: Path) -> list[str]:
    dead = [path for path in sorted(base.iterdir()) if path.is_dir() and not LabDirectory(path).is_alive]
    for path in dead:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in dead]
