"""Client of a lab's keeper: starts a lab or attaches to one, sends requests, and runs commands in its sites."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tradewind.errors import CannotEmulate, RemoteFault
from tradewind.formats import network_from_json, network_to_json
from tradewind.lab import enter
from tradewind.lab.delay import forwarder_command
from tradewind.lab.directory import LabDirectory, create
from tradewind.lab.keeper import Setup
from tradewind.lab.requests import MAX_LINE_BYTES, Answer, Failed, Ready, Release, Request
from tradewind.lab.starting import Starter, take
from tradewind.network import Network

BUILD_S = 30.0
ANSWER_S = 30.0


class Record(msgspec.Struct):
    """The description of a running lab, stored for other processes that attach to it."""

    backend: str
    network: str
    """The emulated network (after scaling), as JSON."""
    scale: float
    notes: list[str]
    secret: str
    ready: Ready
    ratios: dict[str, float] = {}
    """Ratios of the calibration, by link; empty without a calibration."""
    calibration_s: float = 0.0


class LabClient:
    """A running lab, seen from a process outside it."""

    def __init__(self, directory: LabDirectory, ready: Ready, owner: int | None) -> None:
        self.directory, self.ready = directory, ready
        self._keeper = (directory.path / "keeper.pid").read_text().strip()
        self._owner = owner
        """The socket that ends the lab when it is closed; None for a lab that another process started."""

    @classmethod
    def attach(cls, directory: LabDirectory) -> tuple[LabClient, Record]:
        """Attach to a running lab; raises `RemoteFault` while it is still starting."""
        try:
            record = msgspec.json.decode((directory.path / "lab.json").read_bytes(), type=Record)
            return cls(directory, record.ready, None), record
        except OSError:
            raise RemoteFault(f"lab {directory.name!r} is still starting, or has just ended. Try again.") from None

    def write(self, record: Record) -> None:
        """Store the lab's description, so that other processes can attach to it."""
        scratch = self.directory.path / "lab.json.new"
        scratch.write_bytes(msgspec.json.encode(record))
        scratch.replace(self.directory.path / "lab.json")
        (self.directory.path / "network.json").write_bytes(network_to_json(network_from_json(record.network)))

    def ask(self, request: Request, longest_s: float = ANSWER_S) -> Answer:
        """Send a request to the keeper and return its answer; raises `RemoteFault` on failure or after `longest_s`."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(longest_s)
                connection.connect(str(self.directory.path / "socket"))
                connection.sendall(msgspec.json.encode(request) + b"\n")
                line = connection.makefile("rb").readline(MAX_LINE_BYTES)
            answer: Answer = msgspec.json.decode(line, type=Answer)
        except (OSError, msgspec.DecodeError) as error:
            raise RemoteFault(f"lab {self.directory.name!r} does not answer ({error}). Is it still up?") from None
        if isinstance(answer, Failed):
            raise RemoteFault(f"lab {self.directory.name!r}: {answer.reason}")
        return answer

    def command(self, site: int, argv: Sequence[str]) -> list[str]:
        """The command to run on the machine so that `argv` runs in a site (by its row)."""
        namespace, rootless = self.ready.namespaces[site], "1" if self.ready.rootless else "0"
        return [sys.executable, "-I", "-S", enter.__file__, self._keeper, str(namespace), rootless, "--", *argv]

    def release(self) -> None:
        """Let the lab outlive this process."""
        self.ask(Release())
        self._let_go()

    def close(self) -> None:
        """End the lab, its processes and its interfaces."""
        self.directory.kill()
        self._let_go()

    def _let_go(self) -> None:
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None


def start_keeper(name: str, backend: str, network: Network) -> tuple[LabClient, str]:
    """Build a lab; returns its client when it runs, and a note for the user (may be empty).

    Raises `CannotEmulate` where this machine cannot run the backend.
    """
    forwarder, written_in = forwarder_command() if backend == "delay" else ([], "")
    starter = take()
    try:
        directory, lock = create(name)
    except BaseException:
        starter.give_up()
        raise
    try:
        setup = Setup(backend, network_to_json(network).decode(), forwarder)
        (directory.path / "setup.json").write_bytes(msgspec.json.encode(setup))
        ready = _await_keeper(starter, directory, lock)
    except BaseException:
        starter.give_up()  # this also ends a keeper that has already started
        os.close(lock)
        lock = -1
        with contextlib.suppress(RemoteFault):
            directory.kill()
        raise
    finally:
        if lock >= 0:
            os.close(lock)
    said = f"the forwarder is in {written_in}" if written_in else ""
    return LabClient(directory, ready, starter.owner.detach()), said


def _await_keeper(starter: Starter, directory: LabDirectory, lock: int) -> Ready:
    process = starter.process
    assert process.stdout is not None and process.stderr is not None
    with process.stdout, process.stderr:
        with contextlib.suppress(BrokenPipeError):  # it has ended: its log has the reason
            starter.hand_over(directory.path, lock)
        line = _read_line(process.stdout.fileno(), time.monotonic() + BUILD_S)
        process.wait(BUILD_S)  # this process ends after it has forked the keeper
        last_words = "" if line else _last_words(directory.path) or process.stderr.read().decode(errors="replace")
    answer = msgspec.json.decode(line, type=Ready | Failed) if line else Failed(_shown(last_words))
    if isinstance(answer, Ready):
        return answer
    raise CannotEmulate(answer.reason) if answer.impossible else RemoteFault(f"the lab failed: {answer.reason}")


def _read_line(reader: int, deadline_s: float) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        if not select.select([reader], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            return b""
        more = os.read(reader, 65536)
        if not more:
            return b""
        data += more
    return data


def _last_words(path: Path) -> str:
    with contextlib.suppress(OSError):
        return (path / "keeper.log").read_text(errors="replace")
    return ""


def _shown(words: str) -> str:
    lines = words.strip().splitlines()
    return lines[-1] if lines else "its keeper ended without an error message."
