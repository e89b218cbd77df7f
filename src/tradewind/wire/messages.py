"""Control messages: what workers and the controller tell each other, as typed structures in MessagePack.

Small and few: nothing here is sent per chunk. A message that does not decode exactly, with unknown fields or values
out of range, is refused with `BadFrame`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tradewind.errors import BadFrame
from tradewind.wire.frames import (
    MAX_CHUNK_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PATH_SITES,
    FrameHeader,
    FrameKind,
    encode_header,
)

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Text = Annotated[str, msgspec.Meta(max_length=4000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
SiteNumber = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Digest = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]

POLICY_LANE = 8
"""Lanes below are for operations of everybody, this one for those that the policy groups, and the next ones for the
further parts of these."""
MAX_LANES = 64
MAX_PARTS = MAX_LANES - POLICY_LANE


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages; the class name is the tag."""


# --- the handshake: client, server, client, server ------------------------------------------------------


class Hello(_Message, frozen=True):
    """Who is calling, and a number that it has never used before."""

    wire_version: int
    run: Name
    site: Name
    purpose: Name
    nonce: Annotated[bytes, msgspec.Meta(min_length=16, max_length=64)]


class Challenge(_Message, frozen=True):
    """A number that the server has never used before."""

    wire_version: int
    site: Name
    nonce: Annotated[bytes, msgspec.Meta(min_length=16, max_length=64)]


class Proof(_Message, frozen=True):
    """That the client knows the secret."""

    digest: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Welcome(_Message, frozen=True):
    """That the server knows it too: the connection may be used."""

    digest: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Refused(_Message, frozen=True):
    """The other side will not talk to us, and why."""

    reason: Text


# --- worker to controller ---------------------------------------------------------------------------------


class Operation(_Message, frozen=True):
    """What a worker wants done with an array; all members of a round must want the same."""

    items: Count
    item_bytes: Annotated[int, msgspec.Meta(ge=1, le=16)]
    dtype: Name
    op: Name
    root: Text = ""
    """For a broadcast: whose array; empty for an all-reduce."""
    parts: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)] = 1
    """How many operations make up the step that this is part of: they all run with the members of the first."""


class Join(_Message, frozen=True):
    """A worker is there, and where its data connections are accepted."""

    host: Text
    port: Port
    rank: Count


class Ready(_Message, frozen=True):
    """A worker has an array to synchronise in this lane: its step number `iteration` there."""

    lane: Count
    iteration: Count
    operation: Operation


class Finished(_Message, frozen=True):
    """A worker holds its part of the round's result and has sent all that others need of it."""

    round: Count
    version: Count
    digest: Digest | None = None
    """Of the whole result, where it has one: all members must have the same."""


class Progress(_Message, frozen=True):
    """Answers `Halt`: nothing of the round moves here any more, and these chunks of the result are final."""

    round: Count
    version: Count
    chunk_items: tuple[Count, ...] = ()
    """How many items a chunk of each shard has; empty: this site holds no result."""
    final: tuple[bytes, ...] = ()
    """For each shard a bit a chunk, lowest first."""


class Trouble(_Message, frozen=True):
    """A worker's connection to a peer broke, and what was under way on it may be lost."""

    peer: Text
    reason: Text
    back: bool = False
    """There is a new one: the link works, but rounds that use it must make up for what was lost."""


class Measured(_Message, frozen=True):
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


class Heartbeat(_Message, frozen=True):
    """Still there."""

    sent_s: float


class NetworkWanted(_Message, frozen=True):
    """What is known of the network?"""


class Leave(_Message, frozen=True):
    """A worker goes, on purpose."""

    reason: Text = ""


# --- controller to worker ---------------------------------------------------------------------------------


class Address(_Message, frozen=True):
    """Where a worker accepts data connections, and its number in frames, which is nobody else's in this run."""

    number: SiteNumber
    site: Name
    host: Text
    port: Port


class Roster(_Message, frozen=True):
    """Everybody who is there: sent when all have joined, and whenever somebody joins a tolerant run later."""

    workers: tuple[Address, ...]
    """In the order of their numbers."""
    patience_s: Annotated[float, msgspec.Meta(gt=0)]
    tolerant: bool = False
    """Whether the run goes on when a worker is lost."""
    floor: Count = 0
    """No round below this one concerns whoever has just joined."""


class Lost(_Message, frozen=True):
    """A worker is gone from a tolerant run: forget what was to be sent to it."""

    site: Name
    reason: Text


class PlanChanged(_Message, frozen=True):
    """A plan that rounds will refer to by its version."""

    version: Count
    plan: bytes
    """The plan's JSON."""
    forget: tuple[Count, ...] = ()
    """Versions that no round will start with any more."""


class Start(_Message, frozen=True):
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
    """Of a repaired round: how its shards were cut, which does not change; empty: as the plan says."""
    done: tuple[bytes, ...] = ()
    """Of a repaired round: for each shard a bit a chunk, lowest first; those set are final at every member."""


class Halt(_Message, frozen=True):
    """Something is wrong with a round: stop working on it and say how far it has come (`Progress`)."""

    round: Count
    version: Count


class Abandon(_Message, frozen=True):
    """The round is given up without effect; its members wait, ready as before."""

    round: Count
    reason: Text


class Commit(_Message, frozen=True):
    """Every member holds the result: it may be used, and the input forgotten."""

    round: Count


class Proceed(_Message, frozen=True):
    """Nobody to synchronise with this time: the worker goes on with what it has."""

    lane: Count
    iteration: Count
    reason: Text


class Mismatch(_Message, frozen=True):
    """The members of a round do not want the same; it never starts."""

    lane: Count
    iteration: Count
    reason: Text


class Broken(_Message, frozen=True):
    """The operation cannot be carried out any more; the worker can go on with others."""

    lane: Count
    iteration: Count
    reason: Text


class HeartbeatSeen(_Message, frozen=True):
    """Answers a heartbeat with its own time, so that the worker can tell how long that took, and how clocks differ."""

    sent_s: float
    seen_s: float
    """When it came, on the controller's clock."""


class Connect(_Message, frozen=True):
    """Something may be sent between the worker and these peers that no plan says: have connections."""

    peers: tuple[Name, ...]


class Explore(_Message, frozen=True):
    """Send a train of probes to a peer, when there is nothing else to send: its link is to be measured."""

    peer: Name
    train: Count
    chunks: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    chunk_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHUNK_BYTES)]


class AuxiliaryPath(_Message, frozen=True):
    """A path beside the worker's own link or route to its last site, for chunks that would else wait."""

    sites: Annotated[tuple[Name, ...], msgspec.Meta(min_length=3, max_length=MAX_PATH_SITES)]
    busy_bound: Annotated[int, msgspec.Meta(ge=1, le=2**32)]
    """How many chunks have to wait for the primary path before one is better off here."""


class AuxiliaryChanged(_Message, frozen=True):
    """The worker's auxiliary paths from now on, the fastest first. Chunks carry their path: nobody else need know."""

    paths: tuple[AuxiliaryPath, ...]
    queue_length: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    """How many chunks may be under way on each."""


class LinkSeen(_Message, frozen=True):
    """What is known of one link."""

    src: Name
    dst: Name
    bandwidth_bps: float
    latency_s: float
    origin: Text
    """given, at least, or measured."""
    count: Count
    age_s: float
    spread: float


class NetworkSeen(_Message, frozen=True):
    """What is known of the network: its sites by number, with their zones, and every link."""

    sites: tuple[tuple[Name, Text], ...]
    links: tuple[LinkSeen, ...]


class Closing(_Message, frozen=True):
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
    | Measured
    | Heartbeat
    | NetworkWanted
    | Leave
    | Roster
    | Lost
    | PlanChanged
    | Start
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
    | Closing
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


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
