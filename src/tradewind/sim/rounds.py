"""Rounds from their start to their end: planned, carried out, repaired, finished or given up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tradewind.errors import InternalError, TradewindError
from tradewind.planning.plan import Plan
from tradewind.policy.actions import StartRound
from tradewind.policy.events import RoundFailed, RoundFinished, WorkerReady
from tradewind.sim.data_plane import Run
from tradewind.sim.flows import LOST
from tradewind.sim.result import RoundSummary
from tradewind.sim.workers import State

if TYPE_CHECKING:
    from tradewind.sim.driver import Simulation


@dataclass(slots=True)
class ActiveRound:
    """A round that has started and not ended."""

    asked: StartRound
    members: list[str]
    """Those left; the policy's idea of the members."""
    contributors: tuple[str, ...]
    start_s: float
    waiting: set[str]
    """Members without the result."""
    plan: Plan | None = None
    run: Run | None = None
    repairs: int = 0
    moved_shards: int = 0


class Rounds:
    """All rounds of a simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self.running: dict[int, ActiveRound] = {}
        self.summaries: list[RoundSummary] = []
        self.finished = 0
        self.discarded_bits = 0.0
        """What was sent early and for nothing."""

    def start(self, asked: StartRound) -> None:
        """Its members are ready and wait for it."""
        round_ = ActiveRound(asked, list(asked.members), asked.members, self._sim.clock.now_s, set(asked.members))
        self.running[asked.round] = round_
        for name in asked.members:
            worker = self._sim.workers[name]
            worker.round = asked.round
            if worker.state is State.READY:  # else it is down, and the policy does not know yet
                self._sim.stop_waiting(worker, State.SYNCHRONISING, asked.round)
        self._carry_out(round_, 1.0)

    def _carry_out(self, round_: ActiveRound, share: float) -> None:
        """Plan the round and set it going, for the first time or again."""
        asked, early = round_.asked, None
        try:
            round_.plan = self._sim.plans.plan(round_.members, asked.plan_hint, asked.server)
        except TradewindError as error:
            if isinstance(error, InternalError) or not self._sim.disturbances.happened:
                raise  # with nothing lost the scheme does not work on this network: say so, rather than try for ever
            self.fail(round_, str(error))
            return
        if self._sim.early is not None:
            begun = self._sim.early.adopt(round_.plan)
            round_.plan, early = begun.plan, begun.flows
            self.discarded_bits += begun.discarded_bits
        round_.run = self._sim.data.start(asked.round, round_.plan, partial(self._released, round_), early, share)

    def _released(self, round_: ActiveRound, row: int) -> None:
        """A member holds the whole result and trains on; the last one ends the round."""
        name = self._sim.setup.network.names[row]
        if name not in round_.waiting or self._sim.workers[name].state is State.DOWN:
            return  # the server of a round; a member that was let go before a repair; one that is gone
        round_.waiting.remove(name)
        worker, now_s = self._sim.workers[name], self._sim.clock.now_s
        self._sim.recorder.add("sync", worker.since_s, now_s, name, round_number=round_.asked.round)
        worker.enter(State.COMPUTING, now_s)
        worker.rounds += 1
        self._sim.train(worker)
        if not round_.waiting:
            self._finish(round_)

    def _finish(self, round_: ActiveRound) -> None:
        number, seconds = round_.asked.round, self._sim.clock.now_s - round_.start_s
        self.end(round_, "finished", round_.asked.reason)
        self.finished += 1
        members = [self._sim.workers[name] for name in round_.members]
        for worker in members:
            worker.round = None
        self._sim.tell(RoundFinished(number, tuple(sorted(round_.members)), seconds))
        for worker in members:
            if worker.state is State.READY and worker.round is None:
                self._sim.tell(WorkerReady(worker.name, worker.iteration))
        if self.finished == self._sim.setup.stop_after_rounds:
            self._sim.clock.stop()

    def fail(self, round_: ActiveRound, reason: str) -> None:
        """A round cannot be completed: its members are ready as before."""
        self.give_up(round_, "failed", reason)
        self._sim.tell(RoundFailed(round_.asked.round, reason))

    def give_up(self, round_: ActiveRound, outcome: str, reason: str) -> None:
        """Stop a round; its members are ready as before."""
        if round_.run is not None:
            round_.run.cancel(LOST)
        self.end(round_, outcome, reason)
        for name in round_.members:
            worker = self._sim.workers[name]
            worker.round = None
            if worker.state is State.COMPUTING:  # it was let go already; what it got is taken back
                self._sim.clock.cancel(worker.alarm)
                worker.rounds -= 1
            if worker.state is not State.DOWN:
                worker.enter(State.READY, self._sim.clock.now_s)

    def end(self, round_: ActiveRound, outcome: str, reason: str) -> None:
        """Nothing more happens in a round: keep what there is to say about it."""
        asked, now_s = round_.asked, self._sim.clock.now_s
        self._let_go(round_)
        del self.running[asked.round]
        summary = RoundSummary(
            asked.round,
            round_.contributors,
            round_.start_s,
            now_s,
            outcome,
            asked.scope,
            round_.repairs,
            round_.moved_shards,
        )
        self.summaries.append(summary)
        self._sim.recorder.add(
            "round",
            round_.start_s,
            now_s,
            round_number=asked.round,
            phase=self._sim.setup.scheme.planner if round_.plan is None else round_.plan.planner,
            nbytes=self._sim.setup.nbytes,
            members=round_.contributors,
            outcome=outcome,
            reason=reason,
        )

    # --- when something is lost --------------------------------------------------------------------------

    def repair(self, rounds: Iterable[ActiveRound]) -> None:
        """Something is known to be lost: repair the rounds that need it, or plan them anew."""
        for round_ in rounds:
            if round_.run is not None and not round_.run.survives(self._sim.view):
                self._start_again(round_, round_.run.remaining_share, "its plan needs something that is lost")

    def go_on_without(self, round_: ActiveRound, lost: str) -> None:
        """A member is lost: the others finish the round if they can, and else start it again without that member."""
        round_.members.remove(lost)
        round_.waiting.discard(lost)
        assert round_.run is not None
        if round_.run.survives_without(lost, self._sim.view):
            round_.repairs += 1
            if not round_.waiting:
                self._finish(round_)
            return
        self._start_again(round_, 1.0, f"{lost} is lost with some of its part")

    def _start_again(self, round_: ActiveRound, share: float, reason: str) -> None:
        """Plan a round anew for those who are left, unless one of them has a result that they cannot have any more."""
        assert round_.run is not None
        if set(round_.contributors) != set(round_.members) and len(round_.waiting) < len(round_.members):
            self.fail(round_, f"{reason}, and not everybody can have the result that some have")
            return
        self._sim.decided("plan again", reason, round_number=round_.asked.round)
        round_.contributors = tuple(round_.members)
        round_.repairs += 1
        round_.run.cancel(LOST)
        self._let_go(round_)
        self._carry_out(round_, share)

    def _let_go(self, round_: ActiveRound) -> None:
        """Take down what a round's run counted, and forget the run."""
        if round_.run is not None:
            self.discarded_bits += round_.run.discarded_bits
            round_.moved_shards += round_.run.moved_shards
            round_.run.close()
            round_.run = None
