"""A storm over real processes: ranks and controllers are killed and restarted, links cut and healed, at random.

Ranks train, each by itself and in rounds with the members that the policy chooses; a restarted rank takes the model of
a member. Two controllers run in separate processes, each the standby of the other. The events and their order follow
from the seed; the state of the run at each event does not.

A soak (`python -m benchmarks storm`) is the same for hours: ranks are stopped, too, and some processes are spared from
kills, so that what they use can be compared over the whole time.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np

from failing import LONGEST_S, SECRET, Process, processes
from ranks import free_port
from tradewind.formats.json_network import network_to_json
from tradewind.network import Network, Site

PATIENCE_S = 4.0
MOST_CUT = 6
MOST_STOPPED_S = 30.0
"""A rank that is stopped for longer would wake up with its waits timed out."""
SAMPLE_S = 10.0
CALM_S = 4 * LONGEST_S
"""The longest wait for a rank's first rounds: on a busy machine a dozen interpreters take minutes to start."""
CALM_STEPS = 3
"""The rounds with other ranks that every rank must finish after the storm."""

PROGRAM = textwrap.dedent("""
    import json, os, sys, threading, zlib
    import numpy as np
    import tradewind
    from tradewind.formats import read_network
    from tradewind.runtime.group import Hooks
    from tradewind.runtime.shaping import ShapedNetwork

    given = json.loads(sys.argv[1])
    rank, stop, speaking = given["rank"], threading.Event(), threading.Lock()
    shape = ShapedNetwork(read_network(given["shape"]))
    here = shape.names[rank]
    for peer in given["cut"]:
        shape.cut(here, peer)

    def say(**what):
        with speaking:
            print(json.dumps(what), flush=True)

    def obey():
        for line in sys.stdin:
            order, _, peer = line.strip().partition(" ")
            if order == "stop":
                stop.set()
            else:
                getattr(shape, order)(here, peer)
                say(obeyed=order, peer=peer)

    def died(what):
        say(thread=what.thread.name, error=repr(what.exc_value))
        os._exit(3)  # a thread that dies is a bug, even if the run survives it

    threading.excepthook = died
    threading.Thread(target=obey, daemon=True).start()
    model = np.full(given["items"], float(rank))
    tolerance = tradewind.Tolerance(patience_s=given["patience_s"])
    options = tradewind.RunOptions(controller=tuple(given["address"]), tolerance=tolerance)
    secret, hooks = "correct horse battery", Hooks(shape=shape)
    with tradewind.connect(None, rank, given["world"], options, secret=secret, hooks=hooks) as group:
        fetched = group.fetch_state()
        if fetched is not None:
            model = np.frombuffer(fetched.data).copy()
        group.offer_state(lambda: model.tobytes())
        say(joined=here, model_of=None if fetched is None else fetched.sources[0])
        trained = np.random.default_rng()
        while not stop.wait(given["pause_s"]):
            model = model + trained.standard_normal()
            before = zlib.crc32(model)
            handle = group.average_async(model)
            result = handle.wait(90.0)
            outcome = handle.outcome
            say(round=outcome.round, alone=outcome.alone, members=outcome.contributors, repaired=outcome.repaired,
                hash=zlib.crc32(result), intact=zlib.crc32(model) == before)
            model = result
    say(done=True)
""")


@dataclass(frozen=True)
class Weather:
    """How a storm goes about it."""

    gap_s: float
    """Mean time between two events."""
    pause_s: float = 0.05
    """Time between two steps of a rank."""
    spared: int = 0
    """Ranks that are never killed; if there are any, the second controller is not killed either."""
    stops: bool = False
    """Whether ranks are stopped by SIGSTOP, and continued."""


@dataclass
class StormReport:
    """The results of a storm."""

    events: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    alone: int = 0
    rounds: int = 0
    repaired: int = 0
    terms: int = 0
    fetched: int = 0
    """Ranks that received the model of a member when they joined."""
    seconds: float = 0.0
    use: dict[str, list[Use]] = field(default_factory=dict)
    """What each spared process used: at the calm start, during the storm, and at the calm end."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a process uses at one time."""

    at_s: float
    memory_bytes: int
    threads: int
    files: int


def use_of(pid: int, at_s: float) -> Use:
    """Resident memory, threads and open files of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    threads, files = (len(list(Path(f"/proc/{pid}/{kind}").iterdir())) for kind in ("task", "fd"))
    return Use(at_s, pages * os.sysconf("SC_PAGE_SIZE"), threads, files)


class LiveStorm:
    """One storm; `processes()` ends the remaining processes."""

    def __init__(self, start: Callable[..., Process], folder: Path, world: int, seed: int, weather: Weather) -> None:
        self._start, self._random, self._weather = start, random.Random(seed), weather
        self.noted: Callable[[StormReport], None] | None = None
        """Called after each reading of what processes use, with the report so far."""
        names = [f"rank{n}" for n in range(world)]
        self._shape = folder / "mesh.json"
        apart = 1 - np.eye(world)
        network = Network("mesh", [Site(name) for name in names], 50e6 * apart, 2e-3 * apart)
        self._shape.write_bytes(network_to_json(network))
        self.names, self.report = names, StormReport()
        self._addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self._controllers: list[subprocess.Popen[bytes] | None] = [None, None]
        self._workers: dict[str, Process] = {}
        self._past: list[Process] = []
        self._cut: set[tuple[str, str]] = set()
        self._stopped: dict[str, float] = {}
        """Stopped ranks, and when they were stopped."""
        self._began_s = self._sampled_s = 0.0

    # --- starting and ending -----------------------------------------------------------------------------------

    def start_controller(self, index: int) -> None:
        command = [sys.executable, "-c", "from tradewind.cli import main; main()", "controller"]
        command += ["--listen", self._addresses[index], "--world", str(len(self.names)), "--policy", "partial"]
        command += ["--planner", "scatter", "--patience-s", f"{PATIENCE_S}s"]
        command += ["--controllers", "2", "--standby", str(index)]
        self._controllers[index] = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TRADEWIND_SECRET": SECRET},
        )

    def start_worker(self, name: str) -> None:
        cut = sorted({a if b == name else b for a, b in self._cut if name in (a, b)})
        self._workers[name] = self._start(
            self.names.index(name),
            self._addresses,
            len(self.names),
            items=20_000,
            program=PROGRAM,
            shape=str(self._shape),
            cut=cut,
            pause_s=self._weather.pause_s,
            patience_s=PATIENCE_S,
        )

    def end(self) -> None:
        """Leave no controller behind."""
        for controller in self._controllers:
            if controller is not None:
                controller.kill()
                controller.wait(10)

    # --- events ------------------------------------------------------------------------------------------------

    def _event(self) -> None:
        """One of those that are possible now."""
        kind, happen = self._random.choice(self._possible())
        happen()
        self.report.events[kind] += 1

    def _possible(self) -> list[tuple[str, Callable[[], None]]]:
        one = self._random.choice
        overdue = [name for name, since_s in self._stopped.items() if time.monotonic() - since_s > MOST_STOPPED_S]
        if overdue:
            return [("continue", lambda: self._continue(overdue[0]))]
        dead = sorted(set(self.names) - set(self._workers))
        running = [name for name in sorted(self._workers) if name not in self._stopped]
        joined = [name for name in running if any("joined" in said for said in self._workers[name].heard)]
        mortal = [name for name in running if name not in self._spared]
        possible: list[tuple[str, Callable[[], None]]] = []
        if mortal and len(joined) > len(self.names) // 2 + 1:  # a run whose majority is gone cannot go on
            possible.append(("kill", lambda: self._kill(one(mortal))))
        if self._weather.stops and len(joined) > len(self.names) // 2 + 1:
            possible.append(("stop", lambda: self._stop(one(joined))))
        if self._stopped:
            possible.append(("continue", lambda: self._continue(one(sorted(self._stopped)))))
        if dead:
            possible.append(("restart", lambda: self.start_worker(one(dead))))
        whole = [pair for pair in combinations(joined, 2) if pair not in self._cut]
        if whole and len(self._cut) < MOST_CUT:
            possible.append(("cut", lambda: self._order("cut", one(whole))))
        healable = sorted(pair for pair in self._cut if self._stopped.keys().isdisjoint(pair))
        if healable:
            possible.append(("heal", lambda: self._order("heal", one(healable))))
        return possible + self._possible_of_controllers()

    def _possible_of_controllers(self) -> list[tuple[str, Callable[[], None]]]:
        gone = [index for index, controller in enumerate(self._controllers) if controller is None]
        if gone:
            return [("controller restart", lambda: self.start_controller(gone[0]))]
        if self._random.random() < 0.3:
            return [("controller kill", self._kill_one_controller)]
        return []

    @property
    def _spared(self) -> list[str]:
        return self.names[: self._weather.spared]

    def _stop(self, name: str) -> None:
        process = self._workers[name].popen
        process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"{name} had ended by itself: {self._workers[name].last_words()}"
        self._stopped[name] = time.monotonic()

    def _continue(self, name: str) -> None:
        del self._stopped[name]
        self._workers[name].popen.send_signal(signal.SIGCONT)

    def _kill(self, name: str) -> None:
        process = self._workers.pop(name)
        assert process.popen.poll() is None, f"{name} had ended by itself: {process.last_words()}"
        process.kill()
        self._past.append(process)

    def _kill_one_controller(self) -> None:
        index = 0 if self._spared else self._random.randrange(2)
        controller = self._controllers[index]
        assert controller is not None and controller.poll() is None, f"controller {index} had ended by itself"
        controller.kill()
        assert controller.wait(10) == -signal.SIGKILL, "the fault did not fire"
        self._controllers[index] = None

    def _order(self, order: str, pair: tuple[str, str]) -> None:
        """Send it to both ends, if they are running; a rank that is started later gets it at its start."""
        (self._cut.add if order == "cut" else self._cut.discard)(pair)
        for name, peer in (pair, pair[::-1]):
            if name in self._workers:
                self._workers[name].tell(f"{order} {peer}")
        for name in pair:
            if name in self._workers:
                self._workers[name].wait_for(lambda said: said.get("obeyed") == order)

    # --- the whole ---------------------------------------------------------------------------------------------

    def run(self, events: int | None = None, seconds: float = 0.0) -> StormReport:
        """Run that many events, or as many as fit into a time."""
        began_s = self._began_s = time.monotonic()
        for index in range(2):
            self.start_controller(index)
        for name in self.names:
            self.start_worker(name)
        self._check_all_finish()
        self._sample()
        until_s = time.monotonic() + seconds
        while self.report.events.total() < events if events is not None else time.monotonic() < until_s:
            self._pass(self._random.expovariate(1 / self._weather.gap_s))
            self._event()
        for name in sorted(self._stopped):
            self._continue(name)
        for pair in sorted(self._cut):
            self._order("heal", pair)
        for index, controller in enumerate(self._controllers):
            if controller is None:
                self.start_controller(index)
        for name in sorted(set(self.names) - set(self._workers)):
            self.start_worker(name)
        self._check_all_finish()
        self._sample()
        for process in self._workers.values():
            process.tell("stop")
        for name, process in self._workers.items():
            assert "done" in process.end()[-1], f"{name}: {process.last_words()}"
            assert process.popen.wait(LONGEST_S) == 0, f"{name} did not end well"
        self.report.seconds = time.monotonic() - began_s
        self._look_back()
        return self.report

    def _pass(self, seconds: float) -> None:
        """Let time pass, collect the messages of all ranks, and check that none has ended."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.2))
            for name, process in self._workers.items():
                process.take_down()
                assert process.popen.poll() is None, f"{name} ended by itself: {process.last_words()}"
            for index, controller in enumerate(self._controllers):
                assert controller is None or controller.poll() is None, f"controller {index} ended by itself"
            if time.monotonic() - self._sampled_s > SAMPLE_S:
                self._sample()

    def _sample(self) -> None:
        """Note what the spared processes use now."""
        self._sampled_s = time.monotonic()
        at_s = self._sampled_s - self._began_s
        pids = {name: self._workers[name].popen.pid for name in self._spared}
        standby = self._controllers[1]
        if pids and standby is not None:
            pids["controller 1"] = standby.pid
        for name, pid in pids.items():
            self.report.use.setdefault(name, []).append(use_of(pid, at_s))
        if self.noted is not None:
            self.report.seconds = at_s
            self.noted(self.report)

    def _check_all_finish(self) -> None:
        """Every rank that could rejoin has rejoined and finishes rounds: none hangs."""
        for name, process in self._workers.items():
            process.take_down()
            try:
                for _ in range(CALM_STEPS):
                    process.wait_for(lambda said: said.get("alone") is False, CALM_S)
            except queue.Empty:
                raise AssertionError(f"{name} does not synchronise: {process.last_words()}") from None

    def _look_back(self) -> None:
        """All members of a round have the same bytes; inputs are as they were."""
        report, results = self.report, dict[int, dict[int, set[str]]]()
        for process in (*self._past, *self._workers.values()):
            if process in self._past:
                process.end()
            for said in process.heard:
                report.fetched += said.get("model_of") is not None
                if "round" in said:
                    assert said["intact"], f"{process.name}: the input of round {said['round']} has changed"
                    report.steps += 1
                    report.alone += said["alone"]
                    report.repaired += said["repaired"]
                    if not said["alone"]:
                        results.setdefault(said["round"], {}).setdefault(said["hash"], set()).add(process.name)
        diverged = {number: found for number, found in results.items() if len(found) > 1}
        assert not diverged, f"members of these rounds differ: {diverged}"
        report.rounds = len(results)
        report.terms = len({number >> 32 for number in results})


@contextmanager
def live_storm(folder: Path, world: int, seed: int, weather: Weather) -> Iterator[LiveStorm]:
    """A storm that leaves no process behind."""
    with processes() as start:
        storm = LiveStorm(start, folder, world, seed, weather)
        try:
            yield storm
        finally:
            storm.end()
