"""A tiny driver of engines in memory: frames in order on each connection, everything else in random order.

Each pair of sites has `connections` of them each way; headers, payloads, sums and transmissions complete at random
times, rounds open at random times. What must hold at every step is asserted here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import NamedTuple

import numpy as np

from tradewind.arithmetic import Arithmetic, Array
from tradewind.node import events as ev
from tradewind.node.actions import Action, Combine, How, PeerFaulty, Receive, Release, RoundComplete, Source, Transmit
from tradewind.node.coded_payload import coded_payload
from tradewind.node.engine.engine import Engine
from tradewind.node.engine.layout import Form, lay_out
from tradewind.node.payload import RoundPayload
from tradewind.planning import windows
from tradewind.planning.plan import Plan
from tradewind.wire.codecs import NONE
from tradewind.wire.frames import FrameHeader, FrameKind, header_for

RUN = 7
MAX_STEPS = 2_000_000


@dataclass
class Opening:
    """A round that a site will open at some time."""

    event: ev.OpenRound
    payload: RoundPayload
    ahead: bool = False
    """Whether it is opened ahead first."""


@dataclass
class CollectiveArrays:
    """What a collective other than the all-reduce works on: all its items, those of each rank's part, the results."""

    items: int
    sizes: tuple[int, ...]
    results: dict[str, Array]


class Applied(NamedTuple):
    """A chunk that was added or copied: its place in the round, the path it took, and the last sender."""

    place: tuple[int, ...]
    path: tuple[int, ...]
    sender: int


@dataclass
class Worker:
    """One site."""

    engine: Engine
    buffers: dict[int, bytearray] = field(default_factory=dict)
    rounds: dict[int, RoundPayload] = field(default_factory=dict)
    unopened: list[Opening] = field(default_factory=list)
    complete: set[int] = field(default_factory=set)
    working: list[tuple[object, bytes]] = field(default_factory=list)
    applied: set[Applied] = field(default_factory=set)
    most_kept: int = 0


def fill(block: memoryview, coming: BytesIO) -> None:
    """The next bytes of a payload, as a socket would give them."""
    assert coming.readinto(block) == len(block)


class Driver:
    """All sites of a run and the wires between them."""

    def __init__(self, sites: Sequence[str], random: np.random.Generator, connections: int = 1) -> None:
        self.roster = {name: number for number, name in enumerate(sites)}
        self.workers = [Worker(Engine(RUN, number)) for number in range(len(sites))]
        self.random = random
        self.connections = connections
        self.wires: dict[tuple[int, int, int], deque[tuple[FrameHeader, bytes]]] = {}
        self.receiving: dict[tuple[int, int, int], tuple[Receive, bytes]] = {}

    def add_round(
        self,
        number: int,
        plan: Plan,
        arrays: Mapping[str, Array],
        arithmetic: Mapping[str, Arithmetic],
        version: int = 0,
        in_place: bool = False,
        codec: str = NONE,
        collective: CollectiveArrays | None = None,
        ahead: float = 0.0,
    ) -> dict[str, Array]:
        """A round to be carried out; returns where results will be. `ahead`: the share of members that do so ahead."""
        items = len(next(iter(arrays.values()))) if collective is None else collective.items
        sizes = () if collective is None else collective.sizes
        results = {name: array if in_place else np.zeros_like(array) for name, array in arrays.items()}
        if collective is not None:
            results = collective.results
        itemsize = next(iter(arrays.values())).itemsize
        for name in plan.sites:
            how = arithmetic.get(name) or next(iter(arithmetic.values()))
            layout = lay_out(plan, self.roster, name, items, itemsize, form=Form(codec, sizes))
            payload = RoundPayload(layout, how, arrays.get(name), results.get(name))
            if codec != NONE:
                payload = coded_payload(layout, how, arrays.get(name), results.get(name), version, number)
            opened = ev.OpenRound(number, version, layout, how.gathers)
            early = name in arrays and bool(self.random.random() < ahead)
            self.workers[self.roster[name]].unopened.append(Opening(opened, payload, early))
            for peer in layout.peers:
                for connection in range(self.connections):
                    wire = (self.roster[name], peer, connection)
                    if wire not in self.wires:
                        self.wires[wire] = deque()
                        self.tell(self.roster[name], ev.LinkIdle(peer))
        return results

    def run(self) -> None:
        """Until nothing is left to do."""
        for _ in range(MAX_STEPS):
            steps = self.possible()
            if not steps:
                return
            kind, argument = steps[int(self.random.integers(len(steps)))]
            getattr(self, kind)(argument)
        raise AssertionError("the engines never come to rest")

    def tell(self, site: int, event: ev.Event) -> list[Action]:
        worker = self.workers[site]
        actions = worker.engine.handle(event)
        for action in actions:
            self._act(site, worker, action)
        worker.most_kept = max(worker.most_kept, worker.engine.kept_bytes)
        assert worker.engine.kept_bytes == sum(map(len, worker.buffers.values()))
        return actions

    # --- steps -----------------------------------------------------------------------------------------------

    def possible(self) -> list[tuple[str, object]]:
        steps: list[tuple[str, object]] = []
        for site, worker in enumerate(self.workers):
            steps += [("open", site)] if worker.unopened else []
            steps += [("finish_work", site)] if worker.working else []
        steps += [("finish_receiving", wire) for wire in self.receiving]
        steps += [("deliver", wire) for wire, queue in self.wires.items() if queue and wire not in self.receiving]
        return steps

    def open(self, site: int) -> None:
        worker = self.workers[site]
        opening = worker.unopened.pop(int(self.random.integers(len(worker.unopened))))
        worker.rounds[opening.event.round] = opening.payload
        if opening.ahead:
            worker.unopened.append(Opening(opening.event, opening.payload))
        self.tell(site, replace(opening.event, ahead=opening.ahead))

    def deliver(self, wire: tuple[int, int, int]) -> None:
        src, dst, _ = wire
        header, body = self.wires[wire].popleft()
        actions = self.tell(dst, ev.HeaderReceived(src, header))
        if header.kind is FrameKind.CHUNK:
            (receive,) = [action for action in actions if isinstance(action, Receive)]
            self.receiving[wire] = (receive, body)

    def finish_receiving(self, wire: tuple[int, int, int]) -> None:
        action, body = self.receiving.pop(wire)
        worker = self.workers[wire[1]]
        header = action.header
        if action.buffer is not None:
            worker.buffers[action.buffer][: len(body)] = body
        if action.how not in (How.KEEP, How.DISCARD):
            place = (header.round, header.plan_version, header.shard, header.phase, header.index)
            mark = Applied(place, header.path, wire[0])
            assert mark not in worker.applied, f"{mark} is applied twice"
            worker.applied.add(mark)
            payload = worker.rounds[header.round]
            if action.buffer is not None:
                payload.take(action, worker.buffers[action.buffer])
            elif action.how is How.ADD:
                coming = BytesIO(body)
                scratch = np.empty(64, np.uint8)  # smaller than most chunks: block by block
                payload.add(action, scratch, lambda block, _: fill(block, coming))
            else:
                payload.result_of(action)[:] = payload.items(bytearray(body))
        self.tell(wire[1], ev.Received(action))

    def finish_work(self, site: int) -> None:
        worker = self.workers[site]
        action, _ = worker.working.pop(int(self.random.integers(len(worker.working))))
        if isinstance(action, Combine):
            worker.rounds[action.round].combine(action, worker.buffers)
            self.tell(site, ev.Combined(action))
        elif isinstance(action, Transmit):
            body = b""
            if action.source is Source.KEPT:
                assert action.buffer is not None
                kept = worker.buffers[action.buffer]
                is_relayed = action.header.hop > 1
                body = bytes(kept if is_relayed else worker.rounds[action.header.round].used(kept))
            elif action.source is not Source.NOTHING:
                body = bytes(worker.rounds[action.header.round].outgoing(action))
            assert len(body) <= action.header.payload_bytes
            header = header_for(action.header, len(body))
            connection = int(self.random.integers(self.connections))
            self.wires[site, action.peer, connection].append((header, body))
            self.tell(site, ev.Transmitted(action))
            self.tell(site, ev.LinkIdle(action.peer))

    def _act(self, site: int, worker: Worker, action: Action) -> None:
        match action:
            case Receive() if action.buffer is not None:
                assert action.buffer not in worker.buffers
                worker.buffers[action.buffer] = bytearray(action.buffer_bytes)
            case Combine():
                if action.made is not None and action.made not in worker.buffers:
                    worker.buffers[action.made] = bytearray(max(action.room, len(worker.buffers[action.parts[0]])))
                worker.working.append((action, b""))
            case Transmit():
                worker.working.append((action, b""))
            case Release(buffer):
                del worker.buffers[buffer]
            case RoundComplete(number):
                assert number not in worker.complete, f"round {number} completes twice at {site}"
                worker.complete.add(number)
            case PeerFaulty(peer, reason):
                raise AssertionError(f"{site} calls {peer} faulty: {reason}")

    def check_at_rest(self, rounds: Mapping[int, Plan]) -> None:
        """Check after `run` that every site has finished and nothing is left over."""
        for name, number in self.roster.items():
            worker = self.workers[number]
            expected = {r for r, plan in rounds.items() if name in plan.sites}
            assert worker.complete == expected, f"{name} completed {worker.complete}, not {expected}: a deadlock"
            for r in sorted(expected):
                self.tell(number, ev.CloseRound(r))
            assert not worker.buffers and worker.engine.kept_bytes == 0
            assert worker.most_kept <= windows.KEPT_BYTES * max(1, len(rounds))
