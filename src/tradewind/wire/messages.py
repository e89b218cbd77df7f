"""Control messages between ranks and the controller, as typed structures in MessagePack.

They are few, and none is sent per chunk; small arrays are sent in them (`Ready`, `InlineResult`). A message with
unknown fields or values out of range raises `BadFrame`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, chain
from typing import Annotated, Literal, TypeVar

import msgspec

from tradewind.arithmetic import COPY, check_operation, storage_of
from tradewind.errors import BadArray, BadFrame, BadPlan, UnknownName
from tradewind.planning.collective import ROOTED, Collective, Kind
from tradewind.wire.codecs import NONE, can_encode, check_codec, wire_bytes
from tradewind.wire.frames import (
    MAX_CHUNK_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PATH_SITES,
    FrameHeader,
    FrameKind,
    encode_header,
)
from tradewind.wire.greetings import (
    MOST_SITES,
    Count,
    Digest,
    MessageBase,
    Name,
    Port,
    SiteCount,
    SiteNumber,
    Term,
    Text,
)
from tradewind.wire.greetings import (
    Accepted as Accepted,
)
from tradewind.wire.greetings import (
    Challenge as Challenge,
)
from tradewind.wire.greetings import (
    Hello as Hello,
)
from tradewind.wire.greetings import (
    Proof as Proof,
)
from tradewind.wire.greetings import (
    Refused as Refused,
)
from tradewind.wire.packed_plans import PackedPlan, pack_plan, unpack_plan

POLICY_STREAM = 8
"""Streams below this one are for operations of all ranks, this one for steps that the policy groups, and the next ones
for the further parts of these."""
MAX_STREAMS = 64
MAX_PARTS = MAX_STREAMS - POLICY_STREAM
MAX_INLINE_BYTES = 64 * 1024
"""Largest array in a message, so that a report of all streams stays far below the largest message."""

SmallArray = Annotated[bytes, msgspec.Meta(max_length=MAX_INLINE_BYTES)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
Discipline = Literal["task-fcfs", "fcfs"]
"""The order in which a rank sends flows: of the round that started first, or those that came first (CREW IV-C)."""
INLINE_VERSION = 0
"""The version of inline rounds, which have no plan; plans are numbered from 1."""

# --- values of members -------------------------------------------------------------------------------------------

T = TypeVar("T")


def merged(values: Iterable[T]) -> tuple[T, ...]:
    """Return the values of all members as a message has them: a single one if all are equal.

    >>> merged([0.5, 0.5]), merged([1, 2])
    ((0.5,), (1, 2))
    """
    each = tuple(values)
    return each[:1] if len(set(each)) == 1 else each


def value_of_each(values: tuple[T, ...], members: int) -> tuple[T, ...]:
    """Return one value for each member: the inverse of `merged`. Raises `BadFrame` if their number does not fit.

    >>> value_of_each((0.5,), 2), value_of_each((1, 2), 2)
    ((0.5, 0.5), (1, 2))
    """
    if len(values) not in (1, members):
        raise BadFrame(f"a round of {members} members has {len(values)} values, expected 1 or {members}.")
    return values if len(values) == members else values * members


Runs = tuple[tuple[SiteNumber, Annotated[int, msgspec.Meta(ge=1, le=MOST_SITES)]], ...]
"""Ranks as runs of consecutive numbers, each with its first number and its length."""


def runs_of(numbers: Iterable[int]) -> Runs:
    """Return numbers of ranks as runs, in the same order.

    >>> runs_of([0, 1, 2, 3, 7, 5, 6])
    ((0, 4), (7, 1), (5, 2))
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and sum(runs[-1]) == number:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return tuple((first, length) for first, length in runs)


def numbers_in(runs: Runs) -> Iterator[int]:
    """The numbers of ranks in runs: the inverse of `runs_of`."""
    return chain.from_iterable(range(first, first + length) for first, length in runs)


# --- operations, and the results of inline rounds ----------------------------------------------------------------


class Operation(MessageBase, frozen=True):
    """An operation on an array; all members of a round must request the same."""

    items: Count
    item_bytes: Annotated[int, msgspec.Meta(ge=1, le=16)]
    dtype: Name
    op: Name
    root: Text = ""
    """The root of a collective that has one, or the key of an array that a server keeps; else empty."""
    parts: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)] = 1
    """Number of operations in the step that this is a part of; all run with the members of the first."""
    codec: Name = NONE
    """How chunks are encoded (`wire.codecs`); in a request also `auto`, and the controller decides."""

    kind: Kind = "all-reduce"
    sizes: tuple[Count, ...] = ()
    """Items of each rank's part, in the order of ranks, of a collective that has parts; a single one if all are equal.
    `items` is their sum."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a collective without its root, and for a codec that cannot encode this operation."""
        if self.kind in ROOTED and not self.root:
            raise ValueError(f"{self.kind} needs a root")
        if self.codec == NONE:
            return
        try:
            check_codec(self.codec)
        except UnknownName as error:
            raise ValueError(str(error)) from None
        if not can_encode(self.op, self.dtype) or self.kind != "all-reduce":
            raise ValueError(f"codec {self.codec} cannot encode {self.kind} {self.op} of {self.dtype}")

    @property
    def nbytes(self) -> int:
        """Size of the array; of the largest one of a rank, if ranks have arrays of different sizes."""
        return self.items * self.item_bytes

    def wire_bytes(self, contributions: int) -> int:
        """Return the size of a sum of so many arrays as it is sent; for a sparse codec, the size to expect."""
        return wire_bytes(self.codec, self.items, self.item_bytes, contributions)

    @property
    def collective(self) -> Collective:
        """The collective, with its root if it has one."""
        return Collective(self.kind, self.root if self.kind in ROOTED else "")

    def inline_bytes(self, members: int) -> int:
        """Size of the result of an inline round."""
        return self.nbytes * (members if self.kind == "all-to-all" else 1)

    def part_starts(self, members: int) -> list[int]:
        """The first item of each rank's part, and the number of all items.

        Raises `BadArray` if the operation was requested for another number of ranks.

        >>> Operation(6, 1, "bytes", "copy", kind="all-gather", sizes=(2,)).part_starts(3)
        [0, 2, 4, 6]
        """
        sizes = self.sizes * members if len(self.sizes) == 1 else self.sizes
        if len(sizes) != members or sum(sizes) != self.items:
            raise BadArray(
                f"{self.kind} of {self.items} items was requested for {len(self.sizes) or 1} parts of {self.sizes} "
                f"items, but {members} ranks take part: a rank left or joined meanwhile. Call it again."
            )
        return [0, *accumulate(sizes)]


class Share(MessageBase, frozen=True):
    """What an array counts in a mean, and which model it is a change of."""

    weight: Annotated[float, msgspec.Meta(gt=0, le=1e18)] = 1.0
    """Weight relative to those of the other members, such as the number of tokens processed."""
    model: Count | None = None
    """Number of the model that all members must have in common; None: models may differ."""


class Released(MessageBase, frozen=True):
    """A result that a member has given to its caller although its round was not committed."""

    round: Count
    version: Count
    """Of the round in which it was made: equal ones are the same bytes."""
    contributors: tuple[Name, ...]
    weights: tuple[float, ...]
    staleness: tuple[Count, ...]
    repaired: bool = False


MOST_TRIED = 64
"""Rounds of one operation that are remembered."""


class Ready(MessageBase, frozen=True):
    """Request of a rank to synchronise an array in a stream; `iteration` is its own step number there."""

    stream: Count
    iteration: Count
    operation: Operation
    array: SmallArray | None = None
    """The array itself, if it is small; empty from a rank that has nothing to send. None: use a plan."""
    scatter: Count | None = None
    """Version of the `ScatterBy` by which the rank has started to send; None: it waits for its round."""
    overwrites: bool = False
    """Whether the result overwrites the input: its round then cannot be repeated or change its plan."""
    share: Share | None = None
    """Weight and model of the array; None: weight 1, any model."""
    released: Released | None = None
    """In a report: the result that the rank has already used. Others must get the same one, or go on without it."""
    tried: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_TRIED)] = ()
    """In a report: the last rounds of this operation that the rank had a part in."""

    def __post_init__(self) -> None:
        """Raise `ValueError` if the array does not fit the operation, since the controller computes with it."""
        operation = self.operation
        if self.array is None:
            return
        if operation.op == COPY:
            fits = len(self.array) in (0, operation.nbytes, *(size * operation.item_bytes for size in operation.sizes))
        else:
            try:
                check_operation(operation.op, operation.dtype)
            except BadArray as error:
                raise ValueError(str(error)) from None
            whole = operation.item_bytes == storage_of(operation.dtype).itemsize
            fits = whole and len(self.array) == operation.nbytes
        if not fits:
            raise ValueError(
                f"an array of {operation.items} items of {operation.item_bytes} bytes has {len(self.array)} bytes"
            )


class InlineResult(MessageBase, frozen=True):
    """The result of an inline round, whose arrays were sent in `Ready`; the same for all members."""

    round: Count
    stream: Count
    members: Runs
    """Numbers of the members in frames: names would make the answers grow with the square of the number of ranks."""
    iterations: tuple[Count, ...]
    """Each member's own number of the step; one number if all are equal, as for weights and staleness."""
    weights: tuple[float, ...]
    staleness: tuple[Count, ...]
    array: SmallArray
    final: bool
    """Whether it may be used at once. Otherwise members send `Finished` and use it after `Commit`: if the controller is
    lost in between, the next one can tell whether all members have it."""
    digest: Digest
    """Digest of the array as the controller computed it."""

    def __post_init__(self) -> None:
        """Raise `ValueError` if there are more members than ranks in any run."""
        if sum(length for _, length in self.members) > MOST_SITES:
            raise ValueError(f"a round has at most {MOST_SITES} members")


# --- non-blocking scatter: sending before a round is known, and what a round uses of that ----------------------------


class ScatterBy(MessageBase, frozen=True):
    """A rank that is ready with such an array may send it before its round is known, each chunk to its aggregator."""

    version: Count
    epoch: Count
    """Number that grows whenever a rank joins, so that a restarted process is distinguished from the one before."""
    items: Positive
    item_bytes: Annotated[int, msgspec.Meta(ge=1, le=16)]
    parts: Positive
    """Number of parts of the step that such an array belongs to."""
    chunk_items: Positive
    window: Positive
    """Number of chunks that may be sent to each aggregator, which must keep them."""
    sites: tuple[Name, ...]
    """The aggregators."""
    ends: tuple[Count, ...]
    """End of the block of each aggregator, in chunks; it starts where the one before ends."""


class Scattered(MessageBase, frozen=True):
    """What the members of a round have sent of it before its start."""

    epoch: Count
    """The epoch of the `ScatterBy`."""
    part: Count
    members: tuple[Name, ...]
    """Members whose early chunks are used; others send theirs again."""
    iterations: tuple[Count, ...]
    """Each member's own number of the step."""


# --- the network: measurements, probes, and auxiliary paths ----------------------------------------------------------


class Measured(MessageBase, frozen=True):
    """A measurement of the link from a peer to the sender of this message."""

    peer: Name
    bandwidth_bps: Annotated[float, msgspec.Meta(gt=0, lt=1e15)]
    full: bool = True
    """Whether the link was kept busy; otherwise the rate is a lower bound."""
    chunks: Count = 0
    """Number of chunks that were measured."""
    latency_s: Annotated[float, msgspec.Meta(ge=0, lt=1e6)] | None = None
    """One-way latency without transmission time; None: not measured."""
    train: Count = 0
    """Number of the train of probes that was measured; 0: it was other traffic."""


class NetworkWanted(MessageBase, frozen=True):
    """Request for a `NetworkSeen`."""


class Connect(MessageBase, frozen=True):
    """Open connections to these peers, which may be used outside a plan."""

    peers: tuple[Name, ...]


class Explore(MessageBase, frozen=True):
    """Send a train of probes to a peer, when there is nothing else to send, to measure the link."""

    peer: Name
    train: Count
    chunks: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    chunk_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHUNK_BYTES)]


class AuxiliaryPath(MessageBase, frozen=True):
    """An alternative to the rank's own link to the last site of the path, for chunks that would otherwise wait."""

    sites: Annotated[tuple[Name, ...], msgspec.Meta(min_length=3, max_length=MAX_PATH_SITES)]
    busy_bound: Annotated[int, msgspec.Meta(ge=1, le=2**32)]
    """Number of chunks that must wait for the primary path before a chunk takes this one."""


class AuxiliaryChanged(MessageBase, frozen=True):
    """The rank's auxiliary paths from now on, the fastest first. Chunks carry their path: others need not know it."""

    paths: tuple[AuxiliaryPath, ...]
    queue_length: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    """Number of chunks that may be in flight on each path."""
    by_occupancy: bool = False
    """Whether chunks get their path when they may be sent, as NetStorm publishes it; else when links are idle."""


LOST = "lost"
"""The `origin` of a link that is lost now."""


class LinkSeen(MessageBase, frozen=True):
    """The estimate of one link."""

    src: Name
    dst: Name
    bandwidth_bps: float
    latency_s: float
    origin: Text
    """given, at least, measured, or lost, with the numbers from before the loss."""
    count: Count
    age_s: float
    spread: float


class NetworkSeen(MessageBase, frozen=True):
    """The estimates of the network: its sites with their zones, and every link."""

    sites: tuple[tuple[Name, Text], ...]
    links: tuple[LinkSeen, ...]


# --- rank to controller -----------------------------------------------------------------------------------


class Address(MessageBase, frozen=True):
    """The address at which a rank accepts data connections, and its number in frames, unique in this run."""

    number: SiteNumber
    site: Name
    host: Text
    port: Port


class RoundReport(MessageBase, frozen=True):
    """The state of a round at a rank that has a part in it."""

    round: Count
    version: Count
    members: tuple[Name, ...]
    finished: bool = False
    digest: Digest | None = None
    ready: Ready | None = None
    """The request of a member; None at a helper."""


class Report(MessageBase, frozen=True):
    """The state of a rank that was in the run before, for a new controller, which has no state of its own."""

    term: Term
    """The newest term that it has acknowledged."""
    sequence: Count
    roster: tuple[Address, ...]
    """The last roster that it received; `sequence` is its number within the term."""
    numbers: SiteCount
    """How many site numbers were ever assigned, according to that roster."""
    electorates: tuple[tuple[Name, ...], ...] = ()
    """The possible electorates, according to that roster."""
    rounds: tuple[RoundReport, ...] = ()
    ready: tuple[Ready, ...] = ()
    """Requests that are in no round yet."""
    committed: Annotated[tuple[tuple[Count, Count], ...], msgspec.Meta(max_length=1024)] = ()
    """The last rounds that were committed at this rank, each with its version."""


class Join(MessageBase, frozen=True):
    """Request of a rank to join the run, with the address at which it accepts data connections."""

    host: Text
    port: Port
    rank: Count
    report: Report | None = None
    """The report of a rank that was in the run before; else None."""
    trains: bool = True
    """Whether it contributes arrays; otherwise it only aggregates and relays for others."""


class Finished(MessageBase, frozen=True):
    """A rank holds its part of the result of a round and has sent all that others need from it."""

    round: Count
    version: Count
    digest: Digest | None = None
    """Digest of the whole result at a member; all members must have the same."""


class Progress(MessageBase, frozen=True):
    """Answer to `Halt`: the round has stopped at this site, and these chunks of the result are final."""

    round: Count
    version: Count
    chunk_items: tuple[Count, ...] = ()
    """Items per chunk of each shard; empty: this site holds no result."""
    final: tuple[bytes, ...] = ()
    """For each shard a bitmap of the final chunks, lowest bit first."""
    released: Released | None = None
    """The result that this rank has already used. Sent without a `Halt`, too: the round must become one of this result,
    and the rank does not contribute to it."""


MOST_AWAITED = 256
"""Flows in one `Waiting`."""


class Waiting(MessageBase, frozen=True):
    """Nothing has moved in a round at this rank for a while: the chunks that it waits for.

    Sent again and again until something moves. The controller compares those of all ranks (`control.rounds.waits`).
    """

    round: Count
    version: Count
    still_s: Annotated[float, msgspec.Meta(ge=0)]
    """For how long nothing has moved."""
    awaited: Annotated[
        tuple[tuple[Count, Annotated[int, msgspec.Meta(ge=0, le=1)], SiteNumber, Count], ...],
        msgspec.Meta(max_length=MOST_AWAITED),
    ]
    """Shard, phase, origin and first missing chunk of the flows that are furthest behind in each shard, in order."""
    more: bool = False
    """Whether further shards wait, too, which did not fit."""
    busy: bool = False
    """Whether a chunk is being added or stored here."""
    heard: Annotated[tuple[SiteNumber, ...], msgspec.Meta(max_length=MOST_SITES)] = ()
    """Peers that have sent this rank some payload meanwhile: their links work."""


class LinkChanged(MessageBase, frozen=True):
    """A rank's connection to a peer broke or was restored; chunks in flight on it may be lost."""

    peer: Text
    reason: Text
    back: bool = False
    """Whether there is a new connection: the link works, but rounds that use it must repeat what was lost."""


class Linked(MessageBase, frozen=True):
    """A rank has connected to a peer: the link between the two works."""

    peer: Text


class Heartbeat(MessageBase, frozen=True):
    """Periodic message that shows that a rank is alive; `sent_s` is the time on its clock."""

    sent_s: float


class Activity(MessageBase, frozen=True):
    """What a rank has sent since it joined, and how busy its host is; sent periodically after `ActivityWanted`."""

    sent: tuple[tuple[Name, Count, Count], ...]
    """Peer, bytes and retransmitted TCP segments, for peers whose counts have changed."""
    load: Annotated[float, msgspec.Meta(ge=0, le=1)]
    """The share of the host's processors in use."""
    other_bps: Annotated[float, msgspec.Meta(ge=0)]
    """Traffic of the host's interfaces that is not this rank's."""


class Leave(MessageBase, frozen=True):
    """A rank leaves the run deliberately."""

    reason: Text = ""


# --- controller to rank -----------------------------------------------------------------------------------


class Roster(MessageBase, frozen=True):
    """All ranks of the run: sent when all have joined, and whenever a rank joins a tolerant run later."""

    workers: tuple[Address, ...]
    """In the order of their numbers."""
    patience_s: Annotated[float, msgspec.Meta(gt=0)]
    tolerant: bool = False
    """Whether the run continues when a rank is lost."""
    floor: Count = 0
    """No round below this one concerns a rank that has just joined."""
    term: Term = 0
    """Term of the controller that sent it; ranks ignore older ones from then on."""
    sequence: Count = 0
    """Number of the roster within the term."""
    numbers: SiteCount = 0
    """How many site numbers were ever assigned."""
    electorates: tuple[tuple[Name, ...], ...] = ()
    """The possible electorates: a controller that takes over needs a majority of each."""
    discipline: Discipline = "task-fcfs"
    """The order in which ranks send flows; the same during the whole run."""
    has_server: bool = False
    """Whether ranks exchange with a server that keeps the model, instead of averaging with each other."""


class RosterSeen(MessageBase, frozen=True):
    """A rank acknowledges a roster, and with it the term of its controller."""

    term: Term
    sequence: Count


class Lost(MessageBase, frozen=True):
    """A rank of a tolerant run is lost: drop what was to be sent to it."""

    site: Name
    reason: Text


class PlanChanged(MessageBase, frozen=True):
    """A plan that rounds refer to by its version; sent before a round starts with it."""

    version: Count
    plan: PackedPlan
    forget: tuple[Count, ...] = ()
    """Versions that no further round starts with."""


class Start(MessageBase, frozen=True):
    """Start a round, or start it again by another version. It is the same for all sites, and small for any number."""

    round: Count
    version: Count
    """Version of its plan, whose members are those of the round."""
    stream: Count
    iterations: tuple[Count, ...]
    """Each member's own number of the step; one number if all are equal, as for weights and staleness."""
    weights: tuple[float, ...]
    operation: Operation
    floor: Count
    """No round below this one is running."""
    staleness: tuple[Count, ...]
    """Number of steps that each member's model is behind the most advanced one."""
    chunk_items: tuple[Count, ...] = ()
    """Items per chunk of each shard if they are fixed, as for a repaired round; empty: as the plan says."""
    done: tuple[bytes, ...] = ()
    """For a repaired round: for each shard a bitmap of the chunks that are final at every member, lowest bit first."""
    scattered: Scattered | None = None
    """What members have sent before its start; `chunk_items` then says how they cut their arrays."""
    repaired: bool = False
    turn: Count | None = None
    """First round of the step that it is a part of, if that has several parts, which share its turn."""
    whole_digest: bool = True
    """Whether members compare digests of the whole result; otherwise of another part in every round."""
    releases: bool = False
    """Whether members may use the result when they have it, before `Commit`, and keep a copy until then."""
    released: Released | None = None
    """The result that the round distributes: a member had used it when the round was halted."""


class Announce(MessageBase, frozen=True):
    """The next round of a stream, which has not started.

    A member whose next request is this one may send its first chunks. `start` is sent as it is when the round starts;
    if another one comes instead, what was sent is not used.
    """

    start: Start


class Halt(MessageBase, frozen=True):
    """Stop working on a round and report its progress (`Progress`)."""

    round: Count
    version: Count


class Abandon(MessageBase, frozen=True):
    """The round is given up without effect; its members wait, ready as before."""

    round: Count
    reason: Text


class Commit(MessageBase, frozen=True):
    """Every member holds the result: it may be used, and the input or a copy of the result forgotten."""

    round: Count


class Proceed(MessageBase, frozen=True):
    """There is no other rank to synchronise with this time: the rank proceeds with its own array."""

    stream: Count
    iteration: Count
    reason: Text


class Mismatch(MessageBase, frozen=True):
    """The members of a round have requested different operations; it never starts."""

    stream: Count
    iteration: Count
    reason: Text


class OperationLost(MessageBase, frozen=True):
    """The operation cannot be completed; the rank can continue with others."""

    stream: Count
    iteration: Count
    reason: Text


class ActivityWanted(MessageBase, frozen=True):
    """Request to report `Activity` at this interval, for the live page."""

    every_s: Annotated[float, msgspec.Meta(gt=0)]


class HeartbeatSeen(MessageBase, frozen=True):
    """Answer to a heartbeat with its send time, from which the rank computes the round trip and the clock offset."""

    sent_s: float
    seen_s: float
    """Time at which it arrived, on the controller's clock."""


class StandingDown(MessageBase, frozen=True):
    """This controller does not act: look for the one that does."""

    reason: Text


class Closing(MessageBase, frozen=True):
    """The run has ended for all ranks: running operations are lost, and inputs are unchanged."""

    reason: Text
    lost: Text = ""


Message = (
    Hello
    | Challenge
    | Proof
    | Accepted
    | Refused
    | Join
    | Ready
    | Finished
    | Progress
    | Waiting
    | LinkChanged
    | Linked
    | Measured
    | Heartbeat
    | Activity
    | NetworkWanted
    | Leave
    | Roster
    | RosterSeen
    | Lost
    | PlanChanged
    | ScatterBy
    | Start
    | Announce
    | InlineResult
    | Halt
    | Abandon
    | Commit
    | Proceed
    | Mismatch
    | OperationLost
    | HeartbeatSeen
    | ActivityWanted
    | Connect
    | Explore
    | AuxiliaryChanged
    | NetworkSeen
    | StandingDown
    | Closing
)


def _pack(value: object) -> bytes:
    if isinstance(value, PackedPlan):
        return pack_plan(value.plan)
    raise NotImplementedError(f"a message cannot hold a {type(value).__name__}")


def _unpack(kind: type, value: object) -> object:
    if kind is not PackedPlan or not isinstance(value, bytes):
        raise ValueError("a plan must be packed")
    try:
        return PackedPlan(unpack_plan(value, "a plan"))
    except BadPlan as error:
        raise ValueError(str(error)) from error


_encoder = msgspec.msgpack.Encoder(enc_hook=_pack)
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message, dec_hook=_unpack)


def encode_message(message: Message, run: int) -> bytes:
    """Return a message as a complete frame; raise `BadFrame` if it is too large."""
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise BadFrame(
            f"a {type(message).__name__} message must have at most {MAX_MESSAGE_BYTES} bytes, got {len(body)}. "
            "Plan with fewer shards."
        )
    return encode_header(FrameHeader(FrameKind.MESSAGE, run, len(body)), payload=body) + body


def decode_message(body: bytes) -> Message:
    """Return the message in the payload of a frame; raise `BadFrame` if it is not valid."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"a message cannot be decoded: {error}.") from None
