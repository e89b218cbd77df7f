"""Sites as processes of this machine: on connections that `tradewind.connect` shapes, or in the namespaces of a lab.

`run_sites` starts a command once per site, `call_sites` a Python function; both return when all have ended, or raise
when one failed, after killing the others. A process finds its rank and addresses in the environment, under the names
that torchrun uses (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and ours:

    TRADEWIND_SHAPE        the network's file: `tradewind.connect` emulates it
    TRADEWIND_SITE         the site's name
    TRADEWIND_SECRET       the run's secret
    TRADEWIND_CONTROLLERS  free addresses for controllers, separated by commas

Without `inside` this needs no privilege: all traffic is on loopback, and `tradewind.connect` shapes what it sends. With
`inside`, a running lab, each process runs in the namespace of its site, and the kernel shapes all its traffic;
instead of TRADEWIND_SHAPE there are TRADEWIND_NETWORK and TRADEWIND_BIND, the network's file and the site's address.

No process outlives the call. Each has its own session, which is killed as a whole before its leader is reaped, so that
its process id cannot have been reused; and the kernel kills it if this process is killed first.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

from tradewind.errors import BadOption, PeerLost, SiteFailed
from tradewind.formats import network_to_json
from tradewind.lab.site import ADDRESSES_VARIABLE, ARGUMENTS_FILE, DEFAULT_DEADLINE_S, Outcome, outcome_file
from tradewind.network import Network
from tradewind.runtime.addresses import LOOPBACK, listen_on
from tradewind.runtime.shape_alone import SHAPE_VARIABLE, ensure_separable
from tradewind.wire.handshake import SECRET_VARIABLE

KEPT_LINES = 10_000
"""Number of last lines that are kept of each of a site's output streams."""
LONGEST_LINE = 2**16
SHOWN_LINES = 8
"""Number of last lines that an error shows."""
SETTLE_S = 0.5
"""Seconds to wait for other failures after the first: one failure makes other sites fail; the error names the cause."""
JOIN_S = 5.0
PORTS, TRIED_PORTS = range(20_000, 32_000), 1000
"""Ports to choose from: below Linux's ephemeral range, so that no other process is given one before it is used."""

DIE_WITH_PARENT = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"  # PR_SET_PDEATHSIG, SIGKILL; kept over exec
    "os.getppid() == int(sys.argv[1]) or os._exit(1)\n"
    "try: os.execvp(sys.argv[2], sys.argv[2:])\n"
    "except OSError as error: sys.exit(f'cannot run {sys.argv[2]!r}: {error.strerror}')"
)
"""Runs before a site's command, in its process, so that the kernel kills it when its parent ends."""


class Surroundings(Protocol):
    """An environment with a separate network stack for every site, such as `lab.session.Lab`."""

    def command(self, site: str, argv: Sequence[str]) -> list[str]:
        """The command to run on the machine so that `argv` runs at the site."""
        ...

    def environment(self, site: str, groups: int) -> dict[str, str]:
        """Environment variables of the site's process, in addition to the machine's."""
        ...


OnLine = Callable[[str, str], None]
"""Called with a site's name and a line that it wrote to stdout, in the thread of the caller."""


@dataclass(frozen=True, slots=True)
class SiteOutput:
    """The output of one site's process."""

    site: str
    stdout: str
    stderr: str


def run_sites(
    network: Network,
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    groups: int = 1,
    deadline_s: float = DEFAULT_DEADLINE_S,
    on_line: OnLine | None = None,
    inside: Surroundings | None = None,
) -> list[SiteOutput]:
    """Run the command once for every rank of the network's sites; returns their outputs, in order of rank.

    Raises `SiteFailed`, with the site's name and last lines, when one ends with an error or is killed, and after
    `deadline_s` seconds; all others are killed. `groups` is how many controllers the sites will start, one after the
    other.
    """
    if not command:
        raise BadOption("no command to run at the sites: pass at least one word.")
    with _folder(network, inside) as folder:
        return _run(network, command, folder, environment or {}, groups, deadline_s, on_line, inside)


def call_sites(
    network: Network,
    function: Callable[..., Any],
    arguments: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    groups: int = 1,
    deadline_s: float = DEFAULT_DEADLINE_S,
    on_line: OnLine | None = None,
    inside: Surroundings | None = None,
) -> list[Any]:
    """Call `function(place, **arguments)` in a process for every rank of the network; its results, in order of rank.

    The function must be in an importable module; arguments and results are passed as JSON. An error that a site raised
    is raised here with the site's name: of the same class if it is a `TradewindError`, otherwise as `SiteFailed`.
    """
    if function.__module__ == "__main__" or "." in function.__qualname__:
        raise BadOption(
            f"{function.__qualname__} cannot be called in another process: define it at the top level of an "
            "importable module, not in the main script, a class or a function."
        )
    target = f"{function.__module__}:{function.__qualname__}"
    importable = os.pathsep.join(path for path in sys.path if path)
    with _folder(network, inside) as folder:
        (folder / ARGUMENTS_FILE).write_bytes(msgspec.json.encode(dict(arguments or {})))
        command = [sys.executable, "-m", "tradewind.lab.site", target, str(folder)]
        given = {"PYTHONPATH": importable, **(environment or {})}
        try:
            _run(network, command, folder, given, groups, deadline_s, on_line, inside)
        except SiteFailed as failed:
            raise _explained(failed, network, folder) from None
        return [_outcome(folder, rank).answer for rank in range(len(network.rank_names))]


@contextlib.contextmanager
def _folder(network: Network, inside: Surroundings | None) -> Iterator[Path]:
    if inside is None:
        ensure_separable(network)
    with tempfile.TemporaryDirectory(prefix="tradewind-lab-") as name:
        (Path(name) / "network.json").write_bytes(network_to_json(network))
        yield Path(name)


def _outcome(folder: Path, rank: int) -> Outcome:
    return msgspec.json.decode(outcome_file(folder, rank).read_bytes(), type=Outcome)


def _explained(failed: SiteFailed, network: Network, folder: Path) -> Exception:
    """The error that a failed site reported, if any; preferably one other than a lost peer."""
    ranks = {name: rank for rank, name in enumerate(network.rank_names)}
    said = {site: _outcome(folder, ranks[site]) for site in failed.sites if outcome_file(folder, ranks[site]).exists()}
    if not said or failed.sites[:1] != tuple(said)[:1]:  # the first to blame reported nothing, or time ran out
        return failed
    blamed = min(said, key=lambda site: said[site].error == PeerLost.__name__)
    return (
        said[blamed].as_error(blamed) if said[blamed].error else failed
    )  # no error: it failed after its function had returned


def _environments(
    network: Network, folder: Path, given: Mapping[str, str], groups: int, inside: Surroundings | None
) -> Iterator[dict[str, str]]:
    common = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONUNBUFFERED": "1"}  # many processes share few cores
    if inside is not None:
        for name in network.rank_names:
            yield {**common, **inside.environment(name, groups), **given}
        return
    ports = _free_ports(groups + 1)
    shared = {
        **common,
        "WORLD_SIZE": str(len(network)),
        "LOCAL_WORLD_SIZE": str(len(network)),  # all ranks are on this host
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(ports[0]),
        SECRET_VARIABLE: secrets.token_hex(16),
        SHAPE_VARIABLE: str(folder / "network.json"),
        ADDRESSES_VARIABLE: ",".join(f"{LOOPBACK}:{port}" for port in ports[1:]),
    }
    for rank, name in enumerate(network.names):
        yield {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "TRADEWIND_SITE": name, **given}


def _free_ports(count: int) -> list[int]:
    """Free ports of `PORTS`, which the system does not assign to other processes by itself."""
    drawn = secrets.SystemRandom().sample(PORTS, TRIED_PORTS)
    free: list[int] = []
    for port in drawn:
        with contextlib.suppress(BadOption), listen_on(LOOPBACK, port):
            free.append(port)
        if len(free) == count:
            return free
    raise SiteFailed(f"fewer than {count} free ports on {LOOPBACK} between {PORTS.start} and {PORTS.stop}.")


def _run(
    network: Network,
    command: Sequence[str],
    folder: Path,
    given: Mapping[str, str],
    groups: int,
    deadline_s: float,
    on_line: OnLine | None,
    inside: Surroundings | None,
) -> list[SiteOutput]:
    running = _Running(on_line)
    environments = _environments(network, folder, given, groups, inside)
    try:
        for name, environment in zip(network.rank_names, environments, strict=True):
            running.start(name, command if inside is None else inside.command(name, command), environment)
        running.wait(deadline_s)
    finally:
        running.end()
    return running.outputs()


class _Running:
    """The processes of all sites; their lines and exit codes are events of one queue, read by the caller's thread."""

    def __init__(self, on_line: OnLine | None) -> None:
        self._on_line = on_line
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._lines: dict[tuple[str, str], deque[str]] = {}
        self._threads: list[threading.Thread] = []
        self._readers: dict[str, threading.Thread] = {}
        """The threads that read the standard error of each site."""
        self._events: queue.SimpleQueue[tuple[str, str | int]] = queue.SimpleQueue()
        """A site, and a line that it wrote or its exit code (negative: the signal that killed it)."""

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *command],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._processes[name] = process
        assert process.stdout is not None and process.stderr is not None
        for stream, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            self._lines[name, stream] = deque(maxlen=KEPT_LINES)
            self._readers[name] = self._spawn(self._read, name, stream, pipe)
        self._spawn(self._await, name, process.pid)

    def wait(self, deadline_s: float) -> None:
        """Wait until all have ended with success; raises `SiteFailed` for one that failed, or at the deadline."""
        until_s, left = time.monotonic() + deadline_s, set(self._processes)
        failed: dict[str, int] = {}
        while left:
            try:
                name, event = self._events.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(event, str):
                if self._on_line is not None:
                    self._on_line(name, event)
                continue
            left.discard(name)
            if event:
                if not failed:
                    until_s = min(until_s, time.monotonic() + SETTLE_S)
                failed[name] = event
        if failed:
            # A killed site did not fail because of others; otherwise the first that failed is the cause.
            self._raise_failed(tuple(sorted(failed, key=lambda name: failed[name] >= 0)), failed)
        if left:
            late = tuple(name for name in self._processes if name in left)
            raise SiteFailed(
                f"after {deadline_s:g} s these sites had not ended: {', '.join(late)}. They were killed. Raise the "
                "deadline if they need longer."
            )

    def _raise_failed(self, sites: tuple[str, ...], codes: Mapping[str, int]) -> None:
        worst, code = sites[0], codes[sites[0]]
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
        self._readers[worst].join(SETTLE_S)  # its last lines may still be in the pipe
        last = list(self._lines[worst, "stderr"])[-SHOWN_LINES:]
        said = ("; the last lines of its stderr:\n" + "".join(last).rstrip()) if last else "; its stderr is empty."
        raise SiteFailed(f"site {worst!r} {how}{said}", sites)

    def end(self) -> None:
        """Kill the remaining processes of every session, read their output, and only then reap the leaders."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):  # no process of the session is left
                os.killpg(process.pid, signal.SIGKILL)
        for thread in self._threads:
            thread.join(JOIN_S)
        for process in self._processes.values():
            process.wait(JOIN_S)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def outputs(self) -> list[SiteOutput]:
        while not self._events.empty():
            name, event = self._events.get()
            if isinstance(event, str) and self._on_line is not None:
                self._on_line(name, event)
        return [
            SiteOutput(name, "".join(self._lines[name, "stdout"]), "".join(self._lines[name, "stderr"]))
            for name in self._processes
        ]

    def _spawn(self, target: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, name=f"tradewind-lab-{arguments[0]}", daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _read(self, name: str, stream: str, pipe: IO[str]) -> None:
        while line := pipe.readline(LONGEST_LINE):
            self._lines[name, stream].append(line)
            if stream == "stdout":
                self._events.put((name, line.rstrip("\n")))

    def _await(self, name: str, pid: int) -> None:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie, so its process id is not reused
        assert ended is not None
        self._events.put((name, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
