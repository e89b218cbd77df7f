"""The codecs of `wire.codecs` on tensors, with PyTorch's kernels: a CUDA tensor is encoded before it is copied.

An encoded tensor is the scales of all its blocks, and the codes of all items. These are the
bytes that the production codecs make of the same values, NaN and infinities included, wherever chunks are cut between
blocks: a chunk is a part of the scales, followed by a part of the codes.

Divisions are between tensors on purpose. PyTorch divides by a number by multiplying with its reciprocal on CUDA, which
gives other bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tradewind.errors import BadOption
from tradewind.wire.codecs import BLOCK_ITEMS, SPARSE_BLOCK_ITEMS, Dense, TopK, codec_of
from tradewind.wire.sparse import share_of

ON_DEVICE = ("bf16", "fp16", "int8", "fp8", "int4", "int4-32")
"""Dense codecs that encode tensors: those that round to the nearest code. Others draw numbers on the host."""

_SMALLEST_SCALE = 2.0**-126
_LARGEST = float(torch.finfo(torch.float32).max) * (1.0 - 2.0**-22)
_LARGEST_FINE = float(torch.finfo(torch.float32).max) * (1.0 - 2.0**-7)
_LARGEST_HALF = 2.0**15 - 2.0**4
_HALF_EXPONENT = 15


@dataclass(frozen=True)
class Encoded:
    """An encoded tensor."""

    codec: str
    items: int
    scales: Tensor
    """Of each block, in float32; bits of bfloat16 in int16 for int4-32; empty for bf16."""
    codes: Tensor
    """Bytes."""

    @property
    def nbytes(self) -> int:
        """Bytes of scales and codes."""
        return int(self.scales.nbytes + self.codes.nbytes)


@dataclass(frozen=True)
class _Kind:
    limit: float
    marked_limit: float
    """The limit in blocks with NaN or infinities, some of whose codes mean these."""
    marks: tuple[int, int, int]
    """Codes of NaN, +inf and -inf, as whole numbers of the size of a code."""
    block: int = BLOCK_ITEMS


_KINDS = {
    "int8": _Kind(127.0, 126.0, (-128, 127, -127)),
    "int4": _Kind(77.0, 60.0, (-8, 7, -7)),
    "int4-32": _Kind(77.0, 60.0, (-8, 7, -7), 32),
    "fp8": _Kind(448.0, 256.0, (0x7F, 0x7E, -2)),
    "fp16": _Kind(2.0**15, 2.0**15, (0x7E00, 0x7C00, -0x400)),
}


def encode_tensor(values: Tensor, codec: str) -> Encoded:
    """Encode a flat float32 tensor on its device. Raises `BadOption` for a codec that is not in `ON_DEVICE`."""
    if codec not in ON_DEVICE:
        raise BadOption(f"the codec of a tensor must be one of {', '.join(ON_DEVICE)}, got {codec!r}.")
    items = len(values)
    if codec == "bf16":
        return Encoded(codec, items, values.new_empty(0), _bf16_codes(values))
    kind = _KINDS[codec]
    rows = _rows(values, kind.block)
    top = (rows.view(torch.int32) & 0x7FFFFFFF).amax(dim=1).view(torch.float32)
    marked = ~torch.isfinite(top)
    finite = torch.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
    top = finite.abs().amax(dim=1)
    scale = {"fp16": _half_scales, "int4-32": _fine_scales}.get(codec, _scales)(top, marked, kind)
    codes = _quantise(finite * scale.reciprocal()[:, None], codec)
    for mark, of in zip(kind.marks, (torch.isnan(rows), rows == torch.inf, rows == -torch.inf), strict=True):
        codes.masked_fill_(of, mark)
    scale = torch.where(marked, -scale, scale)
    if codec == "int4-32":
        scale = (scale.view(torch.int32) >> 16).to(torch.int16)
    return Encoded(codec, items, scale, _packed(codes.reshape(-1)[:items], codec))


def encoded_bytes(codec: str, items: int, raw: Tensor) -> Encoded:
    """The encoded tensor in bytes that follow each other as in a chunk."""
    made = codec_of(codec)
    if codec not in ON_DEVICE or not isinstance(made, Dense):
        raise BadOption(f"the codec of an encoded tensor must be one of {', '.join(ON_DEVICE)}, got {codec!r}.")
    end = made.most_bytes(items) - made.code_bytes(items)
    return Encoded(codec, items, raw[:end].view(torch.int16 if codec == "int4-32" else torch.float32), raw[end:])


def decode_tensor(encoded: Encoded) -> Tensor:
    """The float32 values that an encoded tensor stands for, the same bits as every receiver of its bytes gets."""
    if encoded.codec == "bf16":
        return (encoded.codes.view(torch.int16).to(torch.int32) << 16).view(torch.float32)
    kind, scales = _KINDS[encoded.codec], encoded.scales
    if encoded.codec == "int4-32":
        scales = (scales.to(torch.int32) << 16).view(torch.float32)
    codes = _rows(_unpacked(encoded), kind.block)
    values = _values(codes, encoded.codec) * scales.abs()[:, None]
    marked = torch.signbit(scales)[:, None]
    for mark, value in zip(kind.marks, (torch.nan, torch.inf, -torch.inf), strict=True):
        values.masked_fill_(marked & (codes == mark), value)
    return values.reshape(-1)[: encoded.items]


def largest_of(values: Tensor, codec: TopK) -> Tensor:
    """Sorted positions of the items that a sparse codec keeps of a flat float32 tensor, on its device."""
    magnitudes = values.view(torch.int32) & 0x7FFFFFFF
    whole = len(values) // SPARSE_BLOCK_ITEMS * SPARSE_BLOCK_ITEMS
    found = [_largest_of_rows(magnitudes[:whole].view(-1, SPARSE_BLOCK_ITEMS), codec.kept)]
    if rest := len(values) - whole:
        kept = share_of(rest, SPARSE_BLOCK_ITEMS, codec.kept)
        found.append(whole + _largest_of_rows(magnitudes[whole:].view(1, rest), kept))
    return torch.cat(found)


def _largest_of_rows(magnitudes: Tensor, kept: int) -> Tensor:
    rows, items = magnitudes.shape
    places = torch.arange(items, device=magnitudes.device)
    keys = (magnitudes.to(torch.int64) << 12) | (SPARSE_BLOCK_ITEMS - 1 - places)  # of equal ones, the first
    found = keys.topk(kept, dim=1, sorted=False).indices.sort(dim=1).values
    return (found + items * torch.arange(rows, device=magnitudes.device)[:, None]).reshape(-1)


def _rows(values: Tensor, block: int) -> Tensor:
    """The tensor in rows of a block each, the last one filled with zeros."""
    missing = -len(values) % block
    return (torch.nn.functional.pad(values, (0, missing)) if missing else values).view(-1, block)


def _bf16_codes(values: Tensor) -> Tensor:
    bits = values.view(torch.int32)
    rounded = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16
    kept = torch.where(torch.isnan(values), (bits >> 16) | 0x40, rounded)
    return kept.to(torch.int16).view(torch.uint8)


def _scales(top: Tensor, marked: Tensor, kind: _Kind) -> Tensor:
    limits = torch.where(marked, kind.marked_limit, kind.limit).to(torch.float32)
    return (top.clamp_max(_LARGEST) / limits).clamp_min(_SMALLEST_SCALE)


def _fine_scales(top: Tensor, marked: Tensor, kind: _Kind) -> Tensor:
    bits = _scales(top.clamp_max(_LARGEST_FINE), marked, kind).view(torch.int32)
    return ((bits + 0xFFFF) & -0x10000).view(torch.float32)


def _half_scales(top: Tensor, marked: Tensor, kind: _Kind) -> Tensor:  # noqa: ARG001 - all blocks have one limit
    """The power of two for each block; made from its bits, since a computed power may be off by one."""
    exponent = (torch.frexp(top).exponent - _HALF_EXPONENT).clamp_min(-126)
    return ((exponent + 127) << 23).to(torch.int32).view(torch.float32)


def _quantise(scaled: Tensor, codec: str) -> Tensor:
    """Codes as whole numbers of the size of a code."""
    if codec == "fp16":
        return scaled.clamp(-_LARGEST_HALF, _LARGEST_HALF).to(torch.float16).view(torch.int16)
    if codec == "fp8":
        return scaled.to(torch.float8_e4m3fn).view(torch.int8)
    if codec != "int8":
        scaled = torch.copysign((scaled.abs() + 3.75).sqrt() - 2.0, scaled)
    return scaled.round().to(torch.int8)


def _packed(codes: Tensor, codec: str) -> Tensor:
    if not codec.startswith("int4"):
        return codes.contiguous().view(torch.uint8)
    pairs = (torch.nn.functional.pad(codes, (0, 1)) if len(codes) % 2 else codes).view(torch.uint8).view(-1, 2)
    return (pairs[:, 0] & 0x0F) | (pairs[:, 1] << 4)


def _unpacked(encoded: Encoded) -> Tensor:
    """Codes as whole numbers of the size of a code."""
    if encoded.codec == "fp16":
        return encoded.codes.view(torch.int16)
    if not encoded.codec.startswith("int4"):
        return encoded.codes.view(torch.int8)
    low, high = (encoded.codes << 4).view(torch.int8) >> 4, encoded.codes.view(torch.int8) >> 4
    return torch.stack([low, high], dim=1).reshape(-1)[: encoded.items]


def _values(codes: Tensor, codec: str) -> Tensor:
    if codec == "fp16":
        return codes.view(torch.float16).to(torch.float32)
    if codec == "fp8":
        return codes.view(torch.float8_e4m3fn).to(torch.float32)
    return (codes if codec == "int8" else codes * (codes.abs() + 4)).to(torch.float32)


def sparse_parts(values: Tensor, codec: str) -> tuple[Tensor, Tensor]:
    """The positions and values that a sparse codec keeps of a flat tensor: what is copied from its device."""
    made = codec_of(codec)
    if not isinstance(made, TopK):
        raise BadOption(f"expected a sparse codec, got {codec!r}.")
    positions = largest_of(values, made)
    return positions, values[positions]
