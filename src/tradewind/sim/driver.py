"""The simulation itself: production policies and planners on virtual time.

Theory of operation. Workers compute for a sampled time, become ready and tell the policy; the policy's actions start
rounds, which the data plane carries out on the true network by plans made on the seen one; a member that has the whole
result computes on. Everything happens in calls of one clock, and every source of chance has its own generator from the
one seed, so a run is a pure function of its setup.

The policy hears of things in the order in which they happen, one at a time: events that its own actions cause wait
until these are carried out. It hears of a worker only after the round that the worker was in has ended for everybody,
as its events promise, although the worker itself trains on as soon as it can.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from tradewind.errors import BadOption, ImpossibleProblem
from tradewind.policy import make_policy, policy
from tradewind.policy.actions import (
    AbandonRound,
    Action,
    CancelTimer,
    Proceed,
    RepairRound,
    SetTimer,
    StartRound,
)
from tradewind.policy.events import Event, TimerFired, WorkerReady
from tradewind.sim.capacity import NetworkView, TrueNetwork
from tradewind.sim.clock import Clock, Priority
from tradewind.sim.data_plane import DataPlane
from tradewind.sim.disturbances import Disturbances
from tradewind.sim.early import EarlyScatter
from tradewind.sim.plans import Plans
from tradewind.sim.recorder import Recorder
from tradewind.sim.result import SimulationResult
from tradewind.sim.rounds import Rounds
from tradewind.sim.setup import Setup
from tradewind.sim.workers import State, Worker
from tradewind.trace.records import Kind


@dataclass(slots=True)
class _Timer:
    alarm: int
    since_s: float
    """When its slot began: when it was first set, or when a worker last became ready."""


class Simulation:
    """One run of a setup."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        network, scheme = setup.network, setup.scheme
        seeds = np.random.SeedSequence(setup.seed).spawn(2 + len(setup.worker_names))
        self.clock = Clock()
        self.recorder = Recorder(network, setup.record)
        first = network if setup.rates is None else setup.rates.network_at(setup.rates.start_s[0])
        self.truth = TrueNetwork(first)
        self.view = NetworkView(first, setup.noise, np.random.default_rng(seeds[0]))
        witness = self.recorder.flow_over if self.recorder.keeps_flows else None
        self.data = DataPlane(self.truth, self.clock, scheme, witness, setup.pieces)
        self.plans = Plans(self.view, scheme.planner, scheme.planner_options, setup.nbytes, scheme.helpers)
        self.policy = make_policy(
            scheme.policy,
            self.view.network,
            setup.worker_names,
            int(seeds[1].generate_state(1)[0]),
            now_s=0.0,
            **_informed(setup),
        )
        self.workers = {
            name: Worker(name, network.index[name], setup.steps, np.random.default_rng(seed))
            for name, seed in zip(setup.worker_names, seeds[2:], strict=True)
        }
        self.rounds = Rounds(self)
        self.early: EarlyScatter | None = None
        if scheme.scatter == "non-blocking":
            if self.data.links is None:
                raise BadOption(
                    f"scheme {scheme.name!r}: a non-blocking scatter needs single flows, and pipelined rounds are one "
                    "flow each. Use execution store-and-forward with it."
                )
            self.early = EarlyScatter(network, self.data.links, self.clock, setup.nbytes, scheme.discipline)
        self._inbox: deque[Event] = deque()
        self._listening = True
        self._timers: dict[str, _Timer] = {}
        self.disturbances = Disturbances(self)

    def run(self, progress: Callable[[float], object] | None = None) -> SimulationResult:
        """Play it all out; `progress` is called with the simulated time now and then."""
        setup, clock = self.setup, self.clock
        self.disturbances.schedule()
        for worker in self.workers.values():
            self.train(worker)
        if progress is not None:
            for k in range(1, 100):
                clock.at(setup.seconds * k / 100, Priority.TIMER, progress, setup.seconds * k / 100)
        with _without_cyclic_collection():
            clock.run(setup.seconds)
            return self._result()

    # --- workers -----------------------------------------------------------------------------------------

    def train(self, worker: Worker) -> None:
        """A worker computes its next step."""
        worker.since_s, worker.state = self.clock.now_s, State.COMPUTING
        end_s = self.clock.now_s + worker.next_step_s()
        worker.alarm = self.clock.at(end_s, Priority.READY, self._computed, worker)

    def _computed(self, worker: Worker) -> None:
        now_s = self.clock.now_s
        worker.alarm = 0
        worker.iteration += 1
        worker.computed += 1
        self.recorder.add("compute", worker.since_s, now_s, worker.name, step=worker.iteration)
        worker.enter(State.READY, now_s)
        if self.early is not None:
            self._scatter_early(self.early, worker)
        if worker.round is None:  # else the policy still counts it among the members of that round
            self.tell(WorkerReady(worker.name, worker.iteration))

    def _scatter_early(self, early: EarlyScatter, worker: Worker) -> None:
        """Scatter by the best plan for all workers that are known to be there, if there is one."""
        everybody = [name for name, other in self.workers.items() if not other.told_lost]
        try:
            early.begin(worker.name, self.plans.plan(everybody))
        except ImpossibleProblem:
            if not self.disturbances.happened:
                raise

    def stop_waiting(self, worker: Worker, state: State, round_number: int | None) -> None:
        """A ready worker gets to do something."""
        self.recorder.add("wait", worker.since_s, self.clock.now_s, worker.name, round_number=round_number)
        worker.enter(state, self.clock.now_s)

    def record_cut_short(self, worker: Worker, kind: Kind) -> None:
        """What a worker did ends now, without its result."""
        number = worker.round if kind == "sync" else None
        self.recorder.add(kind, worker.since_s, self.clock.now_s, worker.name, round_number=number, outcome="cut short")

    # --- the policy --------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Let the policy know, and do what it asks for."""
        self._inbox.append(event)
        if not self._listening:
            return
        self._listening = False
        while self._inbox:
            event = self._inbox.popleft()
            if isinstance(event, WorkerReady):
                for timer in self._timers.values():
                    timer.since_s = self.clock.now_s
            for action in self.policy.handle(event, self.clock.now_s):
                self._act(action)
        self._listening = True

    def _act(self, action: Action) -> None:
        match action:
            case StartRound():
                self.decided("start", action.reason, round_number=action.round)
                self.rounds.start(action)
            case RepairRound(number, lost, reason):
                self.decided("repair", reason, lost, number)
                self.rounds.go_on_without(self.rounds.running[number], lost)
            case AbandonRound(number, reason):
                self.decided("abandon", reason, round_number=number)
                self.rounds.give_up(self.rounds.running[number], "abandoned", reason)
            case SetTimer(timer, at_s, reason):
                self.decided("wait", reason, timer)
                self._set_timer(timer, at_s)
            case CancelTimer(timer, _):
                self.clock.cancel(self._timers.pop(timer).alarm)
            case Proceed(name, reason):
                self.decided("proceed", reason, name)
                self._proceed(self.workers[name])

    def _proceed(self, worker: Worker) -> None:
        if worker.state is State.DOWN:
            return  # the policy does not know yet
        self.stop_waiting(worker, State.COMPUTING, None)
        if self.early is not None:
            self.rounds.discarded_bits += self.early.drop(worker.name)
        self.train(worker)

    def decided(self, action: str, reason: str, about: str = "", round_number: int | None = None) -> None:
        """Record a decision and its reason."""
        now_s = self.clock.now_s
        self.recorder.add("decision", now_s, now_s, about, round_number=round_number, phase=action, reason=reason)

    def _set_timer(self, name: str, at_s: float) -> None:
        since_s = self.clock.now_s
        if name in self._timers:
            since_s = self._timers[name].since_s
            self.clock.cancel(self._timers[name].alarm)
        alarm = self.clock.at(at_s, Priority.TIMER, self._fire, name)
        self._timers[name] = _Timer(alarm, since_s)

    def _fire(self, name: str) -> None:
        """A timer's time has come: who starts now, with nobody new, waited in vain since the timer's slot began."""
        timer, now_s = self._timers.pop(name), self.clock.now_s
        waiting = [(worker, worker.since_s) for worker in self.workers.values() if worker.state is State.READY]
        self.tell(TimerFired(name))
        if name in self._timers:
            self._timers[name].since_s = timer.since_s  # they wait on, still for the same
        if not name.startswith("retry-"):  # those wait for something to heal, not for company
            for worker, ready_s in waiting:
                if worker.state is State.SYNCHRONISING:
                    worker.wasted_wait_s += now_s - max(timer.since_s, ready_s)

    # --- the end -----------------------------------------------------------------------------------------

    def _result(self) -> SimulationResult:
        setup, now_s = self.setup, self.clock.now_s
        for round_ in list(self.rounds.running.values()):
            self.rounds.end(round_, "running", round_.asked.reason)
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
        link_bytes = self.data.finish()
        return SimulationResult(
            network=setup.network.name,
            scheme=setup.scheme,
            seed=setup.seed,
            nbytes=setup.nbytes,
            seconds=now_s,
            workers=tuple(worker.summary() for worker in self.workers.values()),
            rounds=tuple(sorted(self.rounds.summaries, key=lambda r: r.number)),
            link_bytes=link_bytes,
            link_capacity_bytes=self.disturbances.capacity_bytes(now_s),
            egress_capacity_bytes=setup.network.egress_bps * now_s / 8.0,
            ingress_capacity_bytes=setup.network.ingress_bps * now_s / 8.0,
            discarded_bytes=self.rounds.discarded_bits / 8.0,
            lost_bytes=self.data.lost_bytes,
            flows=self.data.flows,
            events=self.clock.calls,
            trace=self.recorder.trace(),
        )


@contextmanager
def _without_cyclic_collection() -> Iterator[None]:
    """Rounds let go of their cycles when they end; looking for more among millions of flows would double the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _informed(setup: Setup) -> dict[str, object]:
    """The policy's options, and what it asks to be told where it does: the size, the distribution of step times."""
    given = dict(setup.scheme.policy_options)
    takes = {option.name for option in policy(setup.scheme.policy).option_fields}
    if "nbytes" in takes:
        given.setdefault("nbytes", setup.nbytes)
    if "readiness" in takes and setup.warm_start and hasattr(setup.steps, "cdf"):
        given.setdefault("readiness", setup.steps)
    return given
