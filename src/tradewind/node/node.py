"""A rank's side of a run as one state machine without I/O: the control protocol, and a data plane behind it.

    message, submit ─> Node ──open, halt, close, ...──> data plane ──RoundComplete, RoundHalted──> Node ─> actions

Drivers move bytes and timers: they hand over messages and what happens on connections, and carry out the actions that
come back. What protocol and data plane say to each other stays in here. There are two data planes: chunks
(`chunk_plane`, on sockets in `runtime` and on virtual links in `sim`) and fluid flows (`sim.fluid.engine`).

Operations of all ranks are dealt to streams in turn, one at a time in each, so that several rounds are under way; every
rank must ask for the same ones in the same order, as with any collective. What a rank synchronises with the members
that the policy chooses is a step: one operation, or several parts that run with the same members. Steps follow each
other: none is asked for before the last one has ended.

In a tolerant run the controller may be lost. What is under way goes on; the driver looks for a controller, and `report`
is what that one has to know. If it takes too long (`give_up`), steps end alone, until a roster comes again. A roster of
an older term than was acknowledged comes from a controller that has been replaced: the driver is told to look on.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from tradewind.arithmetic import Array
from tradewind.errors import BadArray, BadOption, PeerLost, TradewindError
from tradewind.node.actions import (
    Connect,
    Departed,
    Failed,
    FindController,
    Joined,
    NodeAction,
    Outcome,
    RoundComplete,
    RoundHalted,
    SendControl,
    Started,
    Succeeded,
)
from tradewind.node.events import AuxiliaryChanged, BeginScatter, Explore, ScatteredRound
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m

COMMITTED = 256
"""So many rounds back a new controller can tell that one was committed."""
INLINE_MEMBERS = 16
"""The controller's own links carry every member's array: above so many others, arrays have to be smaller."""

Arrays = tuple[Array, Array]
"""The input of an operation, and where its result goes."""


class DataPlane(Protocol):
    """Carries out the rounds that a rank has a part in. Reports come back through `take_reports`."""

    def give(self, operation: int, arrays: Arrays | None) -> None:
        """The arrays of an operation that was submitted."""
        ...

    def joined(self, roster: m.Roster, here: int) -> None:
        """The roster, and this rank's number in it."""
        ...

    def prepare(self, version: int, plan: Plan, forget: tuple[int, ...]) -> None:
        """Rounds will start with this version of the plan, and none with those to forget."""
        ...

    def open(self, start: m.Start, plan: Plan, operation: int | None, scattered: ScatteredRound | None) -> None:
        """Begin a round with an operation's arrays (None: as a helper), or begin it again by another version.

        Ends with a `RoundComplete`.
        """
        ...

    def halt(self, number: int) -> None:
        """Stop a round. Answered by a `RoundHalted` that says how far it has come."""
        ...

    def close(self, number: int) -> None:
        """A round is committed or given up. Answered by a `RoundHalted` when its arrays can be used again."""
        ...

    def forget_below(self, number: int) -> None:
        """No round below this one is running anywhere."""
        ...

    def scatter(self, event: BeginScatter, operation: int) -> None:
        """An operation's array may be sent before its round is known."""
        ...

    def end_scatter(self, part: int) -> None:
        """What was sent of this part of a step counts for no round."""
        ...

    def peer_gone(self, peer: int) -> None:
        """A peer is lost: nothing waits for it any more."""
        ...

    def steer(self, change: Explore | AuxiliaryChanged) -> None:
        """Probe a link, or use other auxiliary paths."""
        ...

    def take_reports(self) -> list[tuple[RoundComplete, int | None] | RoundHalted]:
        """What has come of rounds since the last call: complete, with the digest of the result, or quiet."""
        ...


@dataclass(slots=True)
class PendingOperation:
    """An operation that has not ended."""

    operation: m.Operation
    stream: int
    iteration: int
    array: bytes | None
    """To travel with the question, where it is small."""
    outcome: Outcome | None = None
    scatter: int | None = None
    """The version of the splitting that it is being sent by, before its round is known."""
    overwrites: bool = False
    """The result goes over the input."""


@dataclass(slots=True)
class ActiveRound:
    """A round that has not ended."""

    version: int
    members: tuple[str, ...]
    operation: int | None
    """The own one; None: as a helper."""
    finished: bool = False
    digest: int | None = None
    result: bytes | None = None
    """Of an inline round, until it is committed."""


class DefaultScatters:
    """What the controller said last, for each kind of array. Without a word from it workers wait for their rounds."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], m.ScatterBy] = {}

    def told(self, message: m.ScatterBy) -> None:
        """It counts from the next step on."""
        self._known[message.items, message.item_bytes, message.parts] = message

    def forget(self) -> None:
        """Another controller acts, who knows nothing of it."""
        self._known.clear()

    def begin(self, asked: PendingOperation, site: str, numbers: Mapping[str, int]) -> BeginScatter | None:
        """How an operation's array is sent, which is noted there; None where it has to wait for its round."""
        operation, stream = asked.operation, asked.stream
        said = self._known.get((operation.items, operation.item_bytes, operation.parts))
        waits = said is None or asked.array is not None or stream < m.POLICY_STREAM
        if said is None or waits or any(name not in numbers for name in said.sites):
            return None
        asked.scatter = said.version
        spans = zip(said.sites, pairwise((0, *said.ends)), strict=True)
        blocks = tuple((numbers[name], first, end) for name, (first, end) in spans if name != site)
        size = operation.items, operation.item_bytes, said.chunk_items
        return BeginScatter(said.epoch, stream - m.POLICY_STREAM, asked.iteration, *size, said.window, blocks)


def scattered_round(start: m.Start, numbers: Mapping[str, int]) -> ScatteredRound | None:
    """What a round takes over, in numbers."""
    said = start.scattered
    if said is None:
        return None
    pairs = zip(said.members, said.iterations, strict=True)
    steps = tuple((numbers[name], step) for name, step in pairs if name in numbers)
    return ScatteredRound(said.epoch, said.part, start.chunk_items[0], steps)


def small_array(operation: m.Operation, own: Array, site: str, most_bytes: int, workers: int) -> bytes | None:
    """What goes along with the question for an operation; None where that would be too much.

    The array as it is now, and of a broadcast the source's alone.
    """
    if not most_bytes or own.nbytes * max(INLINE_MEMBERS, workers - 1) > most_bytes * INLINE_MEMBERS:
        return None
    return b"" if operation.op == "broadcast" and operation.root != site else own.tobytes()


class Node:
    """One rank: its side of the control protocol, with the data plane that carries its rounds out."""

    def __init__(self, site: str, data: DataPlane) -> None:
        self.site, self.data = site, data
        self._actions: list[NodeAction] = []
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
        """In each stream, the operation that the controller was asked for."""
        self._operations: dict[int, PendingOperation] = {}
        self._rounds: dict[int, ActiveRound] = {}
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

    # --- for drivers -------------------------------------------------------------------------------------------

    def submit(
        self,
        operation: m.Operation,
        arrays: Arrays | None = None,
        part: int | None = None,
        inline: bytes | None = None,
        overwrites: bool = False,
    ) -> tuple[int, list[NodeAction]]:
        """Ask for an operation of all ranks, or for a part of a step: its number, and what to do now.

        `arrays` are the input and where the result goes; `inline` is the input again where it is small enough to travel
        with the request. The result comes with the answer if all members do that.
        """
        if self.lost is not None:
            raise self.lost.fresh()
        if part is None:
            streams = 1 if self.tolerant else m.POLICY_STREAM  # who joins later cannot know how often others have asked
            stream, turn = self._for_everybody % streams, self._for_everybody // streams
            self._for_everybody += 1
            asked = PendingOperation(operation, stream, turn + 1, inline, overwrites=overwrites)
        else:
            step = self._number_step(part, operation.parts)
            asked = PendingOperation(operation, m.POLICY_STREAM + part, step, inline, overwrites=overwrites)
        number = self._submitted
        self._submitted += 1
        self._operations[number] = asked
        self._waiting.setdefault(asked.stream, deque()).append(number)
        self.data.give(number, arrays)
        self._ask(asked.stream)
        return number, self.advance()

    def told(self, message: m.Message) -> list[NodeAction]:
        """The controller said something."""
        self._handle(message)
        return self.advance()

    def give_up(self) -> list[NodeAction]:
        """There has been no controller for too long: steps end alone, with inputs as they are."""
        if not self.alone and self.lost is None and self.tolerant:
            self.alone = True
            for number in sorted(self._rounds):
                self._abandon(number)
            if self._closing:
                self._held.append(None)
            else:
                self._end_all()
        return self.advance()

    def fail(self, error: TradewindError) -> list[NodeAction]:
        """Nothing works any more: every operation ends."""
        self._fail(error)
        return self.advance()

    def advance(self) -> list[NodeAction]:
        """What there is to do, with all that the data plane has reported."""
        while reports := self.data.take_reports():
            for report in reports:
                if isinstance(report, RoundHalted):
                    self._round_halted(report)
                else:
                    self._completed(*report)
        actions, self._actions = self._actions, []
        return actions

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

    # --- what the controller says ------------------------------------------------------------------------------

    def _handle(self, message: m.Message) -> None:
        do = self._actions
        match message:
            case m.PlanChanged() | m.Start() | m.Commit() if not self._closing:  # most of what it says
                self._about_rounds(message)
            case m.Roster():
                self._join(message)
            case m.StandingDown(reason):
                do.append(FindController(reason))
            case m.Lost(site, _) if site in self.numbers:
                self._depart(self.numbers.pop(site))
            case m.Explore(peer, train, chunks, chunk_bytes) if peer in self.numbers:
                self.data.steer(Explore(self.numbers[peer], train, chunks, chunk_bytes))
            case m.Connect(peers):
                do += [Connect(self.numbers[peer]) for peer in peers if peer in self.numbers]
            case m.ScatterBy(sites=sites):
                self._scatters.told(message)
                do += [Connect(self.numbers[peer]) for peer in sites if peer in self.numbers and peer != self.site]
            case m.AuxiliaryChanged(paths, queue_length):
                self.data.steer(self._auxiliary(paths, queue_length))
            case m.NetworkSeen():
                do.append(message)
            case m.Closing(reason, _):
                self._fail(PeerLost(f"the run is over: {reason.rstrip('.')}."))
            case m.Refused(reason):
                self._fail(PeerLost(f"the controller refused {self.site!r}: {reason}"))
            case _ if self._closing:
                self._held.append(message)
            case _:
                self._about_rounds(message)

    def _about_rounds(self, message: m.Message) -> None:
        match message:
            case m.PlanChanged(version, packed, forget):
                plan = self._plans[version] = packed.plan
                for old in forget:
                    self._plans.pop(old, None)
                self.data.prepare(version, plan, forget)
            case m.Start():
                self._start(message)
            case m.InlineResult():
                self._inline(message)
            case m.Commit(round_):
                self._commit(round_)
            case m.Halt(round_, version) if round_ in self._rounds:
                self._halted[round_] = version
                self._rounds[round_].finished = False
                self.data.halt(round_)
            case m.Abandon(round_, _):
                self._abandon(round_)
            case m.Mismatch(stream, _, reason) if stream in self._asked:
                self._end(stream, Failed(self._asked[stream], BadArray(reason)))
            case m.OperationLost(stream, _, reason) if stream in self._asked:
                self._end(stream, Failed(self._asked[stream], PeerLost(reason)))
            case m.Proceed(stream, _, _) if stream in self._asked:
                self._proceed(stream)

    def _join(self, roster: m.Roster) -> None:
        if self._roster is not None and (roster.term, roster.sequence) < (self._roster.term, self._roster.sequence):
            self._actions.append(FindController(f"it is of term {roster.term}, but {self._roster.term} has begun"))
            return
        if roster.term != self.term:
            self._scatters.forget()
        numbers = {address.site: address.number for address in roster.workers}
        gone = sorted(set(self.numbers.values()) - set(numbers.values()))
        self.numbers = numbers
        self.tolerant, self.alone, self._roster = roster.tolerant, False, roster
        for number in gone:
            self._depart(number)
        self.data.joined(roster, numbers[self.site])
        self._actions.append(Joined(roster))
        if roster.tolerant:
            self._send(m.RosterSeen(roster.term, roster.sequence))
        for stream in sorted(self._waiting):
            self._ask(stream)

    def _depart(self, peer: int) -> None:
        self.data.peer_gone(peer)
        self._actions.append(Departed(peer))

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
            rounds=tuple(self._round_report(number, held) for number, held in sorted(self._rounds.items())),
            ready=tuple(self._ready(n) for _, n in sorted(self._asked.items()) if n not in in_rounds),
            committed=tuple(self._committed),
        )

    def _round_report(self, number: int, held: ActiveRound) -> m.RoundReport:
        ready = None if held.operation is None else self._ready(held.operation)
        return m.RoundReport(number, held.version, held.members, held.finished, held.digest, ready)

    def _ready(self, number: int) -> m.Ready:
        asked = self._operations[number]
        return m.Ready(asked.stream, asked.iteration, asked.operation, asked.array, asked.scatter, asked.overwrites)

    # --- what the data plane says ------------------------------------------------------------------------------

    def _completed(self, complete: RoundComplete, digest: int | None) -> None:
        """The data plane has done its part of a round; the digest is that of the result, at a member."""
        number, version = complete.round, complete.version
        held = self._rounds.get(number)
        if held is None or held.version != version or number in self._halted:
            return
        held.finished, held.digest = True, digest
        if held.operation is not None:
            asked = self._operations[held.operation]
            asked.outcome = replace(self.outcome(held.operation), early_bytes=complete.early_bytes)
        self._send(m.Finished(number, version, digest))

    def _round_halted(self, quiet: RoundHalted) -> None:
        """The arrays of a halted or closed round are not worked on any more."""
        version = self._halted.pop(quiet.round, None)
        if quiet.round in self._closing:
            self._closing.discard(quiet.round)
        elif version is not None:
            self._send(m.Progress(quiet.round, version, quiet.chunk_items, quiet.final))
            return
        while self._held and not self._closing:
            message = self._held.popleft()
            if message is None:
                self._end_all()
            else:
                self._about_rounds(message)

    # --- operations --------------------------------------------------------------------------------------------

    def _ask(self, stream: int) -> None:
        waiting = self._waiting.get(stream)
        if stream in self._asked or not waiting or self._too_early(self._operations[waiting[0]]):
            return
        number = self._asked[stream] = waiting.popleft()
        if self.alone:
            self._end_without_controller(stream)
            return
        event = self._scatters.begin(self._operations[number], self.site, self.numbers)
        if event is not None:
            self.data.scatter(event, number)
        self._send(self._ready(number))

    def _too_early(self, asked: PendingOperation) -> bool:
        """Whether it is part of a step while an earlier step has not ended."""
        steps = [other.iteration for other in self._operations.values() if other.stream >= m.POLICY_STREAM]
        return asked.stream >= m.POLICY_STREAM and min(steps) < asked.iteration

    def _end_all(self) -> None:
        for stream in sorted(self._asked):
            self._end_without_controller(stream)
        for stream in sorted(self._waiting):
            self._ask(stream)

    def _end_without_controller(self, stream: int) -> None:
        if stream < m.POLICY_STREAM:
            lost = PeerLost("the controller is lost, and this operation needs all ranks. Ask again when there is one.")
            self._end(stream, Failed(self._asked[stream], lost))
        else:
            self._proceed(stream)

    def _proceed(self, stream: int) -> None:
        operation = self._operations[self._asked[stream]].operation
        outcome = Outcome((self.site,), (1.0,), (0,), operation.nbytes)
        self._end(stream, Succeeded(self._asked[stream], outcome))

    def _end(self, stream: int, how: Succeeded | Failed) -> None:
        self._end_scatter(how.operation)
        self._actions.append(how)
        del self._asked[stream]
        del self._operations[how.operation]
        for next_ in (
            (stream,) if stream < m.POLICY_STREAM else sorted(n for n in self._waiting if n >= m.POLICY_STREAM)
        ):
            self._ask(next_)

    def _end_scatter(self, operation: int | None) -> None:
        """Nothing of it is sent any more before its round is known, or the round knows what was."""
        if operation is not None and self._operations[operation].scatter is not None:
            asked = self._operations[operation]
            asked.scatter = None
            self.data.end_scatter(asked.stream - m.POLICY_STREAM)

    def _fail(self, error: TradewindError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        for round_ in sorted(self._rounds):
            self.data.close(round_)
        self._actions += [Failed(number, error) for number in sorted(self._operations)]
        self._rounds.clear()
        self._operations.clear()

    def _send(self, message: m.Message) -> None:
        self._actions.append(SendControl(message))

    # --- rounds ------------------------------------------------------------------------------------------------

    def _auxiliary(self, paths: tuple[m.AuxiliaryPath, ...], queue_length: int) -> AuxiliaryChanged:
        """In numbers; a path through a rank that is gone is no path."""
        known = [path for path in paths if all(site in self.numbers for site in path.sites)]
        numbered = tuple((tuple(self.numbers[s] for s in path.sites), path.busy_bound) for path in known)
        return AuxiliaryChanged(numbered, queue_length)

    def _start(self, start: m.Start) -> None:
        is_member = self.site in start.members
        if is_member and not self._wants(start):
            self._actions.append(FindController("it starts a round that this rank did not ask for"))
            return
        scattered = scattered_round(start, self.numbers)
        operation = self._asked[start.stream] if is_member else None
        self._rounds[start.round] = ActiveRound(start.version, start.members, operation)
        if operation is not None:
            about = start.members, start.weights, start.staleness, start.operation.nbytes, start.round
            self._operations[operation].outcome = Outcome(*about, repaired=start.repaired)
        if scattered is not None and self.numbers[self.site] in dict(scattered.steps):
            if operation is not None:
                self._operations[operation].scatter = None  # what was sent counts for this round
        else:
            self._end_scatter(operation)
        self.data.forget_below(start.floor)
        self.data.open(start, self._plans[start.version], operation, scattered)
        if operation is not None:
            self._actions.append(Started(operation, start.round))

    def _inline(self, done: m.InlineResult) -> None:
        """The controller has done the whole round; in a tolerant run it may be used when all members have it."""
        if not self._wants(done):
            self._actions.append(FindController("it ends a round that this rank did not ask for"))
            return
        number = self._asked[done.stream]
        about = done.members, done.weights, done.staleness, len(done.array), done.round
        self._operations[number].outcome = Outcome(*about, inline=True)
        digest = None if done.final else zlib.crc32(done.array)
        self._rounds[done.round] = ActiveRound(m.INLINE_VERSION, done.members, number, True, digest, done.array)
        if done.final:
            self._commit(done.round)
        else:
            self._send(m.Finished(done.round, m.INLINE_VERSION, digest))

    def _wants(self, start: m.Start | m.InlineResult) -> bool:
        """Whether we still do: we may have gone on alone while a controller took over."""
        number = self._asked.get(start.stream)
        return number is not None and self._operations[number].iteration == start.iteration

    def _commit(self, round_: int) -> None:
        held = self._rounds.pop(round_, None)
        if held is None or held.result is None:
            self.data.close(round_)
        if held is None:
            return
        self._committed.append((round_, held.version))
        if held.operation is None:
            self.rounds_helped += 1
            return
        asked = self._operations[held.operation]
        assert asked.outcome is not None
        self._end(asked.stream, Succeeded(held.operation, asked.outcome, held.result))

    def _abandon(self, round_: int) -> None:
        held = self._rounds.pop(round_, None)
        if held is not None and held.result is not None:
            return  # its arrays are not worked on
        if held is not None and held.operation is not None:
            self._closing.add(round_)
        self.data.close(round_)
