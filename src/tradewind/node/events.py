"""What the engine is told. Drivers make these, one at a time, under one lock."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.node.actions import Combine, Receive, Transmit
from tradewind.node.engine.layout import Layout, Path
from tradewind.wire.frames import FrameHeader


@dataclass(frozen=True, slots=True)
class BeginScatter:
    """A part of a step may be sent before its round is known (see `scatter`)."""

    epoch: int
    """Rises whenever a worker is started anew."""
    part: int
    step: int
    items: int
    item_bytes: int
    chunk_items: int
    window: int
    """So many chunks may go to each aggregator."""
    blocks: tuple[tuple[int, int, int], ...]
    """Aggregators, each with the first chunk of its block and the end of it."""

    @property
    def chunks(self) -> int:
        """Of the whole array."""
        return -(-self.items // self.chunk_items)


@dataclass(frozen=True, slots=True)
class EndScatter:
    """Send nothing more of a part of a step: it has ended, or its round does not count what was sent."""

    part: int


@dataclass(frozen=True, slots=True)
class ScatteredRound:
    """What members of a round have sent before it was known."""

    epoch: int
    part: int
    chunk_items: int
    """Arrays are cut into chunks of so many items, and shards start at a chunk."""
    steps: tuple[tuple[int, int], ...]
    """Members whose chunks count, each with its own number of the step."""


@dataclass(frozen=True, slots=True)
class OpenRound:
    """The round may be worked on: the plan is known, and so is the own array of a member."""

    round: int
    version: int
    layout: Layout
    gathers: bool = False
    """Add only when all parts are there (see `Arithmetic.gathers`)."""
    done: tuple[bytes, ...] = ()
    """Of a repaired round: for each shard a bit a chunk, lowest first; those set are final everywhere."""
    scattered: ScatteredRound | None = None
    turn: int | None = None
    """The first round of the step that it is a part of, if that has several."""


@dataclass(frozen=True, slots=True)
class CloseRound:
    """The round is committed or abandoned: nothing of it is needed any more."""

    round: int


@dataclass(frozen=True, slots=True)
class HaltRound:
    """Stop working on the round: it will be opened in a newer version, or closed."""

    round: int


@dataclass(frozen=True, slots=True)
class ForgetBelow:
    """No round below this one is running anywhere."""

    round: int


@dataclass(slots=True, unsafe_hash=True)
class HeaderReceived:
    """A frame's header came in; the answer starts with the one `Receive` that says where its payload goes."""

    peer: int
    header: FrameHeader


@dataclass(slots=True, unsafe_hash=True)
class Received:
    """The payload is where it should be."""

    action: Receive


@dataclass(frozen=True, slots=True)
class ReceiveFailed:
    """The connection broke before all of the payload had come."""

    action: Receive


@dataclass(frozen=True, slots=True)
class Combined:
    """The sum is computed."""

    action: Combine


@dataclass(slots=True, unsafe_hash=True)
class LinkIdle:
    """A connection to the peer can take a frame."""

    peer: int


@dataclass(slots=True, unsafe_hash=True)
class Transmitted:
    """The frame's bytes are on their way, and their source may change."""

    action: Transmit


@dataclass(frozen=True, slots=True)
class Explore:
    """Measure the link to a peer: send probes when there is nothing else to send to it."""

    peer: int
    train: int
    chunks: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Send the peer a frame that says nothing, if a connection to it has nothing else to send."""

    peer: int


@dataclass(frozen=True, slots=True)
class LinksBroke:
    """All connections to the peer are gone; there may be new ones later, and chunks wait for them."""

    peer: int


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The peer is lost: nothing waits for it any more."""

    peer: int


@dataclass(frozen=True, slots=True)
class AuxiliaryChanged:
    """Paths beside the own links from now on, each with how many chunks must wait before it pays, the fastest first."""

    paths: tuple[tuple[Path, int], ...]
    queue_length: int


Event = (
    OpenRound
    | BeginScatter
    | EndScatter
    | CloseRound
    | HaltRound
    | ForgetBelow
    | HeaderReceived
    | Received
    | ReceiveFailed
    | Combined
    | LinkIdle
    | Transmitted
    | KeepAlive
    | LinksBroke
    | PeerGone
    | Explore
    | AuxiliaryChanged
)
