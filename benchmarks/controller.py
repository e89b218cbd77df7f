"""One controller and many ranks: processor time, messages and bytes a round.

- **simulated**: the production `Controller` with as many ranks as wanted. Every message of a rank is decoded from its
  bytes, and every answer is encoded as `ControlServer` does, once for all ranks that get the same. That time is
  counted; sockets and threads are not. All ranks all-reduce an array by one plan (a balanced tree), or a small one
  inline, one after another in the eight streams of a strict run in turn, as DDP does. So the controller foresees rounds
  by a plan: a rank sends `Ready` and `Finished` for each, and receives `Start`, `Commit` and the announcement of the
  next round of a stream. Joining, the first round (in which the plan is made and sent) and heartbeats are counted
  apart. Before the rounds of a kind, two in each stream are not counted. CPU times are medians, with the smallest and
  the largest of the repetitions where there are several.
- **live**: a controller in a process of its own, and ranks on loopback that are only their control connections: they
  request rounds, in eight streams too, and report them as finished at once. The processor time is that of the
  controller's process.

The last table says where one controller ends: the number of ranks at which rounds of one second, one after the other,
take half a core, by what a rank costs in the largest live run.
"""

from __future__ import annotations

import secrets
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TextIO

import numpy as np

from tradewind.control import Controller, ControlOptions
from tradewind.control.controller import Action, Send
from tradewind.control.deadlines import Deadlines
from tradewind.runtime.addresses import LOOPBACK, HostPort
from tradewind.runtime.control_link import ControlLink
from tradewind.runtime.control_server import ControlServer
from tradewind.runtime.dialling import Dialling
from tradewind.wire import messages as m
from tradewind.wire.frames import FrameReader
from tradewind.wire.handshake import Credentials

RANKS = (8, 64, 256, 1000, 2000)
REPEATS = 9
LARGE = m.Operation(10_000_000, 4, "float32", "sum")
SMALL_ITEMS = 64
LIVE_RANKS = (64, 256, 500)
LIVE_ROUNDS, LIVE_REPEATS, LONGEST_S = 20, 5, 120.0
BY_A_PLAN, INLINE, HEARTBEATS = "by a plan", "inline", "heartbeats"
SMALL = np.ones(SMALL_ITEMS, np.float32).tobytes()
HALF_A_CORE_S = 0.5
WARM_UP = 2 * m.POLICY_STREAM
"""Rounds of a kind until the controller foresees the next one of each stream."""


@dataclass
class Cost:
    """What the controller spent on something."""

    cpu_s: float = 0.0
    messages: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    spread_s: tuple[float, ...] = ()
    """The smallest and the largest processor time of the repetitions."""


@dataclass
class SimulatedRun:
    """The production controller and ranks that answer at once."""

    ranks: int
    cost: Cost = field(default_factory=Cost)

    def __post_init__(self) -> None:
        self.names = [f"rank{number}" for number in range(self.ranks)]
        self.controller = Controller(ControlOptions(self.ranks, planner="balanced-tree"), 0.0)
        for number, name in enumerate(self.names):
            self.controller.connected(name, 0.0)
            self.do(name, m.Join("10.0.0.1", 20000 + number, number))

    def do(self, name: str, message: m.Message) -> list[m.Message]:
        """Let the controller handle a message as its driver does; return what it sends, each message once."""
        frame = m.encode_message(message, 1)
        start_s = time.process_time()
        ((_, body),) = FrameReader().feed(frame)
        actions: list[Action] = self.controller.received(name, m.decode_message(body), 0.0)
        encoded: dict[int, tuple[m.Message, bytes]] = {}
        sent, sent_bytes = 0, 0
        for action in actions:
            if isinstance(action, Send):
                known = encoded.get(id(action.message))
                if known is None:
                    known = encoded[id(action.message)] = action.message, m.encode_message(action.message, 1)
                sent += 1
                sent_bytes += len(known[1])
        cost = self.cost
        cost.cpu_s += time.process_time() - start_s
        cost.messages += 1 + sent
        cost.received_bytes += len(frame)
        cost.sent_bytes += sent_bytes
        return [message for message, _ in encoded.values()]

    def round(self, number: int, array: bytes | None) -> None:
        """Run one round of all ranks, the operation of this number."""
        ready = _request(number, array)
        told = [said for name in self.names for said in self.do(name, ready)]
        if array is None:
            (start,) = (message for message in told if isinstance(message, m.Start))
            told = [s for name in self.names for s in self.do(name, m.Finished(start.round, start.version, 7))]
            assert {type(message) for message in told} <= {m.Commit, m.Announce}
        else:
            assert [type(message) for message in told] == [m.InlineResult]


def _operation(array: bytes | None) -> m.Operation:
    return LARGE if array is None else m.Operation(SMALL_ITEMS, 4, "float32", "sum")


def _request(number: int, array: bytes | None) -> m.Ready:
    """The request of an operation, numbered from 0: a strict run assigns operations to its streams in turn."""
    turn, stream = divmod(number, m.POLICY_STREAM)
    return m.Ready(stream, turn + 1, _operation(array), array)


def simulated(ranks: int) -> dict[str, Cost]:
    """The cost of joining, of the first and later rounds by a plan, of inline ones, and of a heartbeat of all ranks."""
    run = SimulatedRun(ranks)
    found, run.cost = {"joining": run.cost}, Cost()
    numbers = count()
    run.round(next(numbers), None)
    found["the first round"] = run.cost
    kinds: dict[str, Callable[[], object]] = {
        BY_A_PLAN: lambda: run.round(next(numbers), None),
        INLINE: lambda: run.round(next(numbers), SMALL),
        HEARTBEATS: lambda: [run.do(name, m.Heartbeat(0.0)) for name in run.names],
    }
    for kind, work in kinds.items():
        costs = []
        for repeat in range(-WARM_UP, REPEATS):
            run.cost = Cost()
            work()
            if repeat >= 0:
                costs.append(run.cost)
        costs.sort(key=lambda cost: cost.cpu_s)
        found[kind] = replace(costs[REPEATS // 2], spread_s=(costs[0].cpu_s, costs[-1].cpu_s))
    return found


# --- live ------------------------------------------------------------------------------------------------------------


class LightRank:
    """A rank that is only its control connection."""

    def __init__(self, number: int, port: int, secret: bytes) -> None:
        self._credentials = Credentials("benchmark", f"rank{number}", secret)
        dialling = Dialling.to_controller(self._credentials.site, LONGEST_S)
        address = HostPort(LOOPBACK, port)
        self._link = ControlLink(address, self._credentials, time.monotonic() + LONGEST_S, dialling, LONGEST_S)
        self._link.send(m.Join(LOOPBACK, 20000 + number, number))
        self.joined, self.ended = threading.Event(), threading.Event()
        threading.Thread(target=self._link.read, args=(self._handle,), daemon=True).start()

    def begin(self, number: int, array: bytes | None) -> None:
        """Request the operation of this number; `ended` is set at its end."""
        self.ended.clear()
        self._link.send(_request(number, array))

    def close(self) -> None:
        """Close the connection."""
        self._link.end()

    def _handle(self, message: m.Message) -> None:
        match message:
            case m.Roster():
                self.joined.set()
            case m.Start(round_, version):
                self._link.send(m.Finished(round_, version, 7))
            case m.Commit() | m.InlineResult():
                self.ended.set()


def live(ranks: int) -> dict[str, list[float]]:
    """The processor time in s that the controller's process spends on a round, of each repetition, by kind."""
    secret = secrets.token_hex(16)
    command = [sys.executable, "-m", __name__, str(ranks), secret]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None

        def answer() -> float:
            assert server.stdin is not None and server.stdout is not None
            print(file=server.stdin, flush=True)
            return float(server.stdout.readline())

        port = int(server.stdout.readline())
        light = [LightRank(number, port, secret.encode()) for number in range(ranks)]
        for rank in light:
            rank.joined.wait(LONGEST_S)
        spent: dict[str, list[float]] = {BY_A_PLAN: [], INLINE: []}
        numbers = count()
        for repeat in range(LIVE_REPEATS + 1):
            for kind, costs in spent.items():
                before_s = answer()
                for _ in range(LIVE_ROUNDS):
                    number = next(numbers)
                    for rank in light:
                        rank.begin(number, SMALL if kind == INLINE else None)
                    if not all(rank.ended.wait(LONGEST_S) for rank in light):
                        raise SystemExit(f"a round did not end within {LONGEST_S:g} s")
                if repeat:  # the first time the plan is made
                    costs.append((answer() - before_s) / LIVE_ROUNDS)
        for rank in light:
            rank.close()
        server.stdin.close()
    return spent


def _serve(ranks: int, secret: str) -> None:
    """Run a controller; for each line on stdin, print the processor time of this process."""
    options = ControlOptions(ranks, planner="balanced-tree", deadlines=Deadlines(LONGEST_S))
    server = ControlServer(LOOPBACK, 0, Credentials("benchmark", "controller", secret.encode()), options)
    print(server.port, flush=True)
    for _ in sys.stdin:
        print(time.process_time(), flush=True)
    server.close("the benchmark has ended")


# --- tables ----------------------------------------------------------------------------------------------------------


def run(out: TextIO) -> None:
    """Measure, and write the tables."""
    costs = {ranks: simulated(ranks) for ranks in RANKS}
    out.write("| ranks | what | CPU | CPU a rank | messages a rank | received a rank | sent a rank |\n")
    out.write("|---:|---|---:|---:|---:|---:|---:|\n")
    for ranks, by_kind in costs.items():
        for kind, cost in by_kind.items():
            spread = " to ".join(f"{1e3 * s:.2f}" for s in cost.spread_s)
            out.write(
                f"| {ranks:,} | {kind} | {1e3 * cost.cpu_s:.2f} ms{spread and f' ({spread})'} "
                f"| {1e6 * cost.cpu_s / ranks:.1f} µs | {cost.messages / ranks:.1f} "
                f"| {cost.received_bytes / ranks:,.0f} B | {cost.sent_bytes / ranks:,.0f} B |\n"
            )
    out.write("\nLive:\n\n| ranks | round | CPU a round | CPU a rank |\n|---:|---|---:|---:|\n")
    for ranks in LIVE_RANKS:
        spent = live(ranks)
        for kind, times in spent.items():
            cpu_s, spread = statistics.median(times), f"{1e3 * min(times):.2f} to {1e3 * max(times):.2f}"
            out.write(f"| {ranks} | {kind} | {1e3 * cpu_s:.2f} ms ({spread}) | {1e6 * cpu_s / ranks:.0f} µs |\n")
    out.write("\n| rounds of 1 s | half a core at |\n|---|---:|\n")
    for kind, times in spent.items():
        out.write(f"| {kind} | {HALF_A_CORE_S * LIVE_RANKS[-1] / statistics.median(times):,.0f} ranks |\n")


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2])
