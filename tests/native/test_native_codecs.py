"""Codecs in C give the bits that numpy gives: encoded, decoded, added up, and what encoding lost."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as from_numpy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.native import CODECS, Kernels, Span, using_kernels
from tradewind.wire.codecs import STEP_ITEMS, Dense, codec_of, generator_of

SIZES = st.one_of(st.integers(1, 700), st.sampled_from([256, 512, STEP_ITEMS, STEP_ITEMS + 33]))
SPECIAL = [0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 3.4028235e38, -3.4028235e38, np.inf, -np.inf, np.nan, 1.0, 448.0, 0.5]
FACTORS = st.sampled_from([1.0, 0.3, 0.0])


def made(name: str) -> Dense:
    codec = codec_of(name)
    assert isinstance(codec, Dense)
    return codec


@st.composite
def floats(draw: st.DrawFn, sizes: st.SearchStrategy[int] = SIZES) -> Any:
    """Items of any magnitude, some of which are not finite, zero or subnormal; at any address."""
    size, offset = draw(sizes), draw(st.integers(0, 3))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = random.standard_normal(size) * 10.0 ** draw(st.integers(-46, 38))
    spread = draw(st.integers(0, 12))
    values *= 10.0 ** -random.integers(0, spread + 1, size)
    where = random.random(size) < draw(st.sampled_from([0.0, 0.002, 0.1, 0.9]))
    with np.errstate(all="ignore"):
        mixed = np.where(where, random.choice(SPECIAL, size), values).astype(np.float32)
    room = np.empty(4 * size + offset, np.uint8)[offset:]
    room[:] = mixed.view(np.uint8)
    return room.view(np.float32)


def encoded_by(codec: Dense, values: Any, kernels: Kernels | None) -> Any:
    out = np.full(codec.most_bytes(len(values)) + 8, 0xAA, np.uint8)
    with using_kernels(kernels):
        codec.encode(values, out[:-8])
    assert (out[-8:] == 0xAA).all(), "nothing is written behind the chunk"
    return out[:-8]


def same_bits(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


@pytest.mark.parametrize("name", CODECS)
@given(values=st.one_of(floats(), from_numpy.arrays(np.float32, st.integers(1, 600), elements=st.floats(width=32))))
def test_encoded_and_decoded_bits_are_those_of_numpy(compiled: Kernels, name: str, values: Any) -> None:
    codec = made(name)
    chunk = encoded_by(codec, values, None)
    same_bits(encoded_by(codec, values, compiled), chunk)
    decoded = [np.empty(len(values), np.float32) for _ in range(2)]
    for kernels, out in zip((None, compiled), decoded, strict=True):
        with using_kernels(kernels):
            codec.decode(chunk, out)
    same_bits(*decoded)


@pytest.mark.parametrize("name", CODECS)
def test_every_code_is_decoded_as_numpy_does(compiled: Kernels, name: str) -> None:
    """Also codes that no encoder makes: what a peer sends is decoded, whatever it is."""
    codec = made(name)
    items = 2 * 65536
    chunk = np.random.default_rng(0).integers(0, 256, codec.most_bytes(items), dtype=np.uint8)
    codes = chunk[codec.most_bytes(items) - codec.code_bytes(items) :]
    every = np.arange(len(codes) // 2, dtype=np.uint16)
    codes[: every.nbytes] = every.view(np.uint8)
    for scale in (1.5, -1.5):  # of rows without and with items that are not finite
        bits = np.float32(scale).view(np.uint32)
        kind = np.uint16 if name == "int4-32" else np.uint32
        chunk[: len(chunk) - len(codes)].view(kind)[:] = bits >> 16 if kind is np.uint16 else bits
        decoded = [np.empty(items, np.float32) for _ in range(2)]
        for kernels, out in zip((None, compiled), decoded, strict=True):
            with using_kernels(kernels):
                codec.decode(chunk, out)
        same_bits(*decoded)


def folded(codec: Dense, size: int, first: Any, parts: list[Any], factors: tuple[float, float]) -> tuple[Any, ...]:
    """The sum, its encoded form, what that decodes to, and what was lost, by numpy."""
    weight, scale = (np.float32(factor) for factor in factors)
    with using_kernels(None), np.errstate(all="ignore"):
        total = None if first is None else first * weight if weight != 1 else first.copy()
        for part in parts:
            came = np.empty(size, np.float32)
            codec.decode(part, came)
            total = came if total is None else total + came
        assert total is not None
        total = total * scale if scale != 1 else total
        chunk = np.zeros(codec.most_bytes(len(total)), np.uint8)
        codec.encode(total, chunk)
        back = np.empty_like(total)
        codec.decode(chunk, back)
        lost = (total - back) / np.float32(0.7)
        return total, chunk, back, np.where(np.isfinite(lost), lost, np.float32(0))


@pytest.mark.parametrize("name", CODECS)
@given(drawn=st.data(), size=st.integers(1, 600), count=st.integers(0, 3), factors=st.tuples(FACTORS, FACTORS))
def test_sums_and_residuals_are_those_of_numpy(
    compiled: Kernels, name: str, drawn: st.DataObject, size: int, count: int, factors: tuple[float, float]
) -> None:
    codec, own = made(name), floats(st.just(size))
    has_first = count == 0 or drawn.draw(st.booleans())
    first = drawn.draw(own) if has_first else None
    parts = [encoded_by(codec, drawn.draw(own), None) for _ in range(count)]
    total, chunk, back, lost = folded(codec, size, first, parts, factors)
    span = Span(0, size, size, codec.most_bytes(size))
    out, residual = (np.empty(size, np.float32) for _ in range(2))
    compiled.fold(name, span, first, parts, out, None, None, factors)
    finite = ~np.isnan(total)  # which of two NaN a sum keeps is the processor's choice
    same_bits(out[finite], total[finite])
    np.testing.assert_array_equal(np.isnan(out), np.isnan(total))
    encoded = parts[0] if parts else np.empty_like(chunk)  # in the place of a part
    result = out if first is None else first  # in the place of the input
    compiled.fold(name, span, first, parts, result, encoded, (residual, 0.7), factors)
    if name != "bf16" or finite.all():
        same_bits(encoded, chunk)
        same_bits(result, back)
    same_bits(residual, lost)


@pytest.mark.parametrize("name", CODECS)
def test_steps_fit_together(compiled: Kernels, name: str) -> None:
    codec, items = made(name), 2 * STEP_ITEMS + 77
    values = np.random.default_rng(1).standard_normal(items).astype(np.float32)
    whole, steps = encoded_by(codec, values, None), np.zeros(codec.most_bytes(items), np.uint8)
    decoded = np.empty_like(values)
    with using_kernels(compiled):
        for start in range(0, items, 256 * 7):
            codec.encode_step(values[start : start + 256 * 7], steps, start, items)
        for start in range(0, items, STEP_ITEMS):
            codec.decode_step(steps, decoded[start : start + STEP_ITEMS], start, items)
    same_bits(steps, whole)
    with using_kernels(None):
        codec.decode(whole, values)
    same_bits(decoded, values)


def test_rounding_at_random_is_left_to_numpy(compiled: Kernels) -> None:
    codec, values = made("int8-stochastic"), np.random.default_rng(2).standard_normal(1000).astype(np.float32)
    found = []
    for kernels in (None, compiled):
        with using_kernels(kernels):
            out = np.zeros(codec.most_bytes(1000), np.uint8)
            codec.encode(values, out, generator_of(3))
            found.append(out)
    same_bits(*found)


def test_memory_that_does_not_fit_is_refused(compiled: Kernels) -> None:
    values, chunk = np.zeros(512, np.float32), np.zeros(made("int8").most_bytes(512), np.uint8)
    span = Span(0, 512, 512, len(chunk))
    with pytest.raises(ValueError, match="bytes of an encoded chunk"):
        compiled.fold("int8", span, values, encoded=chunk[:-1])
    with pytest.raises(ValueError, match="bytes of an encoded chunk"):
        compiled.fold("int8", span, values, [chunk[:-1]], values)
    with pytest.raises(ValueError, match="bytes of floats"):
        compiled.fold("int8", span, values[1:], encoded=chunk)
    with pytest.raises(ValueError, match="without gaps"):
        compiled.fold("int8", span, np.zeros(1024, np.float32)[::2], encoded=chunk)
    with pytest.raises(ValueError, match="nothing to add"):
        compiled.fold("int8", span, None, encoded=chunk)
    with using_kernels(compiled):
        strided = np.empty_like(chunk)
        made("int8").encode(np.zeros(1024, np.float32)[::2], strided)  # numpy does it
