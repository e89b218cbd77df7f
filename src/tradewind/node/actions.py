"""What the engine asks its driver to do: receive, add and send payloads. It never touches one itself.

Buffers that the driver keeps for the engine are numbers. A buffer comes into being with the first action that names it
(`Receive` with KEEP, `Combine` with a new `into`) and is forgotten with `Release`. Every `Receive`, `Combine` and
`Transmit` is answered by one event that names the action, when the work is done.

Nobody changes one. Those that every chunk makes are not frozen, as they take several times as long to make then.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tradewind.wire.frames import FrameHeader


class How(Enum):
    """What to do with a payload that is about to come."""

    ADD = "add"
    """Into the chunk of the result: own array (if `own`) or what is there already, and this."""
    STORE = "store"
    """It is the result: put it there."""
    KEEP = "keep"
    """Into `buffer`, for later."""
    DISCARD = "discard"
    """Nobody needs it any more."""


class Source(Enum):
    """Where the bytes of a chunk to send are."""

    INPUT = "input"
    """The worker's own array, times its weight."""
    RESULT = "result"
    KEPT = "kept"
    NOTHING = "nothing"
    """An acknowledgement: the header is all."""
    PADDING = "padding"
    """A probe: any bytes will do."""


@dataclass(slots=True, unsafe_hash=True)
class Receive:
    """Take the payload that follows the header."""

    how: How
    peer: int
    header: FrameHeader
    buffer: int | None = None
    own: bool = False
    finish: bool = False
    """This completes the sum at the root."""


@dataclass(frozen=True, slots=True)
class Combine:
    """Fold own array (if `own`), or else what `into` holds (unless it is a part itself), and the parts into `into`."""

    round: int
    version: int
    shard: int
    index: int
    own: bool
    parts: tuple[int, ...]
    into: int | None
    """A buffer, new or the first of the parts; None: the chunk of the result."""
    finish: bool
    copy: bool = False
    """The one part is the result."""

    @property
    def buffers(self) -> tuple[int, ...]:
        """All that it works with."""
        return self.parts if self.into is None or self.into in self.parts else (*self.parts, self.into)


@dataclass(slots=True, unsafe_hash=True)
class Transmit:
    """Send this frame to the peer that said it was idle."""

    peer: int
    header: FrameHeader
    source: Source
    buffer: int | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Forget a buffer."""

    buffer: int


@dataclass(frozen=True, slots=True)
class RoundComplete:
    """This site holds all it should of the result, and has sent all that others need of it."""

    round: int
    version: int
    early_bytes: int = 0
    """Of the own array, what had left before the round was known."""


@dataclass(frozen=True, slots=True)
class RoundQuiet:
    """The round is halted or closed, and nobody works on its result any more: its arrays may be used again."""

    round: int
    chunk_items: tuple[int, ...] = ()
    """Of a halted round at a member: how many items a chunk of each shard has."""
    final: tuple[bytes, ...] = ()
    """And for each shard a bit a chunk, lowest first, of those that are final; nothing where it gets no result."""


@dataclass(frozen=True, slots=True)
class PeerFaulty:
    """A chunk that came early turned out to fit no plan: end the connections to the peer that sent it."""

    peer: int
    reason: str


Action = Receive | Combine | Transmit | Release | RoundComplete | RoundQuiet | PeerFaulty
