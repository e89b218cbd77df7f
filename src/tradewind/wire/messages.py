"""Control messages: what workers and the controller tell each other, as typed structures in MessagePack.

Few, and none is sent per chunk; arrays travel along where they are small (`Ready`, `InlineResult`). A message that does
not decode exactly, with unknown fields or values out of range, is refused with `BadFrame`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tradewind.arithmetic import check_operation, storage_of
from tradewind.errors import BadArray, BadFrame, BadPlan
from tradewind.wire.frames import (
    MAX_CHUNK_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PATH_SITES,
    FrameHeader,
    FrameKind,
    encode_header,
)
from tradewind.wire.greetings import (
    Accepted as Accepted,
)
from tradewind.wire.greetings import (
    Challenge as Challenge,
)
from tradewind.wire.greetings import (
    Count,
    Digest,
    MessageBase,
    Name,
    Port,
    SiteNumber,
    Text,
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
"""Streams below are for operations of everybody, this one for those that the policy groups, and the next ones for the
further parts of these."""
MAX_STREAMS = 64
MAX_PARTS = MAX_STREAMS - POLICY_STREAM
MAX_INLINE_BYTES = 64 * 1024
"""Arrays in messages: a report of all streams at once stays far below the longest message."""

SmallArray = Annotated[bytes, msgspec.Meta(max_length=MAX_INLINE_BYTES)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
INLINE_VERSION = 0
"""Of no plan: plans are numbered from 1."""

# --- operations, and their results where the arrays came with the question ---------------------------------------


class Operation(MessageBase, frozen=True):
    """What a worker wants done with an array; all members of a round must want the same."""

    items: Count
    item_bytes: Annotated[int, msgspec.Meta(ge=1, le=16)]
    dtype: Name
    op: Name
    root: Text = ""
    """For a broadcast: whose array; empty for an all-reduce."""
    parts: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)] = 1
    """How many operations make up the step that this is part of: they all run with the members of the first."""

    @property
    def nbytes(self) -> int:
        """Of the array."""
        return self.items * self.item_bytes


class Ready(MessageBase, frozen=True):
    """A worker has an array to synchronise in this stream: its step number `iteration` there."""

    stream: Count
    iteration: Count
    operation: Operation
    array: SmallArray | None = None
    """The array itself, where it is small; of a broadcast the source's, and nothing from others. None: go by a plan."""
    scatter: Count | None = None
    """The version of `ScatterBy` by which it has begun to send; None: it waits for its round."""
    overwrites: bool = False
    """The result goes over the input: once it has begun, its round cannot begin again or change its plan."""

    def __post_init__(self) -> None:
        """Refuse an array that is not what the operation says: the controller computes with it."""
        operation = self.operation
        if self.array is None:
            return
        if operation.op == "broadcast":
            fits = len(self.array) in (0, operation.nbytes)
        else:
            try:
                check_operation(operation.op, operation.dtype)
            except BadArray as error:
                raise ValueError(str(error)) from None
            whole = operation.item_bytes == storage_of(operation.dtype).itemsize
            fits = whole and len(self.array) == operation.nbytes
        if not fits:
            raise ValueError(
                f"{len(self.array)} bytes came as {operation.items} items of {operation.item_bytes} bytes each"
            )


class InlineResult(MessageBase, frozen=True):
    """A round whose arrays came with `Ready` is done, and this is everybody's result."""

    round: Count
    stream: Count
    iteration: Count
    members: tuple[Name, ...]
    weights: tuple[float, ...]
    staleness: tuple[Count, ...]
    array: SmallArray
    final: bool
    """Whether it may be used at once. Else members say `Finished`, and use it after `Commit`: should the controller be
    lost in between, the next one can tell whether everybody has it."""


# --- non-blocking scatter: sending before a round is known, and what of it a round takes over ------------------------


class ScatterBy(MessageBase, frozen=True):
    """Whoever is ready with such an array may send it before its round is known, each chunk to its aggregator."""

    version: Count
    epoch: Count
    """Rises whenever somebody joins, so that a process that was started anew is told from the one before."""
    items: Positive
    item_bytes: Annotated[int, msgspec.Meta(ge=1, le=16)]
    parts: Positive
    """Of the step that such an array is a part of."""
    chunk_items: Positive
    window: Positive
    """So many chunks may be sent to each aggregator: it has to keep them."""
    sites: tuple[Name, ...]
    """The aggregators."""
    ends: tuple[Count, ...]
    """Where the block of each ends, in chunks; it starts where the one before ends."""


class Scattered(MessageBase, frozen=True):
    """What a round's members have sent of it already."""

    epoch: Count
    """Of `ScatterBy`."""
    part: Count
    members: tuple[Name, ...]
    """Whose chunks count; what others sent early is sent again."""
    iterations: tuple[Count, ...]
    """Each one's own number of the step."""


# --- the network itself: what was measured, what is to be measured, and paths beside the plan ------------------------


class Measured(MessageBase, frozen=True):
    """What the link from a peer to the worker was seen to carry."""

    peer: Name
    bandwidth_bps: Annotated[float, msgspec.Meta(gt=0, lt=1e15)]
    full: bool = True
    """Whether more was waiting all the time; else the link can carry more than this, nobody knows how much."""
    chunks: Count = 0
    """How many it rests on."""
    latency_s: Annotated[float, msgspec.Meta(ge=0, lt=1e6)] | None = None
    """One way, without the time that the bytes take; None: not seen."""
    train: Count = 0
    """Of the probes that were measured; 0: what was sent anyway."""


class NetworkWanted(MessageBase, frozen=True):
    """What is known of the network?"""


class Connect(MessageBase, frozen=True):
    """Something may be sent between the worker and these peers that no plan says: have connections."""

    peers: tuple[Name, ...]


class Explore(MessageBase, frozen=True):
    """Send a train of probes to a peer, when there is nothing else to send: its link is to be measured."""

    peer: Name
    train: Count
    chunks: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    chunk_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHUNK_BYTES)]


class AuxiliaryPath(MessageBase, frozen=True):
    """A path beside the worker's own link or route to its last site, for chunks that would else wait."""

    sites: Annotated[tuple[Name, ...], msgspec.Meta(min_length=3, max_length=MAX_PATH_SITES)]
    busy_bound: Annotated[int, msgspec.Meta(ge=1, le=2**32)]
    """How many chunks have to wait for the primary path before one is better off here."""


class AuxiliaryChanged(MessageBase, frozen=True):
    """The worker's auxiliary paths from now on, the fastest first. Chunks carry their path: nobody else need know."""

    paths: tuple[AuxiliaryPath, ...]
    queue_length: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    """How many chunks may be under way on each."""


LOST = "lost"
"""The origin of what is known of a link that carries nothing now."""


class LinkSeen(MessageBase, frozen=True):
    """What is known of one link."""

    src: Name
    dst: Name
    bandwidth_bps: float
    latency_s: float
    origin: Text
    """given, at least, measured, or lost: then the numbers are those of before."""
    count: Count
    age_s: float
    spread: float


class NetworkSeen(MessageBase, frozen=True):
    """What is known of the network: its sites by number, with their zones, and every link."""

    sites: tuple[tuple[Name, Text], ...]
    links: tuple[LinkSeen, ...]


# --- worker to controller ---------------------------------------------------------------------------------


class Address(MessageBase, frozen=True):
    """Where a worker accepts data connections, and its number in frames, which is nobody else's in this run."""

    number: SiteNumber
    site: Name
    host: Text
    port: Port


class RoundReport(MessageBase, frozen=True):
    """A round that a worker has a part in, as it stands there."""

    round: Count
    version: Count
    members: tuple[Name, ...]
    finished: bool = False
    digest: Digest | None = None
    ready: Ready | None = None
    """What it asked for, at a member."""


class Report(MessageBase, frozen=True):
    """All that a controller has to know of a worker that was in the run before: it needs no memory of its own."""

    term: Count
    """The newest that it has acknowledged."""
    sequence: Count
    roster: tuple[Address, ...]
    """The last that it was told, and its number within the term."""
    numbers: Count
    """How many numbers of sites were ever given away, by that roster."""
    electorates: tuple[tuple[Name, ...], ...] = ()
    """By that roster."""
    rounds: tuple[RoundReport, ...] = ()
    ready: tuple[Ready, ...] = ()
    """What it asked for and is in no round yet."""
    committed: tuple[tuple[Count, Count], ...] = ()
    """The last rounds that were committed here, each with the version that was."""


class Join(MessageBase, frozen=True):
    """A worker is there, and where its data connections are accepted."""

    host: Text
    port: Port
    rank: Count
    report: Report | None = None
    """Of a worker that was in the run before."""
    trains: bool = True
    """Whether it brings arrays; else it only aggregates and relays for others."""


class Finished(MessageBase, frozen=True):
    """A worker holds its part of the round's result and has sent all that others need of it."""

    round: Count
    version: Count
    digest: Digest | None = None
    """Of the whole result, where it has one: all members must have the same."""


class Progress(MessageBase, frozen=True):
    """Answers `Halt`: nothing of the round moves here any more, and these chunks of the result are final."""

    round: Count
    version: Count
    chunk_items: tuple[Count, ...] = ()
    """How many items a chunk of each shard has; empty: this site holds no result."""
    final: tuple[bytes, ...] = ()
    """For each shard a bit a chunk, lowest first."""


class LinkChanged(MessageBase, frozen=True):
    """A worker's connection to a peer broke, and what was under way on it may be lost."""

    peer: Text
    reason: Text
    back: bool = False
    """There is a new one: the link works, but rounds that use it must make up for what was lost."""


class Linked(MessageBase, frozen=True):
    """A worker has connected to a peer: the link between the two works."""

    peer: Text


class Heartbeat(MessageBase, frozen=True):
    """Still there."""

    sent_s: float


class Leave(MessageBase, frozen=True):
    """A worker goes, on purpose."""

    reason: Text = ""


# --- controller to worker ---------------------------------------------------------------------------------


class Roster(MessageBase, frozen=True):
    """Everybody who is there: sent when all have joined, and whenever somebody joins a tolerant run later."""

    workers: tuple[Address, ...]
    """In the order of their numbers."""
    patience_s: Annotated[float, msgspec.Meta(gt=0)]
    tolerant: bool = False
    """Whether the run goes on when a worker is lost."""
    floor: Count = 0
    """No round below this one concerns whoever has just joined."""
    term: Count = 0
    """Of the controller that sent it: nobody listens to an older one any more."""
    sequence: Count = 0
    """Of rosters within a term."""
    numbers: Count = 0
    """How many numbers of sites were ever given away."""
    electorates: tuple[tuple[Name, ...], ...] = ()
    """Of each of these, whoever takes over needs most: those whose word counts, and rosters that may by now."""


class RosterSeen(MessageBase, frozen=True):
    """A worker acknowledges a roster, and with it its controller."""

    term: Count
    sequence: Count


class Lost(MessageBase, frozen=True):
    """A worker is gone from a tolerant run: forget what was to be sent to it."""

    site: Name
    reason: Text


class PlanChanged(MessageBase, frozen=True):
    """A plan that rounds will refer to by its version: sent when it is made, before a round starts with it."""

    version: Count
    plan: PackedPlan
    forget: tuple[Count, ...] = ()
    """Versions that no round will start with any more."""


class Start(MessageBase, frozen=True):
    """Carry out a round."""

    round: Count
    version: Count
    stream: Count
    iteration: Count
    members: tuple[Name, ...]
    weights: tuple[float, ...]
    operation: Operation
    floor: Count
    """No round below this one is running any more."""
    staleness: tuple[Count, ...] = ()
    """How many steps each member's model is behind the most advanced one of them."""
    chunk_items: tuple[Count, ...] = ()
    """How its shards are cut, where that is decided: of a repaired round as before; empty: as the plan says."""
    done: tuple[bytes, ...] = ()
    """Of a repaired round: for each shard a bit a chunk, lowest first; those set are final at every member."""
    scattered: Scattered | None = None
    """What members have sent before they knew of it; then `chunk_items` is how they cut their arrays."""
    repaired: bool = False
    turn: Count | None = None
    """The first round of the step that it is a part of, if that has several: all its parts share that one's turn."""


class Halt(MessageBase, frozen=True):
    """Something is wrong with a round: stop working on it and say how far it has come (`Progress`)."""

    round: Count
    version: Count


class Abandon(MessageBase, frozen=True):
    """The round is given up without effect; its members wait, ready as before."""

    round: Count
    reason: Text


class Commit(MessageBase, frozen=True):
    """Every member holds the result: it may be used, and the input forgotten."""

    round: Count


class Proceed(MessageBase, frozen=True):
    """Nobody to synchronise with this time: the worker goes on with what it has."""

    stream: Count
    iteration: Count
    reason: Text


class Mismatch(MessageBase, frozen=True):
    """The members of a round do not want the same; it never starts."""

    stream: Count
    iteration: Count
    reason: Text


class OperationLost(MessageBase, frozen=True):
    """The operation cannot be carried out any more; the worker can go on with others."""

    stream: Count
    iteration: Count
    reason: Text


class HeartbeatSeen(MessageBase, frozen=True):
    """Answers a heartbeat with its own time, so that the worker can tell how long that took, and how clocks differ."""

    sent_s: float
    seen_s: float
    """When it came, on the controller's clock."""


class StandingDown(MessageBase, frozen=True):
    """This controller does not act any more: look for the one that does."""

    reason: Text


class Closing(MessageBase, frozen=True):
    """The run is over for everybody: what is under way is lost, and inputs are as they were."""

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
    | LinkChanged
    | Linked
    | Measured
    | Heartbeat
    | NetworkWanted
    | Leave
    | Roster
    | RosterSeen
    | Lost
    | PlanChanged
    | ScatterBy
    | Start
    | InlineResult
    | Halt
    | Abandon
    | Commit
    | Proceed
    | Mismatch
    | OperationLost
    | HeartbeatSeen
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
    raise NotImplementedError(f"no message holds a {type(value).__name__}")


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
    """A message as a whole frame."""
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise BadFrame(
            f"a {type(message).__name__} message has {len(body)} bytes; the most is {MAX_MESSAGE_BYTES}. "
            "Plan with fewer shards."
        )
    return encode_header(FrameHeader(FrameKind.MESSAGE, run, len(body))) + body


def decode_message(body: bytes) -> Message:
    """A message from a frame's payload."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"a message does not decode: {error}.") from None
