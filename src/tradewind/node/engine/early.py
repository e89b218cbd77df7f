"""Chunks of rounds, or of versions of their plans, that this site has not been told of yet: kept, not dropped."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.errors import BadFrame
from tradewind.wire.frames import FrameHeader

MAX_EARLY_BYTES = 512 * 2**20
"""Of all rounds together: windows keep honest peers far below."""


@dataclass(frozen=True, slots=True)
class Early:
    """One of them."""

    origin: int
    header: FrameHeader
    buffer: int


class EarlyChunks:
    """All of them, by round and version."""

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
