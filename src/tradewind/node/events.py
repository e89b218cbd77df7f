"""Events that the engine handles. Drivers create them and pass them one at a time, under one lock."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.node.actions import Combine, Receive, Transmit
from tradewind.node.engine.layout import Layout, Path
from tradewind.wire.frames import FrameHeader


@dataclass(frozen=True, slots=True)
class BeginScatter:
    """Start sending a part of a step before its round is known (see `engine.scatter`)."""

    epoch: int
    """Number that grows whenever a rank joins, so that a restarted process is distinguished."""
    part: int
    step: int
    items: int
    item_bytes: int
    chunk_items: int
    window: int
    """Number of chunks that may be sent to each aggregator."""
    blocks: tuple[tuple[int, int, int], ...]
    """Number of each aggregator, with the first chunk of its block and the end of it."""

    @property
    def chunks(self) -> int:
        """Number of chunks of the whole array."""
        return -(-self.items // self.chunk_items)


@dataclass(frozen=True, slots=True)
class EndScatter:
    """Stop sending a part of a step: it has ended, or its round does not use what was sent."""

    part: int


@dataclass(frozen=True, slots=True)
class ScatteredRound:
    """What the members of a round have sent before it was known."""

    epoch: int
    part: int
    chunk_items: int
    """Items per chunk; shards start at a chunk boundary."""
    steps: tuple[tuple[int, int], ...]
    """Members whose chunks are used, each with its own number of the step."""


@dataclass(frozen=True, slots=True)
class OpenRound:
    """Start working on a round: its plan is known, and a member's own array is available."""

    round: int
    version: int
    layout: Layout
    gathers: bool = False
    """Whether to add only when all parts are present (see `Arithmetic.gathers`)."""
    done: tuple[bytes, ...] = ()
    """For a repaired round: for each shard a bitmap of the chunks that are final at all members, lowest bit first."""
    scattered: ScatteredRound | None = None
    turn: int | None = None
    """First round of the step that it is a part of, if the step has several parts."""
    weighs: bool = False
    """Whether contributions arrive without their weights, which aggregators apply: their senders did not know them."""
    ahead: bool = False
    """Whether the round has not started: only first chunks of the own array are sent, and what arrives is kept."""


@dataclass(frozen=True, slots=True)
class CloseRound:
    """Close a round that was committed or abandoned: nothing of it is needed any more."""

    round: int


@dataclass(frozen=True, slots=True)
class HaltRound:
    """Stop working on the round: it will be opened in a newer version, or closed."""

    round: int


@dataclass(frozen=True, slots=True)
class ForgetBelow:
    """Forget rounds below this one: none is running at any site."""

    round: int


@dataclass(slots=True, unsafe_hash=True)
class HeaderReceived:
    """The header of a frame arrived; the answer starts with one `Receive` that says where its payload goes."""

    peer: int
    header: FrameHeader


@dataclass(slots=True, unsafe_hash=True)
class Received:
    """A `Receive` is done: the payload is in its place."""

    action: Receive


@dataclass(frozen=True, slots=True)
class ReceiveFailed:
    """A `Receive` failed: the connection broke before the whole payload arrived."""

    action: Receive


@dataclass(frozen=True, slots=True)
class Combined:
    """A `Combine` is done."""

    action: Combine


@dataclass(slots=True, unsafe_hash=True)
class LinkIdle:
    """A connection to the peer is ready to send a frame."""

    peer: int


@dataclass(slots=True, unsafe_hash=True)
class Transmitted:
    """A `Transmit` is done: the bytes of the frame were sent, and their source may change."""

    action: Transmit


@dataclass(frozen=True, slots=True)
class Explore:
    """Measure the link to a peer: send a train of probes when there is nothing else to send to it."""

    peer: int
    train: int
    chunks: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Send the peer a keepalive frame, if a connection to it is idle."""

    peer: int


@dataclass(frozen=True, slots=True)
class LinksBroke:
    """All connections to the peer have ended; chunks wait for new ones."""

    peer: int


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The peer is lost: chunks for it are dropped."""

    peer: int


@dataclass(frozen=True, slots=True)
class AuxiliaryChanged:
    """The auxiliary paths from now on, the fastest first, each with the number of waiting chunks from which it pays."""

    paths: tuple[tuple[Path, int], ...]
    queue_length: int
    by_occupancy: bool = False
    """Whether chunks get their path when they may be sent, by the occupancy of queues (NetStorm's Fig. 7)."""


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
