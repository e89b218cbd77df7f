"""The encoded form of a whole result, put together from its chunks."""

from __future__ import annotations

import numpy as np

from tradewind.wire.codecs import BLOCK_ITEMS, Dense, Raw, codec_of


class EncodedCopy:
    """The encoded form of a whole result, for a rank that decodes it again, on a device.

    It is laid out as one chunk: the scales of all blocks, then all codes. Chunks are stored as they come or are made.
    """

    def __init__(self, codec: str, items: int, raw: Raw | None = None) -> None:
        """`raw`: its memory; it has the size of a chunk of so many items. Raises `TypeError` for a sparse codec."""
        made = codec_of(codec)
        if not isinstance(made, Dense):
            raise TypeError(f"codec {codec!r} has no encoded form of a whole array.")
        self.items, self._codec = items, made
        self.raw: Raw = np.empty(made.most_bytes(items), np.uint8) if raw is None else raw
        self._stored = np.zeros(-(-items // BLOCK_ITEMS), np.bool_)

    @property
    def is_complete(self) -> bool:
        """Whether all blocks are stored; not after a repair that has cut chunks within blocks."""
        return bool(self._stored.all())

    def store(self, start: int, end: int, chunk: Raw) -> None:
        """Store the encoded items from `start` to `end`; if they are not whole blocks, these are not known any more."""
        blocks = slice(start // BLOCK_ITEMS, -(-end // BLOCK_ITEMS))
        self._stored[blocks] = start % BLOCK_ITEMS == 0 and (end % BLOCK_ITEMS == 0 or end == self.items)
        if not self._stored[blocks.start]:
            return
        of_chunk, before, of_all = (self._scale_bytes(items) for items in (end - start, start, self.items))
        self.raw[before : before + of_chunk] = chunk[:of_chunk]
        first, last = (of_all + self._codec.code_bytes(items) for items in (start, end))
        self.raw[first:last] = chunk[of_chunk : of_chunk + last - first]

    def _scale_bytes(self, items: int) -> int:
        return self._codec.most_bytes(items) - self._codec.code_bytes(items)
