"""Actions that a node asks its driver to do: receive, add and send payloads; send messages, connect, end operations.

The engine never accesses a payload itself.

Buffers that the driver holds for the engine are identified by numbers. A buffer is created by the first action that
names it (`Receive` with KEEP, `Combine` with a new `into`) and freed by `Release`. The driver answers every `Receive`,
`Combine` and `Transmit` with one event that names the action, when the work is done.

Actions must not be modified. Those that are created for every chunk, or by every site of a round, are not frozen,
because creating frozen ones takes several times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tradewind.errors import TradewindError
from tradewind.wire import messages as m
from tradewind.wire.frames import FrameHeader


class How(Enum):
    """What to do with a payload that is about to arrive."""

    ADD = "add"
    """Add it to the own array (if `own`), or else to the chunk of the result, and store the sum in the result.

    An encoded payload is received into `buffer` first. If this completes the sum, and others get the result, the
    encoded result replaces it there."""
    STORE = "store"
    """It is the result: store it there. An encoded payload is received into `buffer`, and decoded into the result."""
    KEEP = "keep"
    """Store it in `buffer`, for later."""
    DISCARD = "discard"
    """Drop it: it is not needed."""


class Source(Enum):
    """Where the bytes of a chunk to send come from."""

    INPUT = "input"
    """The rank's own array, times its weight."""
    RESULT = "result"
    KEPT = "kept"
    NOTHING = "nothing"
    """No payload: an acknowledgement is only a header."""
    PADDING = "padding"
    """Arbitrary bytes, for a probe."""


@dataclass(slots=True, unsafe_hash=True)
class Receive:
    """Receive the payload that follows the header."""

    how: How
    peer: int
    header: FrameHeader
    buffer: int | None = None
    own: bool = False
    finish: bool = False
    """Whether this completes the sum at the root."""
    room: int = 0
    """Bytes of `buffer`, if it must have more than the payload: a sum may be encoded there."""

    @property
    def buffer_bytes(self) -> int:
        """Size of `buffer`."""
        return max(self.room, self.header.payload_bytes)


@dataclass(frozen=True, slots=True)
class Combine:
    """Fold the parts into `into`, starting with the own array (if `own`), or else with the content of `into` (unless it
    is one of the parts)."""

    round: int
    version: int
    shard: int
    index: int
    own: bool
    parts: tuple[int, ...]
    into: int | None
    """The buffer of the sum, new or the first of the parts; None: the chunk of the result."""
    finish: bool
    copy: bool = False
    """Whether the only part is the result itself, to be copied."""
    place: int = 0
    """Place of the first part's sender among the children of the shard; the others follow it."""
    encoded: int | None = None
    """The buffer that a finished sum is encoded into, new or the first of the parts; the result is what that decodes
    to. None: it is not encoded, or `into` gets it."""
    room: int = 0
    """Bytes of a new buffer, if it must have more than the first of the parts."""

    @property
    def made(self) -> int | None:
        """The buffer that this creates; None if it creates none."""
        given = self.into if self.into is not None else self.encoded
        return None if given is None or given in self.parts else given

    @property
    def buffers(self) -> tuple[int, ...]:
        """All buffers that it reads or writes."""
        return self.parts if self.made is None else (*self.parts, self.made)


@dataclass(slots=True, unsafe_hash=True)
class Transmit:
    """Send this frame to the peer on an idle connection."""

    peer: int
    header: FrameHeader
    source: Source
    buffer: int | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Free a buffer."""

    buffer: int


@dataclass(frozen=True, slots=True)
class RoundComplete:
    """This site holds its part of the result and has sent all that other sites need from it."""

    round: int
    version: int
    early_bytes: int = 0
    """Bytes of the own array that were sent before the round was known."""


@dataclass(slots=True, unsafe_hash=True)
class RoundHalted:
    """The round is halted or closed, and no work on its result is in progress: its arrays may be used again."""

    round: int
    chunk_items: tuple[int, ...] = ()
    """For a halted round at a member: the number of items per chunk of each shard."""
    final: tuple[bytes, ...] = ()
    """For each shard a bitmap of the final chunks, lowest bit first; empty for shards whose result it does not get."""


@dataclass(frozen=True, slots=True)
class PeerFaulty:
    """A chunk that arrived early does not fit the plan: close the connections to the peer that sent it."""

    peer: int
    reason: str


Action = Receive | Combine | Transmit | Release | RoundComplete | RoundHalted | PeerFaulty
"""Actions of the engine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an operation: which arrays were combined, and how."""

    contributors: tuple[str, ...]
    """Ranks whose arrays were combined."""
    weights: tuple[float, ...]
    """Weight of each contributor in a mean, in the same order."""
    staleness: tuple[int, ...]
    """Number of steps by which each contributor's model was behind the most advanced one."""
    nbytes: int
    """Size of the array."""
    round: int | None = None
    """Number of the round in the run; None: there was no other rank to synchronise with."""
    waited_s: float = 0.0
    """Time from the request to the start of the round."""
    seconds: float = 0.0
    """Time from the start of the round to its end."""
    repaired: bool = False
    """Whether a rank or connection was lost during the round; parts may contain contributions of a lost member."""
    inline: bool = False
    """Whether it was an inline round: the small array travelled in messages to the controller and back."""
    early_bytes: int = 0
    """Bytes of the own array that were sent before the round was known, and not sent again."""

    @property
    def alone(self) -> bool:
        """Whether there was no other rank to synchronise with."""
        return self.round is None


@dataclass(slots=True, unsafe_hash=True)
class SendControl:
    """Send a message to the controller."""

    message: m.Message


@dataclass(frozen=True, slots=True)
class Started:
    """The round of an operation has started, for the first time or again."""

    operation: int
    round: int


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The result of the operation may be used; if its outcome is `alone`, the result is the input.

    All members hold it, unless it overwrites its input in a strict run: then some may still be receiving it.
    """

    operation: int
    outcome: Outcome
    array: bytes | None = None
    """The result of an inline round, to be stored in the result array; None: it is already there."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The operation failed; its input is unchanged."""

    operation: int
    error: TradewindError


@dataclass(frozen=True, slots=True)
class Joined:
    """All ranks have joined; in tolerant runs again whenever a rank joins later."""

    roster: m.Roster


@dataclass(frozen=True, slots=True)
class Departed:
    """A peer is lost: close its connections and send nothing to it."""

    number: int


@dataclass(frozen=True, slots=True)
class FindController:
    """The controller does not act: look for another one."""

    reason: str


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection to a peer, if there is none."""

    peer: int


NodeAction = Connect | Departed | FindController | Failed | Joined | SendControl | Started | Succeeded | m.NetworkSeen
"""Actions of a node about messages, connections and operations."""
