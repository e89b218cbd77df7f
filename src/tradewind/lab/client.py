"""A lab with a keeper, from outside: starting it, finding it again, asking it, running commands in its sites."""

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
    """What others need to know of a lab that is up."""

    backend: str
    network: str
    """As emulated, as JSON."""
    scale: float
    notes: list[str]
    secret: str
    ready: Ready
    ratios: dict[str, float] = {}
    """Of the calibration, by link; empty without one."""
    calibration_s: float = 0.0


class LabClient:
    """A lab whose keeper is up."""

    def __init__(self, directory: LabDirectory, ready: Ready, owner: int | None) -> None:
        self.directory, self.ready = directory, ready
        self._keeper = (directory.path / "keeper.pid").read_text().strip()
        self._owner = owner
        """The socket whose end ends the lab; None for a lab that somebody else started."""

    @classmethod
    def attach(cls, directory: LabDirectory) -> tuple[LabClient, Record]:
        """A lab that is up already."""
        try:
            record = msgspec.json.decode((directory.path / "lab.json").read_bytes(), type=Record)
            return cls(directory, record.ready, None), record
        except OSError:
            raise RemoteFault(f"lab {directory.name!r} is still starting, or just ended. Try again.") from None

    def write(self, record: Record) -> None:
        """Let others find it."""
        scratch = self.directory.path / "lab.json.new"
        scratch.write_bytes(msgspec.json.encode(record))
        scratch.replace(self.directory.path / "lab.json")
        (self.directory.path / "network.json").write_bytes(network_to_json(network_from_json(record.network)))

    def ask(self, request: Request, longest_s: float = ANSWER_S) -> Answer:
        """What the keeper answers; raises what it could not do."""
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
        """What to run on the machine so that `argv` runs in a site."""
        namespace, rootless = self.ready.namespaces[site], "1" if self.ready.rootless else "0"
        return [sys.executable, "-I", "-S", enter.__file__, self._keeper, str(namespace), rootless, "--", *argv]

    def release(self) -> None:
        """Let the lab outlive us."""
        self.ask(Release())
        self._let_go()

    def close(self) -> None:
        """End the lab."""
        self.directory.kill()
        self._let_go()

    def _let_go(self) -> None:
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None


def start_keeper(name: str, backend: str, network: Network) -> tuple[LabClient, str]:
    """Build a lab and return when it is there, with what is worth saying about it.

    Raises `CannotEmulate` where this machine cannot.
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
        starter.give_up()  # which ends a keeper that has come to life
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
        with contextlib.suppress(BrokenPipeError):  # it has ended: its last words say why
            starter.hand_over(directory.path, lock)
        line = _read_line(process.stdout.fileno(), time.monotonic() + BUILD_S)
        process.wait(BUILD_S)  # it only forks off the keeper
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
    return lines[-1] if lines else "its keeper ended without a word."
