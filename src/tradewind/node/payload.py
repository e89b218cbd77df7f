"""The payload side of a round: where each chunk lies, and the work that actions ask for, on numpy views.

Drivers own the arrays and the buffers; this says which part of which array an action means. Nothing here needs the
engine's lock: the engine hands out a chunk to one action at a time.

**In place.** The result may be the input's own memory. A chunk of the input is read for the last time when it is sent,
or added to the first contribution, block by block; a chunk of the result is written by that addition, or when the sum
comes back, and no sum can come back before every contribution to it has left. Only plans whose shards overlap break
that rule, and get a copy. What a failure leaves in such an array is neither input nor result.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tradewind.arithmetic import Arithmetic, Array, storage_of
from tradewind.node.actions import Combine, Receive, Source, Transmit
from tradewind.node.engine.layout import Layout
from tradewind.node.events import BeginScatter
from tradewind.wire.frames import FrameHeader

Bytes = bytearray | memoryview
DIGEST_BLOCK_BYTES = 4096
MOST_DIGESTED_BYTES = 4 * 2**20


def same_memory(first: Array, second: Array) -> bool:
    """Whether two contiguous arrays of one type are the same items."""
    return first.ctypes.data == second.ctypes.data and first.size == second.size


class EarlyPayloads:
    """Arrays that are being sent before their rounds are known, by part of their step."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[BeginScatter, Array, int]] = {}

    def begin(self, scatter: BeginScatter, own: Array, operation: int) -> None:
        """A part of a step is being sent."""
        self._known[scatter.part] = scatter, own.reshape(-1).view(np.uint8), operation

    def end(self, operation: int) -> None:
        """It has ended, and nobody needs what is still to be sent of it."""
        for part in [part for part, known in list(self._known.items()) if known[2] == operation]:
            del self._known[part]

    def outgoing(self, header: FrameHeader) -> memoryview | None:
        """The bytes of a chunk; None where nobody needs it."""
        scatter, own, _ = self._known.get(header.shard, (None, None, 0))
        if scatter is None or own is None or scatter.step != header.round:
            return None
        start = header.index * scatter.chunk_items * scatter.item_bytes
        return memoryview(own.data)[start : start + header.payload_bytes]


class RoundPayload:
    """One round's arrays at one site; helpers have none."""

    def __init__(
        self, layout: Layout, arithmetic: Arithmetic, own: Array | None, result: Array | None, version: int = 0
    ) -> None:
        self.layout, self.arithmetic, self.version = layout, arithmetic, version
        """`version` is the plan's that the layout follows: frames of another one are cut differently."""
        self.storage = storage_of(arithmetic.dtype)
        self.own = None if own is None else own.reshape(-1).view(self.storage)
        self.result = None if result is None else result.reshape(-1).view(self.storage)
        if layout.overlaps and self.own is not None and self.result is not None and same_memory(self.own, self.result):
            self.own = self.own.copy()

    def chunk(self, array: Array | None, shard: int, index: int) -> Array:
        """A chunk's part of the own array or the result."""
        assert array is not None
        start, end = self.layout.shards[shard].span(index)
        return array[start:end]

    def result_of(self, action: Receive) -> Array:
        """Where a received chunk goes, for ADD and STORE."""
        return self.chunk(self.result, action.header.shard, action.header.index)

    def add(self, action: Receive, scratch: Array, receive: Callable[[memoryview], None]) -> None:
        """Add a chunk that is coming: `receive` fills what it is given of the scratch, which stays in the cache."""
        add, missing = self.adder_of(action, scratch), action.header.payload_bytes
        while missing > 0:
            block = scratch.data[:missing]
            receive(block)
            add(len(block))
            missing -= len(block)

    def adder_of(self, action: Receive, scratch: Array) -> Callable[[int], None]:
        """For a chunk that comes in blocks: to be called with the bytes of each when it is in the scratch."""
        out, start = self.result_of(action), 0
        own = self.chunk(self.own, action.header.shard, action.header.index) if action.own else None
        add = self.arithmetic.adder(own is not None, action.finish)
        first, items = out if own is None else own, scratch.view(self.storage)

        def add_block(nbytes: int) -> None:
            nonlocal start
            end = start + nbytes // items.itemsize
            add(first[start:end], items[: end - start], out=out[start:end])
            start = end

        return add_block

    def combine(self, action: Combine, buffers: Mapping[int, Bytes]) -> None:
        """Do what a `Combine` asks for."""
        parts = [self.items(buffers[number]) for number in action.parts]
        own = None
        if action.into is None:
            out = self.chunk(self.result, action.shard, action.index)
        else:
            out = self.items(buffers[action.into])
        if action.copy:
            out[...] = parts[0]
            return
        if action.own:
            own = self.chunk(self.own, action.shard, action.index)
        elif action.into is None or action.into not in action.parts:
            parts.insert(0, out)
        self.arithmetic.combine(out, own, parts, action.finish)

    def outgoing(self, action: Transmit) -> memoryview:
        """The bytes of a chunk of INPUT or RESULT that is sent."""
        shard, index = action.header.shard, action.header.index
        if action.source is Source.RESULT:
            return memoryview(self.chunk(self.result, shard, index).data).cast("B")
        own = self.chunk(self.own, shard, index)
        if self.arithmetic.weight != 1.0:
            weighted = np.empty_like(own)
            self.arithmetic.combine(weighted, own, [])
            own = weighted
        return memoryview(own.data).cast("B")

    def items(self, buffer: Bytes) -> np.ndarray[Any, Any]:
        """A buffer's bytes as items."""
        return np.frombuffer(buffer, dtype=self.storage)

    def digest(self, turn: int) -> int | None:
        """A number that differs if the result does; None at a helper.

        Sums of 4 KiB each, and a CRC of the sums: it is to find members that diverged, not forgers, and costs a tenth
        of a CRC of everything. Of a large result every n-th 4 KiB is looked at, others at each turn: reading all of it
        again would take a fifth of the time of a round on a fast network.
        """
        if self.result is None:
            return None
        raw = self.result.view(np.uint8)
        whole = len(raw) // DIGEST_BLOCK_BYTES * DIGEST_BLOCK_BYTES
        words = raw[:whole].view(np.uint64).reshape(-1, DIGEST_BLOCK_BYTES // 8)
        turns = max(1, whole // MOST_DIGESTED_BYTES)
        return zlib.crc32(raw[whole:].data, zlib.crc32(np.add.reduce(words[turn % turns :: turns], axis=1).data))
