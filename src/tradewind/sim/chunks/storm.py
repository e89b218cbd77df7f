"""Storms: training while ranks, connections and controllers fail and recover at random.

    run_storm(storm_of(7))        # one storm whose every detail follows from the seed

The controllers, nodes and engines are the real ones. During the faults, every rank trains and synchronises step after
step. Then everything is restored, and all ranks must soon synchronise again: no rank hangs, and no rank that could
rejoin stays out. `sim.chunks.checks` checks the invariants at every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tradewind.control import ControlOptions
from tradewind.control.awareness import Awareness
from tradewind.control.deadlines import Deadlines
from tradewind.control.options import Scatter
from tradewind.errors import InternalError
from tradewind.network import Network, Site
from tradewind.sim.chunks.carriers import Carriers
from tradewind.sim.chunks.checks import CODED, CODED_APART, EXACT, GOLDEN, StormChecks
from tradewind.sim.chunks.control import MESSAGE_S, Line, SimulatedController
from tradewind.sim.chunks.pairs import Pairs
from tradewind.sim.chunks.silence import Silences
from tradewind.sim.chunks.worker import SimulatedWorker
from tradewind.sim.clock import Clock, Priority
from tradewind.wire import messages as m
from tradewind.wire.codecs import NONE, codec_of

CALM_STEPS = 3
"""The number of rounds with other members that every rank must complete after the storm."""
CALM_S = 600.0
"""The time limit for them in s: retries wait up to ten seconds each."""
RETRY_S = 0.2
CARRIER_KINDS = ("corrupt", "lose", "expire", "jump", "break", "line", "kill")
SILENT_KINDS = ("silent_cut", "one_way_cut", "swallow", "part", "flap", "stop", "black_hole", "kill")


@dataclass(frozen=True)
class Storm:
    """The parameters of one storm."""

    network: Network
    planner: str
    policy: str
    policy_options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    events: int = 20
    """The number of faults."""
    gap_s: float = 0.4
    """Mean time between two faults."""
    items: int = 2000
    train_s: float = 0.2
    controllers: int = 1
    is_known: bool = True
    """Whether controllers are given the network; otherwise they know only the ranks that have joined."""
    scatter: Scatter = "blocking"
    patience_s: float = 3.0
    inline_bytes: int = 0
    """Arrays of at most this many bytes use inline rounds."""
    kinds: tuple[str, ...] = ("kill", "cut", "break", "line", "controller")
    tolerant: bool = True
    """Whether the run ends when a rank is lost; links may be lost as long as all ranks can reach each other."""
    codec: str = NONE
    """How chunks are encoded."""
    message_s: float = MESSAGE_S
    """The largest delay of a control message."""


@dataclass(frozen=True, slots=True)
class StormResult:
    """The result of a storm."""

    faults: dict[str, int]
    """The number of faults of each kind."""
    steps: int
    alone: int
    rounds: int
    repaired: int
    """The number of steps whose round was repaired."""
    inline: int
    """The number of steps with an inline round."""
    terms: int
    seconds: float
    early_bytes: int
    released: int
    """The number of results that were used before their round was committed."""
    superseded: int
    """Those of them that ranks used which were cut off then."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """When a rank asked for a step, and when it ended."""

    worker: str
    asked_s: float
    ended_s: float
    round: int | None
    repaired: bool


@dataclass(eq=False)
class Trainer:
    """One rank's process and the state of its training loop."""

    worker: SimulatedWorker
    line: Line | None = None
    which: int = 0
    called_s: float = 0.0
    orphaned_s: float | None = 0.0
    heard_s: float = 0.0
    """When the controller last sent something."""
    stopped: bool = False
    joined: bool = False
    step: tuple[int, np.ndarray[Any, Any], float] | None = None
    asked_s: float = 0.0
    calm_steps: int = 0
    clock_ahead_s: float = 0.0
    """How much its clock is ahead of the others."""


class StormRun:
    """Runs one storm."""

    def __init__(self, storm: Storm) -> None:
        self.storm, self.clock = storm, Clock()
        self.random = np.random.default_rng(storm.seed)
        self.names = storm.network.names
        coded = codec_of(storm.codec)
        tolerance, stride = (EXACT, 1) if coded is None else (CODED, coded.exact_stride)
        self._is_apart = coded is not None and coded.varies and storm.seed % 2 == 1
        self.checks = StormChecks(self.names, CODED_APART if self._is_apart else tolerance, stride, self._is_apart)
        self.deadlines = Deadlines(storm.patience_s)
        self.controllers = [self._controller(index) for index in range(storm.controllers)]
        self.trainers: dict[str, Trainer] = {}
        self.pairs = Pairs(storm.network, self.clock, self.random, self.deadlines, self.worker, self.report_link)
        self.silences, self.carriers = Silences(self), Carriers(self)
        self.faults: dict[str, int] = {}
        self.fault_times_s: list[float] = []
        self.step_times: list[StepTime] = []
        self.calm = False
        self._value = 0

    def _controller(self, index: int) -> SimulatedController:
        storm = self.storm
        options = ControlOptions(
            len(self.names),
            storm.network if storm.is_known else None,
            planner=storm.planner,
            policy=storm.policy,
            policy_options=storm.policy_options,
            deadlines=self.deadlines,
            scatter=storm.scatter,
            discipline="fcfs" if storm.seed % 2 else "task-fcfs",
            # CREW's replacement abandons a round without a candidate, which would end a strict run.
            failover="replace" if storm.tolerant and storm.seed % 4 > 1 else "reroute",
            seed=storm.seed,
            tolerant=storm.tolerant,
            awareness=Awareness(measure=False),
            controllers=storm.controllers,
            index=index,
            tolerant_early_results=True,
        )
        made = SimulatedController(index, options, self.clock, self.random, self._acted, self._inline)
        made.message_s = storm.message_s
        return made

    def _acted(self) -> None:
        if len(self.controllers) > 1:
            terms = {n: t.worker.node.term for n, t in self.trainers.items()}
            self.checks.controller_acts(self.controllers, terms)

    def _inline(self, controller: SimulatedController, answer: m.InlineResult, arrays: dict[str, bytes]) -> None:
        values = {name: float(np.frombuffer(array)[0]) for name, array in arrays.items()}
        self.checks.combined(answer, (controller.index, controller.incarnation), values)

    # --- for pairs ---------------------------------------------------------------------------------------------

    def worker(self, name: str) -> SimulatedWorker | None:
        """The rank's process if it is running and has a roster."""
        trainer = self.trainers.get(name)
        is_up = trainer is not None and trainer.worker.engine is not None and not trainer.stopped
        return trainer.worker if trainer is not None and is_up else None

    def report_link(self, name: str, peer: str, back: bool) -> None:
        """Send a rank's report on a connection."""
        self._say(self.trainers[name], m.LinkChanged(peer, "simulated", back))

    # --- ranks -------------------------------------------------------------------------------------------------

    def start_worker(self, name: str) -> None:
        """Start a new process with empty state."""
        worker = SimulatedWorker(name, self.clock, lambda site, message: self._says(site, worker, message), self.random)
        worker.hung_up = self.pairs.hung_up
        worker.inline_bytes = self.storm.inline_bytes
        worker.ended = lambda name: self._ended(name, worker)
        trainer = self.trainers[name] = Trainer(worker)
        self._call(trainer)
        self._watch(trainer)

    def _says(self, name: str, worker: SimulatedWorker, message: m.Message) -> None:
        trainer = self.trainers.get(name)
        if trainer is not None and trainer.worker is worker:
            self._say(trainer, message)

    def _say(self, trainer: Trainer, message: m.Message) -> None:
        if trainer.line is not None and trainer.line.is_open:
            trainer.line.controller.say(trainer.line, message)

    def _call(self, trainer: Trainer) -> None:
        """Try controllers in turn until one accepts."""
        if trainer.worker.dead:
            return
        for _ in self.controllers:
            controller = self.controllers[trainer.which % len(self.controllers)]
            line = Line(trainer.worker.name, controller, self._told, self._line_lost)
            if not self.silences.hides(line.worker, controller) and controller.call(line):
                trainer.line, trainer.called_s = line, self.clock.now_s
                trainer.heard_s = self.clock.now_s
                rank = self.names.index(trainer.worker.name)
                self._say(trainer, m.Join("virtual", 1, rank, trainer.worker.node.report()))
                return
            trainer.which += 1
        self.clock.at(self.clock.now_s + RETRY_S, Priority.TIMER, self._call, trainer)

    def _told(self, line: Line, message: m.Message) -> None:
        trainer = self.trainers.get(line.worker)
        if trainer is None or trainer.line is not line:
            return
        trainer.heard_s = self.clock.now_s
        before = trainer.worker.controller_searches
        trainer.worker.told(message)
        if trainer.worker.node.lost is not None:
            raise InternalError(f"{line.worker} was given up: {trainer.worker.node.lost}")
        if isinstance(message, m.Roster) and trainer.worker.controller_searches == before:
            trainer.orphaned_s = None
            self.checks.acknowledged(trainer.worker, message.term, line)
            self.pairs.want(line.worker)
            if not trainer.joined:
                trainer.joined = True
                self._train(trainer)
        if trainer.worker.controller_searches > before:
            self._try_next_controller(trainer)
        self._check_step(trainer)

    def _line_lost(self, line: Line) -> None:
        trainer = self.trainers.get(line.worker)
        if trainer is not None and trainer.line is line:
            trainer.line = None
            if trainer.orphaned_s is None:
                trainer.orphaned_s = self.clock.now_s
            self.clock.at(self.clock.now_s + RETRY_S * self.random.random(), Priority.TIMER, self._call, trainer)

    def _try_next_controller(self, trainer: Trainer) -> None:
        trainer.which += 1
        if trainer.line is not None:
            line = trainer.line
            line.controller.hang_up(line)
            self._line_lost(line)

    def _watch(self, trainer: Trainer) -> None:
        """Send heartbeats, and act when there is no controller."""
        if trainer.worker.dead:
            return
        now_s = self.clock.now_s
        self._say(trainer, m.Heartbeat(now_s + trainer.clock_ahead_s))
        if not trainer.stopped:
            trainer.worker.look(self.deadlines.heartbeat_s / 2)  # looks are as rare as heartbeats here
        if trainer.line is not None and now_s - trainer.heard_s > self.deadlines.silence_s and not trainer.stopped:
            self._try_next_controller(trainer)
        if trainer.orphaned_s is not None:
            if trainer.line is not None and now_s - trainer.called_s > self.deadlines.silence_s:
                self._try_next_controller(trainer)
            if trainer.joined and now_s - trainer.orphaned_s > self.deadlines.patience_s:
                trainer.worker.give_up()
                self._check_step(trainer)
        self.clock.at(now_s + self.deadlines.heartbeat_s, Priority.TIMER, self._watch, trainer)

    def _train(self, trainer: Trainer) -> None:
        pause_s = self.storm.train_s * (0.2 + self.random.exponential())
        self.clock.at(self.clock.now_s + pause_s, Priority.READY, self._submit, trainer)

    def _submit(self, trainer: Trainer) -> None:
        if trainer.worker.dead or trainer.worker.node.lost is not None:
            return
        self._value += 1
        value = float(self._value)
        if self._is_apart:  # close to others, as they share a scale, but far from the last ones
            value = 1.0 + self._value * GOLDEN % 1.0
        array = self.checks.array_of(trainer.worker.name, value, self.storm.items)
        number = trainer.worker.submit(array, "mean", part=0, codec=self.storm.codec)
        trainer.step, trainer.asked_s = (number, array, value), self.clock.now_s
        self.checks.submitted(trainer.worker, number, value)
        self._check_step(trainer)

    def _ended(self, name: str, worker: SimulatedWorker) -> None:
        trainer = self.trainers.get(name)
        if trainer is not None and trainer.worker is worker:
            self._check_step(trainer)

    def _check_step(self, trainer: Trainer) -> None:
        """Check whether the rank's step has ended, and continue."""
        if trainer.step is None or trainer.step[0] not in trainer.worker.results:
            return
        number, array, value = trainer.step
        trainer.step = None
        outcome = self.checks.ended(trainer.worker, number, array, value)
        asked_s, name = trainer.asked_s, trainer.worker.name
        self.step_times.append(StepTime(name, asked_s, self.clock.now_s, outcome.round, outcome.repaired))
        if self.calm and not outcome.alone:
            trainer.calm_steps += 1
            if all(
                len(self.trainers) == len(self.names) and t.calm_steps >= CALM_STEPS for t in self.trainers.values()
            ):
                self.clock.stop()
        self._train(trainer)

    # --- faults ------------------------------------------------------------------------------------------------

    def _fault(self, left: int) -> None:
        if not left:
            self._heal()
            return
        kind = str(self.random.choice(self.storm.kinds))
        happens = getattr(self, f"_fault_{kind}", None) or getattr(self.silences, kind, None)
        happens = happens or getattr(self.carriers, kind)
        if happens():
            self.faults[kind] = self.faults.get(kind, 0) + 1
            self.fault_times_s.append(self.clock.now_s)
            left -= 1
        self.clock.at(
            self.clock.now_s + self.storm.gap_s * self.random.exponential(), Priority.FAULT, self._fault, left
        )

    def one(self, names: list[str]) -> str:
        """Draw one of some names."""
        return names[int(self.random.integers(len(names)))]

    def _fault_kill(self) -> bool:
        if len(self.trainers) < 2:
            return False
        name = self.one(sorted(self.trainers))
        trainer = self.trainers.pop(name)
        trainer.worker.dead = True
        self.pairs.killed(name)
        if trainer.line is not None:
            trainer.line.controller.hang_up(trainer.line)
        back_s = self.clock.now_s + float(self.random.choice([0.3, 2.0, 8.0])) * self.random.random()
        self.clock.at(back_s, Priority.FAULT, self._restart, name)
        return True

    def _restart(self, name: str) -> None:
        if name not in self.trainers:
            self.start_worker(name)

    def _fault_break(self) -> bool:
        return self.pairs.break_one()

    def _fault_cut(self) -> bool:
        seconds = float(self.random.choice([0.5, 3.0, 15.0])) * self.random.random()
        return self.pairs.cut_one(seconds, leave_connected=not self.storm.tolerant)

    def _fault_line(self) -> bool:
        names = sorted(n for n, t in self.trainers.items() if t.line is not None)
        if not names:
            return False
        line = self.trainers[self.one(names)].line
        assert line is not None
        line.controller.hang_up(line)
        self._line_lost(line)
        return True

    def _fault_controller(self) -> bool:
        alive = [c for c in self.controllers if c.state is not None]
        if not alive:
            return False
        controller = alive[int(self.random.integers(len(alive)))]
        controller.kill()
        back_s = self.clock.now_s + float(self.random.choice([0.3, 3.0, 10.0])) * self.random.random()
        self.clock.at(back_s, Priority.FAULT, self._restart_controller, controller)
        return True

    @staticmethod
    def _restart_controller(controller: SimulatedController) -> None:
        if controller.state is None:
            controller.start()

    def _heal(self) -> None:
        """End the storm: restore all links, ranks and controllers."""
        self.calm = True
        self.silences.end_all()
        self.pairs.heal_all()
        for controller in self.controllers:
            self._restart_controller(controller)
        for name in self.names:
            self._restart(name)

    # --- the whole ---------------------------------------------------------------------------------------------

    def run(self) -> StormResult:
        """Run until all ranks have synchronised after the storm."""
        for controller in self.controllers:
            controller.start()
        for name in self.names:
            self.start_worker(name)
        self.clock.at(2.0, Priority.FAULT, self._fault, self.storm.events)
        storm_s = 2.0 + 4 * self.storm.events * self.storm.gap_s
        self.clock.run(storm_s + CALM_S)
        late = {n: t.worker.story() for n, t in self.trainers.items() if t.calm_steps < CALM_STEPS}
        if late or len(self.trainers) < len(self.names) or not self.calm:
            raise InternalError(f"ranks that do not synchronise after the storm: {late}; faults: {self.faults}")
        checks = self.checks
        return StormResult(
            self.faults,
            checks.steps,
            checks.alone,
            len(checks.rounds),
            checks.repaired,
            checks.inline,
            len(checks.terms),
            self.clock.now_s,
            checks.early_bytes,
            checks.released,
            checks.superseded,
        )


def run_storm(storm: Storm) -> StormResult:
    """Run one storm with its checks; a violation ends with the command that repeats it."""
    try:
        return StormRun(storm).run()
    except Exception as error:  # any of them is a bug, and the seed repeats it
        which = f'storm_of({storm.seed}, {storm.events}, "{storm.scatter}")'
        which = which if storm.tolerant else f"strict_storm_of({storm.seed}, {storm.events})"
        which = which if storm.kinds != SILENT_KINDS else f"silent_storm_of({storm.seed}, {storm.events})"
        which = which if storm.kinds != CARRIER_KINDS else f"carrier_storm_of({storm.seed}, {storm.events})"
        which = which if storm.message_s == MESSAGE_S else f"early_storm({which})"
        which = which if storm.codec == NONE else f"coded_storm({which})"
        replay = f"python -c 'from tradewind.sim.chunks.storm import *; run_storm({which})'"
        raise InternalError(f"{type(error).__name__}: {error}\nreplay: {replay}") from error


def storm_of(seed: int, events: int = 20, scatter: Scatter = "blocking") -> Storm:
    """A storm whose parameters are drawn from a seed, among those that `scatter` supports."""
    random = np.random.default_rng([seed, 8])
    n = int(random.integers(3, 7))
    rate = random.choice([1e6, 1e7, 1e8], (n, n)) * (1 - np.eye(n))
    latency_s = float(random.choice([0.0, 0.005, 0.05])) * np.ones((n, n))
    policy = str(random.choice(["partial", "bsp", "shuffle", "selective", "gossip"]))
    weights = "staleness" if seed % 2 else "uniform"
    options: dict[str, Any] = {"p": 2, "weights": weights} if policy == "partial" else {}
    if policy == "selective":
        options = {"p": 2, "full_every": int(random.choice([0, 5]))}
    storm = Storm(
        Network("storm", [Site(f"s{i}") for i in range(n)], rate, latency_s),
        str(random.choice(["ring", "multi-star", "scatter", "fapt", "balanced-tree"])),
        policy,
        options,
        seed,
        events,
        gap_s=float(random.choice([0.1, 0.5, 2.0])),
        items=int(random.choice([10, 1000, 20_000])),
        train_s=float(random.choice([0.02, 0.3])),
        controllers=int(random.choice([1, 2, 3])),
        is_known=bool(random.random() < 0.7),
        inline_bytes=int(random.choice([0, 64 * 1024])),
    )
    if scatter == "blocking":
        return storm
    return replace(storm, scatter=scatter, planner=str(random.choice(["scatter", "multi-star"])), items=20_000)


def coded_storm(storm: Storm) -> Storm:
    """The same storm with encoded rounds, by a codec that encodes equal items without loss."""
    return replace(storm, codec=("int8", "int4", "topk-256", "fp8", "topk")[storm.seed % 5], inline_bytes=0)


def early_storm(storm: Storm) -> Storm:
    """The same storm with rounds of all ranks, whose results are used long before their controller commits them."""
    random = np.random.default_rng([storm.seed, 9])
    network, n = storm.network, len(storm.network.names)
    latency_s = float(random.choice([0.005, 0.05])) * (1 - np.eye(n))
    return replace(
        storm,
        network=Network(network.name, network.sites, network.bandwidth_bps, latency_s),
        planner=str(random.choice(["ring", "multi-star", "star", "fapt", "balanced-tree"])),
        policy="bsp",
        policy_options={},
        scatter="blocking",
        items=int(random.choice([100, 1000, 5000])),
        gap_s=float(random.choice([0.1, 0.3])),
        train_s=float(random.choice([0.01, 0.1])),
        is_known=True,
        inline_bytes=0,
        message_s=float(random.choice([0.1, 0.3])),
    )


def strict_storm_of(seed: int, events: int = 20) -> Storm:
    """A storm that a strict run must survive: only links are lost, and never all links of a rank."""
    storm = replace(storm_of(seed, events), policy="bsp", policy_options={}, controllers=1)
    return replace(storm, kinds=("cut", "break"), tolerant=False)


def silent_storm_of(seed: int, events: int = 20) -> Storm:
    """A storm whose faults give no sign: cuts of links and of their directions, parts, stopped ranks, black holes."""
    return replace(storm_of(seed, events), kinds=SILENT_KINDS)


def carrier_storm_of(seed: int, events: int = 20) -> Storm:
    """A storm of changed bytes, lost packets, expired certificates and clocks that jump, beside broken connections.

    Arrays are large enough to travel on data connections.
    """
    return replace(storm_of(seed, events), kinds=CARRIER_KINDS, items=20_000, inline_bytes=0)
