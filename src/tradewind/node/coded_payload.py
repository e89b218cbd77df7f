"""The payloads of an encoded round (`wire.codecs`): chunks are decoded to be added, and encoded to be sent.

Sums are made in float32, in the array of the result at members. What a site sends up is encoded once, as it is sent.
The root encodes a finished sum and stores what that decodes to, as every receiver does: members hold the same bits.
Every computation goes through a chunk in steps that stay in the cache. The encoded sum may overwrite a part of it,
since each step is decoded before it is encoded, at the same place.

**Error feedback.** Each member encodes every item once: as a leaf its own, as an aggregator the sum so far, as the root
the result. If it has a residual, that gets what this encoding lost, in units of the member's own input. So inputs,
results and residuals always add up: what was lost on the way is in the residual of the member that lost it.

**Sparse rounds** (`wire.codecs.TopK`). Of its own array, every member uses only what the codec keeps, also where it
adds contributions of others to it; the residual gets the rest. A sum has all items that some contribution has, and
encoding it loses little: that is added to the residual. Chunks have sizes of their own; buffers have the largest one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from tradewind.arithmetic import Arithmetic, Array, narrow, widen
from tradewind.native import Span, kernels
from tradewind.node.actions import Combine, How, Receive, Source, Transmit
from tradewind.node.engine.layout import Layout
from tradewind.node.payload import Bytes, RoundPayload
from tradewind.wire.codecs import STEP_ITEMS, Dense, Floats, Raw, TopK, generator_of, steps_of
from tradewind.wire.encoded_copy import EncodedCopy
from tradewind.wire.frames import digest_of
from tradewind.wire.sparse import Positions


def coded_payload(
    layout: Layout,
    arithmetic: Arithmetic,
    own: Array | None,
    result: Array | None,
    version: int,
    number: int,
    residual: Array | None = None,
) -> CodedPayload:
    """Return the arrays of an encoded round; arguments as of `CodedPayload`."""
    made = SparsePayload if isinstance(layout.codec, TopK) else DensePayload
    return made(layout, arithmetic, own, result, version, number, residual)


class CodedPayload(RoundPayload):
    """The arrays of one encoded round at one site; helpers have none."""

    def __init__(
        self,
        layout: Layout,
        arithmetic: Arithmetic,
        own: Array | None,
        result: Array | None,
        version: int,
        number: int,
        residual: Array | None = None,
    ) -> None:
        """`number`: of the round, from which the generators for stochastic rounding follow.

        `residual`: gets what encoding at this site loses; None: that is lost.
        """
        super().__init__(layout, arithmetic, own, result, version)
        self._number = number
        self._residual: Floats | None = None if residual is None else residual.reshape(-1)
        self.copy: EncodedCopy | None = None
        """Gets the encoded form of the result, if it is wanted."""

    def take(self, action: Receive, buffer: Bytes) -> None:
        """Add or store a chunk that was received into a buffer; a sum that it completes is encoded there."""
        shard, index = action.header.shard, action.header.index
        encoded, out = _raw(buffer), self.result_of(action)
        if action.how is How.STORE:
            self._fold((shard, index), None, [encoded], out)
            self._store_copy((shard, index), encoded)
            return
        own = self._own(shard, index) if action.own else out
        encodes = action.finish and self.layout.keeps_result(self.layout.shards[shard])
        self._fold((shard, index), own, [encoded], out, encoded if encodes else None, action.finish, action.own)
        if encodes:
            self._store_copy((shard, index), encoded)

    def combine(self, action: Combine, buffers: Mapping[int, Bytes]) -> None:
        """Carry out a `Combine`."""
        chunk, parts = (action.shard, action.index), [_raw(buffers[number]) for number in action.parts]
        own = self._own(*chunk) if action.own else None
        if action.into is not None:  # all parts of a sum at a site that does not hold the result
            self._fold(chunk, own, parts, None, _raw(buffers[action.into]), action.finish, action.own)
            return
        out = self.result_chunk(*chunk)
        encoded = None if action.encoded is None else _raw(buffers[action.encoded])
        self._fold(chunk, out if own is None else own, parts, out, encoded, action.finish, action.own)
        if encoded is not None and action.finish:
            self._store_copy(chunk, encoded)

    def outgoing(self, action: Transmit) -> memoryview:
        """Return the encoded bytes of a chunk to send, for sources INPUT and RESULT."""
        chunk, is_own = (action.header.shard, action.header.index), action.source is Source.INPUT
        encoded = np.empty(action.header.payload_bytes, np.uint8)
        values = self._own(*chunk) if is_own else self.result_chunk(*chunk)
        self._fold(chunk, values, [], None, encoded, is_own=is_own)
        return memoryview(encoded.data)

    def digest(self, turn: int) -> int | None:  # noqa: ARG002 - plain rounds compare one part in each turn
        """Return the digest of the whole result; None at a helper."""
        return None if self.result is None else digest_of(self.result.view(np.uint8).data)

    def _own(self, shard: int, index: int) -> Array:
        return self.own_chunk(shard, index)

    def _store_copy(self, chunk: tuple[int, int], encoded: Raw) -> None:
        if self.copy is not None:
            self.copy.store(*self._place(chunk), encoded)

    @abstractmethod
    def _fold(
        self,
        chunk: tuple[int, int],
        first: Array | None,
        parts: Sequence[Raw],
        out: Array | None,
        encoded: Raw | None = None,
        finish: bool = False,
        is_own: bool = False,
    ) -> None:
        """Add encoded parts to `first`, the own array (`is_own`) or a sum; store the sum in `out`, or encode it.

        Where both are given, `out` gets what the encoded sum decodes to.
        """

    def _place(self, chunk: tuple[int, int]) -> tuple[int, int]:
        """Return the first item and the end of a chunk in the own array."""
        work = self.layout.shards[chunk[0]]
        start, end = work.span(chunk[1])
        return work.own_first + start, work.own_first + end


class DensePayload(CodedPayload):
    """The arrays of a round by a codec that sends all items."""

    def _fold(
        self,
        chunk: tuple[int, int],
        first: Array | None,
        parts: Sequence[Raw],
        out: Array | None,
        encoded: Raw | None = None,
        finish: bool = False,
        is_own: bool = False,
    ) -> None:
        codec = self.layout.codec
        assert isinstance(codec, Dense)
        first_item, end_item = self._place(chunk)
        items, dtype = end_item - first_item, self.arithmetic.dtype
        random = None
        if encoded is not None and codec.stochastic:
            random = generator_of(self._number, self.version, *chunk, self.layout.site)
        weight = np.float32(self.arithmetic.weight if is_own else 1.0)
        scale = np.float32(self.arithmetic.root_scale if finish else 1.0)
        in_place = out is not None and dtype == "float32"
        native = kernels()
        if native is not None and dtype == "float32" and random is None:
            feedback = None
            if self._residual is not None and encoded is not None:
                feedback = self._residual[first_item:end_item], self.arithmetic.weight * float(scale) or np.inf
            span, factors = Span(0, items, items, codec.most_bytes(items)), (float(weight), float(scale))
            native.fold(codec.kind, span, first, parts, out, encoded, feedback, factors)
            return
        decoded, sums = (np.empty(min(items, STEP_ITEMS), np.float32) for _ in range(2))
        with np.errstate(all="ignore"):  # infinities and NaN are valid results
            for start, end in steps_of(items):
                total: Floats = out[start:end] if out is not None and in_place else sums[: end - start]
                value = None if first is None else widen(first[start:end], dtype)
                if value is not None and weight != 1:
                    value = np.multiply(value, weight, out=total)
                for part in parts:
                    came = total if value is None else decoded[: end - start]
                    codec.decode_step(part, came, start, items)
                    value = came if value is None else np.add(value, came, out=total)
                assert value is not None
                if scale != 1:
                    value = np.multiply(value, scale, out=total)
                if encoded is not None:
                    codec.encode_step(value, encoded, start, items, random)
                    if self._residual is not None:
                        came = decoded[: end - start]
                        codec.decode_step(encoded, came, start, items)
                        place = self._residual[first_item + start : first_item + end]
                        _store_lost(value, came, place, self.arithmetic.weight * float(scale))
                        np.copyto(total, came)
                    elif out is not None:
                        codec.decode_step(encoded, total, start, items)
                    value = total
                if out is not None and not in_place:
                    narrow(value, out[start:end], dtype)


class SparsePayload(CodedPayload):
    """The arrays of a round by a codec that sends the largest items."""

    def used(self, buffer: Bytes) -> Bytes:
        """Return the part of a buffer that the chunk in it takes."""
        return memoryview(buffer)[: TopK.length(_raw(buffer))]

    def outgoing(self, action: Transmit) -> memoryview:
        """Return the encoded bytes of a chunk to send, for sources INPUT and RESULT."""
        return memoryview(self.used(super().outgoing(action)))

    def _fold(
        self,
        chunk: tuple[int, int],
        first: Array | None,
        parts: Sequence[Raw],
        out: Array | None,
        encoded: Raw | None = None,
        finish: bool = False,
        is_own: bool = False,
    ) -> None:
        codec, dtype = self.layout.codec, self.arithmetic.dtype
        assert isinstance(codec, TopK)
        first_item, end_item = self._place(chunk)
        items = end_item - first_item
        lost = None if self._residual is None else self._residual[first_item:end_item]
        weight, scale = np.float32(self.arithmetic.weight), np.float32(self.arithmetic.root_scale if finish else 1.0)
        with np.errstate(all="ignore"):  # infinities and NaN are valid results
            value = None if first is None else widen(first, dtype)
            positions: Positions | slice = slice(0)
            kept = np.empty(0, np.float32)
            if is_own:
                assert value is not None
                value = value * weight if weight != 1 else value
                picked = encoded if encoded is not None and not parts and out is None else self._scratch(items)
                codec.encode(value, picked)
                positions, kept = codec.entries(picked, items)
                if lost is not None:
                    _store_lost(value, _spread(positions, kept, items), lost, float(weight))
                if picked is encoded:
                    return
                value = None
            total: Floats = out if out is not None and dtype == "float32" else np.empty(items, np.float32)
            if value is None:
                total[:] = 0
            elif value is not total:
                total[:] = value
            total[positions] += kept
            for part in parts:
                at, values = codec.entries(part, items)
                total[at] += values
            if scale != 1:
                total *= scale
            if encoded is not None:
                codec.encode_sum(total, encoded)
                at, values = codec.entries(encoded, items)
                if lost is not None:
                    _add_lost(total[at] - values, lost, at, float(weight * scale))
                total[at] = values
            if out is not None and total is not out:
                narrow(total, out, dtype)

    def _scratch(self, items: int) -> Raw:
        assert isinstance(self.layout.codec, TopK)
        return np.empty(self.layout.codec.most_bytes(items), np.uint8)


def _spread(positions: Positions | slice, values: Floats, items: int) -> Floats:
    whole = np.zeros(items, np.float32)
    whole[positions] = values
    return whole


def _store_lost(value: Floats, decoded: Floats, residual: Floats, factor: float) -> None:
    """Store what encoding has lost of a value that is `factor` times the input; nothing where it is not finite."""
    np.subtract(value, decoded, out=residual)
    residual /= np.float32(factor or np.inf)
    if not np.isfinite(residual.max() - residual.min()):
        residual[~np.isfinite(residual)] = 0.0


def _add_lost(lost: Floats, residual: Floats, positions: Positions | slice, factor: float) -> None:
    """Add what encoding has lost of a sum that is `factor` times the input; nothing where it is not finite."""
    lost = lost / np.float32(factor or np.inf)
    residual[positions] += np.where(np.isfinite(lost), lost, 0)


def _raw(buffer: Bytes) -> Raw:
    return np.frombuffer(buffer, np.uint8)
