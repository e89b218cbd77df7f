"""The controller as a state machine.

    gathering ──all have joined──> running ──a worker is lost, leaves, or breaks a rule──> closed

Theory of operation. Workers connect, prove themselves (that is the driver's and `wire.handshake`'s business) and join.
When all have, everybody gets the roster. A worker with an array says `Ready`; the policy of that lane decides who
synchronises, a plan is made or found, and `Start` goes to every site of the plan. Each says `Finished` when its part is
done, and when all have, `Commit` tells them that the result may be used. Until then every input is as it was.

Lanes let a worker have several rounds under way although a policy thinks of one: each lane has a policy of its own.

When a worker is lost, the run is closed and everybody is told who was lost: rounds cannot finish, and no input is
harmed. All time limits follow from one setting (`deadlines`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tradewind.control.deadlines import Deadlines
from tradewind.control.plans import Plans
from tradewind.control.view import NetworkView, unknown_network
from tradewind.errors import InternalError, TradewindError
from tradewind.network import Network
from tradewind.planning.plan import Plan, plan_to_json
from tradewind.policy import Policy, make_policy
from tradewind.policy import actions as policy_actions
from tradewind.policy import events as policy_events
from tradewind.wire import messages as m

MAX_LANES = 64


@dataclass(frozen=True)
class ControlOptions:
    """How a run is to be."""

    world: int
    """How many workers."""
    network: Network | None = None
    """Workers are called like its sites, and other sites are left out; None: unknown, all links taken as equal."""
    plan: Plan | None = None
    """Use this one, and no planner."""
    planner: str | None = None
    planner_options: Mapping[str, object] = field(default_factory=dict)
    policy: str = "bsp"
    policy_options: Mapping[str, object] = field(default_factory=dict)
    deadlines: Deadlines = field(default_factory=Deadlines)
    seed: int = 0

    @property
    def chosen_planner(self) -> str:
        """Without a network nothing can be optimised: equal shares on every member."""
        return self.planner or ("multi-star" if self.network is None else "optimal")


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a worker."""

    worker: str
    message: m.Message


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection to a worker, after what was sent."""

    worker: str


Action = Send | Disconnect


@dataclass(slots=True)
class _Round:
    lane: int
    policy_round: int
    members: tuple[str, ...]
    sites: frozenset[str]
    started_s: float
    finished: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Lane:
    policy: Policy
    ready: dict[str, m.Ready] = field(default_factory=dict)
    since_s: float = 0.0
    timers: dict[str, float] = field(default_factory=dict)


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
        self._lanes: dict[int, _Lane] = {}
        self._rounds: dict[int, _Round] = {}
        self._next_round = 0
        self._plans: Plans | None = None
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
        if self._plans is None:
            times.append(self._began_s + self.deadlines.gather_s)
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
                self._send(worker, m.HeartbeatSeen(sent_s))
            case m.Join() if worker not in self._joined:
                self._join(worker, message)
            case m.Ready() if self._plans is not None and message.lane < MAX_LANES:
                self._ready(worker, message, now_s)
            case m.Finished(number, _):
                self._finished(worker, number, now_s)
            case m.Measured(peer, bandwidth_bps) if self._plans is not None and peer in self._joined:
                self._plans.view.measured(worker, peer, bandwidth_bps, now_s)
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

    def _join(self, worker: str, message: m.Join) -> None:
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
            self._plans = Plans(
                view, self.options.chosen_planner, dict(self.options.planner_options), self.options.plan
            )
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

    def _send(self, worker: str, message: m.Message) -> None:
        if worker in self._heard_s:
            self._actions.append(Send(worker, message))

    # --- rounds --------------------------------------------------------------------------------------------------

    def _ready(self, worker: str, message: m.Ready, now_s: float) -> None:
        assert self._plans is not None
        lane = self._lanes.get(message.lane)
        if lane is None:
            policy = make_policy(
                self.options.policy,
                self._plans.view.network,
                self._joined,
                self.options.seed,
                now_s=now_s,
                **self.options.policy_options,
            )
            lane = self._lanes[message.lane] = _Lane(policy)
        if not lane.ready:
            lane.since_s = now_s
        if worker in lane.ready:
            self._close(f"{worker!r} was ready twice in one lane", lost=worker)
            return
        lane.ready[worker] = message
        try:
            self._tell(message.lane, policy_events.WorkerReady(worker, message.iteration), now_s)
        except InternalError as error:  # the roster refuses what cannot happen, such as a step that was before
            self._close(f"{worker!r} was ready when it could not be: {str(error).splitlines()[0]}", lost=worker)

    def _tick_lane(self, number: int, lane: _Lane, now_s: float) -> None:
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
        for action in lane.policy.handle(event, now_s):
            match action:
                case policy_actions.StartRound():
                    self._start(number, lane, action, now_s)
                case policy_actions.Proceed(worker, reason):
                    ready = lane.ready.pop(worker)
                    self._send(worker, m.Proceed(number, ready.iteration, reason))
                case policy_actions.SetTimer(timer, at_s, _):
                    lane.timers[timer] = at_s
                case policy_actions.CancelTimer(timer, _):
                    lane.timers.pop(timer, None)
                case _:
                    self._close(f"policy {self.options.policy!r} asked for {action}, which no run can do yet")
            if self.closed:
                return

    def _start(self, number: int, lane: _Lane, action: policy_actions.StartRound, now_s: float) -> None:
        assert self._plans is not None
        ready = {worker: lane.ready.pop(worker) for worker in action.members}
        if lane.ready:
            lane.since_s = now_s
        operations = {message.operation for message in ready.values()}
        if len(operations) > 1:
            self._mismatch(number, ready)
            finished = policy_events.RoundFinished(action.round, action.members, 0.0)
            self._tell(number, finished, now_s)
            return
        (operation,) = operations
        weights = dict(zip(action.members, action.weights, strict=True))
        order = tuple(name for name in self._plans.view.network.names if name in weights)
        try:
            version = self._plans.plan_for(order, max(1, operation.items * operation.item_bytes), action.plan_hint)
        except TradewindError as error:
            self._close(str(error))
            return
        plan = self._plans.by_version[version]
        round_ = self._next_round
        self._next_round += 1
        self._rounds[round_] = _Round(number, action.round, action.members, frozenset(plan.sites), now_s)
        floor = min(self._rounds)
        for worker in plan.sites:
            if version not in self._knows.setdefault(worker, set()):
                self._knows[worker].add(version)
                self._send(worker, m.PlanChanged(version, plan_to_json(plan, indent=0).encode()))
            iteration = ready[worker].iteration if worker in ready else 0
            start = m.Start(
                round_, version, number, iteration, order, tuple(weights[n] for n in order), operation, floor
            )
            self._send(worker, start)

    def _mismatch(self, number: int, ready: Mapping[str, m.Ready]) -> None:
        said = "; ".join(
            f"{worker!r} has {r.operation.items} items of {r.operation.dtype} for {r.operation.op}"
            + (f" from {r.operation.root!r}" if r.operation.root else "")
            for worker, r in sorted(ready.items())
        )
        for worker, message in sorted(ready.items()):
            reason = f"the members of a round must bring the same: {said}."[:3000]
            self._send(worker, m.Mismatch(number, message.iteration, reason))

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
        seconds = now_s - round_.started_s
        self._tell(round_.lane, policy_events.RoundFinished(round_.policy_round, round_.members, seconds), now_s)
