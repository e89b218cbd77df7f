"""Chunk-level runs on a network that changes: links are measured, and the run replans while rounds continue.

All invariants of `sim.chunks.run` are checked. In addition, ranks have clocks of their own, measure incoming frames and
send heartbeats; control messages have random delays for every rank, so that ranks receive a new plan in any order and
chunks arrive before it; planning takes time; rates change at given times; and plans may be switched at every round, to
any valid plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tradewind.control import Controller, ControlOptions
from tradewind.control.awareness import Awareness
from tradewind.control.controller import Action as ControlAction
from tradewind.control.controller import Send
from tradewind.control.deadlines import Deadlines
from tradewind.control.network.view import NetworkView
from tradewind.control.plans.versions import PlanMade, PlanWanted, finished_plan
from tradewind.errors import ImpossibleProblem, InternalError
from tradewind.network import Network, Site
from tradewind.node.actions import Transmit
from tradewind.node.measuring import LinkMeters, MeasuringOptions
from tradewind.sim.chunks.links import Frame
from tradewind.sim.chunks.run import ChunkDriver, ChunkResult, ChunkRun
from tradewind.sim.chunks.worker import SimulatedWorker
from tradewind.sim.clock import Priority
from tradewind.wire import messages as m

LONGEST_STANDSTILL_S = 200.0
"""Heartbeats never stop, so a run without any result for this long is taken as a deadlock."""


@dataclass(frozen=True)
class ChangingRun:
    """A run and the changes in it."""

    run: ChunkRun
    awareness: Awareness = field(default_factory=Awareness)
    changes: tuple[tuple[float, Network], ...] = ()
    """Times of changes, and the network with the new rates."""
    known: bool = True
    """Whether the controller is given the network."""
    control_s: float = 0.05
    """The largest delay of a control message."""
    planning_s: float = 0.1
    switch_to: tuple[str, ...] = ()
    """Planners of which one makes a new plan whenever a round has ended."""
    skew_s: float = 1000.0
    """The largest difference between clocks."""


@dataclass(frozen=True, slots=True)
class ChangingResult:
    """The result of a run on a changing network."""

    chunks: ChunkResult
    switches: int
    """The number of new plans that rounds have started with."""
    rerouted: int
    """The number of rounds that continued with another plan than they started with."""
    detoured: int
    """The number of chunks that took an auxiliary path."""
    view: NetworkView
    ended_s: Mapping[str, tuple[float, ...]]


class MeasuringWorker(SimulatedWorker):
    """A simulated rank that measures incoming frames."""

    def __init__(self, *arguments: Any, skew_s: float, options: MeasuringOptions) -> None:
        super().__init__(*arguments)
        self._skew_s, self._meters = skew_s, LinkMeters(options)
        self.detoured = 0

    @property
    def own_clock_s(self) -> float:
        """The time on this rank's clock."""
        return self.clock.now_s + self._skew_s

    def told(self, message: m.Message) -> None:
        """Handle a message of the controller."""
        if isinstance(message, m.HeartbeatSeen):
            self._meters.clock.answered(message.sent_s, message.seen_s, self.own_clock_s)
        super().told(message)

    def frame_came(self, peer: int, frame: Frame, wire: object = None) -> None:
        """Handle a frame, and measure it."""
        super().frame_came(peer, frame)
        self.detoured += frame.what.auxiliary and frame.what.payload_bytes > 0
        sample = self._meters.arrived(peer, wire, frame.what, self.own_clock_s)
        if sample is not None:
            names = {number: name for name, number in self.node.numbers.items()}
            self._say(
                self.name,
                m.Measured(
                    names[peer], sample.bandwidth_bps, sample.full, sample.chunks, sample.latency_s, sample.train
                ),
            )

    def _transmit(self, action: Transmit) -> None:
        stamped = replace(action.header, sent_us=self._meters.clock.stamp_us(self.own_clock_s))
        super()._transmit(replace(action, header=stamped))


class ChangingDriver(ChunkDriver):
    def __init__(self, changing: ChangingRun) -> None:
        super().__init__(changing.run)
        self.changing = changing
        setup, names = changing.run, changing.run.network.names
        self.controller = Controller(
            ControlOptions(
                len(names),
                setup.network if changing.known else None,
                planner=setup.planner if changing.known else None,
                deadlines=Deadlines(setup.patience_s),
                seed=setup.seed,
                awareness=changing.awareness,
                send_ahead=setup.send_ahead,
            ),
            0.0,
        )
        aware = changing.awareness
        options = MeasuringOptions(aware.estimator, aware.min_chunk_bytes, aware.probe_chunks, aware.report_s)
        skews = changing.skew_s * self.random.random(len(names))
        self.measuring = {
            name: MeasuringWorker(name, self.clock, self.say, self.random, skew_s=float(skew), options=options)
            for name, skew in zip(names, skews, strict=True)
        }
        self.workers = dict(self.measuring)
        self._wake_s = float("inf")
        self._started: set[int] = set()
        self._ended = 0, 0.0
        """The number of operations that have ended, and when that number last grew."""

    # --- control -------------------------------------------------------------------------------------------------

    def _delay_s(self) -> float:
        return float(self.changing.control_s * self.random.random())

    def say(self, worker: str, message: m.Message) -> None:
        due = max(self._report_s[worker], self.clock.now_s + self._delay_s())
        self._report_s[worker] = due
        self.clock.at(due, Priority.ARRIVAL, self._heard, (worker, message))

    def control(self, actions: list[ControlAction]) -> None:
        for action in actions:
            if isinstance(action, PlanWanted):
                due = self.clock.now_s + self.changing.planning_s * (0.5 + float(self.random.random()))
                self.clock.at(due, Priority.ARRIVAL, self._planned, action)
            elif isinstance(action, Send):
                due = max(self._control_s[action.worker], self.clock.now_s + self._delay_s())
                self._control_s[action.worker] = due
                self.clock.at(due, Priority.ARRIVAL, self._told, (action.worker, action.message))
                if isinstance(action.message, m.Start):
                    self._started.add(action.message.version)
        if self.changing.switch_to and any(isinstance(a, Send) and isinstance(a.message, m.Commit) for a in actions):
            self._switch()
        if self.controller.wake_at_s < self._wake_s and not self._all_ended:
            self._wake_s = self.controller.wake_at_s
            self.clock.at(max(self.clock.now_s, self._wake_s), Priority.ARRIVAL, self._tick, None)

    def _tick(self, _: None) -> None:
        self._wake_s = float("inf")
        if not self._all_ended:
            self.control(self.controller.tick(self.clock.now_s))

    def _planned(self, wanted: PlanWanted) -> None:
        self.control(self.controller.planned(wanted.make(), self.clock.now_s))

    def _switch(self) -> None:
        """Switch to an arbitrary valid plan: every one must work, and no change may lose a chunk.

        Where a small gain is enough for running rounds to change plans, they change, too: the plan claims to take
        almost no time.
        """
        seconds = 1e-9 if self.changing.awareness.reroute_gain < 0.1 else 0.0
        plans = self.controller.plans
        key = plans.keys[int(self.random.integers(len(plans.keys)))]
        planner = str(self.random.choice(self.changing.switch_to))
        try:
            plan = finished_plan(planner, plans.view.network, key[1], key[0], {}, False)
        except ImpossibleProblem:
            return
        self.control(self.controller.planned(PlanMade(key, plan, float("inf"), "", seconds), self.clock.now_s))

    @property
    def _all_ended(self) -> bool:
        return all(len(w.results) == len(self.setup.items) for w in self.workers.values())

    def _beat(self, name: str) -> None:
        ended = sum(len(worker.results) for worker in self.workers.values())
        if ended != self._ended[0]:
            self._ended = ended, self.clock.now_s
        elif self.clock.now_s > self._ended[1] + LONGEST_STANDSTILL_S:
            self._check_all_ended()
        if not self._all_ended:
            self.say(name, m.Heartbeat(self.measuring[name].own_clock_s))
            every_s = self.controller.deadlines.heartbeat_s / 5
            self.clock.at(self.clock.now_s + every_s, Priority.ARRIVAL, self._beat, name)

    # --- the network ---------------------------------------------------------------------------------------------

    def _change(self, network: Network) -> None:
        for src, dst, connection in self._wires:
            rate_bps = float(network.bandwidth_bps[network.index[src], network.index[dst]])
            if rate_bps:
                connection.rate_bps = rate_bps / self.setup.connections

    def finish(self) -> ChangingResult:
        """Run to the end, and return the result."""
        for name in self.workers:
            self.clock.at(0.0, Priority.ARRIVAL, self._beat, name)
        for at_s, network in self.changing.changes:
            self.clock.at(at_s, Priority.FAULT, self._change, network)
        result = self.run()
        if result.errors:
            raise InternalError(f"operations failed although no link was cut: {result.errors}")
        return ChangingResult(
            result,
            len(self._started) - 1,
            self.controller.rerouted,
            sum(worker.detoured for worker in self.measuring.values()),
            self.controller.plans.view,
            {name: tuple(worker.ended_s.values()) for name, worker in self.workers.items()},
        )


def run_changing(changing: ChangingRun) -> ChangingResult:
    """Run once, with the checks of `sim.chunks.run`."""
    return ChangingDriver(changing).finish()


def changing_of(seed: int) -> ChangingRun:
    """A run whose every parameter is drawn from a seed."""
    random = np.random.default_rng(seed)
    n = int(random.integers(3, 7))

    def drawn() -> Network:
        rates = 10 ** random.uniform(6.5, 8, (n, n)) * (1 - np.eye(n))
        return Network(
            "seed", [Site(f"s{i}") for i in range(n)], rates, random.choice([0, 1e-3, 0.05]) * np.ones((n, n))
        )

    network = drawn()
    items = tuple(int(random.choice([1, 3000, 20_000, 100_000])) for _ in range(int(random.integers(10, 40))))
    run = ChunkRun(
        network,
        str(random.choice(["optimal", "fapt", "ring", "multi-star", "spanning-tree"])),
        seed,
        items,
        connections=int(random.integers(1, 3)),
        jitter_s=float(random.choice([0.0, 0.01, 0.2])),
        in_place=bool(random.random() < 0.4),
    )
    every_s = float(random.choice([0.5, 2.0]))
    return ChangingRun(
        run,
        Awareness(
            update_time_s=float(random.choice([0.2, 1.0, 5.0])),
            min_gain=float(random.choice([0.0, 0.05])),
            auxiliary=bool(random.random() < 0.5),
            auxiliary_queue_length=int(random.integers(1, 4)),
            auxiliary_scheduler="occupancy" if seed % 2 else "idle",
            refresh="always" if seed % 3 == 1 else "better",
            confirm=seed % 5 != 1,
            explore_share=float(random.choice([0.0, 0.02, 0.2])),
            probe=bool(random.random() < 0.3),
            probe_s=0.5,
            reroute_gain=float(random.choice([0.01, 0.3, np.inf])),
        ),
        tuple((every_s * (k + 1), drawn()) for k in range(int(random.integers(0, 6)))),
        known=bool(random.random() < 0.7),
        control_s=float(random.choice([0.01, 0.05, 1.0])),
        planning_s=float(random.choice([0.01, 1.0])),
        switch_to=("optimal", "fapt", "ring", "multi-star", "star") if random.random() < 0.5 else (),
    )


def run_changing_seed(seed: int) -> ChangingResult:
    """Run with parameters drawn from a seed; a failure ends with the command that repeats it."""
    try:
        return run_changing(changing_of(seed))
    except Exception as error:
        replay = f"python -c 'from tradewind.sim.chunks.changing import run_changing_seed as r; r({seed})'"
        raise InternalError(f"{type(error).__name__}: {error}\nreplay: {replay}") from error
