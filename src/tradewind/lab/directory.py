"""The directory of a lab, by which other processes find it, and the lock that shows whether the lab is running.

    BASE/NAME/lock        locked while the keeper runs; the kernel releases it when the keeper ends in any way
    BASE/NAME/keeper.pid  process id of the keeper, valid while the lock is held
    BASE/NAME/setup.json  the network to build
    BASE/NAME/lab.json    the lab that was built, read by `lab exec` and other commands
    BASE/NAME/socket      where the keeper listens
    BASE/NAME/keeper.log  the keeper's log

The kernel may reuse a process id after its process has ended, but not while the lock is held. So a lab that has ended
is never mistaken for a running one, and no unrelated process is killed.
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
    """The directory of this user's labs; raises `BadOption` if other users may write to it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        base = Path(runtime) / "tradewind-lab"
    else:
        base = Path(tempfile.gettempdir()) / f"tradewind-lab-{os.geteuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    about = base.stat()
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise BadOption(f"{base} belongs to another user, or other users may write to it. Remove it, or set TMPDIR.")
    return base


@contextlib.contextmanager
def _locked(base: Path) -> Iterator[None]:
    """A context in which only this process creates or removes labs."""
    with (base / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class LabDirectory:
    """The directory of one lab."""

    path: Path

    @property
    def name(self) -> str:
        """The lab's name."""
        return self.path.name

    @property
    def is_alive(self) -> bool:
        """Whether the lab's keeper is running or being started."""
        try:
            with (self.path / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def kill(self) -> None:
        """End the keeper, and with it every process and interface of the lab, and remove the directory.

        Raises `RemoteFault` if the keeper does not end within `KILL_S` seconds.
        """
        with contextlib.suppress(OSError, ValueError):
            keeper = os.pidfd_open(int((self.path / "keeper.pid").read_text()))
            try:
                if self.is_alive:  # so the process id is still the keeper's, and the pidfd refers to the keeper
                    signal.pidfd_send_signal(keeper, signal.SIGKILL)
                    select.select([keeper], [], [], KILL_S)
            finally:
                os.close(keeper)
        if self.is_alive:
            raise RemoteFault(f"lab {self.name!r} did not end within {KILL_S:g} s; see {self.path / 'keeper.log'}.")
        shutil.rmtree(self.path, ignore_errors=True)


def create(name: str) -> tuple[LabDirectory, int]:
    """Create a directory for a new lab, and lock it; the lock is held while its descriptor is open in any process.

    Raises `BadOption` for an invalid name, or one that a running lab has.
    """
    if not _NAME.fullmatch(name):
        raise BadOption(
            f"{name!r} is not a valid lab name: use up to 40 letters, digits, dots, dashes and underscores, starting "
            "with a letter or digit."
        )
    base = base_directory()
    if len(str(base / name / "socket")) > _MAX_SOCKET_PATH:
        raise BadOption(
            f"the path {base / name} is too long for a socket. Set XDG_RUNTIME_DIR or TMPDIR to a shorter path."
        )
    with _locked(base):
        _sweep(base)
        made = LabDirectory(base / name)
        if made.is_alive:
            raise BadOption(f"lab {name!r} is already up. End it with `tradewind lab down`, or use another --name.")
        made.path.mkdir(mode=0o700)
        lock = os.open(made.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return made, lock


def find(name: str) -> LabDirectory:
    """The directory of a running lab; raises `UnknownName` or `BadOption` if there is none of that name."""
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
    """All running labs of this user."""
    found = (LabDirectory(path) for path in sorted(base_directory().iterdir()) if path.is_dir())
    return [lab for lab in found if lab.is_alive]


def sweep() -> list[str]:
    """Remove the directories of labs whose keeper has ended; returns the labs' names."""
    base = base_directory()
    with _locked(base):
        return _sweep(base)


def _sweep(base: Path) -> list[str]:
    dead = [path for path in sorted(base.iterdir()) if path.is_dir() and not LabDirectory(path).is_alive]
    for path in dead:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in dead]
