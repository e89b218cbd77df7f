"""A rank's side of a run as one state machine without I/O: the control protocol, and a data plane behind it.

    message, submit ─> Node ──open, halt, close, ...──> data plane ──RoundComplete, RoundHalted──> Node ─> actions

Drivers move bytes and timers: they pass in messages and connection events, and carry out the actions that are returned.
The exchange between protocol and data plane stays inside. There are two data planes: chunks (`chunk_plane`, on sockets
in `runtime` and on virtual links in `sim`) and fluid flows (`sim.fluid.engine`).

Operations of all ranks are assigned to streams in turn, one at a time in each, so that several rounds run concurrently;
every rank must request the same ones in the same order, as with any collective. A step is what a rank synchronises with
the members that the policy chooses: one operation, or several parts that run with the same members. Steps are
sequential: the next one is requested when the last one has ended.

In a strict run a lost rank ends the run, and so does a lost link during a round whose results overwrite inputs. Such a
result is used as soon as it is complete here: waiting for `Commit` would protect nothing (decision 39). The operation
stays requested in its stream until then, and `is_settled` says whether other ranks may still need this one.

In a tolerant run the controller may be lost. Running rounds continue; the driver looks for a controller, which receives
a `report`. If that takes too long (`give_up`), steps end alone until a new roster arrives. A roster of an older term
than the acknowledged one comes from a controller that has been replaced: the driver must look for another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

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
from tradewind.node.served import INIT, PUSH
from tradewind.node.waits import RoundWait, Waits
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m
from tradewind.wire.codecs import NONE
from tradewind.wire.encoded_copy import EncodedCopy
from tradewind.wire.frames import digest_of

COMMITTED = 256
"""Number of the last committed rounds that are reported to a new controller."""
INLINE_MEMBERS = 16
"""Number of other members above which inline arrays must be smaller, since the controller's links carry all of them."""


class Arrays(NamedTuple):
    """The arrays of an operation."""

    own: Array
    result: Array
    residual: Array | None = None
    """Gets what encoding at this rank loses of the sum (error feedback); None: that is lost."""
    encoded: EncodedCopy | None = None
    """Gets the encoded form of the result, too."""


class DataPlane(Protocol):
    """Executes the rounds that a rank has a part in. `take_reports` returns what has come of them."""

    def give(self, operation: int, arrays: Arrays | None, asked: m.Operation) -> None:
        """Set the arrays of an operation that was submitted."""
        ...

    def joined(self, roster: m.Roster, here: int) -> None:
        """Take a new roster, with this rank's number in it."""
        ...

    def prepare(self, version: int, plan: Plan, forget: tuple[int, ...]) -> None:
        """Prepare for rounds by this version of the plan; no round will start with the versions in `forget`."""
        ...

    def open(self, start: m.Start, plan: Plan, operation: int | None, scattered: ScatteredRound | None) -> None:
        """Start a round with an operation's arrays (None: as a helper), or start it again by another version.

        Reported by a `RoundComplete` when it is done.
        """
        ...

    def open_ahead(self, start: m.Start, plan: Plan, operation: int) -> None:
        """Send first chunks of an operation's array for a round that has not started, and write nothing.

        The round is opened when it starts, or closed.
        """
        ...

    def halt(self, number: int) -> None:
        """Halt a round. Reported by a `RoundHalted` with its progress."""
        ...

    def close(self, number: int) -> None:
        """Close a round that was committed or given up. Reported by a `RoundHalted` when its arrays are free."""
        ...

    def forget_below(self, number: int) -> None:
        """Forget rounds below this one: none is running at any site."""
        ...

    def scatter(self, event: BeginScatter, operation: int) -> None:
        """Start sending an operation's array before its round is known."""
        ...

    def end_scatter(self, part: int) -> None:
        """Stop sending this part of a step; no round uses what was sent."""
        ...

    def peer_gone(self, peer: int) -> None:
        """Forget a lost peer."""
        ...

    def steer(self, change: Explore | AuxiliaryChanged) -> None:
        """Probe a link, or change the auxiliary paths."""
        ...

    def waits(self) -> list[RoundWait]:
        """Return the open rounds that are not complete here, and what they wait for."""
        ...

    def take_reports(self) -> list[tuple[RoundComplete, int | None] | RoundHalted]:
        """Return reports about rounds since the last call: complete, with the digest of the result, or halted."""
        ...


@dataclass(slots=True)
class PendingOperation:
    """An operation that has not ended."""

    operation: m.Operation
    stream: int
    iteration: int
    array: bytes | None
    """The array itself if it is small, to be sent with the request; else None."""
    outcome: Outcome | None = None
    scatter: int | None = None
    """Version of the default splitting by which it is sent before its round is known; None: it is not."""
    overwrites: bool = False
    """Whether the result overwrites the input."""
    share: m.Share | None = None
    """The array's weight and model, in the first part of a step."""


@dataclass(slots=True)
class ActiveRound:
    """A round that has not ended."""

    version: int
    members: tuple[str, ...]
    operation: int | None
    """The own operation; None: the rank is a helper in this round."""
    finished: bool = False
    digest: int | None = None
    result: bytes | None = None
    """The result of an inline round, until it is committed."""


class DefaultScatters:
    """The controller's default splittings, by kind of array. Arrays without one are sent when their round starts."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], m.ScatterBy] = {}

    def told(self, message: m.ScatterBy) -> None:
        """Store a default splitting; it is used from the next step on."""
        self._known[message.items, message.item_bytes, message.parts] = message

    def forget(self) -> None:
        """Drop all defaults, because another controller acts, which does not know them."""
        self._known.clear()

    def begin(self, asked: PendingOperation, site: str, numbers: Mapping[str, int]) -> BeginScatter | None:
        """Return how an operation's array is sent early, and note that in `asked`; None if it waits for its round."""
        operation, stream = asked.operation, asked.stream
        said = self._known.get((operation.items, operation.item_bytes, operation.parts))
        waits = said is None or asked.array is not None or stream < m.POLICY_STREAM or operation.codec != NONE
        if said is None or waits or any(name not in numbers for name in said.sites):
            return None
        asked.scatter = said.version
        spans = zip(said.sites, pairwise((0, *said.ends)), strict=True)
        blocks = tuple((numbers[name], first, end) for name, (first, end) in spans if name != site)
        size = operation.items, operation.item_bytes, said.chunk_items
        return BeginScatter(said.epoch, stream - m.POLICY_STREAM, asked.iteration, *size, said.window, blocks)


def scattered_round(start: m.Start, numbers: Mapping[str, int]) -> ScatteredRound | None:
    """Return what a round uses of early chunks, with site numbers; None if it uses none."""
    said = start.scattered
    if said is None:
        return None
    pairs = zip(said.members, said.iterations, strict=True)
    steps = tuple((numbers[name], step) for name, step in pairs if name in numbers)
    return ScatteredRound(said.epoch, said.part, start.chunk_items[0], steps)


def small_array(operation: m.Operation, own: Array, site: str, most_bytes: int, workers: int) -> bytes | None:
    """Return the bytes that are sent with the request of an operation; None if the array is too large, or for a server.

    These are a copy of the array; nothing from a rank whose array is no input.
    """
    if operation.op in (INIT, PUSH) or not most_bytes:
        return None
    nbytes = max(own.nbytes, operation.inline_bytes(workers))
    if nbytes * max(INLINE_MEMBERS, workers - 1) > most_bytes * INLINE_MEMBERS:
        return None
    return b"" if operation.kind in ("broadcast", "scatter") and operation.root != site else own.tobytes()


def _weights_and_staleness(
    start: m.Start | m.InlineResult, members: tuple[str, ...]
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    return m.value_of_each(start.weights, len(members)), m.value_of_each(start.staleness, len(members))


class Node:
    """One rank: its side of the control protocol, and the data plane that executes its rounds.

    A driver calls `submit`, `told` and the other public methods, and carries out the actions that they return.
    """

    def __init__(self, site: str, data: DataPlane) -> None:
        self.site, self.data = site, data
        self._actions: list[NodeAction] = []
        self.lost: TradewindError | None = None
        """The error that ended the run for this rank; None while it has not ended."""
        self.numbers: dict[str, int] = {}
        """Number of each site in frames, by name."""
        self._names: dict[int, str] = {}
        """Name of each rank that was ever in the roster, by number: no other rank gets the number of a lost one."""
        self.rounds_helped = 0
        """Number of rounds of other members in which this rank was a helper."""
        self._submitted = 0
        self._collectives = 0
        self._step = 0
        self._parts_given: set[int] = set()
        self._parts_wanted = 0
        self._waiting: dict[int, deque[int]] = {}
        self._asked: dict[int, int] = {}
        """The operation that was requested in each stream."""
        self._operations: dict[int, PendingOperation] = {}
        self._used: set[int] = set()
        """Operations whose callers have the result, although their rounds were not committed."""
        self._rounds: dict[int, ActiveRound] = {}
        self._plans: dict[int, Plan] = {}
        self._scatters = DefaultScatters()
        self.tolerant = False
        """Whether the run continues when a rank is lost."""
        self._roster: m.Roster | None = None
        self.alone = False
        """Whether there has been no controller for too long."""
        self._committed: deque[tuple[int, int]] = deque(maxlen=COMMITTED)
        self._halted: dict[int, int] = {}
        """Versions of the rounds whose progress is reported once they are halted."""
        self._closing: set[int] = set()
        """Rounds that were given up, whose arrays are still in use."""
        self._held: deque[m.Message | None] = deque()
        """Messages that wait for these arrays; None: end all operations without a controller."""
        self._waits = Waits()
        self._ahead: dict[int, m.Start] = {}
        """The round that each stream is expected to start next."""
        self._opened_ahead: dict[int, int] = {}
        """The round in each stream whose first chunks are sent although it has not started."""
        self._floor = 0
        """No round below this one is running or will start."""

    @property
    def term(self) -> int:
        """The newest acknowledged term; -1: none."""
        return -1 if self._roster is None else self._roster.term

    @property
    def has_server(self) -> bool:
        """Whether ranks exchange with a server instead of averaging with each other."""
        return self._roster is not None and self._roster.has_server

    @property
    def plan_versions(self) -> tuple[int, ...]:
        """Versions of the plans that are kept for future rounds."""
        return tuple(sorted(self._plans))

    @property
    def pending(self) -> tuple[int, ...]:
        """Operations that have not ended."""
        return tuple(number for number in self._operations if number not in self._used)

    @property
    def is_settled(self) -> bool:
        """Whether all members have every result that this rank has used."""
        return not self._used

    def outcome(self, number: int) -> Outcome:
        """Return the expected outcome of an operation whose round has started."""
        outcome = self._operations[number].outcome
        assert outcome is not None
        return outcome

    # --- for drivers -------------------------------------------------------------------------------------------

    def submit(
        self,
        operation: m.Operation,
        arrays: Arrays | tuple[Array, Array] | None = None,
        part: int | None = None,
        inline: bytes | None = None,
        overwrites: bool = False,
        share: m.Share | None = None,
    ) -> tuple[int, list[NodeAction]]:
        """Request an operation of all ranks, or a part of a step; return its number, and the actions to do now.

        `arrays` are the input and result arrays; `inline` is a copy of the input if it is small enough to be sent with
        the request. If all members do that, the answer contains the result. `overwrites`: the result array is the
        input. `share`: weight and model of a step, given with its part 0. Raises the error that ended the run, and
        `BadOption` for a wrong part.
        """
        if self.lost is not None:
            raise self.lost.fresh()
        if part is None:
            streams = 1 if self.tolerant else m.POLICY_STREAM  # a rank that joins later cannot know earlier requests
            stream, turn = self._collectives % streams, self._collectives // streams
            self._collectives += 1
            asked = PendingOperation(operation, stream, turn + 1, inline, overwrites=overwrites)
        else:
            step = self._number_step(part, operation.parts)
            asked = PendingOperation(
                operation, m.POLICY_STREAM + part, step, inline, overwrites=overwrites, share=share
            )
        number = self._submitted
        self._submitted += 1
        self._operations[number] = asked
        self._waiting.setdefault(asked.stream, deque()).append(number)
        self.data.give(number, None if arrays is None else Arrays(*arrays), operation)
        self._ask(asked.stream)
        return number, self.advance()

    def told(self, message: m.Message) -> list[NodeAction]:
        """Handle a message of the controller; after the end of the run there is nothing to handle."""
        if self.lost is not None:
            return self.advance()
        usual = None if self._closing else _USUAL.get(type(message))
        if usual is not None:
            usual(self, message)
        else:
            self._handle(message)
        return self.advance()

    def give_up(self) -> list[NodeAction]:
        """End all steps alone, with unchanged inputs, because there has been no controller for too long."""
        if not self.alone and self.lost is None and self.tolerant:
            self.alone = True
            for number in sorted(self._rounds):
                self._abandon(number)
            if self._closing:
                self._held.append(None)
            else:
                self._end_all()
        return self.advance()

    def look(self, received: Mapping[int, int], now_s: float, every_s: float) -> list[NodeAction]:
        """Report rounds in which nothing has moved for `every_s`, and again as often; to be called more often.

        `received` is a value for each peer that changes whenever payload of it arrives.
        """
        for waiting in self._waits.look(self.data.waits(), received, now_s, every_s):
            self._send(waiting)
        return self.advance()

    def fail(self, error: TradewindError) -> list[NodeAction]:
        """End every operation with an error; later ones fail as well."""
        self._fail(error)
        return self.advance()

    def advance(self) -> list[NodeAction]:
        """Process the reports of the data plane; return the actions to do."""
        while reports := self.data.take_reports():
            for report in reports:
                if isinstance(report, RoundHalted):
                    self._round_halted(report)
                else:
                    self._completed(*report)
        actions, self._actions = self._actions, []
        return actions

    def _number_step(self, part: int, parts: int) -> int:
        """Return the number of the step that a part belongs to: a new one if the last one has all its parts."""
        begins = len(self._parts_given) == self._parts_wanted
        given = set() if begins else self._parts_given
        wanted = parts if begins else self._parts_wanted
        if not 0 <= part < parts <= m.MAX_PARTS or parts != wanted or part in given:
            raise BadOption(
                f"part {part} of {parts} is not valid: a step has 1 to {m.MAX_PARTS} parts, and this one has {wanted}, "
                f"of which {sorted(given)} were submitted. Submit every part of a step once before the next step."
            )
        self._step += begins
        self._parts_given, self._parts_wanted = {*given, part}, wanted
        return self._step

    # --- messages of the controller ----------------------------------------------------------------------------

    def _handle(self, message: m.Message) -> None:
        do = self._actions
        match message:
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
            case m.AuxiliaryChanged():
                self.data.steer(self._auxiliary(message))
            case m.NetworkSeen():
                do.append(message)
            case m.Closing(reason, _):
                self._fail(PeerLost(f"the run has ended: {reason.rstrip('.')}."))
            case m.Refused(reason):
                self._fail(PeerLost(f"the controller refused {self.site!r}: {reason}"))
            case _ if self._closing:
                self._held.append(message)
            case _:
                self._about_rounds(message)

    def _about_rounds(self, message: m.Message) -> None:
        match message:
            case m.PlanChanged():
                self._keep_plan(message)
            case m.Start():
                self._start(message)
            case m.Announce():
                self._announced(message)
            case m.InlineResult():
                self._inline(message)
            case m.Commit():
                self._committed_by(message)
            case m.Halt(round_, version) if round_ in self._rounds:
                self._halt(round_, version)
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
            self._forget_ahead()
        numbers = {address.site: address.number for address in roster.workers}
        gone = sorted(set(self.numbers.values()) - set(numbers.values()))
        self.numbers = numbers
        self._names.update((number, name) for name, number in numbers.items())
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
        """Return the report for a new controller; None if this rank was in no run yet.

        Call it once for each connection to a controller, which continues from this report: waiting messages of the last
        connection are dropped, and so are plans, since the controller sends every plan that it needs again.
        """
        if self._roster is None:
            return None
        self._held = deque(message for message in self._held if message is None)
        self._plans.clear()
        self._forget_ahead()
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
        given = asked.array, asked.scatter, asked.overwrites, asked.share
        return m.Ready(asked.stream, asked.iteration, asked.operation, *given)

    # --- reports of the data plane -----------------------------------------------------------------------------

    def _completed(self, complete: RoundComplete, digest: int | None) -> None:
        """Handle that the data plane has done its part of a round; members have the digest of their result."""
        number, version = complete.round, complete.version
        held = self._rounds.get(number)
        if held is None or held.version != version or number in self._halted:
            return
        held.finished, held.digest = True, digest
        self._send(m.Finished(number, version, digest))
        if held.operation is None:
            return
        asked = self._operations[held.operation]
        asked.outcome = replace(self.outcome(held.operation), early_bytes=complete.early_bytes)
        if asked.overwrites and asked.stream < m.POLICY_STREAM and not self.tolerant:
            self._used.add(held.operation)
            self._actions.append(Succeeded(held.operation, asked.outcome))

    def _halt(self, number: int, version: int) -> None:
        held = self._rounds[number]
        if held.operation in self._used:
            self._fail(PeerLost(f"round {number} cannot be repeated: {self.site!r} has used its result."))
            return
        self._halted[number] = version
        held.finished = False
        self.data.halt(number)

    def _round_halted(self, quiet: RoundHalted) -> None:
        """Handle that the arrays of a halted or closed round are free."""
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
        self._open_ahead(stream)

    def _too_early(self, asked: PendingOperation) -> bool:
        """Whether it belongs to a step while an earlier step has not ended."""
        steps = [other.iteration for other in self._operations.values() if other.stream >= m.POLICY_STREAM]
        return asked.stream >= m.POLICY_STREAM and min(steps) < asked.iteration

    def _end_all(self) -> None:
        for stream in sorted(self._asked):
            self._end_without_controller(stream)
        for stream in sorted(self._waiting):
            self._ask(stream)

    def _end_without_controller(self, stream: int) -> None:
        if stream < m.POLICY_STREAM:
            lost = PeerLost("the controller is lost, and this operation needs all ranks. Try again when there is one.")
            self._end(stream, Failed(self._asked[stream], lost))
        else:
            self._proceed(stream)

    def _proceed(self, stream: int) -> None:
        operation = self._operations[self._asked[stream]].operation
        collective = operation.collective
        if collective.root not in ("", self.site) or (collective.is_parted and operation.sizes != (operation.items,)):
            lost = PeerLost(f"{collective.kind} needs other ranks, and all of them are lost.")
            self._end(stream, Failed(self._asked[stream], lost))
            return
        outcome = Outcome((self.site,), (1.0,), (0,), operation.nbytes)
        self._end(stream, Succeeded(self._asked[stream], outcome))

    def _end(self, stream: int, how: Succeeded | Failed) -> None:
        self._end_scatter(how.operation)
        self._close_ahead(stream)
        if how.operation not in self._used:
            self._actions.append(how)
        self._used.discard(how.operation)
        del self._asked[stream]
        del self._operations[how.operation]
        for next_ in (
            (stream,) if stream < m.POLICY_STREAM else sorted(n for n in self._waiting if n >= m.POLICY_STREAM)
        ):
            self._ask(next_)

    def _end_scatter(self, operation: int | None) -> None:
        """Stop sending an operation's array before its round is known."""
        if operation is not None and self._operations[operation].scatter is not None:
            asked = self._operations[operation]
            asked.scatter = None
            self.data.end_scatter(asked.stream - m.POLICY_STREAM)

    def _fail(self, error: TradewindError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        for round_ in sorted({*self._rounds, *self._opened_ahead.values()}):
            self.data.close(round_)
        self._actions += [Failed(number, error) for number in sorted(self.pending)]
        self._rounds.clear()
        self._operations.clear()
        self._used.clear()

    def _send(self, message: m.Message) -> None:
        self._actions.append(SendControl(message))

    # --- rounds ------------------------------------------------------------------------------------------------

    def _auxiliary(self, message: m.AuxiliaryChanged) -> AuxiliaryChanged:
        """Return auxiliary paths with site numbers, without those through a lost rank."""
        known = [path for path in message.paths if all(site in self.numbers for site in path.sites)]
        numbered = tuple((tuple(self.numbers[s] for s in path.sites), path.busy_bound) for path in known)
        return AuxiliaryChanged(numbered, message.queue_length, message.by_occupancy)

    def _keep_plan(self, message: m.PlanChanged) -> None:
        plan = self._plans[message.version] = message.plan.plan
        for old in message.forget:
            self._plans.pop(old, None)
        self.data.prepare(message.version, plan, message.forget)

    def _open_ahead(self, stream: int) -> None:
        """Send the first chunks of the round that a stream is expected to start next, if this rank has requested it.

        The request and the answer take a round trip to the controller, in which links would be idle. Nothing is written
        before the round starts. If another one starts instead, what was sent is not used.
        """
        start, number = self._ahead.get(stream), self._asked.get(stream)
        plan = None if start is None else self._plans.get(start.version)
        if start is None or plan is None or number is None or any(site not in self.numbers for site in plan.sites):
            return
        asked = self._operations[number]
        is_expected = self._wants(start, plan.members) and asked.operation == start.operation
        is_free = asked.array is None and asked.outcome is None
        if is_expected and is_free and start.round >= self._floor:
            del self._ahead[stream]
            self._opened_ahead[stream] = start.round
            self.data.open_ahead(start, plan, number)

    def _close_ahead(self, stream: int, started: int | None = None) -> None:
        """Forget what ranks have sent for an announced round, unless it is the round that has started now."""
        said = self._ahead.pop(stream, None)
        announced = self._opened_ahead.pop(stream, None if said is None else said.round)
        if announced is not None and announced != started:
            self.data.close(announced)

    def _forget_ahead(self) -> None:
        for stream in sorted({*self._ahead, *self._opened_ahead}):
            self._close_ahead(stream)

    def _announced(self, message: m.Announce) -> None:
        self._close_ahead(message.start.stream)
        self._ahead[message.start.stream] = message.start
        self._open_ahead(message.start.stream)

    def _start(self, start: m.Start) -> None:
        plan = self._plans[start.version]
        members = plan.members
        is_member = self.site in members
        if is_member and not self._wants(start, members):
            self._actions.append(FindController("it starts a round that this rank did not request"))
            return
        scattered = scattered_round(start, self.numbers)
        operation = self._asked[start.stream] if is_member else None
        self._close_ahead(start.stream, start.round)
        self._rounds[start.round] = ActiveRound(start.version, members, operation)
        if operation is not None:
            about = members, *_weights_and_staleness(start, members), start.operation.nbytes, start.round
            self._operations[operation].outcome = Outcome(*about, repaired=start.repaired)
        if scattered is not None and self.numbers[self.site] in dict(scattered.steps):
            if operation is not None:
                self._operations[operation].scatter = None  # this round uses what was sent
        else:
            self._end_scatter(operation)
        self._floor = max(self._floor, start.floor)
        self.data.forget_below(start.floor)
        self.data.open(start, plan, operation, scattered)
        if operation is not None:
            self._actions.append(Started(operation, start.round))

    def _inline(self, done: m.InlineResult) -> None:
        """Handle the result of an inline round; in a tolerant run it is used after `Commit`."""
        members = tuple(self._names[number] for number in m.numbers_in(done.members))
        if not self._wants(done, members):
            self._actions.append(FindController("it ends a round that this rank did not request"))
            return
        number = self._asked[done.stream]
        about = members, *_weights_and_staleness(done, members), len(done.array), done.round
        self._operations[number].outcome = Outcome(*about, inline=True)
        digest = digest_of(done.array)
        if done.final and digest != done.digest:
            self._fail(
                PeerLost(
                    f"the result of round {done.round} changed after the controller computed it. Nothing was applied. "
                    f"Check the memory of the machines of {self.site!r} and of the controller."
                )
            )
            return
        self._rounds[done.round] = ActiveRound(m.INLINE_VERSION, members, number, True, digest, done.array)
        if done.final:
            self._commit(done.round)
        else:
            self._send(m.Finished(done.round, m.INLINE_VERSION, digest))

    def _wants(self, start: m.Start | m.InlineResult, members: tuple[str, ...]) -> bool:
        """Whether this rank still wants the round: it may have proceeded alone while a controller took over."""
        number = self._asked.get(start.stream)
        if number is None or self.site not in members:
            return False
        iterations = m.value_of_each(start.iterations, len(members))
        return self._operations[number].iteration == iterations[members.index(self.site)]

    def _committed_by(self, message: m.Commit) -> None:
        self._commit(message.round)

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
            return  # an inline round does not use the arrays
        if held is not None and held.operation is not None:
            self._closing.add(round_)
        self.data.close(round_)


_USUAL: dict[type, Callable[[Node, Any], None]] = {
    m.PlanChanged: Node._keep_plan,
    m.Start: Node._start,
    m.Announce: Node._announced,
    m.Commit: Node._committed_by,
}
"""The messages that every round consists of; a simulation handles many of them, and trying one case after another
takes longer than most of these."""
