"""Codecs: how a chunk of floats travels in fewer bytes than float32 needs.

**Dense codecs** send every item. An encoded chunk is a scale for each block of `BLOCK_ITEMS` items (float32, for codecs
that have scales), followed by the codes of all items in order. Its size follows from the number of items alone, so that
every site, the planner and the simulator compute the same.

    name    bytes an item    code
    bf16    2                the upper half of a float32, rounded
    fp16    2 + 4/256        IEEE half precision of item / scale; the scale is a power of two, so that nothing overflows
    int8    1 + 4/256        whole number in [-127, 127]; scale = largest magnitude of the block / 127
    fp8     1 + 4/256        e4m3 of item / scale; scale = largest magnitude / 448
    int4    1/2 + 4/256      whole number k in [-7, 7], two in a byte, for k (|k| + 4); scale = largest magnitude / 77
    int4-32 1/2 + 2/32       the same with a scale for each 32 items, a bfloat16 that is rounded up

**`topk`** sends the 64 largest magnitudes of each `SPARSE_BLOCK_ITEMS` items, and zero for the others (`topk-32`,
`topk-128` and `topk-256` keep as many). A chunk begins with its form, the number of its items and its size in bytes:

    picked    positions; two magnitudes for each block; for each item its sign and which of the two: 2 bits
    sum       positions; values as int8, with a scale for each 256
    dense     all items as int8

A rank sends its own array as `picked`. A sum of several has all items that any of them has kept, so it grows from hop
to hop, and is sent as `sum`, or `dense` where that is smaller. Its values have 8 bits, since the error of a sum is not
fed back to the ranks that it came from. The size of a chunk is known only when it is made; what it may have at most
follows from the number of items and of contributions, and what to expect, from positions that are independent.

**Not finite.** A NaN or infinity arrives as what it was sent as, at its place: in a block that has one, the sign bit of
the scale is set, three codes mean NaN, +inf and -inf, and finite items use fewer codes. In `topk` they count as the
largest magnitudes, and the own array of a rank that has some is sent as `sum`; of more than 64 in a block, 64 arrive.

**Rounding** is to the nearest code, ties to even. With the suffix `-stochastic` (`int8-stochastic`; dense codecs but
`int4-32`) it is up or down at random, with probabilities for which the expected value is the item itself; the generator
is an argument.

**Error.** `Codec.error_bound` says how far a decoded item may be from what was encoded.

Decoding multiplies a code by its scale, one float32 operation, so all receivers of the same bytes get the same bits.
The kernels (`tradewind.native`) give the same bits; numpy works in steps of `STEP_ITEMS`, which stay in the cache.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tradewind.errors import BadFrame, UnknownName
from tradewind.native import Kernels, Span, kernels
from tradewind.wire.sparse import (
    Positions,
    count_of,
    largest,
    pack_positions,
    positions_bytes,
    two_levels,
    unpack_positions,
)

Floats = npt.NDArray[np.float32]
Raw = npt.NDArray[np.uint8]

BLOCK_ITEMS = 256
"""Items that share a scale."""
STEP_ITEMS = 64 * 1024
"""Items that are encoded or decoded at a time."""
SPARSE_BLOCK_ITEMS = 4096
"""Items of which `topk` keeps the largest."""
MOST_SPARSE_ITEMS = 2**20
"""Most items of a sparse chunk: sums are made of whole chunks in float32."""
_RANDOM_S = 1.8e-9
"""Processor time in s to round an item at random, which is left to numpy."""
NONE, AUTO = "none", "auto"
STOCHASTIC = "-stochastic"
_SMALLEST_SCALE = np.float32(2.0**-126)
"""Smaller ones have no finite reciprocal: of a block of such tiny items, less remains."""
_LARGEST = float(np.finfo(np.float32).max) * (1.0 - 2.0**-22)
"""Largest magnitude that scales are made for, so that the largest code times its scale does not overflow."""


@dataclass(frozen=True)
class Codec:
    """One way to encode chunks of float32. Instances come from `codec_of`."""

    stochastic: bool = False
    """Whether items are rounded up or down at random, instead of to the nearest code."""

    kind: ClassVar[str]
    """Its name, without the way of rounding and other parameters."""
    nearest_s: ClassVar[float]
    """Processor time in s to encode and to decode an item: kernels with AVX2, one core of 2.6 GHz; numpy: 1 to 3 ns."""
    block_items: ClassVar[int] = BLOCK_ITEMS
    """Chunks are cut between blocks of so many items."""
    varies: ClassVar[bool] = False
    """Whether the size of a chunk is known only when it is encoded."""

    @property
    def item_s(self) -> float:
        """Processor time in s to encode and to decode an item."""
        return self.nearest_s + _RANDOM_S * self.stochastic

    @property
    def exact(self) -> float:
        """A magnitude that is encoded without loss, as is any small multiple, in blocks where all items have it."""
        return 1.0

    @property
    def exact_stride(self) -> int:
        """How many items apart such items must be, with zeros between them."""
        return 1

    @property
    def name(self) -> str:
        """The name by which `codec_of` returns it."""
        return self.kind + STOCHASTIC * self.stochastic

    @abstractmethod
    def most_bytes(self, items: int, contributions: int = 1) -> int:
        """Return the size of an encoded chunk of so many items, or the most that it may have.

        `contributions`: how many arrays it is the sum of.
        """

    def expected_bytes(self, items: int, contributions: int = 1) -> int:
        """Return the size that an encoded chunk of so many items is expected to have."""
        return self.most_bytes(items, contributions)

    @abstractmethod
    def error_bound(self, values: Floats) -> Floats:
        """Return for each finite item how far its decoded value may be from it at most."""

    @abstractmethod
    def encode(self, values: Floats, out: Raw, random: np.random.Generator | None = None) -> None:
        """Encode a chunk into `out`, which has `most_bytes` bytes; `random` is for stochastic rounding."""

    @abstractmethod
    def decode(self, encoded: Raw, out: Floats) -> None:
        """Decode a whole chunk into `out`, which has as many items as were encoded."""


@dataclass(frozen=True)
class Dense(Codec):
    """Codecs that send every item, in steps."""

    def encode(self, values: Floats, out: Raw, random: np.random.Generator | None = None) -> None:
        """Encode a chunk into `out`, which has `most_bytes` bytes; `random` is for stochastic rounding."""
        for start, end in steps_of(len(values), self.kernels(values, out) is not None):
            self.encode_step(values[start:end], out, start, len(values), random)

    def decode(self, encoded: Raw, out: Floats) -> None:
        """Decode a whole chunk into `out`, which has as many items as were encoded."""
        for start, end in steps_of(len(out), self.kernels(out, encoded, rounds=False) is not None):
            self.decode_step(encoded, out[start:end], start, len(out))

    def kernels(self, values: Floats, encoded: Raw, rounds: bool = True) -> Kernels | None:
        """Return the kernels if they can encode these items, or decode them if not `rounds`; None: numpy does it."""
        fits = values.dtype == np.float32 and values.flags.c_contiguous and encoded.flags.c_contiguous
        return kernels() if fits and not (rounds and self.stochastic) else None

    @abstractmethod
    def code_bytes(self, items: int) -> int:
        """Return the size of the codes of so many items, which follow the scales."""

    def encode_step(
        self, values: Floats, out: Raw, start: int, items: int, random: np.random.Generator | None = None
    ) -> None:
        """Encode a step of a chunk of `items` items, from item `start` on, into its place in `out`."""
        if self.stochastic and random is None:
            raise ValueError(f"codec {self.name} rounds at random and needs a generator.")
        if (native := self.kernels(values, out)) is not None:
            native.fold(self.kind, Span(start, len(values), items, self.most_bytes(items)), values, encoded=out)
            return
        with np.errstate(all="ignore"):  # infinities and NaN are valid items
            self._encode_step(values, out, start, items, random if self.stochastic else None)

    def decode_step(self, encoded: Raw, out: Floats, start: int, items: int) -> None:
        """Decode a step of a chunk of `items` items, from item `start` on."""
        if (native := self.kernels(out, encoded, rounds=False)) is not None:
            native.fold(self.kind, Span(start, len(out), items, self.most_bytes(items)), None, [encoded], out)
            return
        with np.errstate(all="ignore"):
            self._decode_step(encoded, out, start, items)

    @abstractmethod
    def _encode_step(
        self, values: Floats, out: Raw, start: int, items: int, random: np.random.Generator | None
    ) -> None: ...

    @abstractmethod
    def _decode_step(self, encoded: Raw, out: Floats, start: int, items: int) -> None: ...


def steps_of(items: int, at_once: bool = False) -> Iterator[tuple[int, int]]:
    """Yield the first item and the end of each step of a chunk, or of the whole chunk."""
    step = max(1, items) if at_once else STEP_ITEMS
    for start in range(0, items, step):
        yield start, min(start + step, items)


def _rows(array: npt.NDArray[Any], block: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield a step as rows of a block each, with the number of its first block; the rest of the last block is a row."""
    blocks = len(array) // block
    if blocks:
        yield 0, array[: blocks * block].reshape(blocks, block)
    if len(array) % block:
        yield blocks, array[blocks * block :].reshape(1, -1)


def _largest_magnitudes(rows: Floats, scratch: Floats) -> Floats:
    """Return the largest magnitude of each row, NaN where one is; `scratch` has the form of `rows`.

    Magnitudes are compared as whole numbers, in the order of which floats are: numpy does that in two thirds of the
    time.
    """
    bits = np.bitwise_and(rows.view(np.uint32), np.uint32(0x7FFFFFFF), out=scratch.view(np.uint32))
    largest_bits: npt.NDArray[np.uint32] = bits.max(axis=1)
    return largest_bits.view(np.float32)


def _blocks(items: int, block: int = BLOCK_ITEMS) -> int:
    return -(-items // block)


def _round_bits(bits: npt.NDArray[np.uint32], dropped: int, random: np.random.Generator | None) -> None:
    """Round bit patterns in place so that the lowest `dropped` bits can be cut off."""
    if random is not None:
        bits += random.integers(0, 1 << dropped, bits.shape, dtype=np.uint32)
        return
    odd = bits >> np.uint32(dropped)
    odd &= np.uint32(1)
    bits += odd
    bits += np.uint32((1 << (dropped - 1)) - 1)


@dataclass(frozen=True)
class Bf16(Dense):
    """The upper half of each float32: the same range with 8 significant bits. It has no scales."""

    kind: ClassVar[str] = "bf16"
    nearest_s: ClassVar[float] = 0.2e-9

    def most_bytes(self, items: int, contributions: int = 1) -> int:  # noqa: ARG002 - sums have the same size
        """Return the size of an encoded chunk."""
        return 2 * items

    def code_bytes(self, items: int) -> int:
        """Return the size of the codes of so many items."""
        return 2 * items

    def error_bound(self, values: Floats) -> Floats:
        """Return for each finite item how far its decoded value may be from it at most.

        Items beyond the largest bfloat16, about 3.39e38, become infinite.
        """
        share = np.float32(2.0**-7 if self.stochastic else 2.0**-8)
        bound: Floats = np.maximum(np.abs(values), _SMALLEST_SCALE) * share
        return bound

    def _encode_step(
        self,
        values: Floats,
        out: Raw,
        start: int,
        items: int,  # noqa: ARG002 - there are no scales
        random: np.random.Generator | None,
    ) -> None:
        codes = out[2 * start : 2 * (start + len(values))].view(np.uint16)
        bits = values.view(np.uint32).copy()
        _round_bits(bits, 16, random)
        bits >>= np.uint32(16)
        codes[:] = bits
        if np.isnan(values.max()):  # rounding must not turn NaN into infinity
            nan = np.isnan(values)
            codes[nan] = (values.view(np.uint32)[nan] >> np.uint32(16)) | np.uint32(0x40)

    def _decode_step(self, encoded: Raw, out: Floats, start: int, items: int) -> None:  # noqa: ARG002
        bits = out.view(np.uint32)
        bits[:] = encoded[2 * start : 2 * (start + len(out))].view(np.uint16)
        bits <<= np.uint32(16)


@dataclass(frozen=True)
class Scaled(Dense):
    """Codecs with a scale for each block."""

    code: ClassVar[type[np.generic]]
    """The type of a code before it is packed."""
    limit: ClassVar[float]
    """The largest magnitude of a finite code."""
    stochastic_limit: ClassVar[float]
    """The same where rounding up must stay below it."""
    marked_limit: ClassVar[float]
    """How much smaller the limit is in blocks that use `marks`."""
    marks: ClassVar[tuple[float, float, float]]
    """Codes for NaN, +inf and -inf, in blocks whose scale has its sign bit set."""
    step: ClassVar[float]
    """Largest distance of two neighbouring codes."""
    scale_items: ClassVar[int] = BLOCK_ITEMS
    """Items that share a scale."""
    scale_error: ClassVar[float] = 2.0**-18
    """How much larger than needed a scale may be, as a share of it."""
    scale_code: ClassVar[type[np.generic]] = np.float32
    """The type that scales are sent in."""

    def most_bytes(self, items: int, contributions: int = 1) -> int:  # noqa: ARG002 - sums have the same size
        """Return the size of an encoded chunk."""
        return self._scale_bytes(items) + self.code_bytes(items)

    def _scale_bytes(self, items: int) -> int:
        return np.dtype(self.scale_code).itemsize * _blocks(items, self.scale_items)

    def error_bound(self, values: Floats) -> Floats:
        """Return for each finite item how far its decoded value may be from it at most."""
        bound = np.empty_like(values)
        for first, rows in _rows(values, self.scale_items):
            top = np.abs(np.where(np.isfinite(rows), rows, 0)).max(axis=1)
            scale = np.maximum(top / np.float32(self._limits(True)), _SMALLEST_SCALE)
            at = slice(first * self.scale_items, first * self.scale_items + rows.size)
            share = self.step * (1.0 if self.stochastic else 0.5) * (1.0 + self.scale_error)
            bound[at] = np.repeat(scale * np.float32(share), rows.shape[1])
        return bound

    @property
    def exact(self) -> float:
        """A magnitude that is encoded without loss, as is any small multiple, in blocks where all items have it."""
        return self._limits(False)

    def _limits(self, marked: bool) -> float:
        limit = self.stochastic_limit if self.stochastic else self.limit
        return limit - self.marked_limit if marked else limit

    def _scales(self, top: Floats, limit: Floats | np.float32) -> Floats:
        """Return the scale of each block with this largest magnitude."""
        scales: Floats = np.maximum(np.minimum(top, np.float32(_LARGEST)) / limit, _SMALLEST_SCALE)
        return scales

    def _packed_scales(self, scales: Floats) -> npt.NDArray[Any]:
        """Return scales as they are sent."""
        return scales

    def _unpacked_scales(self, packed: npt.NDArray[Any]) -> Floats:
        """Return scales from what was sent."""
        return packed

    @abstractmethod
    def _quantise(self, scaled: Floats, codes: npt.NDArray[Any], random: np.random.Generator | None) -> None:
        """Round scaled items, which may be overwritten, to codes."""

    def _codes(self, out: Raw, items: int) -> npt.NDArray[Any]:
        """Return the array that codes are made in: their place in `out`, unless they are packed."""
        return out.view(self.code)[:items]

    def _pack(self, codes: npt.NDArray[Any], out: Raw) -> None:
        """Pack codes into their place, where they are not made there."""

    @abstractmethod
    def _unpack(self, packed: Raw, out: Floats) -> None:
        """Convert codes to floats."""

    def _encode_step(
        self, values: Floats, out: Raw, start: int, items: int, random: np.random.Generator | None
    ) -> None:
        per, end = self.scale_items, self._scale_bytes(items)
        scales = out[:end].view(self.scale_code)[start // per :]
        place = out[end + self.code_bytes(start) : end + self.code_bytes(start + len(values))]
        codes = self._codes(place, len(values))
        scratch, limit = np.empty_like(values), np.float32(self._limits(False))
        rows_of = (_rows(array, per) for array in (values, scratch, codes))
        for (block, rows), (_, scaled), (_, of) in zip(*rows_of, strict=True):
            top = _largest_magnitudes(rows, scaled)
            limits: Floats | np.float32 = limit
            is_marked = not math.isfinite(top.max())  # one look at all blocks: calls on small arrays add up
            if is_marked:
                marked = ~np.isfinite(top)
                rows = np.where(np.isfinite(rows), rows, np.float32(0))
                top = _largest_magnitudes(rows, scaled)
                limits = np.where(marked, np.float32(self._limits(True)), limit)
            scale = self._scales(top, limits)
            if random is None:
                np.multiply(rows, (np.float32(1) / scale)[:, None], out=scaled)
            else:  # exact where an item is a multiple of the scale
                np.divide(rows, scale[:, None], out=scaled)
            self._quantise(scaled, of, random)
            if is_marked:
                source = values[block * per :][: rows.size].reshape(rows.shape)
                of[np.isnan(source)], of[source == np.inf], of[source == -np.inf] = self.marks
                scale = np.where(marked, -scale, scale)
            scales[block : block + len(scale)] = self._packed_scales(scale)
        self._pack(codes, place)

    def _decode_step(self, encoded: Raw, out: Floats, start: int, items: int) -> None:
        per, end = self.scale_items, self._scale_bytes(items)
        packed = encoded[:end].view(self.scale_code)[start // per :][: _blocks(len(out), per)]
        scales = self._unpacked_scales(packed)
        place = encoded[end + self.code_bytes(start) : end + self.code_bytes(start + len(out))]
        self._unpack(place, out)
        is_marked = scales.min() < 0
        for block, rows in _rows(out, per):
            of = scales[block : block + len(rows)]
            if not is_marked:
                rows *= of[:, None]
                continue
            signs = np.signbit(of)[:, None]
            found = [signs & (np.isnan(rows) if math.isnan(mark) else rows == mark) for mark in self._decoded_marks()]
            rows *= np.abs(of)[:, None]
            for where, value in zip(found, (np.nan, np.inf, -np.inf), strict=True):
                rows[where] = value

    def _decoded_marks(self) -> tuple[float, float, float]:
        """Return what `_unpack` makes of `marks`."""
        return self.marks


_LARGEST_HALF = np.float32(2.0**15 - 2.0**4)
"""The largest number of half precision below the limit of `Fp16`: times its scale, the next one may overflow."""


@dataclass(frozen=True)
class Fp16(Scaled):
    """Half precision of items that are divided by a power of two."""

    kind: ClassVar[str] = "fp16"
    nearest_s: ClassVar[float] = 0.7e-9
    code: ClassVar[type[np.generic]] = np.float16
    limit: ClassVar[float] = 2.0**15
    stochastic_limit: ClassVar[float] = 2.0**15
    marked_limit: ClassVar[float] = 0.0
    marks: ClassVar[tuple[float, float, float]] = (math.nan, math.inf, -math.inf)
    step: ClassVar[float] = 2.0**5
    """Of the largest items: 11 significant bits, and the scale may be twice as large as the largest item needs."""

    def code_bytes(self, items: int) -> int:
        """Return the size of the codes of so many items."""
        return 2 * items

    def _scales(self, top: Floats, limit: Floats | np.float32) -> Floats:
        exponent = np.frexp(top)[1] - int(math.log2(float(np.max(limit))))
        scales: Floats = np.ldexp(np.float32(1), np.maximum(exponent, -126))
        return scales

    def _quantise(self, scaled: Floats, codes: npt.NDArray[Any], random: np.random.Generator | None) -> None:
        if random is not None:
            bits = scaled.view(np.uint32)
            _round_bits(bits, 13, random)
            bits &= np.uint32(0xFFFFE000)
        codes[:] = np.clip(scaled, -_LARGEST_HALF, _LARGEST_HALF, out=scaled)

    def _unpack(self, packed: Raw, out: Floats) -> None:
        out[:] = packed.view(np.float16)


@dataclass(frozen=True)
class Int8(Scaled):
    """Whole numbers of a byte."""

    kind: ClassVar[str] = "int8"
    nearest_s: ClassVar[float] = 0.25e-9
    code: ClassVar[type[np.generic]] = np.int8
    limit: ClassVar[float] = 127.0
    stochastic_limit: ClassVar[float] = 126.0
    marked_limit: ClassVar[float] = 1.0
    marks: ClassVar[tuple[float, float, float]] = (-128.0, 127.0, -127.0)
    step: ClassVar[float] = 1.0

    def code_bytes(self, items: int) -> int:
        """Return the size of the codes of so many items."""
        return items

    def _quantise(self, scaled: Floats, codes: npt.NDArray[Any], random: np.random.Generator | None) -> None:
        if random is None:
            np.rint(scaled, out=scaled)
        else:  # 16 bits, so that a whole number plus less than 1 is never rounded to the next one
            drawn = random.integers(0, 1 << 16, scaled.shape, dtype=np.uint16).astype(np.float32)
            drawn *= np.float32(2.0**-16)
            scaled += drawn
            np.floor(scaled, out=scaled)
        np.copyto(codes, scaled, casting="unsafe")

    def _unpack(self, packed: Raw, out: Floats) -> None:
        out[:] = packed.view(np.int8)


@dataclass(frozen=True)
class Int4(Int8):
    """Whole numbers of half a byte; the first of two is in the lower half.

    A code k means k (|k| + 4) times the scale: neighbours are 5 apart at zero and 17 at the ends. Most items of a block
    are far smaller than its largest, and equal steps round them to nothing for many training steps. With (|k| + 2)^2 -
    4 as the magnitude, the nearest code is a root, the middle of two being (|k| + 2.5)^2 - 3.75.
    """

    kind: ClassVar[str] = "int4"
    nearest_s: ClassVar[float] = 0.37e-9
    limit: ClassVar[float] = 77.0
    stochastic_limit: ClassVar[float] = 60.0
    marked_limit: ClassVar[float] = 17.0
    marks: ClassVar[tuple[float, float, float]] = (-8.0, 7.0, -7.0)
    step: ClassVar[float] = 17.0

    def _limits(self, marked: bool) -> float:
        if marked and self.stochastic:
            return 45.0  # of a code: what lies between two codes is rounded up to one that can be too large to decode
        return super()._limits(marked)

    def code_bytes(self, items: int) -> int:
        """Return the size of the codes of so many items."""
        return (items + 1) // 2

    def _quantise(self, scaled: Floats, codes: npt.NDArray[Any], random: np.random.Generator | None) -> None:
        magnitudes = np.abs(scaled)
        if random is None:
            number = np.rint(np.sqrt(magnitudes + np.float32(3.75)) - np.float32(2))
        else:
            number = np.floor(np.sqrt(magnitudes + np.float32(4)) - np.float32(2))
            above = (magnitudes - number * (number + 4)) / (2 * number + 5)
            drawn = random.integers(0, 1 << 16, scaled.shape, dtype=np.uint16).astype(np.float32)
            number = np.floor(number + above + drawn * np.float32(2.0**-16))
        np.copyto(codes, np.copysign(number, scaled), casting="unsafe")

    def _codes(self, out: Raw, items: int) -> npt.NDArray[Any]:
        return np.zeros(2 * len(out), np.int8)[:items]

    def _pack(self, codes: npt.NDArray[Any], out: Raw) -> None:
        assert codes.base is not None  # twice as many as bytes in `out`, see `_codes`
        pairs = codes.base.view(np.uint16)
        pairs &= np.uint16(0x0F0F)
        np.copyto(out, pairs | (pairs >> np.uint16(4)), casting="unsafe")  # of each pair, the lower byte

    def _unpack(self, packed: Raw, out: Floats) -> None:
        pairs = len(out) // 2
        np.take(_nibbles(), packed[:pairs], out=out[: 2 * pairs].view(np.float64), mode="clip")
        if len(out) % 2:
            out[-1] = _nibbles()[packed[-1:]].view(np.float32)[0]

    def _decoded_marks(self) -> tuple[float, float, float]:
        return -96.0, 77.0, -77.0


_ABOVE_BF16 = np.uint32(0xFFFF)
_LARGEST_FINE = np.float32(float(np.finfo(np.float32).max) * (1.0 - 2.0**-7))
"""Largest magnitude that scales of `Int4Fine` are made for, so that 77 of them are finite after rounding up."""


@dataclass(frozen=True)
class Int4Fine(Int4):
    """Whole numbers of half a byte, with scales of two bytes that fewer items share.

    The largest of 32 items is smaller than that of 256, so steps are finer, whatever the tensors (decision 29).
    """

    kind: ClassVar[str] = "int4-32"
    nearest_s: ClassVar[float] = 0.8e-9
    scale_items: ClassVar[int] = 32
    scale_code: ClassVar[type[np.generic]] = np.uint16
    scale_error: ClassVar[float] = 2.0**-6

    def _scales(self, top: Floats, limit: Floats | np.float32) -> Floats:
        bits = super()._scales(np.minimum(top, _LARGEST_FINE), limit).view(np.uint32) + _ABOVE_BF16
        scales: Floats = (bits & ~_ABOVE_BF16).view(np.float32)
        return scales

    def _packed_scales(self, scales: Floats) -> npt.NDArray[Any]:
        return scales.view(np.uint32) >> np.uint32(16)

    def _unpacked_scales(self, packed: npt.NDArray[Any]) -> Floats:
        scales: Floats = (packed.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return scales


@dataclass(frozen=True)
class Fp8(Scaled):
    """Floats of a byte with 4 bits of exponent and 3 of mantissa (e4m3, without infinities)."""

    kind: ClassVar[str] = "fp8"
    nearest_s: ClassVar[float] = 0.45e-9
    code: ClassVar[type[np.generic]] = np.uint8
    limit: ClassVar[float] = 448.0
    stochastic_limit: ClassVar[float] = 416.0
    marked_limit: ClassVar[float] = 192.0
    marks: ClassVar[tuple[float, float, float]] = (0x7F, 0x7E, 0xFE)
    step: ClassVar[float] = 32.0

    def code_bytes(self, items: int) -> int:
        """Return the size of the codes of so many items."""
        return items

    def _quantise(self, scaled: Floats, codes: npt.NDArray[Any], random: np.random.Generator | None) -> None:
        scaled *= np.float32(2.0**-120)  # the exponents of e4m3 become those of float32, its subnormals too
        bits = scaled.view(np.uint32)
        sign = (bits >> np.uint32(24)) & np.uint32(0x80)
        bits &= np.uint32(0x7FFFFFFF)
        _round_bits(bits, 20, random)
        bits >>= np.uint32(20)
        bits |= sign
        np.copyto(codes, bits, casting="unsafe")

    def _unpack(self, packed: Raw, out: Floats) -> None:
        np.take(_e4m3(), packed, out=out, mode="clip")

    def _decoded_marks(self) -> tuple[float, float, float]:
        return math.nan, 448.0, -448.0


_SPARSE_HEADER = np.dtype([("form", "<u4"), ("count", "<u4"), ("nbytes", "<u4")])
_PICKED, _SUM, _DENSE = range(3)
_LEVELS_BYTES = 8


@dataclass(frozen=True)
class TopK(Codec):
    """The largest magnitudes of each block of `SPARSE_BLOCK_ITEMS` items."""

    kept: int = 64
    """How many of a block."""

    kind: ClassVar[str] = "topk"
    nearest_s: ClassVar[float] = 2.9e-9
    block_items: ClassVar[int] = SPARSE_BLOCK_ITEMS
    varies: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The name by which `codec_of` returns it."""
        return self.kind if self.kept == 64 else f"{self.kind}-{self.kept}"

    @property
    def exact(self) -> float:
        """A magnitude that is encoded without loss, as is any small multiple, in blocks where all items have it."""
        return _int8().exact

    @property
    def exact_stride(self) -> int:
        """How many items apart such items must be, with zeros between them."""
        return SPARSE_BLOCK_ITEMS // self.kept

    def count(self, items: int) -> int:
        """Return how many items of an own chunk are kept."""
        return count_of(items, SPARSE_BLOCK_ITEMS, self.kept)

    def most_bytes(self, items: int, contributions: int = 1) -> int:
        """Return the most that an encoded chunk may have: no position is kept by two contributions."""
        most = _sum_bytes(min(items, contributions * self.count(items)), items)
        return max(most, self._picked_bytes(items))

    def expected_bytes(self, items: int, contributions: int = 1) -> int:
        """Return the size to expect, where the positions of contributions are independent of each other."""
        if contributions == 1:
            return self._picked_bytes(items)
        missing = (1.0 - self.count(items) / max(1, items)) ** contributions
        return max(_sum_bytes(round(items * (1.0 - missing)), items), self._picked_bytes(items))

    def _picked_bytes(self, items: int) -> int:
        count, blocks = self.count(items), -(-items // SPARSE_BLOCK_ITEMS)
        return _SPARSE_HEADER.itemsize + _LEVELS_BYTES * blocks + positions_bytes(count, items) + -(-count // 4)

    @staticmethod
    def sum_form(count: int, items: int) -> tuple[bool, int]:
        """Return whether a sum of which so many items are not zero is sent dense, and its size.

        >>> TopK.sum_form(100, 4096), TopK.sum_form(4000, 4096)
        ((False, 208), (True, 4172))
        """
        return _is_dense(count, items), _sum_bytes(count, items)

    def error_bound(self, values: Floats) -> Floats:
        """Return for each finite item how far its decoded value may be from it at most.

        Items that are not kept become zero; of the others, the error is at most the difference between the largest and
        the smallest of their block, or a step of int8 where some item is not finite.
        """
        bound: Floats = np.abs(values)
        positions = largest(values, SPARSE_BLOCK_ITEMS, self.kept)
        kept = values[positions]
        if not np.isfinite(kept).all():
            bound[positions] = _int8().error_bound(kept)
            return bound
        for block in range(0, len(values), SPARSE_BLOCK_ITEMS):
            of = positions[(positions >= block) & (positions < block + SPARSE_BLOCK_ITEMS)]
            magnitudes = np.abs(values[of]).astype(np.float64)
            bound[of] = min(magnitudes.max() * (1.0 + 2.0**-22) - magnitudes.min(), _LARGEST)
        return bound

    def encode(self, values: Floats, out: Raw, random: np.random.Generator | None = None) -> None:  # noqa: ARG002
        """Encode the own chunk of a rank into `out`, which has `most_bytes` bytes or more."""
        positions = largest(values, SPARSE_BLOCK_ITEMS, self.kept)
        picked = values[positions]
        magnitudes = np.abs(picked)
        if not np.isfinite(magnitudes.max()):
            self._encode_sum(positions, picked, len(values), out)
            return
        count, items = len(positions), len(values)
        starts = np.arange(0, count, self.kept)
        levels, upper = two_levels(magnitudes, starts)
        body = _begin(out, _PICKED, count, self._picked_bytes(items))
        body[: levels.nbytes] = levels.reshape(-1).view(np.uint8)
        end = levels.nbytes + positions_bytes(count, items)
        pack_positions(positions, items, body[levels.nbytes : end])
        bits = np.zeros((-(-count // 4) * 4, 2), np.uint8)
        bits[:count, 0], bits[:count, 1] = picked < 0, upper
        body[end:] = np.packbits(bits.reshape(-1))

    def encode_sum(self, values: Floats, out: Raw) -> None:
        """Encode all items of a sum that are not zero into `out`, which has `most_bytes` bytes or more."""
        positions = np.flatnonzero(values != 0)
        if _is_dense(len(positions), len(values)):
            _int8().encode(values, _begin(out, _DENSE, len(values), _sum_bytes(len(values), len(values))))
        else:
            self._encode_sum(positions, values[positions], len(values), out)

    def _encode_sum(self, positions: Positions, values: Floats, items: int, out: Raw) -> None:
        count = len(positions)
        body = _begin(out, _SUM, count, _sparse_sum_bytes(count, items))
        end = positions_bytes(count, items)
        pack_positions(positions, items, body[:end])
        _int8().encode(values, body[end:])

    def entries(self, encoded: Raw, items: int) -> tuple[Positions | slice, Floats]:
        """Return the positions and values of an encoded chunk; all other items are zero.

        Raises `BadFrame` if it is not an encoded chunk of so many items.
        """
        form, count, nbytes = (int(number) for number in encoded[: _SPARSE_HEADER.itemsize].view(_SPARSE_HEADER)[0])
        body = encoded[_SPARSE_HEADER.itemsize : nbytes]
        size = {
            _PICKED: self._picked_bytes(items) if count == self.count(items) else -1,
            _SUM: _sparse_sum_bytes(count, items) if count <= items else -1,
            _DENSE: _sum_bytes(items, items) if count == items else -1,
        }.get(form, -1)
        if nbytes != size or nbytes > len(encoded):
            raise BadFrame(f"a sparse chunk of {items} items: form {form} with {count} items in {nbytes} bytes.")
        values = np.empty(count, np.float32)
        if form == _DENSE:
            _int8().decode(body, values)
            return slice(None), values
        levels_bytes = _LEVELS_BYTES * -(-items // SPARSE_BLOCK_ITEMS) if form == _PICKED else 0
        end = levels_bytes + positions_bytes(count, items)
        try:
            positions = unpack_positions(body[levels_bytes:end], count, items)
        except ValueError as error:
            raise BadFrame(f"a sparse chunk of {items} items: {error}.") from None
        if form == _SUM:
            _int8().decode(body[end:], values)
        else:
            bits = np.unpackbits(body[end:], count=2 * count).reshape(count, 2)
            levels = body[:levels_bytes].view(np.float32)
            values[:] = levels[np.arange(count) // self.kept * 2 + bits[:, 1]]
            np.negative(values, out=values, where=bits[:, 0].astype(bool))
        return positions, values

    def decode(self, encoded: Raw, out: Floats) -> None:
        """Decode a whole chunk into `out`, which has as many items as were encoded."""
        positions, values = self.entries(encoded, len(out))
        out[:] = 0
        out[positions] = values

    @staticmethod
    def length(encoded: Raw) -> int:
        """Return how many bytes of a buffer an encoded chunk has."""
        return int(encoded[: _SPARSE_HEADER.itemsize].view(_SPARSE_HEADER)["nbytes"][0])


def _begin(out: Raw, form: int, count: int, nbytes: int) -> Raw:
    """Write the header of a sparse chunk; return the place of the rest."""
    out[: _SPARSE_HEADER.itemsize].view(_SPARSE_HEADER)[0] = form, count, nbytes
    return out[_SPARSE_HEADER.itemsize : nbytes]


def _sparse_sum_bytes(count: int, items: int) -> int:
    return _SPARSE_HEADER.itemsize + positions_bytes(count, items) + _int8().most_bytes(count)


def _is_dense(count: int, items: int) -> bool:
    return _sparse_sum_bytes(count, items) >= _SPARSE_HEADER.itemsize + _int8().most_bytes(items)


def _sum_bytes(count: int, items: int) -> int:
    """Return the size of a sum of which so many items are not zero: the smaller of its two forms."""
    return min(_sparse_sum_bytes(count, items), _SPARSE_HEADER.itemsize + _int8().most_bytes(items))


@cache
def _int8() -> Int8:
    return Int8()


@cache
def _nibbles() -> npt.NDArray[np.float64]:
    """Return for each byte what its two int4 mean as two float32, in the place of one float64."""
    low = (np.arange(256) + 8) % 16 - 8
    high = (np.arange(256) // 16 + 8) % 16 - 8
    codes = np.stack([low, high], axis=1)
    return (codes * (abs(codes) + 4)).astype(np.float32).reshape(-1).view(np.float64)


@cache
def _e4m3() -> Floats:
    """Return the value of each code of fp8."""
    codes = np.arange(256, dtype=np.uint32)
    bits = ((codes & 0x7F) << np.uint32(20)) | ((codes & 0x80) << np.uint32(24))
    values: Floats = bits.view(np.float32) * np.float32(2.0**120)
    values[[0x7F, 0xFF]] = np.nan
    return values


_KINDS: dict[str, type[Codec]] = {kind.kind: kind for kind in (Bf16, Fp16, Int8, Fp8, Int4, Int4Fine)}
_SPARSE = {codec.name: codec for codec in (TopK(kept=kept) for kept in (64, 32, 128, 256))}
SPARSE = tuple(_SPARSE)
"""Names of the sparse codecs."""
CODECS = (NONE, *_KINDS, *(kind + STOCHASTIC for kind in _KINDS if kind != Int4Fine.kind), *SPARSE)
"""Names of all codecs. `auto` is not one of them: a controller chooses for every round."""


@cache
def codec_of(name: str) -> Codec | None:
    """Return the codec with this name; None for `none`, which sends items as they are.

    >>> codec_of("int8").most_bytes(1000), codec_of("int4-stochastic").name, codec_of("none")
    (1016, 'int4-stochastic', None)
    """
    if name not in CODECS:
        raise UnknownName("codec", name, CODECS)
    if name in _SPARSE:
        return _SPARSE[name]
    kind = name.removesuffix(STOCHASTIC)
    return None if kind == NONE else _KINDS[kind](name.endswith(STOCHASTIC))


def check_codec(name: str) -> str:
    """Return the name of a codec, or `auto`; raise `UnknownName` for another one."""
    if name != AUTO and name not in CODECS:
        raise UnknownName("codec", name, (AUTO, *CODECS))
    return name


def can_encode(op: str, dtype: str) -> bool:
    """Whether rounds of this operation can be encoded: sums and means of floats.

    >>> can_encode("mean", "bfloat16"), can_encode("max", "float32"), can_encode("sum", "int32")
    (True, False, False)
    """
    return op in ("sum", "mean") and dtype in ("float32", "float64", "float16", "bfloat16")


def wire_bytes(codec: str, items: int, item_bytes: int, contributions: int = 1) -> int:
    """Return how many bytes so many items of an array need on the wire, in one chunk; for `auto`, at most.

    `contributions`: how many arrays it is the sum of. For sparse codecs it is the size to expect.

    >>> wire_bytes("none", 1000, 4), wire_bytes("int8", 1000, 4)
    (4000, 1016)
    >>> wire_bytes("topk", 10**6, 4), wire_bytes("topk", 10**6, 4, 8), wire_bytes("topk", 10**6, 4, 1000)
    (21505, 195051, 1015640)
    """
    made = None if codec == AUTO else codec_of(codec)
    return items * item_bytes if made is None else made.expected_bytes(items, contributions)


def sum_sizes(codec: str, contributions: int) -> tuple[float, ...]:
    """Return the sizes of sums of 1, 2, ... contributions, of that of all; empty if they are the same.

    >>> sum_sizes("int8", 4), [round(size, 2) for size in sum_sizes("topk", 4)]
    ((), [0.2, 0.54, 0.77, 1.0])
    """
    made = None if codec == AUTO else codec_of(codec)
    if made is None or not made.varies:
        return ()
    sizes = [made.expected_bytes(MOST_SPARSE_ITEMS, count) for count in range(1, contributions + 1)]
    return tuple(size / sizes[-1] for size in sizes)


def cut_step(codec: str) -> int:
    """Return the number of items between which shards are cut: blocks of dense codecs, so that all chunks share them.

    >>> cut_step("none"), cut_step("int8"), cut_step("topk")
    (1, 256, 1)
    """
    return BLOCK_ITEMS if codec != AUTO and isinstance(codec_of(codec), Dense) else 1


def items_within(codec: str, nbytes: int, item_bytes: int, contributions: int = 1) -> int:
    """Return how many items a chunk of at most so many bytes on the wire has: whole blocks, and at least one.

    >>> items_within("none", 4096, 4), items_within("int8", 4096, 4), items_within("int4", 1, 4)
    (1024, 3840, 256)
    """
    made = codec_of(codec)
    if made is None:
        return max(1, nbytes // item_bytes)
    items = made.block_items * max(1, nbytes // made.most_bytes(made.block_items, contributions))
    return min(items, MOST_SPARSE_ITEMS) if made.varies else items


def generator_of(*numbers: int) -> np.random.Generator:
    """Return the generator for stochastic rounding that follows from these numbers alone."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(numbers)))
