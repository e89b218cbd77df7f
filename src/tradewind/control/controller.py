"""The controller as a state machine.

    gathering ──all have joined──> running ──────────────────────────────────────────────> closed
                                     │  ^        strict: a rank is lost or leaves
                                     └──┘        any run: all ranks have left, or the run cannot continue
                        tolerant: a rank is lost, joins, or rejoins

Theory of operation. Ranks connect, authenticate (by the driver and `wire.handshake`) and join (`members`). When all
have joined, each receives the roster. A rank with an array sends `Ready`; the policy of that stream decides which ranks
synchronise (`schedule`), a plan is made or found, and every site of the plan receives `Start`. Each sends `Finished`
when its part is done. When all have, they receive `Commit`, which permits using the result (`rounds`).

**Strict runs** (policy `bsp`, unless set otherwise) close when a rank is lost, because a collective needs all ranks.
All ranks receive the name of the lost one.

**Tolerant runs** continue. A lost rank is removed from the roster and from every queue, the others receive `Lost`, and
the rounds that it took part in are halted, then repaired or given up. A rank that joins later, or rejoins, receives the
roster, all others receive the new one, and the policies are notified. Reports about rounds and versions that have ended
are ignored: they were correct when they were sent.

**A lost link** is not a lost rank. In every run its two ends report it, plans avoid it from then on, and rounds that
use it are halted and repaired. When the ends have reconnected they report that, and rounds repeat what was lost in
between. A lost link ends a strict run only if a round cannot be repeated because its results replace its inputs, or if
no plan exists without the link.

**A lost controller** costs only time: ranks find the next controller, or the same one again, and report their state
(`quorum`). With standbys, a controller acts only while a majority of the ranks acknowledges its term.

None of these changes an input. All time limits follow from one setting (`deadlines`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

from tradewind.control.members import Members
from tradewind.control.options import Action, ControlOptions, Decided, Disconnect, RoundEnded, Send
from tradewind.control.outbox import Outbox
from tradewind.control.plans.versions import PlanMade, Plans
from tradewind.control.quorum import next_term
from tradewind.control.rounds.schedule import RunOver, UnexpectedReady
from tradewind.control.rounds.steps import Round
from tradewind.control.snapshot import (
    ControllerSnapshot,
    Decision,
    decision_of,
    members_of,
    plans_of,
    rounds_of,
    streams_of,
)
from tradewind.control.term import Term
from tradewind.errors import BadPlugin, InternalError, TradewindError
from tradewind.network import Network
from tradewind.wire import messages as m

__all__ = ["Action", "ControlOptions", "Controller", "Disconnect", "Send"]

KEPT_DECISIONS = 100
MOST_DIVERGING = 3
"""Rounds in a row whose members hold different results and that are repeated; one more ends the run."""


class Controller:
    """The controller of one run.

    A driver calls `connected`, `received`, `disconnected` and `tick` with the current time, and carries out the actions
    that each call returns, in order.
    """

    def __init__(self, options: ControlOptions, now_s: float) -> None:
        self.options = options
        self.deadlines = options.deadlines
        self.closed: m.Closing | None = None
        """Why the run has ended; None while it has not."""
        self.closed_by: TradewindError | None = None
        """The error that ended the run, if one did."""
        self._members = Members(options, now_s)
        self._outbox = Outbox(self._members)
        self._term: Term | None = None
        self._last_term = -1
        self.diverged = 0
        """Rounds that were not applied because their members held different results."""
        self._diverging = 0
        """Rounds in a row whose members held different results."""
        self._decisions: deque[Decision] = deque(maxlen=KEPT_DECISIONS)
        self._now_s = self._deserted_s = now_s

    @property
    def acting_term(self) -> int | None:
        """The term in which this controller acts; None if it does not act."""
        return self._members.term if self._term is not None and self._term.acting else None

    @property
    def gathered(self) -> tuple[str, ...] | None:
        """Ranks that have joined while the run waits for the others; None once the run has begun, and on standbys."""
        if self._members.begun or self.closed or self.options.index:
            return None
        return tuple(sorted(self._members.joined))

    # --- for drivers -------------------------------------------------------------------------------------------

    @property
    def wake_at_s(self) -> float:
        """Time at which `tick` must be called, unless another event comes first."""
        if self.closed:
            return float("inf")
        if self._term is None:
            return self._members.wake_at_s
        deserted_s = self._deserted_s + self.deadlines.gather_s if not self._members.joined else float("inf")
        return min(self._members.wake_at_s, self._term.wake_at_s, deserted_s)

    def tick(self, now_s: float) -> list[Action]:
        """Handle timeouts and timers that are due."""
        return self._do(self._tick, now_s)

    @property
    def plans(self) -> Plans:
        """The plans of the run. Raises `InternalError` before the run has begun."""
        if self._term is None:
            raise InternalError("a run that has not begun has no plans.")
        return self._term.rounds.plans

    @property
    def rerouted(self) -> int:
        """Number of rounds that switched to a better plan while they ran."""
        return 0 if self._term is None else self._term.rounds.rerouted

    def running_rounds(self) -> list[RoundEnded]:
        """Return a record of each round that has not ended."""
        return [] if self._term is None else self._term.rounds.running_records()

    def snapshot(self, now_s: float) -> ControllerSnapshot:
        """What this controller knows now, as plain values (`control.snapshot`)."""
        running = self._term
        state: Literal["gathering", "waiting", "acting", "closed"] = "closed" if self.closed else "gathering"
        if running is not None:
            state = "acting" if running.acting else "waiting"
        return ControllerSnapshot(
            at_s=now_s,
            state=state,
            reason=self.closed.reason if self.closed else "",
            term=self._members.term if self._members.begun else -1,
            world=self.options.world,
            members=members_of(self._members, now_s),
            rounds=() if running is None else rounds_of(running),
            next_round=0 if running is None else running.rounds.next_number,
            rerouted=self.rerouted,
            plans=() if running is None else plans_of(running),
            plan_version=None if running is None else running.rounds.plans.last_used,
            updates=() if running is None else tuple(running.replanning.updates),
            decisions=tuple(self._decisions),
            links=() if running is None else running.replanning.links_seen(running.view.touched_links, now_s),
            streams=() if running is None else streams_of(running),
            held=0 if running is None else running.held,
        )

    def _take_actions(self) -> list[Action]:
        taken = self._outbox.take()
        if not taken:  # as after most messages: all but the last member's of a round
            return taken
        self._decisions.extend(decision_of(said, self._now_s) for said in taken if isinstance(said, Decided))
        return taken

    def planned(self, made: PlanMade, now_s: float) -> list[Action]:
        """Handle a plan that the driver has made for a `PlanWanted`."""
        if self._term is not None and not self.closed:
            self._term.planned(made, now_s)
        return self._take_actions()

    def connected(self, worker: str, now_s: float) -> list[Action]:
        """Handle a new connection of an authenticated rank."""
        if self.closed:
            self._outbox.refuse(worker, f"the run has ended: {self.closed.reason}.")
            return self._take_actions()
        return self._do(lambda: self._connected(worker), now_s)

    def received(self, worker: str, message: m.Message, now_s: float) -> list[Action]:
        """Handle a message from a rank."""
        if not self._members.is_connected(worker):
            return []
        return self._do(lambda: self._received(worker, message), now_s)

    def disconnected(self, worker: str, reason: str, now_s: float) -> list[Action]:
        """Handle the end of a rank's connection."""
        if not self._members.is_connected(worker):
            return []
        return self._do(lambda: self._lose(worker, f"{worker!r} was lost ({reason})"), now_s)

    def network_given(self, network: Network, now_s: float) -> list[Action]:
        """Replace the network by another one with the same sites; rounds are planned on it from now on."""

        def give() -> None:
            if self._term is not None:
                self._term.network_given(network, now_s)

        return self._do(give, now_s)

    def rates_given(self, network: Network, now_s: float) -> list[Action]:
        """Every link carries what this network of the same sites says, as if just measured.

        Unlike `network_given`, rounds go on by the plans that they have until better ones are made beside them.
        """

        def give() -> None:
            if self._term is not None:
                self._term.replanning.given(network, now_s)

        return self._do(give, now_s)

    def close(self, reason: str) -> list[Action]:
        """End the run; with standbys, only stand down as its controller."""
        if self.options.controllers > 1:
            self._stand_down(reason)
        elif not self.closed:
            self._close(reason)
        return self._take_actions()

    def _do(self, work: Callable[[], None], now_s: float) -> list[Action]:
        if not self.closed:
            self._now_s = now_s
            try:
                work()
                self._settle()
            except RunOver as over:
                self.closed_by = over.__cause__ if isinstance(over.__cause__, TradewindError) else None
                self._close(over.reason, over.lost)
            except BadPlugin as error:  # of a policy from outside
                self.closed_by = error
                self._close(str(error))
        return self._take_actions()

    def _settle(self) -> None:
        """Do what an event has made possible: commit finished rounds, start rounds, repair halted ones."""
        while self._term is not None and self._term.acting:
            over = self._term.rounds.over()
            if over:
                if not self._differ(over[0], self._term):
                    self._term.commit(over[0], self._now_s)
                continue
            try:
                self._term.settle(self._now_s)
                return
            except UnexpectedReady as unexpected:
                self._misbehaved(unexpected.worker, str(unexpected), may_return=True)

    # --- events ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        for worker in self._members.silent(self._now_s):
            self._lose(worker, f"{worker!r} was silent for {self.deadlines.silence_s:g} s", hang_up=True)
        missing = self._members.missing(self._now_s)
        if missing is not None:
            raise RunOver(missing)
        self._begin_if_possible()
        if self._term is not None:
            if not self._members.joined and self._deserted_s + self.deadlines.gather_s <= self._now_s:
                raise RunOver(f"all ranks were lost, and none rejoined within {self.deadlines.gather_s:g} s")
            self._term.tick(self._now_s)

    def _connected(self, worker: str) -> None:
        if self._members.is_connected(worker):
            if not self.options.is_tolerant:
                self._outbox.refuse(
                    worker, f"a rank named {worker!r} is already connected. Give every rank its own name."
                )
                return
            self._lose(worker, f"{worker!r} has reconnected")
        elif self._term is not None and not self.options.is_tolerant:
            self._outbox.refuse(worker, f"all {self.options.world} ranks have already joined.")
            return
        self._members.heard(worker, self._now_s)

    def _received(self, worker: str, message: m.Message) -> None:
        self._members.heard(worker, self._now_s)
        match message:
            case m.Heartbeat(sent_s):
                self._outbox.send(worker, m.HeartbeatSeen(sent_s, self._now_s))
            case m.Join() if worker not in self._members.joined:
                self._join(worker, message)
            case m.Leave(reason):
                self._leave(worker, reason)
            case _ if self._term is None and worker in self._members.reports:
                self._members.early.append((worker, message))
            case _ if self._term is None or worker not in self._members.joined:
                self._misbehaved(worker, f"sent an unexpected {type(message).__name__}")
            case m.RosterSeen():
                self._term.acknowledged(worker, message, self._now_s)
            case m.Finished() if self._term.acting:
                self._term.finished(worker, message)
            case _:
                if not self._term.received(worker, message, self._now_s):
                    self._misbehaved(worker, f"sent an unexpected {type(message).__name__}")

    def _misbehaved(self, worker: str, what: str, may_return: bool = False) -> None:
        """Remove a rank whose messages do not fit its state; `may_return`: it may reconnect with a new report."""
        if not self.options.is_tolerant:
            raise RunOver(f"{worker!r} {what}", worker)
        if may_return:
            self._outbox.send(worker, m.StandingDown(f"{worker!r} {what}"[:1000]))
            self._lose(worker, f"{worker!r} {what}", hang_up=True)
            return
        self._outbox.refuse(worker, f"{worker!r} {what}.")
        self._lose(worker, f"{worker!r} {what}")

    def _differ(self, round_: Round, term: Term) -> bool:
        """Whether members hold different results, which must not be used.

        A result that the controller sent itself proves who changed it: that member is removed. Otherwise the sender of
        a part may have changed it as well as its receiver, so the round is repeated, and after `MOST_DIVERGING` in a
        row the run ends.
        """
        odd = term.rounds.diverging(round_)
        is_by_plan = round_.expected is None
        self._diverging = (self._diverging + 1 if odd else 0) if is_by_plan else self._diverging
        if not odd:
            return False
        self.diverged += 1
        what = f"the result of round {round_.number} at {', '.join(map(repr, odd))} differs from that of the others"
        without_end = self._diverging > MOST_DIVERGING if is_by_plan else len(odd) == len(round_.ready)
        if without_end or not self.options.is_tolerant:
            was_used = not round_.is_repeatable and not self.options.is_tolerant
            used = "It was used: go on from a checkpoint." if was_used else "Nothing was applied."
            raise RunOver(f"{what}. {used} Check the memory of all machines, of these first.", odd[0])
        if is_by_plan:
            term.schedule.failed(round_, what, self._now_s)
        else:
            for worker in odd:
                self._misbehaved(worker, f"has a different result of round {round_.number} than was sent to it")
        return True

    # --- joining and leaving -----------------------------------------------------------------------------------

    def _join(self, worker: str, message: m.Join) -> None:
        if self.options.index and self._term is None and message.report is None and not self._members.reports:
            # A run begins at the first controller and continues where its ranks report: this controller is neither.
            self._outbox.send(worker, m.StandingDown("it is a standby"))
            self._drop(worker, hang_up=True)
            return
        members, report = self._members, message.report
        if self._term is not None and report is not None and members.has_followed_another(worker, report):
            # It follows no older term, so it could not join this one. All can join the next, which is newer than both.
            self._stand_down(f"{worker!r} has acknowledged term {report.term} of another, here it is {members.term}")
            return
        refused = members.join(worker, message)
        if refused is not None:
            self._outbox.refuse(worker, refused)
            self._members.drop(worker)
        elif self._term is not None:
            self._term.join(worker, message, self._now_s)
        else:
            self._begin_if_possible()

    def _begin_if_possible(self) -> None:
        if self._term is not None or not self._members.can_begin(self._now_s):
            return
        options = self.options
        self._last_term = next_term(self._members.reports, options.index, options.controllers, self._last_term)
        self._members.begin(self._last_term)
        self._term = Term(self.options, self._members, self._outbox, self._now_s)
        self._term.announce()
        if self.options.controllers == 1:
            self._term.act(self._now_s)

    def _leave(self, worker: str, reason: str) -> None:
        said = f"{worker!r} has left the run{': ' + reason if reason else ''}"
        self._lose(worker, said, hang_up=True)
        if not self._members.joined and self.options.controllers == 1:
            raise RunOver(f"{said}; no rank remains", worker)

    def _lose(self, worker: str, reason: str, hang_up: bool = False) -> None:
        was_joined = self._drop(worker, hang_up)
        if not self.options.is_tolerant:
            raise RunOver(reason, worker)
        if not was_joined or self._term is None:
            return
        self._deserted_s = self._now_s
        self._term.lose(worker, reason, self._now_s)
        if self.options.controllers > 1 and not self._term.has_majority:
            self._stand_down(f"the majority of the ranks is lost; the last was {worker!r}: {reason}")

    def _drop(self, worker: str, hang_up: bool) -> bool:
        if hang_up:
            self._outbox.disconnect(worker)
        return self._members.drop(worker)

    def _stand_down(self, reason: str) -> None:
        """Stop acting, since another controller may act now: discard all state and make ranks look for that one."""
        self._term = None
        self._outbox.send_all(m.StandingDown(reason[:1000]))
        for worker in self._members.connected:
            self._outbox.disconnect(worker)
        self._members = Members(self.options, self._now_s)
        self._outbox = Outbox(self._members, self._outbox.take())

    def _close(self, reason: str, lost: str = "") -> None:
        self.closed = m.Closing(reason[:2000], lost)
        self._outbox.send_all(self.closed)
        self._term = None
