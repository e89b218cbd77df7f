"""Makes plans in a process of its own, so that a rank that also runs the controller does not share its interpreter.

A planner computes for seconds. In a thread it would hold the interpreter lock for much of that time, and training on
the same rank would wait. So background plans are made by a child process, started when the first one is wanted:
`python -m tradewind.runtime.planning_process` with one end of a socket pair as its standard input. Requests and answers
are JSON, each a length and the text (`multiprocessing.connection`). Nothing is pickled, and the user's script is not
imported again, as `multiprocessing` would do, so it needs no `__main__` guard.

The process ends when its end of the pair is closed, hence also when the controller's process dies; forked children
close their copies (`forking`). If it cannot be started, or dies, plans are made by the thread that asks for them.
Plug-ins always are: they may be objects of this process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from tradewind.control.plans.versions import Key, PlanMade, PlanWanted
from tradewind.errors import as_own_error
from tradewind.formats.json_network import NetworkDocument, network_from_document, network_to_document
from tradewind.planning import PLANNERS
from tradewind.planning.plan import plan_from_json, plan_to_json
from tradewind.runtime.forking import close_in_children
from tradewind.runtime.threads import start_thread

log = logging.getLogger("tradewind.runtime")

FEW_MEMBERS = 4
"""Up to this many members plans are made at once, in the thread that asks: that takes milliseconds."""
MOST_DEATHS = 3
"""After this many deaths of the process no other one is started."""
NICENESS = 5
"""Planning yields to training where processors are busy."""
END_S = 5.0
"""How long `close` waits for the killed process to be gone."""


class _Request(msgspec.Struct):
    key: Key
    network: NetworkDocument
    planner: str
    options: dict[str, Any]
    current: str
    fast: bool
    chunk_bytes: int | None


class _Answer(msgspec.Struct):
    plan: str | None
    gain: float
    problem: str
    seconds: float


class PlanningProcess:
    """Makes plans one at a time, in another process where that is possible. Thread-safe."""

    def __init__(self) -> None:
        self.planned = 0
        """The number of plans that were made by the other process."""
        self._asking = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Connection | None = None
        self._deaths = 0
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The number of the process, if it has been started and not ended."""
        process = self._process
        return None if process is None else process.pid

    def make(self, wanted: PlanWanted) -> PlanMade:
        """Make a plan; this can take seconds. After `close` there is none."""
        with self._asking:
            answer = self._asked(_request(wanted))
        if answer is not None:
            self.planned += 1
            plan = None if answer.plan is None else plan_from_json(answer.plan)
            return PlanMade(wanted.key, plan, answer.gain, answer.problem, answer.seconds)
        if self._closed:
            return PlanMade(wanted.key, None, 0.0, "the controller has ended.")
        return wanted.make()

    def close(self) -> None:
        """End the process, also while it makes a plan."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._asking:
            self._end()

    def _asked(self, request: bytes | None) -> _Answer | None:
        """The answer of the process; None if this process must make the plan."""
        if request is None or self._closed or not self._is_running():
            return None
        assert self._link is not None
        try:
            self._link.send_bytes(request)
            return msgspec.json.decode(self._link.recv_bytes(), type=_Answer)
        except (EOFError, OSError, msgspec.DecodeError) as error:
            code = self._end()
            if not self._closed:
                self._deaths += 1
                log.warning(
                    "the planning process ended with code %s (%s); the plan is made in the process of the controller, "
                    "which can delay a rank that trains in it.",
                    code,
                    error or type(error).__name__,
                )
            return None

    def _is_running(self) -> bool:
        """Start the process if necessary and possible; return whether there is one."""
        if self._process is not None:
            return True
        if self._deaths >= MOST_DEATHS or not sys.executable:
            return False
        ours, theirs = Pipe()
        package = str(Path(__file__).parents[2])
        paths = os.pathsep.join(part for part in (package, os.environ.get("PYTHONPATH", "")) if part)
        command = [sys.executable, "-P", "-m", "tradewind.runtime.planning_process"]
        try:
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=2, env={**os.environ, "PYTHONPATH": paths}
            )
        except OSError as error:
            self._deaths = MOST_DEATHS
            log.warning("no planning process can be started (%s); plans are made in this process.", error)
            ours.close()
            return False
        finally:
            theirs.close()
        self._link = close_in_children(ours)
        if self._closed:  # closed while it was started
            self._process.kill()
        return True

    def _end(self) -> int | None:
        """Kill the process if it is running, and forget it; return its exit code."""
        process, link, self._process, self._link = self._process, self._link, None, None
        if link is not None:
            link.close()
        if process is None:
            return None
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        return process.returncode


def _request(wanted: PlanWanted) -> bytes | None:
    """The request as JSON; None if the plan is to be made in this process."""
    tried = wanted.options.get("planners", ())
    names = {wanted.planner, *(tried if isinstance(tried, list | tuple) else ())}
    if len(wanted.key[0]) <= FEW_MEMBERS or not names <= set(PLANNERS.built_in):
        return None
    request = _Request(
        wanted.key,
        network_to_document(wanted.network),
        wanted.planner,
        wanted.options,
        plan_to_json(wanted.current),
        wanted.fast,
        wanted.chunk_bytes,
    )
    try:
        return msgspec.json.encode(request)
    except TypeError:  # an option of a type that JSON cannot express
        return None


def _answered(data: bytes) -> bytes:
    """The answer to a request, in the planning process."""
    request = msgspec.json.decode(data, type=_Request)
    current = plan_from_json(request.current)
    network = network_from_document(request.network)
    more = request.planner, request.options, current, request.fast, request.chunk_bytes
    try:
        made = PlanWanted(request.key, network, *more).make()
    except Exception as error:
        made = PlanMade(request.key, None, 0.0, str(as_own_error(error)))
    plan = None if made.plan is None else plan_to_json(made.plan)
    return msgspec.json.encode(_Answer(plan, made.gain, made.problem, made.seconds))


def main() -> None:
    """Answer requests until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the controller ends us
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    link = Connection(os.dup(0))
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def receive() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                requests.put(link.recv_bytes())
        os._exit(0)  # also while a plan is being made: it is no longer needed

    start_thread(receive, name="tradewind-planning-requests")
    with contextlib.suppress(OSError):
        while True:
            link.send_bytes(_answered(requests.get()))


if __name__ == "__main__":
    main()
