"""Sparse chunks: which items are kept, positions in few bits, unions of sums, sizes, what is not finite."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as from_numpy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.errors import BadFrame
from tradewind.wire.codecs import SPARSE, SPARSE_BLOCK_ITEMS, TopK, codec_of, sum_sizes, wire_bytes
from tradewind.wire.sparse import count_of, largest, pack_positions, positions_bytes, two_levels, unpack_positions

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ANY = st.floats(width=32)


def normal(seed: int, items: int) -> Any:
    values: Any = np.random.default_rng(seed).standard_normal(items)
    return values.astype(np.float32)


CHUNKS = st.one_of(
    from_numpy.arrays(np.float32, st.integers(1, 700), elements=FINITE),
    from_numpy.arrays(np.float32, st.integers(1, 700), elements=st.sampled_from([0.0, -0.0, 1.0, -2.0])),
    st.builds(normal, st.integers(0, 2**32), st.integers(1, 3 * SPARSE_BLOCK_ITEMS)),
)


def topk(name: str = "topk") -> TopK:
    codec = codec_of(name)
    assert isinstance(codec, TopK)
    return codec


def encoded_own(codec: TopK, values: Any) -> Any:
    encoded = np.full(codec.most_bytes(len(values)), 0xAA, np.uint8)
    codec.encode(values, encoded)
    assert codec.length(encoded) <= codec.most_bytes(len(values))
    return encoded[: codec.length(encoded)]


def encoded_sum(codec: TopK, values: Any, contributions: int) -> Any:
    encoded = np.full(codec.most_bytes(len(values), contributions), 0xAA, np.uint8)
    codec.encode_sum(values, encoded)
    assert codec.length(encoded) <= codec.most_bytes(len(values), contributions)
    return encoded[: codec.length(encoded)]


def decoded(codec: TopK, encoded: Any, items: int) -> Any:
    values = np.full(items, np.nan, np.float32)
    codec.decode(encoded, values)
    return values


# --- which items, and where -------------------------------------------------------------------------------------


@given(values=CHUNKS, kept=st.integers(1, 16))
def test_the_largest_magnitudes_of_each_block_are_kept(values: Any, kept: int) -> None:
    block = 64
    positions = largest(values, block, kept)
    assert len(positions) == count_of(len(values), block, kept)
    assert (np.diff(positions) > 0).all()
    for start in range(0, len(values), block):
        of = np.abs(values[start : start + block])
        chosen = positions[(positions >= start) & (positions < start + block)] - start
        left = np.delete(of, chosen)
        assert not len(left) or of[chosen].min() >= left.max()
        assert len(chosen) == -(-len(of) * kept // block)


def test_nan_and_infinity_are_kept_first() -> None:
    values = np.array([9, np.nan, -np.inf, 1e38, 0, 0, 0, 0], np.float32)
    assert largest(values, 8, 1).tolist() == [1]
    assert largest(values, 8, 2).tolist() == [1, 2]
    assert largest(values, 8, 3).tolist() == [1, 2, 3]


@given(data=st.data(), items=st.integers(1, 5000))
def test_positions_are_what_was_packed(data: st.DataObject, items: int) -> None:
    count = data.draw(st.integers(0, items))
    chosen = np.random.default_rng(data.draw(st.integers(0, 2**32))).permutation(items)[:count]
    positions = np.sort(chosen).astype(np.int64)
    packed = np.empty(positions_bytes(count, items), np.uint8)
    pack_positions(positions, items, packed)
    assert np.array_equal(unpack_positions(packed, count, items), positions)


@given(items=st.integers(1, 3000))
def test_more_positions_never_take_fewer_bytes_and_never_more_than_a_bitmap(items: int) -> None:
    sizes = [positions_bytes(count, items) for count in range(items + 1)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == -(-items // 8)
    entropy_bits = np.log2(np.arange(items, items - items // 64, -1) / np.arange(1, items // 64 + 1)).sum()
    assert 8 * sizes[items // 64] <= 1.25 * entropy_bits + 40, "close to the least that any code needs"


@given(magnitudes=from_numpy.arrays(np.float32, st.integers(1, 40), elements=st.floats(0, 2.0**100, width=32)))
def test_two_levels_lie_between_the_magnitudes_and_keep_their_sum(magnitudes: Any) -> None:
    levels, upper = two_levels(magnitudes, np.array([0]))
    assert levels[0, 0] <= levels[0, 1]
    assert magnitudes.min() * (1 - 1e-6) <= levels[0, 0] and levels[0, 1] <= magnitudes.max() * (1 + 1e-6)
    total = float(magnitudes.astype(np.float64).sum())
    assert float(np.where(upper, levels[0, 1], levels[0, 0]).astype(np.float64).sum()) == pytest.approx(total, rel=1e-6)


# --- own chunks and sums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPARSE)
@given(values=CHUNKS)
def test_decoded_items_are_within_the_bound(name: str, values: Any) -> None:
    codec = topk(name)
    result = decoded(codec, encoded_own(codec, values), len(values))
    error = np.abs(result.astype(np.float64) - values)
    assert (error <= codec.error_bound(values)).all()
    assert np.count_nonzero(result) <= codec.count(len(values))
    both = (result != 0) & (values != 0)
    assert (np.sign(result)[both] == np.sign(values)[both]).all()


@pytest.mark.parametrize("name", SPARSE)
@given(values=from_numpy.arrays(np.float32, st.integers(1, 300), elements=ANY))
def test_what_is_not_finite_is_never_hidden(name: str, values: Any) -> None:
    codec = topk(name)
    result = decoded(codec, encoded_own(codec, values), len(values))
    odd, kept = ~np.isfinite(values), codec.count(len(values))
    assert (~np.isfinite(result)).sum() == min(odd.sum(), kept)
    arrived = ~np.isfinite(result)
    assert np.array_equal(result[arrived], values[arrived], equal_nan=True)


@given(
    seed=st.integers(0, 2**32),
    items=st.integers(1, 3 * SPARSE_BLOCK_ITEMS),
    contributions=st.integers(1, 9),
    name=st.sampled_from(SPARSE),
)
def test_a_sum_has_all_items_that_some_contribution_has(seed: int, items: int, contributions: int, name: str) -> None:
    codec, total = topk(name), np.zeros(items, np.float32)
    for rank in range(contributions):
        values = np.random.default_rng([seed, rank]).standard_normal(items).astype(np.float32)
        total += decoded(codec, encoded_own(codec, values), items)
    encoded = encoded_sum(codec, total, contributions)
    result = decoded(codec, encoded, items)
    assert not result[total == 0].any(), "nothing else"
    assert np.abs(result - total).max() <= np.abs(total).max() / 254 * 1.001


def test_a_sum_with_most_items_is_sent_as_dense() -> None:
    codec, items = topk(), 2 * SPARSE_BLOCK_ITEMS
    random = np.random.default_rng(0)
    sizes = []
    for share in (0.01, 0.3, 0.75, 0.9, 1.0):
        total = np.where(random.random(items) < share, random.standard_normal(items), 0).astype(np.float32)
        encoded = encoded_sum(codec, total, 64)
        sizes.append(len(encoded))
        assert np.abs(decoded(codec, encoded, items) - total).max() <= np.abs(total).max() / 254 * 1.001
    assert sizes == sorted(sizes)
    assert sizes[-1] == sizes[-2] == 12 + items + 4 * items // 256, "a byte each, with scales"
    assert codec.most_bytes(items, 10**6) == sizes[-1]


@given(items=st.integers(1, 10**6), name=st.sampled_from(SPARSE))
def test_sizes_grow_with_contributions_up_to_the_dense_one(items: int, name: str) -> None:
    codec = topk(name)
    most = [codec.most_bytes(items, count) for count in range(1, 80)]
    expected = [codec.expected_bytes(items, count) for count in range(1, 80)]
    assert most == sorted(most) and expected == sorted(expected)
    assert all(a <= b for a, b in zip(expected, most, strict=True))


def test_expected_sizes_are_those_of_independent_positions() -> None:
    codec, items = topk(), 64 * SPARSE_BLOCK_ITEMS
    total = np.zeros(items, np.float32)
    for count in range(1, 17):
        values = np.random.default_rng(count).standard_normal(items).astype(np.float32)
        own = encoded_own(codec, values)
        assert len(own) == codec.expected_bytes(items) == wire_bytes("topk", items, 4)
        total += decoded(codec, own, items)
        if count > 1:
            assert len(encoded_sum(codec, total, count)) == pytest.approx(codec.expected_bytes(items, count), rel=0.02)
    sizes = sum_sizes("topk", 16)
    assert len(sizes) == 16 and sizes[-1] == 1.0 and sizes[0] == pytest.approx(0.06, abs=0.01)


@given(noise=st.binary(min_size=12, max_size=200), items=st.integers(1, 5000))
def test_bytes_that_are_no_chunk_are_refused(noise: bytes, items: int) -> None:
    raw = np.frombuffer(noise, np.uint8)
    try:
        positions, values = topk().entries(raw, items)
    except BadFrame:
        return
    assert len(np.zeros(items)[positions]) == len(values)


def test_a_chunk_that_was_cut_or_changed_is_refused() -> None:
    codec, values = topk(), np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    encoded = encoded_own(codec, values)
    for broken in (encoded[:-1], np.concatenate([[9], encoded[1:]]).astype(np.uint8)):
        with pytest.raises(BadFrame, match="sparse chunk"):
            codec.entries(broken, 5000)
    with pytest.raises(BadFrame, match="sparse chunk"):
        codec.entries(encoded, 9000)
