"""The payloads of an encoded round (`wire.codecs`): chunks are decoded to be added, and encoded to be sent.

Sums are made in float32, in the array of the result at members. What a site sends up is encoded once, as it is sent.
The root encodes a finished sum and stores what that decodes to, as every receiver does: members hold the same bits.
Every computation goes through a chunk in steps that stay in the cache. The encoded sum may overwrite a part of it,
since each step is decoded before it is encoded, at the same place.

**Error feedback.** Each member encodes every item once: as a leaf its own, as an aggregator the sum so far, as the root
the result. If it has a residual, that gets what this encoding lost, in units of the member's own input. So inputs,
results and residuals always add up: what was lost on the way is in the residual of the member that lost it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tradewind.arithmetic import Arithmetic, Array, narrow, widen
from tradewind.node.actions import Combine, How, Receive, Source, Transmit
from tradewind.node.engine.layout import Layout
from tradewind.node.payload import Bytes, RoundPayload
from tradewind.wire.codecs import STEP_ITEMS, Floats, Raw, generator_of, steps_of
from tradewind.wire.frames import digest_of


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
        assert layout.codec is not None
        self._codec, self._number = layout.codec, number
        self._residual: Floats | None = None if residual is None else residual.reshape(-1)

    def take(self, action: Receive, buffer: Bytes) -> None:
        """Add or store a chunk that was received into a buffer; a sum that it completes is encoded there."""
        shard, index = action.header.shard, action.header.index
        encoded, out = _raw(buffer), self.result_of(action)
        if action.how is How.STORE:
            self._fold((shard, index), None, [encoded], out)
            return
        own = self._own(shard, index) if action.own else out
        encodes = action.finish and self.layout.keeps_result(self.layout.shards[shard])
        self._fold((shard, index), own, [encoded], out, encoded if encodes else None, action.finish, action.own)

    def combine(self, action: Combine, buffers: Mapping[int, Bytes]) -> None:
        """Carry out a `Combine`."""
        chunk, parts = (action.shard, action.index), [_raw(buffers[number]) for number in action.parts]
        own = self._own(*chunk) if action.own else None
        if action.into is not None:  # all parts of a sum at a site that does not hold the result
            self._fold(chunk, own, parts, None, _raw(buffers[action.into]), action.finish, action.own)
            return
        out = self.result_chunk(*chunk)
        encoded = parts[0] if action.encodes else None
        self._fold(chunk, out if own is None else own, parts, out, encoded, action.finish, action.own)

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
        work = self.layout.shards[chunk[0]]
        first_item, end_item = (work.own_first + place for place in work.span(chunk[1]))
        items, dtype = end_item - first_item, self.arithmetic.dtype
        random = None
        if encoded is not None and self._codec.stochastic:
            random = generator_of(self._number, self.version, *chunk, self.layout.site)
        weight = np.float32(self.arithmetic.weight if is_own else 1.0)
        scale = np.float32(self.arithmetic.root_scale if finish else 1.0)
        in_place = out is not None and dtype == "float32"
        decoded, sums = (np.empty(min(items, STEP_ITEMS), np.float32) for _ in range(2))
        with np.errstate(all="ignore"):  # infinities and NaN are valid results
            for start, end in steps_of(items):
                total: Floats = out[start:end] if out is not None and in_place else sums[: end - start]
                value = None if first is None else widen(first[start:end], dtype)
                if value is not None and weight != 1:
                    value = np.multiply(value, weight, out=total)
                for part in parts:
                    came = total if value is None else decoded[: end - start]
                    self._codec.decode_step(part, came, start, items)
                    value = came if value is None else np.add(value, came, out=total)
                assert value is not None
                if scale != 1:
                    value = np.multiply(value, scale, out=total)
                if encoded is not None:
                    self._codec.encode_step(value, encoded, start, items, random)
                    if self._residual is not None:
                        came = decoded[: end - start]
                        self._codec.decode_step(encoded, came, start, items)
                        place = self._residual[first_item + start : first_item + end]
                        _store_lost(value, came, place, self.arithmetic.weight * float(scale))
                    if out is None:
                        continue
                    self._codec.decode_step(encoded, total, start, items)
                    value = total
                if out is not None and not in_place:
                    narrow(value, out[start:end], dtype)


def _store_lost(value: Floats, decoded: Floats, residual: Floats, factor: float) -> None:
    """Store what encoding has lost of a value that is `factor` times the input; nothing where it is not finite."""
    np.subtract(value, decoded, out=residual)
    residual /= np.float32(factor or np.inf)
    if not np.isfinite(residual.max() - residual.min()):
        residual[~np.isfinite(residual)] = 0.0


def _raw(buffer: Bytes) -> Raw:
    return np.frombuffer(buffer, np.uint8)
