"""What a node asks its driver to do: receive, add and send payloads; send messages, connect, end operations.

The engine never touches a payload itself.

Buffers that the driver keeps for the engine are numbers. A buffer comes into being with the first action that names it
(`Receive` with KEEP, `Combine` with a new `into`) and is forgotten with `Release`. Every `Receive`, `Combine` and
`Transmit` is answered by one event that names the action, when the work is done.

Nobody changes one. Those that every chunk makes are not frozen, as they take several times as long to make then.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tradewind.errors import TradewindError
from tradewind.wire import messages as m
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
class RoundHalted:
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


Action = Receive | Combine | Transmit | Release | RoundComplete | RoundHalted | PeerFaulty
"""Of the engine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an operation."""

    contributors: tuple[str, ...]
    """Whose arrays were combined."""
    weights: tuple[float, ...]
    """What each of them counts in a mean, in the same order."""
    staleness: tuple[int, ...]
    """How many steps each one's model was behind the most advanced of them."""
    nbytes: int
    """Of the array."""
    round: int | None = None
    """Its number in the run; None: there was nobody to synchronise with."""
    waited_s: float = 0.0
    """From asking for it to its start."""
    seconds: float = 0.0
    """From its start to its end."""
    repaired: bool = False
    """Somebody or a connection was lost on the way; parts may hold what a lost member contributed before."""
    inline: bool = False
    """It was small, and travelled to the controller and back in messages, not by a plan."""
    early_bytes: int = 0
    """Of the own array, what had left before the round was known and did not have to be sent again."""

    @property
    def alone(self) -> bool:
        """Whether there was nobody to synchronise with."""
        return self.round is None


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send a message to the controller."""

    message: m.Message


@dataclass(frozen=True, slots=True)
class Started:
    """The round of an operation has begun, for the first time or again."""

    operation: int
    round: int


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The operation's result is in place, for all who take part; if its outcome is `alone`, the result is the input."""

    operation: int
    outcome: Outcome
    array: bytes | None = None
    """The result of an inline round, to be put in place; None: it is there."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The operation is lost; its input is as it was."""

    operation: int
    error: TradewindError


@dataclass(frozen=True, slots=True)
class Joined:
    """Everybody is there; in tolerant runs again whenever somebody comes later."""

    roster: m.Roster


@dataclass(frozen=True, slots=True)
class Departed:
    """A peer is gone: its connections can be closed, and nothing is to be sent to it."""

    number: int


@dataclass(frozen=True, slots=True)
class FindController:
    """The controller does not act, or not any more: look for another one."""

    reason: str


@dataclass(frozen=True, slots=True)
class Connect:
    """Have a connection to a peer."""

    peer: int


NodeAction = Connect | Departed | FindController | Failed | Joined | SendControl | Started | Succeeded | m.NetworkSeen
"""What a node asks its driver to do about messages, connections and operations."""
