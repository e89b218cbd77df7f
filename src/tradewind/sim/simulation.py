"""A simulated run: the production controller and the protocol half of every rank's node, on virtual time.

Theory of operation. A rank computes for a sampled time and submits its array, as a training script does. Its protocol
and the controller exchange their messages as in production, with the delay `control_s`; the fluid engine runs the
rounds that they open on the true network, which may differ from the one that the controller was given. A rank whose
round is committed computes its next step. Faults reach the controller as the messages and lost connections that they
cause.

Everything happens in calls of one clock, and every random quantity has its own generator from the one seed, so the
result of a run depends only on its setup.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tradewind.control import Controller, ControlOptions
from tradewind.control.awareness import Awareness
from tradewind.control.deadlines import Deadlines
from tradewind.control.options import Action, Decided, RoundEnded, Send
from tradewind.control.plans.versions import PlanWanted
from tradewind.errors import PeerLost
from tradewind.node import actions as to
from tradewind.node.actions import NodeAction, RoundComplete
from tradewind.node.node import Node
from tradewind.policy import policy
from tradewind.sim.clock import Clock, Priority
from tradewind.sim.counters import HostCounters
from tradewind.sim.disturbances import Disturbances
from tradewind.sim.faults import BusyProcessor
from tradewind.sim.fluid.capacity import TrueNetwork, misjudged
from tradewind.sim.fluid.engine import FluidEngine, FluidPort
from tradewind.sim.fluid.flows import Flow
from tradewind.sim.recorder import Recorder
from tradewind.sim.result import RoundSummary, SimulationResult
from tradewind.sim.setup import Setup
from tradewind.sim.workers import State, Worker
from tradewind.trace.records import Kind
from tradewind.wire import messages as m
from tradewind.wire.codecs import sum_sizes

PATIENCE_S = 1e9
"""No rank is lost through silence in a simulation: every loss is reported."""
ITEM_BYTES = 4


@dataclass(slots=True)
class _Timer:
    at_s: float
    since_s: float
    """When its slot began: when it was first set, or when a rank last became ready."""


class Training(Protocol):
    """What ranks compute, where it matters: by default a simulated step is nothing but time."""

    def stepped(self, rank: str, now_s: float) -> bool:
        """Take the step that the rank has just computed; returns whether it submits its array now."""

    def averaged(self, rank: str, outcome: to.Outcome, now_s: float) -> None:
        """Give the rank the result of its round; each of its contributors has submitted its array before."""


class Simulation:
    """A simulation of one setup."""

    def __init__(self, setup: Setup, training: Training | None = None) -> None:
        self.setup, self.training = setup, training
        network, scheme = setup.network, setup.scheme
        seeds = np.random.SeedSequence(setup.seed).spawn(2 + len(setup.worker_names))
        self.clock = Clock()
        self.recorder = Recorder(network, setup.record)
        first = network if setup.rates is None else setup.rates.network_at(setup.rates.start_s[0])
        limits_hosts = setup.host.is_free and any(isinstance(fault, BusyProcessor) for fault in setup.faults)
        self.truth = TrueNetwork(first, limits_hosts)
        self.counters = HostCounters(self.truth, setup.faults)
        self._errors = misjudged(first, setup.noise, np.random.default_rng(seeds[0]))
        witness = self._flow_over if self.recorder.keeps_flows else None
        self.engine = FluidEngine(self.truth, self.clock, scheme, self._completed, witness, setup.pieces, setup.host)
        items = max(1, round(setup.nbytes / ITEM_BYTES))
        self.operation = m.Operation(items, ITEM_BYTES, "float32", "mean", codec=setup.codec)
        self.workers = {
            name: Worker(
                name, network.index[name], setup.steps, np.random.default_rng(seed), setup.slower.get(name, 1.0)
            )
            for name, seed in zip(setup.worker_names, seeds[2:], strict=True)
        }
        self.controller = Controller(self._control_options(int(seeds[1].generate_state(1)[0])), 0.0)
        self._nodes: dict[str, Node] = {}
        self._ports: dict[str, FluidPort] = {}
        self._mail: deque[tuple[bool, str, m.Message]] = deque()
        """Messages in transit: whether it is for the controller, the rank, the message."""
        self._wanted: deque[PlanWanted] = deque()
        """Plans that the controller has requested."""
        self._delivering = False
        self._timers: dict[str, _Timer] = {}
        self._wakes_at_s = float("inf")
        self.recorder.given(first)
        self._summaries: list[RoundSummary] = []
        self._finished = 0
        self.disturbances = Disturbances(self)

    def _control_options(self, seed: int) -> ControlOptions:
        setup, scheme = self.setup, self.setup.scheme
        return ControlOptions(
            len(setup.network),
            self._errors(self.truth.network),
            planner=scheme.planner,
            planner_options=scheme.planner_options,
            policy=scheme.policy,
            policy_options=_informed(setup),
            deadlines=Deadlines(PATIENCE_S),
            scatter=scheme.scatter,
            failover=scheme.failover,
            seed=seed,
            tolerant=True if setup.faults else None,
            awareness=Awareness(measure=False),
            helpers=scheme.helpers,
            scatter_buffer_bytes=setup.scatter_buffer_bytes,
        )

    def run(self, progress: Callable[[float], object] | None = None) -> SimulationResult:
        """Simulate the whole run; `progress` is called with the simulated time at intervals."""
        setup, clock = self.setup, self.clock
        self.disturbances.schedule()
        if progress is not None:
            for k in range(1, 100):
                clock.at(setup.seconds * k / 100, Priority.TIMER, progress, setup.seconds * k / 100)
        if setup.count_every_s and self.recorder.keeps_flows:
            clock.at(setup.count_every_s, Priority.TIMER, self._count, setup.count_every_s)
        with _without_cyclic_collection():
            for name in setup.network.names:
                self.connect(name)
            clock.run(setup.seconds)
            return self._result()

    def _flow_over(self, flow: Flow) -> None:
        self.recorder.flow_over(flow)
        self.counters.flow_over(flow)

    def _count(self, every_s: float) -> None:
        self.recorder.counted(self.counters.read(self.clock.now_s))
        self.clock.at(self.clock.now_s + every_s, Priority.TIMER, self._count, every_s)

    # --- ranks -------------------------------------------------------------------------------------------

    def connect(self, name: str) -> None:
        """Start or restart a rank with empty state, and let it join."""
        row = self.setup.network.index[name]
        self._ports[name] = FluidPort(self.engine, name, row)
        self._nodes[name] = Node(name, self._ports[name])
        self.control(self.controller.connected(name, self.clock.now_s))
        self.say(name, m.Join("virtual", 1, row, trains=name in self.workers))

    def disconnect(self, name: str, reason: str) -> None:
        """Disconnect a rank from the controller."""
        del self._nodes[name]
        self.control(self.controller.disconnected(name, reason, self.clock.now_s))

    def train(self, worker: Worker) -> None:
        """Let a rank compute its next step."""
        worker.since_s, worker.state = self.clock.now_s, State.COMPUTING
        self._compute_until(worker, self.clock.now_s + worker.next_step_s())

    def slow_steps(self, worker: Worker, factor: float) -> None:
        """Let what is left of a rank's present step, and its later steps, take longer by this factor."""
        worker.slower *= factor
        if worker.state is State.COMPUTING:
            self.clock.cancel(worker.alarm)
            self._compute_until(worker, self.clock.now_s + (worker.until_s - self.clock.now_s) * factor)

    def _compute_until(self, worker: Worker, end_s: float) -> None:
        worker.until_s, worker.alarm = end_s, self.clock.at(end_s, Priority.READY, self._computed, worker)

    def _computed(self, worker: Worker) -> None:
        now_s = self.clock.now_s
        worker.alarm = 0
        worker.iteration += 1
        worker.computed += 1
        self.recorder.add("compute", worker.since_s, now_s, worker.name, step=worker.iteration)
        if self.training is not None and not self.training.stepped(worker.name, now_s):
            worker.enter(State.COMPUTING, now_s)
            self.train(worker)
            return
        worker.enter(State.READY, now_s)
        for timer in self._timers.values():
            timer.since_s = now_s
        _, actions = self._nodes[worker.name].submit(self.operation, part=0)
        self._do(worker.name, actions)
        self._deliver()

    def record_cut_short(self, worker: Worker, kind: Kind) -> None:
        """Record that a rank's present activity ends now without a result."""
        number = worker.round if kind == "sync" else None
        self.recorder.add(kind, worker.since_s, self.clock.now_s, worker.name, round_number=number, outcome="cut short")

    def _ended(self, worker: Worker, outcome: to.Outcome) -> None:
        """Handle the end of a rank's operation: it has its result, or continues without one."""
        now_s = self.clock.now_s
        if worker.state is State.READY:
            self.recorder.add("wait", worker.since_s, now_s, worker.name)
        else:
            self.recorder.add("sync", worker.since_s, now_s, worker.name, round_number=worker.round)
        worker.enter(State.COMPUTING, now_s)
        if self.training is not None:
            self.training.averaged(worker.name, outcome, now_s)
        worker.rounds += not outcome.alone
        worker.round = None
        self.train(worker)

    def _do(self, name: str, actions: list[NodeAction]) -> None:
        """Perform the actions of a rank's node."""
        for action in actions:
            match action:
                case to.SendControl(message):
                    self._post(True, name, message)
                case to.Started(round=number):
                    self._started(self.workers[name], number)
                case to.Succeeded(outcome=outcome):
                    self._ended(self.workers[name], outcome)
                case to.Failed(error=error):
                    raise self.controller.closed_by or error
                case to.Joined() if name in self.workers and self.workers[name].state is State.DOWN:
                    self.train(self.workers[name])

    def _started(self, worker: Worker, number: int) -> None:
        """Handle the start of a rank's round, for the first time or after a restart."""
        if worker.state is State.READY:
            self.recorder.add("wait", worker.since_s, self.clock.now_s, worker.name, round_number=number)
            worker.enter(State.SYNCHRONISING, self.clock.now_s)
            worker.round = number

    def _completed(self, sites: tuple[str, ...], complete: RoundComplete) -> None:
        """Report to all sites of a round that their part is complete."""
        all_up = not self.truth.has_lost_sites
        for site in sites:
            node = self._nodes.get(site)
            if node is not None and (all_up or not self.disturbances.is_down(site)):
                self._ports[site].reports.append((complete, None))
                self._do(site, node.advance())
        self._deliver()

    # --- messages ----------------------------------------------------------------------------------------

    def say(self, name: str, message: m.Message) -> None:
        """Send a message from a rank to the controller."""
        self._post(True, name, message)
        self._deliver()

    def control(self, actions: list[Action]) -> None:
        """Perform the controller's actions, and deliver the messages that follow."""
        self._control(actions)
        self._deliver()

    def _post(self, to_controller: bool, name: str, message: m.Message) -> None:
        if self.setup.control_s:
            due_s = self.clock.now_s + self.setup.control_s
            self.clock.at(due_s, Priority.ARRIVAL, self._arrived, (to_controller, name, message))
        else:
            self._mail.append((to_controller, name, message))

    def _arrived(self, mail: tuple[bool, str, m.Message]) -> None:
        self._mail.append(mail)
        self._deliver()

    def _deliver(self) -> None:
        """Deliver all messages, and those that they cause, in order."""
        if self._delivering:
            return
        self._delivering, now_s, mail, nodes = True, self.clock.now_s, self._mail, self._nodes
        all_up, is_down = not self.truth.has_lost_sites, self.disturbances.is_down  # no site fails meanwhile
        while mail or self._wanted:
            if not mail:  # planning takes no simulated time
                self._control(self.controller.planned(self._wanted.popleft().make(), now_s))
                continue
            to_controller, name, message = mail.popleft()
            if to_controller:
                self._control(self.controller.received(name, message, now_s))
            elif name in nodes and (all_up or not is_down(name)):
                actions = nodes[name].told(message)
                if actions:
                    self._do(name, actions)
        self._delivering = False
        self._arm()

    def _control(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    if isinstance(action.message, m.PlanChanged):
                        self.recorder.planned(action.message.version, action.message.plan.plan, self.clock.now_s)
                    self._post(False, action.worker, action.message)
                case Decided():
                    self._decided(action)
                case RoundEnded():
                    self._round_ended(action)
                case PlanWanted():
                    self._wanted.append(action)
        if self.controller.closed is not None:
            raise self.controller.closed_by or PeerLost(self.controller.closed.reason)

    def _arm(self) -> None:
        """Schedule the controller's next timer."""
        wake_s = self.controller.wake_at_s
        if wake_s < self._wakes_at_s and wake_s <= self.setup.seconds:
            self._wakes_at_s = max(wake_s, self.clock.now_s)
            self.clock.at(self._wakes_at_s, Priority.TIMER, self._tick, self._wakes_at_s)

    def _tick(self, due_s: float) -> None:
        """Fire due timers; ranks that start now, without a new member, wasted the wait since the timer's slot began."""
        if due_s != self._wakes_at_s:
            return
        self._wakes_at_s, now_s = float("inf"), self.clock.now_s
        fired = {name: timer for name, timer in self._timers.items() if timer.at_s <= now_s}
        for name in fired:
            del self._timers[name]
        waiting = [(worker, worker.since_s) for worker in self.workers.values() if worker.state is State.READY]
        self.control(self.controller.tick(now_s))
        for name, timer in fired.items():
            if name in self._timers:
                self._timers[name].since_s = timer.since_s  # the timer was set again in the same slot
            if not name.startswith("retry-"):  # retries wait for a link or rank to recover, not for members
                for worker, ready_s in waiting:
                    if worker.state is State.SYNCHRONISING:
                        worker.wasted_wait_s += now_s - max(timer.since_s, ready_s)
        self._arm()

    def _decided(self, decided: Decided) -> None:
        if decided.what == "cannot start" and not self.disturbances.happened and decided.error is not None:
            raise decided.error  # without any loss, the scheme does not work on this network: do not retry
        now_s = self.clock.now_s
        self.recorder.add(
            "decision",
            now_s,
            now_s,
            decided.about,
            round_number=decided.round,
            step=decided.version,
            phase=decided.what,
            reason=decided.reason,
        )
        if decided.what == "wait" and decided.at_s is not None:
            since_s = self._timers[decided.about].since_s if decided.about in self._timers else now_s
            self._timers[decided.about] = _Timer(decided.at_s, since_s)
        elif decided.what == "stop waiting":
            self._timers.pop(decided.about, None)

    def _round_ended(self, ended: RoundEnded) -> None:
        now_s = self.clock.now_s
        self._keep(ended, ended.outcome)
        if ended.outcome == "finished":
            self._finished += 1
            if self._finished == self.setup.stop_after_rounds:
                self.clock.stop()
            return
        for name in ended.members:
            worker = self.workers[name]
            if worker.state is State.SYNCHRONISING:
                self.record_cut_short(worker, "sync")
                worker.enter(State.READY, now_s)
                worker.round = None

    def _keep(self, ended: RoundEnded, outcome: str) -> None:
        now_s = self.clock.now_s
        self._summaries.append(
            RoundSummary(
                ended.round,
                ended.members,
                ended.started_s,
                now_s,
                outcome,
                ended.scope,
                ended.repairs,
                ended.moved_shards,
            )
        )
        self.recorder.add(
            "round",
            ended.started_s,
            now_s,
            round_number=ended.round,
            phase=ended.planner,
            nbytes=self.setup.nbytes,
            members=ended.members,
            outcome=outcome,
            reason=ended.reason,
        )

    def measured(self) -> None:
        """Give the controller the present network, with the errors of its estimates."""
        self.control(self.controller.network_given(self._errors(self.truth.network), self.clock.now_s))

    # --- the end -----------------------------------------------------------------------------------------

    def _result(self) -> SimulationResult:
        setup, now_s = self.setup, self.clock.now_s
        for running in self.controller.running_rounds():
            self._keep(running, "running")
        for worker in self.workers.values():
            if worker.state is State.READY:
                self.recorder.add("wait", worker.since_s, now_s, worker.name)
            elif worker.state is State.SYNCHRONISING:
                self.recorder.add("sync", worker.since_s, now_s, worker.name, round_number=worker.round)
            elif worker.state is State.COMPUTING:
                self.recorder.add("compute", worker.since_s, now_s, worker.name, step=worker.iteration + 1)
            worker.enter(State.DOWN, now_s)
        self.recorder.add(
            "run", 0.0, now_s, setup.network.name, setup.scheme.name, nbytes=setup.nbytes, reason=f"seed {setup.seed}"
        )
        link_bytes = self.engine.finish()
        return SimulationResult(
            network=setup.network.name,
            scheme=setup.scheme,
            seed=setup.seed,
            nbytes=setup.nbytes,
            wire_bytes=self.operation.wire_bytes(len(self.workers)),
            sum_sizes=sum_sizes(self.operation.codec, len(self.workers)),
            seconds=now_s,
            workers=tuple(worker.summary() for worker in self.workers.values()),
            rounds=tuple(sorted(self._summaries, key=lambda r: r.number)),
            link_bytes=link_bytes,
            link_capacity_bytes=self.disturbances.capacity_bytes(now_s),
            egress_capacity_bytes=setup.network.egress_bps * now_s / 8.0,
            ingress_capacity_bytes=setup.network.ingress_bps * now_s / 8.0,
            discarded_bytes=self.engine.discarded_bits / 8.0,
            lost_bytes=self.engine.lost_bytes,
            flows=self.engine.flows,
            events=self.clock.calls,
            trace=self.recorder.trace(),
        )


@contextmanager
def _without_cyclic_collection() -> Iterator[None]:
    """Disable cyclic garbage collection: rounds break their cycles when they end, and scanning millions of flows would
    double the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _informed(setup: Setup) -> dict[str, object]:
    """The policy's options, with the tensor size and the distribution of step times where it has options for them."""
    given = dict(setup.scheme.policy_options)
    takes = {option.name for option in policy(setup.scheme.policy).option_fields}
    if "nbytes" in takes:
        given.setdefault("nbytes", setup.nbytes)
    if "readiness" in takes and setup.warm_start and hasattr(setup.steps, "cdf"):
        given.setdefault("readiness", setup.steps)
    return given
