"""Codecs on tensors: the bytes and the values are those of the production codecs, on the CPU and on CUDA."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as from_numpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.errors import BadOption
from tradewind.wire.codecs import SPARSE_BLOCK_ITEMS, TopK, codec_of
from tradewind.wire.sparse import largest

torch = pytest.importorskip("torch")
from tradewind.torch.tensor_codecs import ON_DEVICE, decode_tensor, encode_tensor, largest_of  # noqa: E402

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")),
]
ITEMS = st.integers(1, 1500)
ARRAYS = st.one_of(
    from_numpy.arrays(np.uint32, ITEMS, elements=st.integers(0, 2**32 - 1)).map(lambda bits: bits.view(np.float32)),
    from_numpy.arrays(np.float32, ITEMS, elements=st.floats(-1000, 1000, width=32)),
    from_numpy.arrays(np.float32, ITEMS, elements=st.floats(-(2.0**-120), 2.0**-120, width=32)),
    from_numpy.arrays(np.float32, ITEMS, elements=st.sampled_from([0.0, -0.0, 1.0, 2.5, -3.4028235e38, np.inf])),
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("codec", ON_DEVICE)
@settings(deadline=None)
@given(values=ARRAYS)
def test_a_tensor_is_encoded_to_the_bytes_of_the_production_codec(codec: str, device: str, values: Any) -> None:
    made = codec_of(codec)
    assert made is not None
    expected = np.empty(made.most_bytes(len(values)), np.uint8)
    made.encode(values, expected)
    encoded = encode_tensor(torch.from_numpy(values.copy()).to(device), codec)
    found = [encoded.scales.cpu().numpy().view(np.uint8), encoded.codes.cpu().numpy()]
    assert np.array_equal(np.concatenate(found), expected)
    decoded = np.empty_like(values)
    made.decode(expected, decoded)
    assert np.array_equal(decode_tensor(encoded).cpu().numpy().view(np.uint32), decoded.view(np.uint32))
    assert encoded.nbytes == len(expected)


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None)
@given(blocks=st.integers(0, 2), rest=st.integers(1, SPARSE_BLOCK_ITEMS), seed=st.integers(0, 2**32), few=st.booleans())
def test_the_same_items_are_kept_of_a_tensor(blocks: int, rest: int, seed: int, few: bool, device: str) -> None:
    random, items = np.random.default_rng(seed), blocks * SPARSE_BLOCK_ITEMS + rest
    values = (random.integers(-3, 4, items) if few else random.standard_normal(items)).astype(np.float32)
    values[random.integers(0, items, 3)] = np.nan, np.inf, -np.inf
    codec = codec_of("topk")
    assert isinstance(codec, TopK)
    expected = largest(values, SPARSE_BLOCK_ITEMS, codec.kept)
    assert np.array_equal(largest_of(torch.from_numpy(values).to(device), codec).cpu().numpy(), expected)


def test_codecs_that_draw_numbers_are_refused() -> None:
    with pytest.raises(BadOption, match="int8-stochastic"):
        encode_tensor(torch.zeros(3), "int8-stochastic")
