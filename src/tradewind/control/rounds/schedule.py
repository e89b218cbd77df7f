"""Which ranks synchronise when: requests of ranks start rounds, and losses repair or end steps.

Ranks send `Ready` in a stream (`steps`). The policy of that stream decides, and its decision, a `Step`, starts a round
for each part as soon as all members have that part. Policies are notified of lost and restored ranks and links, and
decide whether a round is repaired or abandoned; `rounds` carries that out.

When all other ranks wait for an operation of all ranks, no rank can join those in the policy's queue. For the policy
the waiting ranks are *away* until that operation starts, and the rest form smaller rounds or proceed alone.

A rank that no working links connect with the others would keep all of them from synchronising, if the policy wants it
in every round. When a step has no plan because of that, the members outside of the largest connected part are *set
aside*: policies take them for lost, and their steps end alone, until their links are back. They stay in the run.

A step that cannot continue is given up: its members wait, ready as before, and the policy decides again. If a part of
it was already committed, the step cannot be repeated: its other parts end alone, and it counts as done. If the policy
gave the step up itself, it counts those members as ready although they continue training: their next `Ready` is then
not forwarded to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from tradewind.control.members import Members
from tradewind.control.options import STRICT_POLICY, ControlOptions, Decided
from tradewind.control.outbox import Outbox
from tradewind.control.rounds.rounds import Rounds
from tradewind.control.rounds.steps import Round, Step, Stream, disagreement, waiting_for_all_ranks
from tradewind.errors import ImpossibleProblem, InternalError, TradewindError
from tradewind.network import Matrix
from tradewind.planning.zones import with_zones
from tradewind.policy import actions as do
from tradewind.policy import events as on
from tradewind.policy import make_policy
from tradewind.wire import messages as m
from tradewind.wire.messages import POLICY_STREAM

WORTH_TELLING = 0.05
"""Relative change of a link above which the policy is notified."""


class RunOver(Exception):
    """Raised when the run cannot continue; `lost` names the rank that was lost, if any."""

    def __init__(self, reason: str, lost: str = "") -> None:
        super().__init__(reason)
        self.reason, self.lost = reason, lost


class UnexpectedReady(Exception):
    """Raised when a `Ready` does not fit the state of its rank, which may have proceeded alone while disconnected."""

    def __init__(self, worker: str, what: str) -> None:
        super().__init__(what)
        self.worker = worker


class Schedule:
    """The streams and policies of a run that has begun."""

    def __init__(self, options: ControlOptions, members: Members, outbox: Outbox, rounds: Rounds) -> None:
        self.options, self.members, self.outbox, self.rounds = options, members, outbox, rounds
        self.streams: dict[int, Stream] = {}
        self._steps: dict[str, Step] = {}
        """The last step of each rank in the policy's stream."""
        self._away: set[str] = set()
        self._aside: set[str] = set()
        """Ranks that working links do not connect with most others."""
        self._counted_ready: set[str] = set()
        """Ranks that the policy already counts as ready for their next step."""
        self._events: deque[tuple[int, on.Event]] = deque()
        self._told_bps: Matrix | None = None
        """Link rates that the policy was last given."""
        self._told_snapshots = 0
        self._now_s = 0.0

    def begin(self, now_s: float) -> None:
        """Create the policy of the run with the present ranks; raises `InputError` for wrong options."""
        self._now_s = now_s
        self._stream(POLICY_STREAM)

    # --- events ------------------------------------------------------------------------------------------------

    def ready(self, worker: str, message: m.Ready, now_s: float) -> None:
        """Handle a request of a rank. Raises `UnexpectedReady` if it does not fit the state of the rank."""
        self._now_s = now_s
        if worker in self._aside:
            self._end_aside(worker, message)
            return
        stream = self._stream(message.stream)
        if worker in stream.ready:
            raise UnexpectedReady(worker, "sent Ready twice in one stream")
        self._wait(message.stream, worker, message)
        if message.stream > POLICY_STREAM:
            step = self._steps.get(worker)
            if step is not None and step.iterations.get(worker) == message.iteration:
                self._start_part(step, message.stream)
        elif message.stream == POLICY_STREAM and worker in self._counted_ready:
            self._counted_ready.discard(worker)
            self._start_waiting(worker)
        else:
            if message.stream == POLICY_STREAM:
                self._come_back([worker])
            try:
                share = message.share or m.Share()
                self._tell(message.stream, on.WorkerReady(worker, message.iteration, share.weight, share.model))
            except InternalError as error:  # the policy refuses what cannot happen, such as a repeated step
                what = str(error).splitlines()[0]
                raise UnexpectedReady(worker, f"sent an unexpected Ready: {what}") from error
        self._settle()

    def joined(self, worker: str, now_s: float) -> None:
        """Handle a rank that joined a run that has begun."""
        self._now_s = now_s
        for number in self._decided_streams():
            self._tell(number, on.WorkerJoined(worker))
        self._settle()

    def rebuild(self, now_s: float) -> None:
        """Create all policies again with the present network, which has a new rank or zones; ranks stay ready."""
        self._now_s = now_s
        for (number, round_), step in list(self.rounds.steps.items()):
            self._give_up(step, "a new rank joined", by_policy=True)
            self.rounds.steps.pop((number, round_), None)
        waiting = {n: dict(self.streams[n].ready) for n in self._decided_streams()}
        for number in waiting:
            del self.streams[number]
        self._away.clear()
        self._counted_ready.clear()
        for ready in waiting.values():
            for worker, message in ready.items():
                self.ready(worker, message, now_s)

    def lost(self, worker: str, reason: str, now_s: float) -> None:
        """Handle a lost rank, after `rounds` has."""
        self._now_s = now_s
        for stream in self.streams.values():
            stream.ready.pop(worker, None)
        self._counted_ready.discard(worker)
        self._steps.pop(worker, None)
        for step in self.rounds.steps.values():
            step.iterations.pop(worker, None)
        for number in self._decided_streams() if worker not in self._aside else ():
            if number != POLICY_STREAM or worker not in self._away:
                self._tell(number, on.WorkerLost(worker, reason[:200]))
        self._away.discard(worker)
        self._aside.discard(worker)
        self._settle()

    def link_changed(self, a: str, b: str, bandwidth_bps: tuple[float, float], now_s: float) -> None:
        """Notify policies of a lost (0) or restored link, with its rate in each direction."""
        self._now_s = now_s
        for number in self._decided_streams():
            for (src, dst), rate in zip(((a, b), (b, a)), bandwidth_bps, strict=True):
                self._tell(number, on.LinkMeasured(src, dst, rate) if rate else on.LinkLost(src, dst))
        self._settle()

    def network_measured(self, now_s: float) -> None:
        """Notify the policy, which may group ranks by link rates, of rates that changed with the last snapshot."""
        view, told_bps = self.rounds.plans.view, self._told_bps
        if told_bps is None or view.snapshots == self._told_snapshots:
            return
        self._now_s = now_s
        network = view.whole
        self._told_bps, self._told_snapshots = network.bandwidth_bps, view.snapshots
        changed = np.argwhere(np.abs(network.bandwidth_bps - told_bps) > WORTH_TELLING * told_bps)
        for i, j in changed.tolist():
            rate = float(network.bandwidth_bps[i, j])
            self._tell(POLICY_STREAM, on.LinkMeasured(network.names[i], network.names[j], rate))
        self._settle()

    def committed(self, round_: Round, now_s: float) -> None:
        """Handle that a round was committed."""
        self._now_s = now_s
        round_.step.committed += 1
        self._part_ended(round_.step)
        self._settle()

    def failed(self, round_: Round, reason: str, now_s: float) -> None:
        """Give up the step of a round that cannot be repaired."""
        self._now_s = now_s
        members = round_.step.members
        self._give_up(round_.step, reason, by_policy=False)
        self._set_aside(members)
        self._settle()

    def tick(self, now_s: float) -> None:
        """Fire policy timers that are due, and check for stragglers."""
        self._now_s = now_s
        for number in sorted(self.streams):
            stream = self.streams[number]
            while due := sorted(timer for timer, at_s in stream.timers.items() if at_s <= now_s):
                del stream.timers[due[0]]
                self._tell(number, on.TimerFired(due[0]))
                self._settle()
        self._check_stragglers()

    @property
    def wake_at_s(self) -> float:
        """Time at which `tick` must be called."""
        times = [at_s for stream in self.streams.values() for at_s in stream.timers.values()]
        if not self.options.is_tolerant:
            limit_s = self.options.deadlines.straggler_s
            times += [stream.since_s + limit_s for stream in self.streams.values() if stream.ready]
        return min(times, default=float("inf"))

    # --- policies ----------------------------------------------------------------------------------------------

    def _stream(self, number: int) -> Stream:
        if number not in self.streams:
            name, given = self.options.policy, self.options.policy_options
            if number < POLICY_STREAM:
                name, given = STRICT_POLICY, {}
            network = self.rounds.plans.view.whole
            workers = tuple(name for name in self.members.trainers if name not in self._aside)
            policy = None
            if number == POLICY_STREAM:
                self._told_bps, self._told_snapshots = network.bandwidth_bps, self.rounds.plans.view.snapshots
                network = network if any(site.zone for site in network.sites) else with_zones(network)
            if number <= POLICY_STREAM:
                policy = make_policy(name, network, workers, self.options.seed, now_s=self._now_s, **given)
            self.streams[number] = Stream(policy)
        return self.streams[number]

    def _decided_streams(self) -> list[int]:
        return sorted(number for number in self.streams if number <= POLICY_STREAM)

    def _tell(self, number: int, event: on.Event) -> None:
        """Pass an event to a policy; all actions that it causes are done before the next event."""
        self._events.append((number, event))
        if len(self._events) > 1:
            return
        while self._events:
            stream, told = self._events[0]
            try:
                policy = self.streams[stream].policy
                assert policy is not None
                for action in policy.handle(told, self._now_s):
                    self._act(stream, action)
            finally:
                self._events.popleft()

    def _act(self, number: int, action: do.Action) -> None:
        stream = self.streams[number]
        match action:
            case do.StartRound(members=members):
                self._decide(number, members, action)
            case do.Proceed(worker, reason):
                self.outbox.note(Decided("proceed", reason, worker))
                self._decide(number, (worker,), None, reason)
            case do.SetTimer(timer, at_s, reason):
                stream.timers[timer] = at_s
                self.outbox.note(Decided("wait", reason, timer, at_s=at_s))
            case do.CancelTimer(timer, reason):
                stream.timers.pop(timer, None)
                self.outbox.note(Decided("stop waiting", reason, timer))
            case do.RepairRound(round_, lost, reason):
                step = self.rounds.steps[number, round_]
                self.outbox.note(Decided("repair", reason, lost, _first_number(step)))
                self._go_on(step, lost, reason)
            case do.AbandonRound(round_, reason):
                step = self.rounds.steps[number, round_]
                self.outbox.note(Decided("abandon", reason, round=_first_number(step)))
                self._give_up(step, reason, by_policy=True)

    # --- ranks that are cut off --------------------------------------------------------------------------------

    def _set_aside(self, members: Iterable[str]) -> None:
        """Go on without the members of a failed step that working links do not connect with most other ranks."""
        if not self.options.is_tolerant:
            return
        cut_off = self.rounds.plans.view.cut_off(self.members.trainers)
        busy = {name for step in self.rounds.steps.values() for name in step.iterations}
        for worker in sorted(cut_off.intersection(members) - self._aside - busy):
            self.outbox.note(Decided("set aside", "no working links connect it with most other ranks", worker))
            self._steps.pop(worker, None)
            self._counted_ready.discard(worker)
            asked = [stream.ready.pop(worker) for stream in self.streams.values() if worker in stream.ready]
            for number in self._decided_streams():
                if number != POLICY_STREAM or worker not in self._away:
                    self._tell(number, on.WorkerLost(worker, "no working links connect it with most other ranks"))
            self._away.discard(worker)
            self._aside.add(worker)
            for message in asked:
                self._end_aside(worker, message)

    def _end_aside(self, worker: str, message: m.Ready) -> None:
        """Answer a request of a rank that is set aside."""
        reason = f"no working links connect {worker!r} with most other ranks"
        if message.stream < POLICY_STREAM:
            reason += ", and this operation needs all ranks. Try again when they are back"
            self.outbox.send(worker, m.OperationLost(message.stream, message.iteration, reason))
        else:
            self.outbox.send(worker, m.Proceed(message.stream, message.iteration, reason))

    def _take_back(self) -> None:
        """Let policies count on the ranks whose links are back."""
        cut_off = self.rounds.plans.view.cut_off(self.members.trainers)
        for worker in sorted(self._aside - cut_off):
            self._aside.discard(worker)
            self.outbox.note(Decided("take back", "its links work again", worker))
            for number in self._decided_streams():
                self._tell(number, on.WorkerJoined(worker))

    def _settle(self) -> None:
        """Mark ranks as away if all ranks outside the policy's queue wait for an operation of all ranks."""
        if self._aside:
            self._take_back()
        queue = self.streams.get(POLICY_STREAM)
        if queue is None or not queue.ready:
            return
        gone = waiting_for_all_ranks(self.streams)
        if gone and gone.union(queue.ready).issuperset(self.members.trainers):
            for worker in sorted(gone - self._away - self._counted_ready):
                self._away.add(worker)
                self._tell(POLICY_STREAM, on.WorkerLost(worker, "it waits for an operation of all ranks", True))

    def _come_back(self, workers: Iterable[str]) -> None:
        for worker in sorted(self._away.intersection(workers)):
            self._away.discard(worker)
            self._tell(POLICY_STREAM, on.WorkerJoined(worker))

    # --- steps -------------------------------------------------------------------------------------------------

    def _wait(self, number: int, worker: str, message: m.Ready) -> None:
        stream = self.streams[number]
        if not stream.ready:
            stream.since_s = self._now_s
        stream.ready[worker] = message

    def _decide(self, number: int, members: tuple[str, ...], how: do.StartRound | None, reason: str = "") -> None:
        ready = self.streams[number].ready
        there = [ready[w] for w in members if w in ready]
        if number != POLICY_STREAM:
            self._come_back(members)
        parts = there[0].operation.parts if number == POLICY_STREAM and there else 1
        iterations = {w: ready[w].iteration if w in ready else self._steps[w].iterations[w] + 1 for w in members}
        step = Step(number, iterations, self._now_s, how, reason, left=parts)
        if number == POLICY_STREAM:
            self._steps.update(dict.fromkeys(members, step))
        if how is not None:
            self.rounds.steps[number, how.round] = step
        self._start_parts(step)

    def _start_parts(self, step: Step) -> None:
        for number in sorted(self.streams):
            if number == step.stream or (number > step.stream == POLICY_STREAM):
                self._start_part(step, number)

    def _start_waiting(self, worker: str) -> None:
        """Start the parts of a step whose rank the policy already counted as ready."""
        step = self._steps.get(worker)
        if step is not None and (step.decided is None or (step.stream, step.decided.round) in self.rounds.steps):
            self._start_parts(step)

    def _start_part(self, step: Step, number: int) -> None:
        """Start a part of a step if all its members are ready for it."""
        stream = self.streams[number]
        ready = step.take(stream.ready)
        if not ready:
            return
        if stream.ready:
            stream.since_s = self._now_s
        if step.decided is None:
            (worker,) = ready
            self.outbox.send(worker, m.Proceed(number, ready[worker].iteration, step.reason[:1000]))
            return
        differing = step.broken or disagreement(ready)
        if not differing:
            self._start(step, number, ready)
            return
        for worker, message in sorted(ready.items()):
            self.outbox.send(worker, m.Mismatch(number, message.iteration, differing))
        if number == step.stream:  # the other parts can never start, so the policy does not wait for them
            step.broken, step.left = differing, 1
        if not step.broken or number == step.stream:
            self._part_ended(step)

    def _start(self, step: Step, number: int, ready: dict[str, m.Ready]) -> None:
        try:
            is_over = self.rounds.start(step, number, ready, self._now_s)
        except ImpossibleProblem as error:
            if not self.options.is_tolerant:
                raise RunOver(f"{error} {self.rounds.plans.view.lost_links}".strip()) from error
            self.outbox.note(Decided("cannot start", str(error), error=error))
            for worker, message in ready.items():
                self._wait(number, worker, message)
            self._give_up(step, str(error), by_policy=False)
            self._set_aside(ready)
        except TradewindError as error:
            raise RunOver(str(error)) from error
        else:
            if is_over:
                step.committed += 1
                self._part_ended(step)

    def _part_ended(self, step: Step) -> None:
        step.left -= 1
        if not step.left and step.decided is not None:
            del self.rounds.steps[step.stream, step.decided.round]
            seconds = self._now_s - step.started_s
            self._tell(step.stream, on.RoundFinished(step.decided.round, step.members, seconds))

    def _go_on(self, step: Step, lost: str, reason: str) -> None:
        """Continue a step without a lost member: its running rounds are halted, its later parts have fewer members."""
        step.iterations.pop(lost, None)
        rooted = [round_ for round_ in list(step.rounds) if _needs(round_.operation, lost)]
        for round_ in rooted:
            why = f"{round_.operation.kind} needs {lost!r}, which is lost: {reason}"
            for worker, message in sorted(self.rounds.abandon(round_, why).items()):
                self.outbox.send(worker, m.OperationLost(round_.stream, message.iteration, why[:1000]))
            self._part_ended(step)
        if not rooted:
            self._start_parts(step)

    def _give_up(self, step: Step, reason: str, by_policy: bool) -> None:
        """End a step without effect, or with the parts that were committed."""
        assert step.decided is not None
        if self.rounds.steps.pop((step.stream, step.decided.round), None) is None:
            return
        back = [(r.stream, self.rounds.abandon(r, reason, by_policy)) for r in list(step.rounds)]
        for number, ready in back:
            for worker, message in ready.items():
                self._wait(number, worker, message)
        members = step.members
        if step.committed:
            self._end_alone(step, reason, by_policy)
        else:
            for worker in members:
                if self._steps.get(worker) is step:
                    del self._steps[worker]
        if not by_policy:
            event = (
                on.RoundFinished(step.decided.round, members, self._now_s - step.started_s)
                if step.committed
                else on.RoundFailed(step.decided.round, reason[:200])
            )
            self._tell(step.stream, event)

    def _end_alone(self, step: Step, reason: str, by_policy: bool) -> None:
        for worker in step.members:
            alone = Step(step.stream, {worker: step.iterations[worker]}, self._now_s, None, reason)
            self._steps[worker] = alone
            if by_policy:
                self._counted_ready.add(worker)
            self._start_parts(alone)

    def _check_stragglers(self) -> None:
        limit_s = self.options.deadlines.straggler_s
        for number in sorted(self.streams) if not self.options.is_tolerant else ():
            stream = self.streams[number]
            if stream.ready and stream.since_s + limit_s <= self._now_s:
                missing = sorted(set(self.members.trainers) - stream.ready.keys())
                names = ", ".join(map(repr, missing))
                first = next(iter(stream.ready))
                raise RunOver(
                    f"{names} did not become ready within {limit_s:g} s of {first!r}; raise straggler_s if steps take "
                    "longer",
                    missing[0] if missing else "",
                )


def _needs(operation: m.Operation, lost: str) -> bool:
    """Whether an operation cannot go on without a member; a barrier and an exchange with a server have a root, too."""
    is_named = bool(operation.root) and operation.kind == "all-reduce"
    return is_named or operation.collective.needs(lost)


def _first_number(step: Step) -> int | None:
    """Return the number of a step's first running round."""
    return min((round_.number for round_ in step.rounds), default=None)
