"""The buffers that the driver keeps for the engine: whose they are, and when they can go.

A buffer that an action is working with is pinned: it is released only when that work is done, even if its round is
over by then, so that a driver never has to wait for its own threads before it can close a round.
"""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.errors import BadFrame
from tradewind.node.actions import Action, Release
from tradewind.wire.frames import FrameHeader

MAX_EARLY_BYTES = 512 * 2**20
"""Of all rounds together: windows keep honest peers far below."""


@dataclass(frozen=True, slots=True)
class Early:
    """A chunk of a round, or of a version of its plan, that this site has not been told of yet."""

    origin: int
    header: FrameHeader
    buffer: int


class EarlyChunks:
    """Chunks that came before their round was known: kept, not dropped."""

    def __init__(self) -> None:
        self.total_bytes = 0
        """Those that are still being received included."""
        self._kept: dict[tuple[int, int], list[Early]] = {}

    def admit(self, peer: int, header: FrameHeader) -> None:
        """Make room for a chunk that is about to come."""
        if self.total_bytes + header.payload_bytes > MAX_EARLY_BYTES:
            raise BadFrame(f"{peer} sent more than {MAX_EARLY_BYTES} bytes of rounds that have not started.")
        self.total_bytes += header.payload_bytes

    def put(self, early: Early) -> None:
        """It has come, and its round is still not known."""
        self._kept.setdefault((early.header.round, early.header.plan_version), []).append(early)

    def left(self, early: Early) -> None:
        """It is used, or not needed."""
        self.total_bytes -= early.header.payload_bytes

    def take(self, first_round: int, last_round: int, version: int | None = None) -> list[Early]:
        """All of these rounds, up to that version of their plan; they are not early any more."""
        keys = sorted(
            key for key in self._kept if first_round <= key[0] <= last_round and (version is None or key[1] <= version)
        )
        taken = [early for key in keys for early in self._kept.pop(key)]
        for early in taken:
            self.left(early)
        return taken


@dataclass(slots=True)
class Buffer:
    """A buffer that the driver keeps."""

    nbytes: int
    round: int | None
    """Whose it is; None: a relayed chunk's, or one of a round that is not open."""
    pins: int = 0
    """How many actions are working with it right now."""
    waiting: int = 0
    """How many flows have yet to send it."""
    doomed: bool = False
    """Released as soon as nobody works with it."""


class Buffers:
    """All of one site's."""

    def __init__(self) -> None:
        self.total_bytes = self.most_bytes = 0
        """What is kept now, and the most that ever was."""
        self.of_round: dict[int, set[int]] = {}
        self._known: dict[int, Buffer] = {}
        self._next = 0

    def __contains__(self, number: int) -> bool:
        return number in self._known

    def __getitem__(self, number: int) -> Buffer:
        return self._known[number]

    def new(self, nbytes: int, round_: int | None, pins: int = 0) -> int:
        """The number of a new buffer."""
        self._next += 1
        self._known[self._next] = Buffer(nbytes, None, pins)
        self.total_bytes += nbytes
        self.most_bytes = max(self.most_bytes, self.total_bytes)
        if round_ is not None:
            self.give(self._next, round_)
        return self._next

    def give(self, number: int, round_: int) -> None:
        """Make it a round's."""
        self._known[number].round = round_
        self.of_round.setdefault(round_, set()).add(number)

    def doom(self, number: int, actions: list[Action]) -> None:
        """Nobody needs it any more: release it, now or when nobody works with it."""
        self._known[number].doomed = True
        if self._known[number].pins == 0:
            self._release(number, actions)

    def doom_round(self, round_: int, actions: list[Action]) -> None:
        """Doom all of a round's."""
        for number in sorted(self.of_round.get(round_, ())):
            self.doom(number, actions)

    def pin(self, number: int) -> None:
        """An action starts to work with it."""
        self._known[number].pins += 1

    def unpin(self, number: int, actions: list[Action]) -> bool:
        """That work is done; whether the buffer is still there."""
        kept = self._known[number]
        kept.pins -= 1
        if kept.doomed and kept.pins == 0:
            self._release(number, actions)
        return not kept.doomed

    def _release(self, number: int, actions: list[Action]) -> None:
        kept = self._known.pop(number)
        self.total_bytes -= kept.nbytes
        if kept.round is not None:
            owned = self.of_round[kept.round]
            owned.discard(number)
            if not owned:
                del self.of_round[kept.round]
        actions.append(Release(number))
