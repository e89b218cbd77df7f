"""The controller as a state machine.

    gathering ──all have joined──> running ──a worker is lost, leaves, or breaks a rule──> closed

Theory of operation. Workers connect, prove themselves (that is the driver's and `wire.handshake`'s business) and join.
When all have, everybody gets the roster. A worker with an array says `Ready`; the policy of that lane decides who
synchronises, a plan is made or found, and `Start` goes to every site of the plan. Each says `Finished` when its part is
done, and when all have, `Commit` tells them that the result may be used. Until then every input is as it was.

Lanes let a worker have several rounds under way although a policy thinks of one; `lanes` says who decides in which.
When everybody else waits for an operation of everybody, nobody can join those who are in the policy's queue: for the
policy, whoever waits so is away until that operation starts, and the rest make smaller rounds or go on alone.

When a worker is lost, the run is closed and everybody is told who was lost: rounds cannot finish, and no input is
harmed. All time limits follow from one setting (`deadlines`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tradewind.control.lanes import Lane, Step, disagreement, waiting_for_everybody
from tradewind.control.options import ControlOptions
from tradewind.control.plans import PlanMade, Plans, PlanWanted
from tradewind.control.updating import Updating
from tradewind.control.view import NetworkView, unknown_network
from tradewind.errors import InternalError, TradewindError
from tradewind.planning.plan import plan_to_json
from tradewind.policy import actions as policy_actions
from tradewind.policy import events as policy_events
from tradewind.policy import make_policy
from tradewind.wire import messages as m
from tradewind.wire.messages import MAX_LANES, POLICY_LANE


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a worker."""

    worker: str
    message: m.Message


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection to a worker, after what was sent."""

    worker: str


Action = Send | Disconnect | PlanWanted


@dataclass(slots=True)
class _Round:
    lane: int
    step: Step
    sites: frozenset[str]
    nbytes: int
    finished: set[str] = field(default_factory=set)


class Controller:
    """One run's."""

    def __init__(self, options: ControlOptions, now_s: float) -> None:
        self.options = options
        self.deadlines = options.deadlines
        self.closed: m.Closing | None = None
        """Why the run is over, if it is."""
        self._began_s = now_s
        self._joined: dict[str, m.Join] = {}
        self._heard_s: dict[str, float] = {}
        self._lanes: dict[int, Lane] = {}
        self._steps: dict[str, Step] = {}
        """What was last decided for each worker in the policy's lane."""
        self._away: set[str] = set()
        """Who is lost to the policy for now, because it waits for everybody."""
        self._rounds: dict[int, _Round] = {}
        self._next_round = 0
        self._plans: Plans | None = None
        self._updating: Updating | None = None
        self._knows: dict[str, set[int]] = {}
        self._actions: list[Action] = []

    # --- for drivers -------------------------------------------------------------------------------------------

    @property
    def wake_at_s(self) -> float:
        """When `tick` is to be called, if nothing happens before."""
        if self.closed:
            return float("inf")
        times = [heard + self.deadlines.silence_s for heard in self._heard_s.values()]
        times += [at for lane in self._lanes.values() for at in lane.timers.values()]
        times += [lane.since_s + self.deadlines.straggler_s for lane in self._lanes.values() if lane.ready]
        if self._updating is None:
            times.append(self._began_s + self.deadlines.gather_s)
        else:
            times.append(self._updating.wake_at_s)
        return min(times, default=float("inf"))

    def tick(self, now_s: float) -> list[Action]:
        """Time has passed."""
        self._actions = []
        if self.closed:
            return self._actions
        silent = sorted(w for w, heard in self._heard_s.items() if heard + self.deadlines.silence_s <= now_s)
        if silent:
            self._close(f"{silent[0]!r} was silent for {self.deadlines.silence_s:g} s", lost=silent[0])
        elif self._plans is None and self._began_s + self.deadlines.gather_s <= now_s:
            self._close(
                f"only {len(self._joined)} of {self.options.world} workers joined within {self.deadlines.gather_s:g} s "
                f"({', '.join(sorted(self._joined)) or 'nobody'}). Start the others, or raise the patience."
            )
        for number in sorted(self._lanes):
            self._tick_lane(number, self._lanes[number], now_s)
        if self._updating is not None and not self.closed:
            self._actions += self._updating.tick(now_s)
            for worker, explore in self._updating.explorations(now_s):
                self._send(worker, explore)
        return self._actions

    def planned(self, made: PlanMade, now_s: float) -> list[Action]:
        """A plan that was wanted is there."""
        self._actions = []
        if self._updating is not None and not self.closed:
            self._updating.planned(made, now_s)
        return self._actions

    def connected(self, worker: str, now_s: float) -> list[Action]:
        """A worker has proven itself and may talk."""
        self._actions = []
        if self.closed:
            self._refuse(worker, f"the run is over: {self.closed.reason}.")
        elif worker in self._heard_s:
            self._refuse(worker, f"a worker called {worker!r} is there already. Give every worker its own name.")
        elif self._plans is not None:
            self._refuse(worker, f"all {self.options.world} workers have joined already.")
        else:
            self._heard_s[worker] = now_s
        return self._actions

    def received(self, worker: str, message: m.Message, now_s: float) -> list[Action]:
        """A worker said something."""
        self._actions = []
        if worker not in self._heard_s or self.closed:
            return self._actions
        self._heard_s[worker] = now_s
        match message:
            case m.Heartbeat(sent_s):
                self._send(worker, m.HeartbeatSeen(sent_s, now_s))
            case m.Join() if worker not in self._joined:
                self._join(worker, message, now_s)
            case m.Ready() if self._plans is not None and message.lane < MAX_LANES:
                self._ready(worker, message, now_s)
            case m.Finished(number, _):
                self._finished(worker, number, now_s)
            case m.Measured() if self._updating is not None and message.peer in self._joined:
                self._updating.measured(worker, message, now_s)
            case m.Trouble(peer, reason):
                self._close(f"{worker!r} cannot go on with {peer!r}: {reason}", lost=peer)
            case m.Leave(reason):
                self._left(worker, reason)
            case _:
                self._close(f"{worker!r} sent {type(message).__name__} at the wrong time", lost=worker)
        return self._actions

    def disconnected(self, worker: str, reason: str, now_s: float) -> list[Action]:  # noqa: ARG002 - as the others
        """A worker's connection is gone."""
        self._actions = []
        if self._heard_s.pop(worker, None) is not None and not self.closed:
            self._close(f"{worker!r} was lost ({reason})", lost=worker)
        return self._actions

    def close(self, reason: str) -> list[Action]:
        """End the run."""
        self._actions = []
        if not self.closed:
            self._close(reason)
        return self._actions

    # --- membership --------------------------------------------------------------------------------------------

    def _join(self, worker: str, message: m.Join, now_s: float) -> None:
        network = self.options.network
        if network is not None and worker not in network.index:
            self._refuse(worker, f"{worker!r} is not a site of network {network.name!r}.")
            return
        if message.rank >= self.options.world or any(message.rank == j.rank for j in self._joined.values()):
            self._refuse(worker, f"rank {message.rank} is taken, or not below {self.options.world}.")
            return
        self._joined[worker] = message
        if len(self._joined) < self.options.world:
            return
        workers = tuple(sorted(self._joined, key=lambda name: self._joined[name].rank))
        try:
            known = unknown_network(workers) if network is None else network.subnetwork(workers)
            view = NetworkView(known, is_guess=network is None)
            self._plans = Plans(view, self.options.planner, dict(self.options.planner_options), self.options.plan)
            self._updating = Updating(self._plans, self.options.awareness, now_s)
        except TradewindError as error:
            self._close(str(error))
            return
        addresses = tuple(m.Address(name, self._joined[name].host, self._joined[name].port) for name in workers)
        for name in workers:
            self._send(name, m.Roster(addresses, self.deadlines.patience_s))

    def _left(self, worker: str, reason: str) -> None:
        """Leaving while others wait for nothing is fine; the last rounds are done."""
        self._heard_s.pop(worker, None)
        self._actions.append(Disconnect(worker))
        if self._heard_s:
            self._close(f"{worker!r} has left the run{': ' + reason if reason else ''}", lost=worker)

    def _refuse(self, worker: str, reason: str) -> None:
        self._actions += [Send(worker, m.Refused(reason)), Disconnect(worker)]
        self._heard_s.pop(worker, None)

    def _close(self, reason: str, lost: str = "") -> None:
        self.closed = m.Closing(reason[:2000], lost)
        for worker in sorted(self._heard_s):
            self._send(worker, self.closed)
        self._rounds.clear()
        self._lanes.clear()
        self._steps.clear()

    def _send(self, worker: str, message: m.Message) -> None:
        if worker in self._heard_s:
            self._actions.append(Send(worker, message))

    # --- rounds --------------------------------------------------------------------------------------------------

    def _ready(self, worker: str, message: m.Ready, now_s: float) -> None:
        lane = self._lane(message.lane, now_s)
        if not lane.ready:
            lane.since_s = now_s
        if worker in lane.ready:
            self._close(f"{worker!r} was ready twice in one lane", lost=worker)
            return
        lane.ready[worker] = message
        try:
            if message.lane > POLICY_LANE:
                step = self._steps.get(worker)
                if step is not None and step.iterations[worker] == message.iteration:
                    self._start_part(step, message.lane, now_s)
                return
            if message.lane == POLICY_LANE:
                self._come_back([worker], now_s)
            self._tell(message.lane, policy_events.WorkerReady(worker, message.iteration), now_s)
            self._free_the_queue(now_s)
        except InternalError as error:  # the roster refuses what cannot happen, such as a step that was before
            self._close(f"{worker!r} was ready when it could not be: {str(error).splitlines()[0]}", lost=worker)

    def _lane(self, number: int, now_s: float) -> Lane:
        if number not in self._lanes:
            assert self._plans is not None
            name, given = self.options.policy, self.options.policy_options
            if number < POLICY_LANE:
                name, given = "bsp", {}
            network, seed = self._plans.view.network, self.options.seed
            follows = number > POLICY_LANE
            policy = None if follows else make_policy(name, network, self._joined, seed, now_s=now_s, **given)
            self._lanes[number] = Lane(policy)
        return self._lanes[number]

    def _free_the_queue(self, now_s: float) -> None:
        """Nobody can join the policy's queue: all who are not in it wait for an operation of everybody."""
        queue = self._lanes.get(POLICY_LANE)
        if queue is None or not queue.ready or self.closed:
            return
        gone = waiting_for_everybody(self._lanes)
        if gone | queue.ready.keys() == self._joined.keys():
            for worker in sorted(gone - self._away):
                self._away.add(worker)
                self._tell(POLICY_LANE, policy_events.WorkerLost(worker, "it waits for everybody"), now_s)

    def _come_back(self, workers: Iterable[str], now_s: float) -> None:
        for worker in sorted(self._away.intersection(workers)):
            self._away.discard(worker)
            self._tell(POLICY_LANE, policy_events.WorkerJoined(worker), now_s)

    def _tick_lane(self, number: int, lane: Lane, now_s: float) -> None:
        for timer in sorted(t for t, at in lane.timers.items() if at <= now_s):
            if timer in lane.timers:
                del lane.timers[timer]
                self._tell(number, policy_events.TimerFired(timer), now_s)
        if lane.ready and lane.since_s + self.deadlines.straggler_s <= now_s and not self.closed:
            missing = sorted(self._joined.keys() - lane.ready.keys())
            self._close(
                f"{', '.join(map(repr, missing))} did not become ready within {self.deadlines.straggler_s:g} s of "
                f"{next(iter(lane.ready))!r}",
                lost=missing[0] if missing else "",
            )

    def _tell(self, number: int, event: policy_events.Event, now_s: float) -> None:
        lane = self._lanes[number]
        assert lane.policy is not None
        for action in lane.policy.handle(event, now_s):
            match action:
                case policy_actions.StartRound(members=members):
                    self._decided(number, members, action, "", now_s)
                case policy_actions.Proceed(worker, reason):
                    self._decided(number, (worker,), None, reason, now_s)
                case policy_actions.SetTimer(timer, at_s, _):
                    lane.timers[timer] = at_s
                case policy_actions.CancelTimer(timer, _):
                    lane.timers.pop(timer, None)
                case _:
                    self._close(f"policy {self.options.policy!r} asked for {action}, which no run can do yet")
            if self.closed:
                return

    def _decided(
        self, number: int, members: tuple[str, ...], how: policy_actions.StartRound | None, reason: str, now_s: float
    ) -> None:
        ready = self._lanes[number].ready
        parts = ready[members[0]].operation.parts if number == POLICY_LANE else 1
        step = Step(number, {w: ready[w].iteration for w in members}, now_s, how, reason, left=parts)
        if number == POLICY_LANE:
            self._steps.update(dict.fromkeys(members, step))
        else:
            self._come_back(members, now_s)
        for part in range(parts):
            if number + part in self._lanes:
                self._start_part(step, number + part, now_s)

    def _start_part(self, step: Step, number: int, now_s: float) -> None:
        """Start a part of a step if all its members have it."""
        lane = self._lanes[number]
        ready = step.take(lane.ready)
        if ready is None:
            return
        if lane.ready:
            lane.since_s = now_s
        if step.decided is None:
            (worker,) = ready
            self._send(worker, m.Proceed(number, ready[worker].iteration, step.reason))
            return
        differing = step.broken or disagreement(ready)
        if not differing:
            self._start(step, step.decided, number, ready)
            return
        for worker, message in sorted(ready.items()):
            self._send(worker, m.Mismatch(number, message.iteration, differing))
        if number == step.lane:  # then the others can never start, and the policy need not wait for them
            step.broken, step.left = differing, 1
        if not step.broken or number == step.lane:
            self._part_ended(step, now_s)

    def _start(self, step: Step, decided: policy_actions.StartRound, number: int, ready: Mapping[str, m.Ready]) -> None:
        assert self._plans is not None
        operation = next(iter(ready.values())).operation
        about = dict(zip(decided.members, zip(decided.weights, decided.staleness, strict=True), strict=True))
        order = tuple(name for name in self._plans.view.network.names if name in about)
        weights, staleness = zip(*(about[name] for name in order), strict=True)
        try:
            version = self._plans.plan_for(order, max(1, operation.items * operation.item_bytes), decided.plan_hint)
        except TradewindError as error:
            self._close(str(error))
            return
        plan = self._plans.by_version[version]
        round_ = self._next_round
        self._next_round += 1
        self._rounds[round_] = _Round(number, step, frozenset(plan.sites), operation.items * operation.item_bytes)
        floor = min(self._rounds)
        for worker in plan.sites:
            known = self._knows.setdefault(worker, set())
            if version not in known:
                forget = self._plans.obsolete(known)
                known.difference_update(forget)
                known.add(version)
                self._send(worker, m.PlanChanged(version, plan_to_json(plan, indent=0).encode(), forget))
            iteration = ready[worker].iteration if worker in ready else 0
            start = m.Start(round_, version, number, iteration, order, weights, operation, floor, staleness)
            self._send(worker, start)

    def _finished(self, worker: str, number: int, now_s: float) -> None:
        round_ = self._rounds.get(number)
        if round_ is None or worker not in round_.sites:
            self._close(f"{worker!r} finished round {number}, which is not running", lost=worker)
            return
        round_.finished.add(worker)
        if round_.finished != round_.sites:
            return
        del self._rounds[number]
        for site in sorted(round_.sites):
            self._send(site, m.Commit(number))
        if self._updating is not None:
            self._updating.carried(round_.nbytes, len(round_.step.members))
        self._part_ended(round_.step, now_s)

    def _part_ended(self, step: Step, now_s: float) -> None:
        step.left -= 1
        if not step.left and step.decided is not None:
            seconds = now_s - step.started_s
            finished = policy_events.RoundFinished(step.decided.round, step.decided.members, seconds)
            self._tell(step.lane, finished, now_s)
            self._free_the_queue(now_s)
