"""Control messages: what workers and the controller tell each other, as typed structures in MessagePack.

Few, and none is sent per chunk; arrays travel along where they are small (`Ready`, `Carried`). A message that does not
decode exactly, with unknown fields or values out of range, is refused with `BadFrame`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tradewind.errors import BadFrame, BadPlan
from tradewind.wire.frames import (
    MAX_MESSAGE_BYTES,
    FrameHeader,
    FrameKind,
    encode_header,
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
from tradewind.wire.greetings import (
    Welcome as Welcome,
)
from tradewind.wire.network_messages import (
    LOST as LOST,
)
from tradewind.wire.network_messages import (
    AuxiliaryChanged as AuxiliaryChanged,
)
from tradewind.wire.network_messages import (
    AuxiliaryPath as AuxiliaryPath,
)
from tradewind.wire.network_messages import (
    Connect as Connect,
)
from tradewind.wire.network_messages import (
    Explore as Explore,
)
from tradewind.wire.network_messages import (
    LinkSeen as LinkSeen,
)
from tradewind.wire.network_messages import (
    Measured as Measured,
)
from tradewind.wire.network_messages import (
    NetworkSeen as NetworkSeen,
)
from tradewind.wire.network_messages import (
    NetworkWanted as NetworkWanted,
)
from tradewind.wire.operation_messages import (
    CARRIED_VERSION as CARRIED_VERSION,
)
from tradewind.wire.operation_messages import (
    MAX_CARRIED_BYTES as MAX_CARRIED_BYTES,
)
from tradewind.wire.operation_messages import (
    MAX_LANES as MAX_LANES,
)
from tradewind.wire.operation_messages import (
    MAX_PARTS as MAX_PARTS,
)
from tradewind.wire.operation_messages import (
    POLICY_LANE as POLICY_LANE,
)
from tradewind.wire.operation_messages import (
    Carried as Carried,
)
from tradewind.wire.operation_messages import (
    Operation as Operation,
)
from tradewind.wire.operation_messages import (
    Ready as Ready,
)
from tradewind.wire.packed_plans import PackedPlan, pack_plan, unpack_plan
from tradewind.wire.scatter_messages import (
    ScatterBy as ScatterBy,
)
from tradewind.wire.scatter_messages import (
    Scattered as Scattered,
)

# --- worker to controller ---------------------------------------------------------------------------------


class Address(MessageBase, frozen=True):
    """Where a worker accepts data connections, and its number in frames, which is nobody else's in this run."""

    number: SiteNumber
    site: Name
    host: Text
    port: Port


class Holding(MessageBase, frozen=True):
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
    holdings: tuple[Holding, ...] = ()
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


class Trouble(MessageBase, frozen=True):
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
    lane: Count
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

    lane: Count
    iteration: Count
    reason: Text


class Mismatch(MessageBase, frozen=True):
    """The members of a round do not want the same; it never starts."""

    lane: Count
    iteration: Count
    reason: Text


class Broken(MessageBase, frozen=True):
    """The operation cannot be carried out any more; the worker can go on with others."""

    lane: Count
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
    | Welcome
    | Refused
    | Join
    | Ready
    | Finished
    | Progress
    | Trouble
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
    | Carried
    | Halt
    | Abandon
    | Commit
    | Proceed
    | Mismatch
    | Broken
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
