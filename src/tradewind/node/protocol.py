"""A worker's side of the control protocol, without I/O: operations in, messages out, rounds to open and close.

Operations of everybody are dealt to lanes in turn, one at a time in each, so that several rounds are under way; every
worker must ask for the same ones in the same order, as with any collective. What a worker synchronises with those whom
the policy chooses is a step: one operation, or several parts that run with the same members. Steps follow each other:
none is asked for before the last one has ended.

In a tolerant run the controller may be lost. What is under way goes on; the driver looks for a controller, and `report`
is what that one has to know. If it takes too long (`give_up`), steps end alone, until a roster comes again. A roster of
an older term than was acknowledged comes from a controller that has been replaced: its driver is told to look on.
"""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import replace

from tradewind.errors import BadArray, BadOption, PeerLost, TradewindError
from tradewind.node.actions import RoundComplete, RoundQuiet
from tradewind.node.default_scatter import DefaultScatters, scattered_round
from tradewind.node.effects import (
    Close,
    Connect,
    Departed,
    Distrust,
    Effect,
    Failed,
    Forget,
    Halt,
    Joined,
    NewPlan,
    Open,
    Outcome,
    Scatter,
    SendControl,
    Succeeded,
)
from tradewind.node.events import AuxiliaryChanged, EndScatter, Explore
from tradewind.node.pending import Asked, Holding
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m

COMMITTED = 256
"""So many rounds back a new controller can tell that one was committed."""


class Client:
    """One worker."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.lost: TradewindError | None = None
        """Why nothing works any more, if so."""
        self.numbers: dict[str, int] = {}
        """Sites to their numbers in frames."""
        self.rounds_helped = 0
        """Rounds of others that this worker carried a part of."""
        self._submitted = 0
        self._for_everybody = 0
        self._step = 0
        self._parts_given: set[int] = set()
        self._parts_wanted = 0
        self._waiting: dict[int, deque[int]] = {}
        self._asked: dict[int, int] = {}
        """In each lane, the operation that the controller was asked for."""
        self._operations: dict[int, Asked] = {}
        self._rounds: dict[int, Holding] = {}
        self._plans: dict[int, Plan] = {}
        self._scatters = DefaultScatters()
        self.tolerant = False
        """Whether the run goes on when somebody is lost."""
        self._roster: m.Roster | None = None
        self.alone = False
        """Whether there has been no controller for too long."""
        self._committed: deque[tuple[int, int]] = deque(maxlen=COMMITTED)
        self._halted: dict[int, int] = {}
        """Rounds to report on when they are quiet, with their version."""
        self._closing: set[int] = set()
        """Rounds that were given up and are not quiet yet: their arrays cannot be used."""
        self._held: deque[m.Message | None] = deque()
        """What the controller said since, that may need them; None: that all is to end without a controller."""

    @property
    def term(self) -> int:
        """The newest that it has acknowledged; -1: none."""
        return -1 if self._roster is None else self._roster.term

    @property
    def plan_versions(self) -> tuple[int, ...]:
        """The plans that are kept for rounds to come."""
        return tuple(sorted(self._plans))

    @property
    def pending(self) -> tuple[int, ...]:
        """Operations that have not ended."""
        return tuple(self._operations)

    def outcome(self, number: int) -> Outcome:
        """What an operation in a round will have come to, if all goes well."""
        outcome = self._operations[number].outcome
        assert outcome is not None
        return outcome

    def submit(
        self, operation: m.Operation, part: int | None = None, array: bytes | None = None, overwrites: bool = False
    ) -> tuple[int, list[Effect]]:
        """Ask for an operation of everybody, or for a part of a step: its number, and what to do now.

        A small `array` goes along with the question, and the result comes with the answer if all members do that.
        """
        if self.lost is not None:
            raise self.lost.fresh()
        if part is None:
            lanes = 1 if self.tolerant else m.POLICY_LANE  # who joins later cannot know how often others have asked
            lane, turn = self._for_everybody % lanes, self._for_everybody // lanes
            self._for_everybody += 1
            asked = Asked(operation, lane, turn + 1, array, overwrites=overwrites)
        else:
            step = self._number_step(part, operation.parts)
            asked = Asked(operation, m.POLICY_LANE + part, step, array, overwrites=overwrites)
        number = self._submitted
        self._submitted += 1
        self._operations[number] = asked
        self._waiting.setdefault(asked.lane, deque()).append(number)
        return number, self._ask(asked.lane)

    def _number_step(self, part: int, parts: int) -> int:
        """The number of the step that a part belongs to: a new one when the last one has all its parts."""
        begins = len(self._parts_given) == self._parts_wanted
        given = set() if begins else self._parts_given
        wanted = parts if begins else self._parts_wanted
        if not 0 <= part < parts <= m.MAX_PARTS or parts != wanted or part in given:
            raise BadOption(
                f"part {part} of {parts} makes no sense: a step has 1 to {m.MAX_PARTS} parts, and this one has had "
                f"{sorted(given)} of {wanted}. Give every part of a step once before the next step."
            )
        self._step += begins
        self._parts_given, self._parts_wanted = {*given, part}, wanted
        return self._step

    def handle(self, message: m.Message) -> list[Effect]:
        """The controller said something."""
        match message:
            case m.Roster():
                return self._joined(message)
            case m.StandingDown(reason):
                return [Distrust(reason)]
            case m.Lost(site, _):
                return [Departed(self.numbers.pop(site))] if site in self.numbers else []
            case m.Explore(peer, train, chunks, chunk_bytes) if peer in self.numbers:
                return [Explore(self.numbers[peer], train, chunks, chunk_bytes)]
            case m.Connect(peers):
                return [Connect(self.numbers[peer]) for peer in peers if peer in self.numbers]
            case m.ScatterBy(sites=sites):
                self._scatters.told(message)
                return [Connect(self.numbers[peer]) for peer in sites if peer in self.numbers and peer != self.site]
            case m.AuxiliaryChanged(paths, queue_length):
                return [self._auxiliary(paths, queue_length)]
            case m.NetworkSeen():
                return [message]
            case m.Closing(reason, _):
                return self.fail(PeerLost(f"the run is over: {reason.rstrip('.')}."))
            case m.Refused(reason):
                return self.fail(PeerLost(f"the controller refused {self.site!r}: {reason}"))
            case _ if self._closing:
                self._held.append(message)
                return []
            case _:
                return self._about_rounds(message)

    def _about_rounds(self, message: m.Message) -> list[Effect]:
        match message:
            case m.PlanChanged():
                plan = self._plans[message.version] = message.plan.plan
                for old in message.forget:
                    self._plans.pop(old, None)
                return [NewPlan(message.version, plan, message.forget)]
            case m.Start():
                return self._start(message)
            case m.Carried():
                return self._carried(message)
            case m.Commit(round_):
                return self._commit(round_)
            case m.Halt(round_, version) if round_ in self._rounds:
                self._halted[round_] = version
                self._rounds[round_].finished = False
                return [Halt(round_)]
            case m.Abandon(round_, _):
                return self._abandon(round_)
            case m.Mismatch(lane, _, reason) if lane in self._asked:
                return self._end(lane, Failed(self._asked[lane], BadArray(reason)))
            case m.Broken(lane, _, reason) if lane in self._asked:
                return self._end(lane, Failed(self._asked[lane], PeerLost(reason)))
            case m.Proceed(lane, _, _) if lane in self._asked:
                return self._proceed(lane)
            case _:
                return []

    def _joined(self, roster: m.Roster) -> list[Effect]:
        if self._roster is not None and (roster.term, roster.sequence) < (self._roster.term, self._roster.sequence):
            return [Distrust(f"it is of term {roster.term}, but {self._roster.term} has begun")]
        if roster.term != self.term:
            self._scatters.forget()
        numbers = {address.site: address.number for address in roster.workers}
        effects: list[Effect] = [Departed(n) for n in sorted(set(self.numbers.values()) - set(numbers.values()))]
        self.numbers = numbers
        self.tolerant, self.alone, self._roster = roster.tolerant, False, roster
        effects.append(Joined(roster))
        if roster.tolerant:
            effects.append(SendControl(m.RosterSeen(roster.term, roster.sequence)))
        for lane in sorted(self._waiting):
            effects += self._ask(lane)
        return effects

    def report(self) -> m.Report | None:
        """What a controller has to know of us; None: we were in no run yet.

        Made once for each connection to a controller, and all that counts from then on: messages of the last connection
        that had to wait are dropped, and so are its plans, since the controller sends every plan again that it needs.
        """
        if self._roster is None:
            return None
        self._held = deque(message for message in self._held if message is None)
        self._plans.clear()
        in_rounds = {held.operation for held in self._rounds.values()}
        return m.Report(
            term=self._roster.term,
            sequence=self._roster.sequence,
            roster=self._roster.workers,
            numbers=self._roster.numbers,
            electorates=self._roster.electorates,
            holdings=tuple(self._holding(number, held) for number, held in sorted(self._rounds.items())),
            ready=tuple(self._ready(n) for _, n in sorted(self._asked.items()) if n not in in_rounds),
            committed=tuple(self._committed),
        )

    def _holding(self, number: int, held: Holding) -> m.Holding:
        ready = None if held.operation is None else self._ready(held.operation)
        return m.Holding(number, held.version, held.members, held.finished, held.digest, ready)

    def _ready(self, number: int) -> m.Ready:
        asked = self._operations[number]
        return m.Ready(asked.lane, asked.iteration, asked.operation, asked.array, asked.scatter, asked.overwrites)

    def give_up(self) -> list[Effect]:
        """There has been no controller for too long: steps end alone, with inputs as they are."""
        if self.alone or self.lost is not None or not self.tolerant:
            return []
        self.alone = True
        effects: list[Effect] = []
        for number in sorted(self._rounds):
            effects += self._abandon(number)
        if self._closing:
            self._held.append(None)
            return effects
        return effects + self._end_all()

    def _end_all(self) -> list[Effect]:
        effects = [effect for lane in sorted(self._asked) for effect in self._end_without_controller(lane)]
        return effects + [effect for lane in sorted(self._waiting) for effect in self._ask(lane)]

    def _end_without_controller(self, lane: int) -> list[Effect]:
        if lane < m.POLICY_LANE:
            lost = PeerLost("there is no controller, and nobody to do it with. Ask again when there is one.")
            return self._end(lane, Failed(self._asked[lane], lost))
        return self._proceed(lane)

    def _proceed(self, lane: int) -> list[Effect]:
        operation = self._operations[self._asked[lane]].operation
        outcome = Outcome((self.site,), (1.0,), (0,), operation.nbytes)
        return self._end(lane, Succeeded(self._asked[lane], outcome))

    def completed(self, complete: RoundComplete, digest: int | None = None) -> list[Effect]:
        """The engine has done its part of a round; the digest is that of the result, at a member."""
        number, version = complete.round, complete.version
        held = self._rounds.get(number)
        if held is None or held.version != version or number in self._halted:
            return []
        held.finished, held.digest = True, digest
        if held.operation is not None:
            asked = self._operations[held.operation]
            asked.outcome = replace(self.outcome(held.operation), early_bytes=complete.early_bytes)
        return [SendControl(m.Finished(number, version, digest))]

    def quiet(self, quiet: RoundQuiet) -> list[Effect]:
        """Nobody works on the arrays of a halted or closed round any more."""
        version = self._halted.pop(quiet.round, None)
        if quiet.round in self._closing:
            self._closing.discard(quiet.round)
        elif version is not None:
            return [SendControl(m.Progress(quiet.round, version, quiet.chunk_items, quiet.final))]
        effects: list[Effect] = []
        while self._held and not self._closing:
            message = self._held.popleft()
            effects += self._end_all() if message is None else self._about_rounds(message)
        return effects

    def fail(self, error: TradewindError) -> list[Effect]:
        """Nothing works any more: every operation ends."""
        if self.lost is not None:
            return []
        self.lost = error
        effects: list[Effect] = [Close(round_) for round_ in sorted(self._rounds)]
        effects += [Failed(number, error) for number in sorted(self._operations)]
        self._rounds.clear()
        self._operations.clear()
        return effects

    # --- inside ------------------------------------------------------------------------------------------------

    def _ask(self, lane: int) -> list[Effect]:
        waiting = self._waiting.get(lane)
        if lane in self._asked or not waiting or self._too_early(self._operations[waiting[0]]):
            return []
        number = self._asked[lane] = waiting.popleft()
        if self.alone:
            return self._end_without_controller(lane)
        asked = self._operations[number]
        event = self._scatters.begin(asked, self.site, self.numbers)
        early = [] if event is None else [Scatter(event, number)]
        return [*early, SendControl(self._ready(number))]

    def _end_scatter(self, operation: int | None) -> list[Effect]:
        """Nothing of it is sent any more before its round is known, or the round knows what was."""
        if operation is None or self._operations[operation].scatter is None:
            return []
        asked = self._operations[operation]
        asked.scatter = None
        return [EndScatter(asked.lane - m.POLICY_LANE)]

    def _too_early(self, asked: Asked) -> bool:
        """Whether it is part of a step while an earlier step has not ended."""
        steps = [other.iteration for other in self._operations.values() if other.lane >= m.POLICY_LANE]
        return asked.lane >= m.POLICY_LANE and min(steps) < asked.iteration

    def _auxiliary(self, paths: tuple[m.AuxiliaryPath, ...], queue_length: int) -> AuxiliaryChanged:
        """In numbers; a path through somebody who is gone is no path."""
        known = [path for path in paths if all(site in self.numbers for site in path.sites)]
        numbered = tuple((tuple(self.numbers[s] for s in path.sites), path.busy_bound) for path in known)
        return AuxiliaryChanged(numbered, queue_length)

    def _start(self, start: m.Start) -> list[Effect]:
        is_member = self.site in start.members
        if is_member and not self._wants(start):
            return [Distrust("it starts a round that nobody here asked for")]
        scattered = scattered_round(start, self.numbers)
        operation = self._asked[start.lane] if is_member else None
        self._rounds[start.round] = Holding(start.version, start.members, operation)
        if operation is not None:
            about = start.members, start.weights, start.staleness, start.operation.nbytes, start.round
            self._operations[operation].outcome = Outcome(*about, repaired=start.repaired)
        ended = self._end_scatter(operation)
        is_known = scattered is not None and self.numbers[self.site] in dict(scattered.steps)
        return [
            *([] if is_known else ended),
            Forget(start.floor),
            Open(start, self._plans[start.version], operation, scattered),
        ]

    def _carried(self, done: m.Carried) -> list[Effect]:
        """The controller has done the whole round; in a tolerant run it may be used when everybody has it."""
        if not self._wants(done):
            return [Distrust("it ends a round that nobody here asked for")]
        number = self._asked[done.lane]
        about = done.members, done.weights, done.staleness, len(done.array), done.round
        self._operations[number].outcome = Outcome(*about, carried=True)
        digest = None if done.final else zlib.crc32(done.array)
        held = Holding(m.CARRIED_VERSION, done.members, number, True, digest, done.array)
        self._rounds[done.round] = held
        if done.final:
            return self._commit(done.round)
        return [SendControl(m.Finished(done.round, m.CARRIED_VERSION, digest))]

    def _wants(self, start: m.Start | m.Carried) -> bool:
        """Whether we still do: we may have gone on alone while a controller took over."""
        number = self._asked.get(start.lane)
        return number is not None and self._operations[number].iteration == start.iteration

    def _commit(self, round_: int) -> list[Effect]:
        held = self._rounds.pop(round_, None)
        effects: list[Effect] = [] if held is not None and held.result is not None else [Close(round_)]
        if held is None:
            return effects
        self._committed.append((round_, held.version))
        operation = held.operation
        if operation is None:
            self.rounds_helped += 1
            return effects
        asked = self._operations[operation]
        assert asked.outcome is not None
        return effects + self._end(asked.lane, Succeeded(operation, asked.outcome, held.result))

    def _abandon(self, round_: int) -> list[Effect]:
        held = self._rounds.pop(round_, None)
        if held is not None and held.result is not None:
            return []  # nobody works on its arrays
        if held is not None and held.operation is not None:
            self._closing.add(round_)
        return [Close(round_)]

    def _end(self, lane: int, how: Succeeded | Failed) -> list[Effect]:
        effects: list[Effect] = [*self._end_scatter(how.operation), how]
        del self._asked[lane]
        del self._operations[how.operation]
        for next_ in (lane,) if lane < m.POLICY_LANE else sorted(n for n in self._waiting if n >= m.POLICY_LANE):
            effects += self._ask(next_)
        return effects
