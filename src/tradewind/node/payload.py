"""The payloads of a round: where each chunk lies, and the computations that actions ask for, on numpy views.

Drivers own the arrays and buffers; this module maps an action to parts of them. It does not need the engine's lock: the
engine gives a chunk to one action at a time.

**In place.** The result may share the memory of the input. A chunk of the input is read for the last time when it is
sent, or added to the first contribution, block by block; a chunk of the result is written by that addition, or when the
sum arrives, and no sum can arrive before every contribution to it was sent. Only plans whose shards overlap break that
rule, and get a copy. After a failure such an array holds neither the input nor the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tradewind.arithmetic import Arithmetic, Array, storage_of
from tradewind.errors import InternalError
from tradewind.native import Addition, addition
from tradewind.node.actions import Combine, Receive, Source, Transmit
from tradewind.node.engine.layout import Layout
from tradewind.node.events import BeginScatter
from tradewind.wire.frames import FrameHeader, digest_of

Bytes = bytearray | memoryview
Exchange = Callable[[tuple[int, int], Array], None]
"""(span of items, pushed items that are replaced by the shared ones)."""
DIGESTED_BYTES = 4 * 2**20


def same_memory(first: Array, second: Array) -> bool:
    """Whether two contiguous arrays of one type share the same memory."""
    return first.ctypes.data == second.ctypes.data and first.size == second.size


class EarlyPayloads:
    """The arrays that are being sent before their rounds are known, by part of their step."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[BeginScatter, Array, int]] = {}

    def begin(self, scatter: BeginScatter, own: Array, operation: int) -> None:
        """Add the array of a part that is being sent."""
        self._known[scatter.part] = scatter, own.reshape(-1).view(np.uint8), operation

    def end(self, operation: int) -> None:
        """Remove the array of an operation that has ended."""
        for part in [part for part, known in list(self._known.items()) if known[2] == operation]:
            del self._known[part]

    def outgoing(self, header: FrameHeader) -> memoryview | None:
        """Return the bytes of a chunk; None if it is not needed any more."""
        scatter, own, _ = self._known.get(header.shard, (None, None, 0))
        if scatter is None or own is None or scatter.step != header.round:
            return None
        start = header.index * scatter.chunk_items * scatter.item_bytes
        return memoryview(own.data)[start : start + header.payload_bytes]


class RoundPayload:
    """The arrays of one round at one site; helpers have none."""

    def __init__(
        self,
        layout: Layout,
        arithmetic: Arithmetic,
        own: Array | None,
        result: Array | None,
        version: int = 0,
        weights: Mapping[int, float] | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        """`weights`: of each member by number, where arrays are sent without them and aggregators apply them.

        `exchange`: at a server, applies a chunk of a rank to the shared array.
        """
        self.exchange = exchange
        self.digests_whole = True
        """Whether digests cover the whole result (`Start.whole_digest`)."""
        self.releases = False
        """Whether the caller gets the result before all members have it: then `digest` makes a copy, too."""
        self.copy_of_result: Array | None = None
        self.copies = False
        """Whether chunks of the own array are copied before they are sent: another round may overwrite it meanwhile."""
        self.layout, self.arithmetic, self.version = layout, arithmetic, version
        """`version`: of the plan of this layout; frames of other versions are cut differently."""
        self._weights = weights
        self.storage = storage_of(arithmetic.dtype)
        self.own = None if own is None else own.reshape(-1).view(self.storage)
        self.result = None if result is None else result.reshape(-1).view(self.storage)
        if layout.overlaps and self.own is not None and self.result is not None and same_memory(self.own, self.result):
            self.own = self.own.copy()

    def take(self, action: Receive, buffer: Bytes) -> None:  # noqa: ARG002 - for encoded rounds
        """Add or store an encoded chunk that was received into a buffer."""
        raise InternalError(f"round {action.header.round} is not encoded.")

    def used(self, buffer: Bytes) -> Bytes:
        """Return the part of a kept buffer that is sent: all of it, unless chunks have sizes of their own."""
        return buffer

    def own_chunk(self, shard: int, index: int) -> Array:
        """Return the part of the own array that a chunk covers."""
        assert self.own is not None
        work = self.layout.shards[shard]
        start, end = work.span(index)
        return self.own[work.own_first + start : work.own_first + end]

    def result_chunk(self, shard: int, index: int) -> Array:
        """Return the part of the result that a chunk covers."""
        assert self.result is not None
        work = self.layout.shards[shard]
        start, end = work.span(index)
        return self.result[work.result_first + start : work.result_first + end]

    def result_of(self, action: Receive) -> Array:
        """Return the part of the result that a received chunk goes to, for ADD and STORE."""
        return self.result_chunk(action.header.shard, action.header.index)

    def add(self, action: Receive, scratch: Array, receive: Callable[[memoryview, int], None]) -> None:
        """Add a chunk while it is received, in blocks of the scratch buffer, which stays in the cache.

        `receive` fills a block that begins at a byte of the chunk.
        """
        add, start = self.adder_of(action, scratch), 0
        while start < action.header.payload_bytes:
            block = scratch.data[: action.header.payload_bytes - start]
            receive(block, start)
            add(len(block))
            start += len(block)

    def adder_of(self, action: Receive, scratch: Array) -> Callable[[int], None]:
        """Return a function that adds the next block of a chunk, called with the number of bytes in the scratch."""
        out, start = self.result_of(action), 0
        own = self.own_chunk(action.header.shard, action.header.index) if action.own else None
        weight = 1.0 if self._weights is None else self._weights[_origin(action)]
        add = self.arithmetic.adder(own is not None, action.finish, weight)
        first, items = out if own is None else own, scratch.view(self.storage)

        def add_block(nbytes: int) -> None:
            nonlocal start
            end = start + nbytes // items.itemsize
            add(first[start:end], items[: end - start], out=out[start:end])
            start = end

        return add_block

    def addition(self, action: Receive) -> Addition | None:
        """Return how the kernels add a received chunk, as `adder_of` does; None if they cannot."""
        arithmetic = self.arithmetic
        if not arithmetic.adds or arithmetic.gathers:
            return None
        own = self.own_chunk(action.header.shard, action.header.index) if action.own else None
        out, weight = self.result_of(action), 1.0 if self._weights is None else self._weights[_origin(action)]
        scale = arithmetic.root_scale if action.finish else 1.0
        return addition(out if own is None else own, out, 1.0 if own is None else arithmetic.weight, weight, scale)

    def combine(self, action: Combine, buffers: Mapping[int, Bytes]) -> None:
        """Carry out a `Combine`."""
        parts = [self.items(buffers[number]) for number in action.parts]
        own = None
        if action.into is None:
            out = self.result_chunk(action.shard, action.index)
        else:
            out = self.items(buffers[action.into])
        if action.copy:
            out[...] = parts[0]
            return
        if self.exchange is not None:
            work = self.layout.shards[action.shard]
            start, end = work.span(action.index)
            self.exchange((work.first_item + start, work.first_item + end), out)
            return
        factors: list[float] = []
        if self._weights is not None:
            children = self.layout.shards[action.shard].children
            factors = [self._weights[child] for child in children[action.place : action.place + len(parts)]]
        if action.own:
            own = self.own_chunk(action.shard, action.index)
        elif action.into is None or action.into not in action.parts:
            parts.insert(0, out)
            factors = factors and [1.0, *factors]
        self.arithmetic.combine(out, own, parts, action.finish, factors)

    def outgoing(self, action: Transmit) -> memoryview:
        """Return the bytes of a chunk to send, for sources INPUT and RESULT."""
        shard, index = action.header.shard, action.header.index
        if action.source is Source.RESULT:
            return memoryview(self.result_chunk(shard, index).data).cast("B")
        own = self.own_chunk(shard, index)
        if self.arithmetic.weight != 1.0 and self._weights is None:
            weighted = np.empty_like(own)
            self.arithmetic.combine(weighted, own, [])
            own = weighted
        elif self.copies:
            own = own.copy()
        return memoryview(own.data).cast("B")

    def items(self, buffer: Bytes) -> np.ndarray[Any, Any]:
        """Return the bytes of a buffer as items."""
        return np.frombuffer(buffer, dtype=self.storage)

    def digest(self, turn: int) -> int | None:
        """Return a digest of the result, by which members compare what is in their memory; None at a helper.

        Bytes on the way are protected by the checksums of frames. Where rounds are so fast that reading everything
        would take a noticeable share of their time, one part is read at each `turn`, and all of it in turn.
        """
        if self.result is None:
            return None
        if self.releases:
            self.copy_of_result = self.result.copy()
        raw = self.result.view(np.uint8).data
        if self.digests_whole:
            return digest_of(raw)
        start = turn % max(1, -(-len(raw) // DIGESTED_BYTES)) * DIGESTED_BYTES
        return digest_of(raw[start : start + DIGESTED_BYTES])


def _origin(action: Receive) -> int:
    return action.header.path[0] if action.header.path else action.peer
