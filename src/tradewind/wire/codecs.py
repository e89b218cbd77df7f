"""Codecs: how a chunk of floats travels in fewer bytes than float32 needs.

An encoded chunk is a scale for each block of `BLOCK_ITEMS` items (float32, for codecs that have scales), followed by
the codes of all items in order. Its size follows from the number of items alone, so that every site, the planner and
the simulator compute the same.

    name    bytes an item    code
    bf16    2                the upper half of a float32, rounded
    fp16    2 + 4/256        IEEE half precision of item / scale; the scale is a power of two, so that nothing overflows
    int8    1 + 4/256        whole number in [-127, 127]; scale = largest magnitude of the block / 127
    fp8     1 + 4/256        e4m3 of item / scale; scale = largest magnitude / 448
    int4    1/2 + 4/256      whole number in [-7, 7], two in a byte; scale = largest magnitude / 7

**Not finite.** A NaN or infinity arrives as what it was sent as, at its place: in a block that has one, the sign bit of
the scale is set, three codes mean NaN, +inf and -inf, and finite items use fewer codes.

**Rounding** is to the nearest code, ties to even. With the suffix `-stochastic` (`int8-stochastic`) it is up or down at
random, with probabilities for which the expected value is the item itself; the generator is an argument.

**Error.** `Codec.error_bound` says how far a decoded item may be from what was encoded.

Decoding multiplies a code by its scale, one float32 operation, so all receivers of the same bytes get the same bits.
Work is done in steps of `STEP_ITEMS`, which stay in the cache from the first pass to the last.
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

from tradewind.errors import UnknownName

Floats = npt.NDArray[np.float32]
Raw = npt.NDArray[np.uint8]

BLOCK_ITEMS = 256
"""Items that share a scale."""
STEP_ITEMS = 64 * 1024
"""Items that are encoded or decoded at a time."""
SCALE_BYTES = 4
_RANDOM_S = 1.4e-9
"""Processor time in s to draw a random number for an item."""
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
    """Its name, without the way of rounding."""
    nearest_s: ClassVar[float]
    """Processor time in s to encode and to decode an item, measured on one core of 2.6 GHz (`benchmarks codecs`)."""

    @property
    def item_s(self) -> float:
        """Processor time in s to encode and to decode an item."""
        return self.nearest_s + _RANDOM_S * self.stochastic

    @property
    def exact(self) -> float:
        """A magnitude that is encoded without loss, as is any small multiple, in blocks where all items have it."""
        return 1.0

    @property
    def name(self) -> str:
        """The name by which `codec_of` returns it."""
        return self.kind + STOCHASTIC * self.stochastic

    @abstractmethod
    def most_bytes(self, items: int) -> int:
        """Return the size of an encoded chunk of so many items, or the most that it may have."""

    @abstractmethod
    def error_bound(self, values: Floats) -> Floats:
        """Return for each finite item how far its decoded value may be from it at most."""

    def encode(self, values: Floats, out: Raw, random: np.random.Generator | None = None) -> None:
        """Encode a chunk into `out`, which has `most_bytes` bytes; `random` is for stochastic rounding."""
        for start, end in steps_of(len(values)):
            self.encode_step(values[start:end], out, start, len(values), random)

    def decode(self, encoded: Raw, out: Floats) -> None:
        """Decode a whole chunk into `out`, which has as many items as were encoded."""
        for start, end in steps_of(len(out)):
            self.decode_step(encoded, out[start:end], start, len(out))

    def encode_step(
        self, values: Floats, out: Raw, start: int, items: int, random: np.random.Generator | None = None
    ) -> None:
        """Encode a step of a chunk of `items` items, from item `start` on, into its place in `out`."""
        if self.stochastic and random is None:
            raise ValueError(f"codec {self.name} rounds at random and needs a generator.")
        with np.errstate(all="ignore"):  # infinities and NaN are valid items
            self._encode_step(values, out, start, items, random if self.stochastic else None)

    def decode_step(self, encoded: Raw, out: Floats, start: int, items: int) -> None:
        """Decode a step of a chunk of `items` items, from item `start` on."""
        with np.errstate(all="ignore"):
            self._decode_step(encoded, out, start, items)

    @abstractmethod
    def _encode_step(
        self, values: Floats, out: Raw, start: int, items: int, random: np.random.Generator | None
    ) -> None: ...

    @abstractmethod
    def _decode_step(self, encoded: Raw, out: Floats, start: int, items: int) -> None: ...


def steps_of(items: int) -> Iterator[tuple[int, int]]:
    """Yield the first item and the end of each step of a chunk."""
    for start in range(0, items, STEP_ITEMS):
        yield start, min(start + STEP_ITEMS, items)


def _rows(array: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield a step as rows of a block each, with the number of its first block; the rest of the last block is a row."""
    blocks = len(array) // BLOCK_ITEMS
    if blocks:
        yield 0, array[: blocks * BLOCK_ITEMS].reshape(blocks, BLOCK_ITEMS)
    if len(array) % BLOCK_ITEMS:
        yield blocks, array[blocks * BLOCK_ITEMS :].reshape(1, -1)


def _blocks(items: int) -> int:
    return -(-items // BLOCK_ITEMS)


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
class Bf16(Codec):
    """The upper half of each float32: the same range with 8 significant bits. It has no scales."""

    kind: ClassVar[str] = "bf16"
    nearest_s: ClassVar[float] = 0.6e-9

    def most_bytes(self, items: int) -> int:
        """Return the size of an encoded chunk."""
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
class Scaled(Codec):
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

    def most_bytes(self, items: int) -> int:
        """Return the size of an encoded chunk."""
        return SCALE_BYTES * _blocks(items) + self._code_bytes(items)

    def error_bound(self, values: Floats) -> Floats:
        """Return for each finite item how far its decoded value may be from it at most."""
        bound = np.empty_like(values)
        for first, rows in _rows(values):
            top = np.abs(np.where(np.isfinite(rows), rows, 0)).max(axis=1)
            scale = np.maximum(top / np.float32(self._limits(True)), _SMALLEST_SCALE)
            at = slice(first * BLOCK_ITEMS, first * BLOCK_ITEMS + rows.size)
            share = self.step * (1.0 if self.stochastic else 0.5) * (1.0 + 2.0**-18)
            bound[at] = np.repeat(scale * np.float32(share), rows.shape[1])
        return bound

    @property
    def exact(self) -> float:
        """A magnitude that is encoded without loss, as is any small multiple, in blocks where all items have it."""
        return self._limits(False)

    def _limits(self, marked: bool) -> float:
        limit = self.stochastic_limit if self.stochastic else self.limit
        return limit - self.marked_limit if marked else limit

    @abstractmethod
    def _code_bytes(self, items: int) -> int:
        """Return the size of the codes of so many items."""

    def _scales(self, top: Floats, limit: Floats) -> Floats:
        """Return the scale of each block with this largest magnitude."""
        scales: Floats = np.maximum(np.minimum(top, np.float32(_LARGEST)) / limit, _SMALLEST_SCALE)
        return scales

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
        first = start // BLOCK_ITEMS
        scales = out[: SCALE_BYTES * _blocks(items)].view(np.float32)[first:]
        end = SCALE_BYTES * _blocks(items)
        place = out[end + self._code_bytes(start) : end + self._code_bytes(start + len(values))]
        codes = self._codes(place, len(values))
        scratch = np.empty_like(values)
        for (block, rows), (_, scaled), (_, of) in zip(_rows(values), _rows(scratch), _rows(codes), strict=True):
            top = np.abs(rows, out=scaled).max(axis=1)
            marked = ~np.isfinite(top)
            if marked.any():
                rows = np.where(np.isfinite(rows), rows, np.float32(0))
                np.abs(rows, out=scaled).max(axis=1, out=top)
            limits = np.where(marked, np.float32(self._limits(True)), np.float32(self._limits(False)))
            scale = self._scales(top, limits)
            if random is None:
                np.multiply(rows, (np.float32(1) / scale)[:, None], out=scaled)
            else:  # exact where an item is a multiple of the scale
                np.divide(rows, scale[:, None], out=scaled)
            self._quantise(scaled, of, random)
            if marked.any():
                source = values[block * BLOCK_ITEMS :][: rows.size].reshape(rows.shape)
                of[np.isnan(source)], of[source == np.inf], of[source == -np.inf] = self.marks
                scale = np.where(marked, -scale, scale)
            scales[block : block + len(scale)] = scale
        self._pack(codes, place)

    def _decode_step(self, encoded: Raw, out: Floats, start: int, items: int) -> None:
        first = start // BLOCK_ITEMS
        end = SCALE_BYTES * _blocks(items)
        scales = encoded[:end].view(np.float32)[first : first + _blocks(len(out))]
        place = encoded[end + self._code_bytes(start) : end + self._code_bytes(start + len(out))]
        self._unpack(place, out)
        marked = np.signbit(scales)
        for block, rows in _rows(out):
            of = scales[block : block + len(rows)]
            if not marked[block : block + len(rows)].any():
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
    nearest_s: ClassVar[float] = 3.2e-9
    code: ClassVar[type[np.generic]] = np.float16
    limit: ClassVar[float] = 2.0**15
    stochastic_limit: ClassVar[float] = 2.0**15
    marked_limit: ClassVar[float] = 0.0
    marks: ClassVar[tuple[float, float, float]] = (math.nan, math.inf, -math.inf)
    step: ClassVar[float] = 2.0**5
    """Of the largest items: 11 significant bits, and the scale may be twice as large as the largest item needs."""

    def _code_bytes(self, items: int) -> int:
        return 2 * items

    def _scales(self, top: Floats, limit: Floats) -> Floats:
        exponent = np.frexp(top)[1] - int(math.log2(float(limit[0])))
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
    nearest_s: ClassVar[float] = 1.1e-9
    code: ClassVar[type[np.generic]] = np.int8
    limit: ClassVar[float] = 127.0
    stochastic_limit: ClassVar[float] = 126.0
    marked_limit: ClassVar[float] = 1.0
    marks: ClassVar[tuple[float, float, float]] = (-128.0, 127.0, -127.0)
    step: ClassVar[float] = 1.0

    def _code_bytes(self, items: int) -> int:
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
    """Whole numbers of half a byte; the first of two is in the lower half."""

    kind: ClassVar[str] = "int4"
    nearest_s: ClassVar[float] = 1.5e-9
    limit: ClassVar[float] = 7.0
    stochastic_limit: ClassVar[float] = 6.0
    marks: ClassVar[tuple[float, float, float]] = (-8.0, 7.0, -7.0)

    def _code_bytes(self, items: int) -> int:
        return (items + 1) // 2

    def _codes(self, out: Raw, items: int) -> npt.NDArray[Any]:
        return np.zeros(2 * len(out), np.int8)[:items]

    def _pack(self, codes: npt.NDArray[Any], out: Raw) -> None:
        assert codes.base is not None  # twice as many as bytes in `out`, see `_codes`
        pairs = codes.base.view(np.uint16)
        np.copyto(out, (pairs & np.uint16(0x0F)) | ((pairs >> np.uint16(4)) & np.uint16(0xF0)), casting="unsafe")

    def _unpack(self, packed: Raw, out: Floats) -> None:
        out[:] = np.take(_nibbles(), packed, mode="clip").view(np.float32)[: len(out)]


@dataclass(frozen=True)
class Fp8(Scaled):
    """Floats of a byte with 4 bits of exponent and 3 of mantissa (e4m3, without infinities)."""

    kind: ClassVar[str] = "fp8"
    nearest_s: ClassVar[float] = 2.1e-9
    code: ClassVar[type[np.generic]] = np.uint8
    limit: ClassVar[float] = 448.0
    stochastic_limit: ClassVar[float] = 416.0
    marked_limit: ClassVar[float] = 192.0
    marks: ClassVar[tuple[float, float, float]] = (0x7F, 0x7E, 0xFE)
    step: ClassVar[float] = 32.0

    def _code_bytes(self, items: int) -> int:
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


@cache
def _nibbles() -> npt.NDArray[np.float64]:
    """Return for each byte its two int4 as two float32, in the place of one float64."""
    low = (np.arange(256) + 8) % 16 - 8
    high = (np.arange(256) // 16 + 8) % 16 - 8
    return np.stack([low, high], axis=1).astype(np.float32).reshape(-1).view(np.float64)


@cache
def _e4m3() -> Floats:
    """Return the value of each code of fp8."""
    codes = np.arange(256, dtype=np.uint32)
    bits = ((codes & 0x7F) << np.uint32(20)) | ((codes & 0x80) << np.uint32(24))
    values: Floats = bits.view(np.float32) * np.float32(2.0**120)
    values[[0x7F, 0xFF]] = np.nan
    return values


_KINDS: dict[str, type[Codec]] = {kind.kind: kind for kind in (Bf16, Fp16, Int8, Fp8, Int4)}
CODECS = (NONE, *_KINDS, *(kind + STOCHASTIC for kind in _KINDS))
"""Names of all codecs. `auto` is not one of them: a controller chooses for every round."""


@cache
def codec_of(name: str) -> Codec | None:
    """Return the codec with this name; None for `none`, which sends items as they are.

    >>> codec_of("int8").most_bytes(1000), codec_of("int4-stochastic").name, codec_of("none")
    (1016, 'int4-stochastic', None)
    """
    if name not in CODECS:
        raise UnknownName("codec", name, CODECS)
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


def wire_bytes(codec: str, items: int, item_bytes: int) -> int:
    """Return how many bytes so many items of an array need on the wire, in one chunk; for `auto`, at most.

    >>> wire_bytes("none", 1000, 4), wire_bytes("int8", 1000, 4)
    (4000, 1016)
    """
    made = None if codec == AUTO else codec_of(codec)
    return items * item_bytes if made is None else made.most_bytes(items)


def items_within(codec: str, nbytes: int, item_bytes: int) -> int:
    """Return how many items a chunk of at most so many bytes on the wire has: whole blocks, and at least one.

    >>> items_within("none", 4096, 4), items_within("int8", 4096, 4), items_within("int4", 1, 4)
    (1024, 3840, 256)
    """
    made = codec_of(codec)
    if made is None:
        return max(1, nbytes // item_bytes)
    return BLOCK_ITEMS * max(1, nbytes // made.most_bytes(BLOCK_ITEMS))


def generator_of(*numbers: int) -> np.random.Generator:
    """Return the generator for stochastic rounding that follows from these numbers alone."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(numbers)))
