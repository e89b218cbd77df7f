"""Codecs: errors within their bounds for any block, sizes, what is not finite, rounding at random."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as from_numpy
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tradewind.errors import UnknownName
from tradewind.wire import messages as m
from tradewind.wire.codecs import (
    BLOCK_ITEMS,
    CODECS,
    SPARSE,
    STEP_ITEMS,
    Codec,
    check_codec,
    codec_of,
    generator_of,
    items_within,
    wire_bytes,
)
from tradewind.wire.frames import FrameReader

pytestmark = pytest.mark.usefixtures("with_and_without_kernels")

ENCODING = [name for name in CODECS if name != "none"]
DENSE = [name for name in ENCODING if name not in SPARSE]
ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)
MODERATE = st.floats(-(2.0**100), 2.0**100, width=32)
BLOCKS = st.one_of(
    from_numpy.arrays(np.float32, st.integers(1, 600), elements=ANY),
    from_numpy.arrays(np.float32, st.integers(1, 600), elements=MODERATE),
    from_numpy.arrays(np.float32, st.integers(1, 600), elements=st.floats(-(2.0**-122), 2.0**-122, width=32)),
    from_numpy.arrays(np.float32, st.integers(1, 600), elements=st.sampled_from([0.0, -0.0, 1.0, -3.4028235e38])),
)


def made(name: str) -> Codec:
    codec = codec_of(name)
    assert codec is not None
    return codec


def passed(codec: Codec, values: Any, seed: int = 0) -> Any:
    encoded = np.full(codec.most_bytes(len(values)), 0xAA, np.uint8)
    codec.encode(values, encoded, generator_of(seed))
    decoded = np.empty_like(values)
    codec.decode(encoded, decoded)
    return decoded


@pytest.mark.parametrize("name", DENSE)
@given(values=BLOCKS, seed=st.integers(0, 2**32))
@example(values=np.array([3.4e38, np.inf], np.float32), seed=0)
def test_decoded_items_are_within_the_bound_and_the_rest_is_what_it_was(name: str, values: Any, seed: int) -> None:
    codec = made(name)
    decoded = passed(codec, values, seed)
    finite = np.isfinite(values)
    if codec.kind == "bf16":  # which has no number above this one
        finite &= np.abs(values) < 3.38e38
    assert np.array_equal(np.isnan(decoded), np.isnan(values))
    infinite = np.isinf(values)
    assert np.array_equal(decoded[infinite], values[infinite])
    assert np.isfinite(decoded[finite]).all()
    wide = values.astype(np.float64)
    error = np.abs(np.where(finite, decoded.astype(np.float64) - np.where(finite, wide, 0), 0))
    assert (error <= codec.error_bound(values))[finite].all()


@pytest.mark.parametrize("name", ENCODING)
def test_steps_and_blocks_of_a_large_chunk_fit_together(name: str) -> None:
    codec, items = made(name), STEP_ITEMS + 3 * BLOCK_ITEMS + 77
    values = np.random.default_rng(1).standard_normal(items).astype(np.float32)
    values[[3, STEP_ITEMS + 5]] = np.nan, -np.inf
    decoded = passed(codec, values)
    assert np.isnan(decoded[3]) and decoded[STEP_ITEMS + 5] == -np.inf
    finite = np.isfinite(values)
    assert (np.abs(decoded[finite] - values[finite]) <= codec.error_bound(values)[finite]).all()
    again = passed(codec, values)
    assert decoded.tobytes() == again.tobytes(), "the same seed gives the same bits"


@pytest.mark.parametrize("name", DENSE)
@given(items=st.integers(1, 10**6))
def test_the_size_follows_from_the_number_of_items(name: str, items: int) -> None:
    codec = made(name)
    share = {"bf16": 2, "fp16": 2, "int8": 1, "fp8": 1, "int4": 0.5, "int4-32": 0.5}[codec.kind]
    scales = {"bf16": 0, "int4-32": 2 * -(-items // 32)}.get(codec.kind, 4 * -(-items // BLOCK_ITEMS))
    assert codec.most_bytes(items) == wire_bytes(name, items, 4) == -(-items * share // 1) + scales


@pytest.mark.parametrize("name", ENCODING)
@given(nbytes=st.integers(1, 10**7))
def test_a_chunk_of_as_many_items_as_fit_has_at_most_that_many_bytes(name: str, nbytes: int) -> None:
    items, codec = items_within(name, nbytes, 4, 3), made(name)
    assert items % codec.block_items == 0
    assert items == codec.block_items or codec.most_bytes(items, 3) <= nbytes


@pytest.mark.parametrize("kind", ["bf16", "fp16", "int8", "fp8", "int4"])
def test_stochastic_rounding_is_right_on_average_where_rounding_to_the_nearest_is_not(kind: str) -> None:
    values = np.full(BLOCK_ITEMS * 400, 0.3337, np.float32)
    values[::BLOCK_ITEMS] = 1.0  # the scale of each block is not that of the others
    at_random = passed(made(kind + "-stochastic"), values)[values < 1]
    nearest = passed(made(kind), values)[values < 1]
    step = float(np.abs(np.diff(np.unique(at_random))).max())
    assert len(np.unique(at_random)) == 2
    assert abs(float(at_random.astype(np.float64).mean()) - 0.3337) < 5 * step / len(at_random) ** 0.5
    assert abs(float(nearest[0]) - 0.3337) > 5 * step / len(at_random) ** 0.5 / 4


@pytest.mark.parametrize("name", ENCODING)
def test_items_of_one_exact_magnitude_are_encoded_without_loss(name: str) -> None:
    codec = made(name)
    signs = np.random.default_rng(2).choice([-1.0, 1.0], 1000)
    signs[np.arange(1000) % codec.exact_stride > 0] = 0.0
    for factor in range(1, 64):
        values = (codec.exact * factor * signs).astype(np.float32)
        assert np.array_equal(passed(codec, values), values)


def test_unknown_codecs_are_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="int7"):
        codec_of("int7")
    with pytest.raises(UnknownName, match=r"atuo.*'auto'"):
        check_codec("atuo")
    assert check_codec("auto") == "auto"
    with pytest.raises(ValueError, match="needs a generator"):
        made("int8-stochastic").encode(np.ones(3, np.float32), np.empty(7, np.uint8))


def test_an_operation_on_the_wire_keeps_its_codec_and_refuses_a_wrong_one() -> None:
    asked = m.Ready(0, 1, m.Operation(1000, 4, "float32", "sum", codec="int4-stochastic"))
    ((_, body),) = FrameReader().feed(m.encode_message(asked, run=1))
    assert m.decode_message(body) == asked
    assert asked.operation.wire_bytes(4) == 516 and asked.operation.nbytes == 4000
    for codec, op in (("int7", "sum"), ("int8", "max")):
        with pytest.raises(ValueError, match=codec):
            m.Operation(1000, 4, "float32", op, codec=codec)
