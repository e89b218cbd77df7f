"""The controller as a state machine.

    gathering ──all have joined──> running ──────────────────────────────────────────────> closed
                                     │  ^        strict: a worker is lost or leaves
                                     └──┘        any run: everybody has left, or it cannot go on
                        tolerant: somebody is lost, comes, or comes back

Theory of operation. Workers connect, prove themselves (that is the driver's and `wire.handshake`'s business) and join
(`membership`). When all have, everybody gets the roster. A worker with an array says `Ready`; the policy of that lane
decides who synchronises (`schedule`), a plan is made or found, and `Start` goes to every site of the plan. Each says
`Finished` when its part is done, and when all have, `Commit` tells them that the result may be used (`rounds`).

**Strict runs** (`bsp`, unless asked otherwise): when a worker is lost, the run is closed and everybody is told who was
lost: a collective needs all.

**Tolerant runs** go on. Whoever is lost is taken out of the roster and of every queue, all others are told (`Lost`),
and rounds that it had a part in are halted, then repaired or given up. The same happens to rounds that use a link that
broke; when its ends have connected again they say so, and rounds make up for what was lost on the way. A worker that
comes later, or again, gets the roster, all others get the new one, and policies hear of it. Reports of rounds and
versions that are over are dropped without a word: they were true when they were sent.

No input is harmed by any of this. All time limits follow from one setting (`deadlines`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tradewind.control.membership import Membership
from tradewind.control.options import Action, ControlOptions, Disconnect, Send
from tradewind.control.plans import PlanMade, Plans
from tradewind.control.rounds import Round, Rounds
from tradewind.control.schedule import RunOver, Schedule
from tradewind.control.updating import Updating
from tradewind.control.view import NetworkView, unknown_network
from tradewind.errors import ImpossibleProblem, InternalError, TradewindError
from tradewind.wire import messages as m

__all__ = ["Action", "ControlOptions", "Controller", "Disconnect", "Send"]


class Controller:
    """One run's."""

    def __init__(self, options: ControlOptions, now_s: float) -> None:
        self.options = options
        self.deadlines = options.deadlines
        self.closed: m.Closing | None = None
        """Why the run is over, if it is."""
        self._members = Membership(options, now_s)
        self._plans: Plans | None = None
        self._rounds: Rounds | None = None
        self._schedule: Schedule | None = None
        self._updating: Updating | None = None
        self._held: list[tuple[str, m.Ready]] = []
        """Who became ready while links were measured."""
        self._now_s = self._deserted_s = now_s

    # --- for drivers -------------------------------------------------------------------------------------------

    @property
    def wake_at_s(self) -> float:
        """When `tick` is to be called, if nothing happens before."""
        if self.closed:
            return float("inf")
        times = [self._members.wake_at_s]
        if self._schedule is not None and self._rounds is not None:
            times += [self._updating.wake_at_s] if self._updating is not None else []
            times += [self._schedule.wake_at_s, self._rounds.wake_at_s(self.deadlines.silence_s)]
            if not self._members.joined:
                times.append(self._deserted_s + self.deadlines.gather_s)
        return min(times)

    def tick(self, now_s: float) -> list[Action]:
        """Time has passed."""
        return self._do(self._tick, now_s)

    @property
    def plans(self) -> Plans:
        """The run's plans, once it has begun."""
        if self._plans is None:
            raise InternalError("a run that has not begun has no plans.")
        return self._plans

    def planned(self, made: PlanMade, now_s: float) -> list[Action]:
        """A plan that was wanted is there."""
        if self._updating is not None and not self.closed:
            self._updating.planned(made, now_s)
        return self._members.take_actions()

    def connected(self, worker: str, now_s: float) -> list[Action]:
        """A worker has proven itself and may talk."""
        if self.closed:
            self._members.refuse(worker, f"the run is over: {self.closed.reason}.")
            return self._members.take_actions()
        return self._do(lambda: self._connected(worker), now_s)

    def received(self, worker: str, message: m.Message, now_s: float) -> list[Action]:
        """A worker said something."""
        if not self._members.is_connected(worker):
            return []
        return self._do(lambda: self._received(worker, message), now_s)

    def disconnected(self, worker: str, reason: str, now_s: float) -> list[Action]:
        """A worker's connection is gone."""
        if not self._members.is_connected(worker):
            return []
        return self._do(lambda: self._lose(worker, f"{worker!r} was lost ({reason})"), now_s)

    def close(self, reason: str) -> list[Action]:
        """End the run."""
        if not self.closed:
            self._close(reason)
        return self._members.take_actions()

    def _do(self, work: Callable[[], None], now_s: float) -> list[Action]:
        if not self.closed:
            self._now_s = now_s
            try:
                work()
                self._release()
                self._repair()
            except RunOver as over:
                self._close(over.reason, over.lost)
        return self._members.take_actions()

    # --- events ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        for worker in self._members.silent(self._now_s):
            self._lose(worker, f"{worker!r} was silent for {self.deadlines.silence_s:g} s", hang_up=True)
        missing = self._members.missing(self._now_s)
        if missing is not None:
            raise RunOver(missing)
        if self._schedule is not None and self._rounds is not None:
            if not self._members.joined and self._deserted_s + self.deadlines.gather_s <= self._now_s:
                raise RunOver(f"everybody was lost, and nobody came back within {self.deadlines.gather_s:g} s")
            for round_ in self._rounds.overdue(self.deadlines.silence_s, self._now_s):
                self._schedule.failed(round_, "somebody did not say how far it had come", self._now_s)
            self._schedule.tick(self._now_s)
        if self._updating is not None:
            self._members.want(self._updating.tick(self._now_s))
            if self._schedule is not None:
                self._schedule.network_measured(self._now_s)
            self._tell(self._updating.explorations(self._now_s))

    def _tell(self, told: Iterable[tuple[str, m.Message]]) -> None:
        for worker, message in told:
            self._members.send(worker, message)

    def _connected(self, worker: str) -> None:
        if self._members.is_connected(worker):
            if not self.options.is_tolerant:
                self._members.refuse(
                    worker, f"a worker called {worker!r} is there already. Give every worker its own name."
                )
                return
            self._lose(worker, f"{worker!r} has connected anew")
        elif self._schedule is not None and not self.options.is_tolerant:
            self._members.refuse(worker, f"all {self.options.world} workers have joined already.")
            return
        self._members.heard(worker, self._now_s)

    def _received(self, worker: str, message: m.Message) -> None:
        self._members.heard(worker, self._now_s)
        match message:
            case m.Heartbeat(sent_s):
                self._members.send(worker, m.HeartbeatSeen(sent_s, self._now_s))
            case m.Join() if worker not in self._members.joined:
                self._join(worker, message)
            case m.Leave(reason):
                self._leave(worker, reason)
            case _ if self._schedule is None or self._rounds is None or worker not in self._members.joined:
                self._misbehaved(worker, f"sent {type(message).__name__} at the wrong time")
            case m.Ready(lane=lane) if lane < m.MAX_LANES:
                self._held.append((worker, message))
            case m.Finished():
                self._finished(worker, message, self._rounds)
            case m.Progress():
                self._rounds.progressed(worker, message)
            case m.Measured() if self._updating is not None:
                if message.peer in self._members.joined:
                    self._tell(self._updating.measured(worker, message, self._now_s))
            case m.NetworkWanted() if self._updating is not None:
                self._members.send(worker, self._updating.seen(self._now_s))
            case m.Trouble():
                self._trouble(worker, message, self._rounds, self._schedule)
            case _:
                self._misbehaved(worker, f"sent {type(message).__name__} at the wrong time")

    def _release(self) -> None:
        """Let workers be ready, unless links are being measured; and tell who has other detours now."""
        while (
            self._schedule is not None and self._updating is not None and not self._updating.is_probing and self._held
        ):
            self._schedule.ready(*self._held.pop(0), self._now_s)
        if self._updating is not None:
            self._tell(self._updating.detours())

    def _misbehaved(self, worker: str, what: str) -> None:
        if not self.options.is_tolerant:
            raise RunOver(f"{worker!r} {what}", worker)
        self._members.refuse(worker, f"{worker!r} {what}.")
        self._lose(worker, f"{worker!r} {what}")

    # --- membership --------------------------------------------------------------------------------------------

    def _join(self, worker: str, message: m.Join) -> None:
        refused = self._members.join(worker, message)
        if refused is not None:
            self._members.refuse(worker, refused)
            self._members.drop(worker)
        elif not self._members.begun:
            return
        elif self._schedule is None or self._rounds is None:
            self._begin()
        else:
            self._rounds.plans.view.set_present(self._members.joined)
            self._schedule.joined(worker, self._now_s)
            self._send_roster(self._rounds.next_number)

    def _begin(self) -> None:
        """Everybody is there."""
        options, joined = self.options, self._members.joined
        by_rank = tuple(sorted(joined, key=lambda name: joined[name].rank))
        try:
            known = unknown_network(by_rank) if options.network is None else options.network
            view = NetworkView(known, is_guess=options.network is None)
            view.set_present(joined)
            plans = self._plans = Plans(
                view, options.planner, dict(options.planner_options), options.plan, options.awareness.chunk_bytes
            )
        except TradewindError as error:
            raise RunOver(str(error)) from error
        self._rounds = Rounds(self._members, plans)
        self._schedule = Schedule(options, self._members, self._rounds)
        self._updating = Updating(plans, options.awareness, self._now_s)
        self._rounds.detoured = self._updating.uses_detours
        self._send_roster(0)
        self._tell(self._updating.begin(self._now_s))

    def _send_roster(self, floor: int) -> None:
        for name in sorted(self._members.joined):
            self._members.send(name, self._members.roster(floor))

    def _leave(self, worker: str, reason: str) -> None:
        said = f"{worker!r} has left the run{': ' + reason if reason else ''}"
        self._lose(worker, said, hang_up=True)
        if not self._members.joined:
            raise RunOver(f"{said}, as the last one", worker)

    def _lose(self, worker: str, reason: str, hang_up: bool = False) -> None:
        was_joined = self._members.drop(worker, hang_up)
        self._held = [(who, ready) for who, ready in self._held if who != worker]
        if not self.options.is_tolerant:
            raise RunOver(reason, worker)
        if was_joined and self._rounds is not None and self._schedule is not None:
            self._rounds.plans.view.set_present(self._members.joined)
            self._members.send_all(m.Lost(worker, reason[:1000]))
            self._rounds.lose(worker, self._now_s)
            self._schedule.lost(worker, reason, self._now_s)
            self._deserted_s = self._now_s

    def _close(self, reason: str, lost: str = "") -> None:
        self.closed = m.Closing(reason[:2000], lost)
        self._members.send_all(self.closed)
        self._rounds = self._schedule = None

    # --- rounds --------------------------------------------------------------------------------------------------

    def _finished(self, worker: str, message: m.Finished, rounds: Rounds) -> None:
        if not self.options.is_tolerant and message.round not in rounds.running:
            raise RunOver(f"{worker!r} finished round {message.round}, which is not running", worker)
        round_ = rounds.finished(worker, message)
        if round_ is not None and not self._differ(round_, rounds) and self._schedule is not None:
            rounds.commit(round_)
            if self._updating is not None:
                self._updating.carried(round_.operation.items * round_.operation.item_bytes, len(round_.ready))
            self._schedule.committed(round_, self._now_s)

    def _differ(self, round_: Round, rounds: Rounds) -> bool:
        """Whether members hold different results: nobody may use them. Those who differ from most are sent away."""
        odd = rounds.odd_ones(round_)
        if not odd:
            return False
        what = f"the result of round {round_.number} at {', '.join(map(repr, odd))} is not that of the others"
        if len(odd) == len(round_.ready) or not self.options.is_tolerant:
            raise RunOver(f"{what}. Nothing was applied. Check these machines' memory.", odd[0])
        for worker in odd:
            self._misbehaved(worker, f"has another result of round {round_.number} than the others")
        return True

    def _trouble(self, worker: str, message: m.Trouble, rounds: Rounds, schedule: Schedule) -> None:
        peer, view = message.peer, rounds.plans.view
        if not self.options.is_tolerant:
            raise RunOver(f"{worker!r} cannot go on with {peer!r}: {message.reason}", peer)
        if peer not in self._members.joined:
            return
        changed = view.set_cut(worker, peer, not message.back)
        rounds.disturb(worker, peer, self._now_s)
        if changed:
            ways = ((worker, peer), (peer, worker))
            rates = [view.link_bps(*way) if message.back else 0.0 for way in ways]
            schedule.link_changed(worker, peer, (rates[0], rates[1]), self._now_s)

    def _repair(self) -> None:
        """Go on with halted rounds whose sites have all reported."""
        while self._rounds is not None and self._schedule is not None and (settled := self._rounds.settled()):
            try:
                self._rounds.repair(settled[0])
            except ImpossibleProblem as error:
                self._schedule.failed(settled[0], str(error), self._now_s)
