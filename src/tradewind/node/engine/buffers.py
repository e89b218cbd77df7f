"""The buffers that the driver holds for the engine: which round owns them, and when they are released.

A buffer that an action is using is pinned: it is released only when that action is done, even if its round has ended by
then, so that a driver never has to wait for its own threads before it can close a round.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tradewind.errors import BadFrame
from tradewind.node.actions import Action, Release
from tradewind.wire.frames import FrameHeader

MAX_EARLY_BYTES = 512 * 2**20
"""Limit of early chunks of all rounds together; windows keep correct peers far below it."""
MAX_EARLY_BYTES_OF_SITE = MAX_EARLY_BYTES // 2
"""Limit of those of one site, so that it cannot use up the room of the others."""
MOST_EARLY_ROUNDS = 256
"""An early chunk is dropped when so many rounds have been opened since it came: its own was never started."""
MAX_RELAYED_BYTES = 512 * 2**20
"""Limit of chunks that wait to be relayed; windows keep correct peers far below it."""


@dataclass(frozen=True, slots=True)
class Early:
    """A chunk of a round, or of a version of its plan, that this site does not know yet."""

    origin: int
    header: FrameHeader
    buffer: int


class EarlyChunks:
    """The chunks that arrived before their round was known, and are kept for it."""

    def __init__(self) -> None:
        self.total_bytes = 0
        """Bytes of all early chunks, including those that are still being received."""
        self._of_site: Counter[int] = Counter()
        self._kept: dict[tuple[int, int], list[Early]] = {}
        self._came: dict[tuple[int, int], int] = {}
        """How many rounds had been opened when the first chunk of a round and version came."""
        self._opened = 0

    def admit(self, origin: int, header: FrameHeader) -> None:
        """Reserve room for a chunk that is about to arrive; raise `BadFrame` if there is too little."""
        total, of_site = (nbytes + header.payload_bytes for nbytes in (self.total_bytes, self._of_site[origin]))
        if total > MAX_EARLY_BYTES or of_site > MAX_EARLY_BYTES_OF_SITE:
            raise BadFrame(
                f"site {origin}: early chunks of rounds that have not started must have at most "
                f"{MAX_EARLY_BYTES_OF_SITE} bytes a site and {MAX_EARLY_BYTES} in all, got {of_site} and {total}."
            )
        self.total_bytes = total
        self._of_site[origin] = of_site

    def put(self, early: Early) -> None:
        """Keep a chunk that has arrived, whose round is still unknown."""
        key = early.header.round, early.header.plan_version
        self._kept.setdefault(key, []).append(early)
        self._came.setdefault(key, self._opened)

    def left(self, early: Early) -> None:
        """Free the room of a chunk that is used or not needed."""
        self.total_bytes -= early.header.payload_bytes
        self._of_site[early.origin] -= early.header.payload_bytes

    def opened(self) -> list[Early]:
        """Count a round that is opened; remove and return the chunks whose round should have been opened long ago."""
        self._opened += 1
        late = [key for key, came in self._came.items() if came + MOST_EARLY_ROUNDS < self._opened]
        return [early for number, version in sorted(late) for early in self.take(number, number, version)]

    def take(self, first_round: int, last_round: int, version: int | None = None) -> list[Early]:
        """Remove and return the chunks of these rounds, up to this version of their plan."""
        keys = sorted(
            key for key in self._kept if first_round <= key[0] <= last_round and (version is None or key[1] <= version)
        )
        taken = [early for key in keys for early in self._kept.pop(key)]
        for key in keys:
            del self._came[key]
        for early in taken:
            self.left(early)
        return taken


@dataclass(slots=True)
class Buffer:
    """A buffer that the driver holds."""

    nbytes: int
    round: int | None
    """The round that owns it; None: it holds a relayed chunk, or one of a round that is not open."""
    pins: int = 0
    """Number of actions that are using it."""
    waiting: int = 0
    """Number of flows that still have to send it."""
    relayed: bool = False
    """Whether it holds a chunk that is to be relayed."""
    doomed: bool = False
    """Whether it is released as soon as no action uses it."""


class Buffers:
    """All buffers of one site."""

    def __init__(self) -> None:
        self.total_bytes = self.most_bytes = 0
        """What is kept now, and the most that ever was."""
        self.relayed_bytes = 0
        """Bytes of chunks that are to be relayed."""
        self.of_round: dict[int, set[int]] = {}
        self._known: dict[int, Buffer] = {}
        self._next = 0

    def __contains__(self, number: int) -> bool:
        return number in self._known

    def __getitem__(self, number: int) -> Buffer:
        return self._known[number]

    def new(self, nbytes: int, round_: int | None, pins: int = 0) -> int:
        """Create a buffer and return its number."""
        self._next += 1
        self._known[self._next] = Buffer(nbytes, None, pins)
        self.total_bytes += nbytes
        self.most_bytes = max(self.most_bytes, self.total_bytes)
        if round_ is not None:
            self.give(self._next, round_)
        return self._next

    def relay(self, nbytes: int) -> int:
        """Create a pinned buffer for a chunk that is to be relayed; raise `BadFrame` if too many bytes wait."""
        if self.relayed_bytes + nbytes > MAX_RELAYED_BYTES:
            raise BadFrame(f"chunks to be relayed must have at most {MAX_RELAYED_BYTES} bytes, and more are sent.")
        self.relayed_bytes += nbytes
        number = self.new(nbytes, None, pins=1)
        self._known[number].relayed = True
        return number

    def give(self, number: int, round_: int) -> None:
        """Make a round the owner of a buffer."""
        self._known[number].round = round_
        self.of_round.setdefault(round_, set()).add(number)

    def doom(self, number: int, actions: list[Action]) -> None:
        """Release a buffer, now or as soon as no action uses it."""
        self._known[number].doomed = True
        if self._known[number].pins == 0:
            self._release(number, actions)

    def doom_round(self, round_: int, actions: list[Action]) -> None:
        """Doom all buffers of a round."""
        for number in sorted(self.of_round.get(round_, ())):
            self.doom(number, actions)

    def pin(self, number: int) -> None:
        """Record that an action starts to use a buffer."""
        self._known[number].pins += 1

    def unpin(self, number: int, actions: list[Action]) -> bool:
        """Record that an action is done; return whether the buffer is still needed."""
        kept = self._known[number]
        kept.pins -= 1
        if kept.doomed and kept.pins == 0:
            self._release(number, actions)
        return not kept.doomed

    def _release(self, number: int, actions: list[Action]) -> None:
        kept = self._known.pop(number)
        self.total_bytes -= kept.nbytes
        self.relayed_bytes -= kept.nbytes * kept.relayed
        if kept.round is not None:
            owned = self.of_round[kept.round]
            owned.discard(number)
            if not owned:
                del self.of_round[kept.round]
        actions.append(Release(number))
