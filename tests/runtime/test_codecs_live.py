"""Encoded rounds on real sockets: identical bits at all ranks, errors within bounds, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ranks import run_ranks
from tradewind.errors import BadArray
from tradewind.runtime.group import Group
from tradewind.wire.codecs import CODECS, codec_of

pytestmark = pytest.mark.usefixtures("with_and_without_kernels")

ITEMS = 70_001


def _array(rank: int, items: int = ITEMS) -> Any:
    return np.random.default_rng(rank).standard_normal(items).astype(np.float32)


@pytest.mark.parametrize("codec", ["bf16", "fp16", "int8", "fp8", "int4", "int8-stochastic", "topk-256"])
def test_all_ranks_hold_the_same_bits_of_an_encoded_mean_close_to_the_true_one(codec: str) -> None:
    def body(group: Group) -> Any:
        array = _array(group.rank)
        first = group.all_reduce(array, "mean", codec=codec)
        assert np.array_equal(array, _array(group.rank)), "the input is unchanged"
        second = group.all_reduce(array, "mean", out=array, codec=codec)
        return first.tobytes(), second.tobytes()

    answers = run_ranks(4, body)
    assert all(not isinstance(answer, Exception) for answer in answers), answers
    assert len({answer[0] for answer in answers}) == len({answer[1] for answer in answers}) == 1
    made, arrays = codec_of(codec), np.stack([_array(rank) for rank in range(4)])
    assert made is not None
    bound = 8 * np.max([made.error_bound(array) for array in arrays])
    error = np.abs(np.frombuffer(answers[0][0], np.float32) - arrays.mean(axis=0)).max()
    assert 0 < error <= bound


def test_a_codec_sends_fewer_bytes() -> None:
    def body(group: Group) -> Any:
        before = sum(peer.sent_bytes for peer in group.stats().peers)
        group.all_reduce(_array(group.rank, 400_000), codec="int8")
        group.barrier()
        return sum(peer.sent_bytes for peer in group.stats().peers) - before

    for sent in run_ranks(2, body):
        assert 350_000 < sent < 450_000, "a quarter of 1.6 MB, with half of the array up and half down"


def test_the_codec_of_a_run_applies_to_what_it_can_encode_and_a_call_can_change_it() -> None:
    def body(group: Group) -> Any:
        ones = np.full(1000, 1.0 / 3.0, np.float32)
        return (
            group.all_reduce(ones)[0],
            group.all_reduce(ones, codec="none")[0],
            group.all_reduce(ones, "max")[0],
            group.all_reduce(np.arange(1000))[1],
            group.average(ones)[0],
        )

    third = np.float32(1 / 3)
    coarse = np.float32(1 / 3).view(np.uint32) & np.uint32(0xFFFF0000)
    for encoded, plain, largest, whole, mean in run_ranks(2, body, codec="bf16"):
        assert plain == third + third and largest == third and whole == 2
        assert encoded != plain and mean != third
        assert abs(float(mean) - float(coarse.view(np.float32))) < 0.01


def test_a_codec_that_cannot_encode_an_operation_is_refused() -> None:
    def body(group: Group) -> Any:
        for array, op in ((np.ones(3, np.float32), "max"), (np.ones(3, np.int32), "sum")):
            with pytest.raises(BadArray, match="codec='int8' needs op='sum' or 'mean' of floats"):
                group.all_reduce(array, op, codec="int8")
        return "refused"

    assert run_ranks(2, body) == ["refused"] * 2


def test_members_with_different_codecs_get_an_error_that_names_them() -> None:
    def body(group: Group) -> Any:
        with pytest.raises(BadArray, match="with codec int8"):
            group.all_reduce(np.ones(3, np.float32), codec="int8" if group.rank else "bf16")
        return "refused"

    assert run_ranks(2, body) == ["refused"] * 2


def test_nan_and_infinity_arrive_where_they_were() -> None:
    def body(group: Group) -> Any:
        array = _array(group.rank)
        if group.rank == 1:
            array[[5, 300]] = np.nan, np.inf
        return group.all_reduce(array, codec="int4").tobytes()

    answers = [np.frombuffer(answer, np.float32) for answer in run_ranks(3, body)]
    for result in answers:
        assert np.isnan(result[5]) and result[300] == np.inf
        assert np.isfinite(np.delete(result, [5, 300])).all()


def test_ranks_of_a_sparse_round_get_the_sum_of_what_each_has_kept() -> None:
    def body(group: Group) -> Any:
        before = sum(peer.sent_bytes for peer in group.stats().peers)
        result = group.all_reduce(_array(group.rank, 400_000), codec="topk")
        group.barrier()
        return result.tobytes(), sum(peer.sent_bytes for peer in group.stats().peers) - before

    answers = run_ranks(3, body, planner="star")
    assert len({answer[0] for answer in answers}) == 1
    assert 2 * 8_600 < sum(answer[1] for answer in answers) < 3 * 3 * 18_000, "two up with 10 bits each, two down"
    result = np.frombuffer(answers[0][0], np.float32)
    kept = 400_000 / 64
    assert 2.5 * kept < np.count_nonzero(result) <= 3 * kept + 64
    nonzero = np.flatnonzero(result)
    given = np.stack([_array(rank, 400_000) for rank in range(3)])
    largest = np.abs(given).max(axis=0)
    assert largest[nonzero].min() > 1.5 > np.median(largest), "items that are sent are the largest of some rank"


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_floats_are_encoded_too(dtype: str) -> None:
    def body(group: Group) -> Any:
        if dtype == "bfloat16":
            array = np.full(5000, 0x3F80, np.uint16)  # 1.0
            return group.all_reduce(array, codec="int8", dtype=dtype).tolist()
        return group.all_reduce(np.ones(5000, dtype), codec="int8").astype(np.float64).tolist()

    expected = [0x4040] * 5000 if dtype == "bfloat16" else [3.0] * 5000
    for answer in run_ranks(3, body):
        assert np.allclose(answer, expected, rtol=1e-5, atol=0)


def test_every_codec_has_a_name_that_calls_accept() -> None:
    assert CODECS[0] == "none" and len(set(CODECS)) == len(CODECS) == 16


@pytest.mark.parametrize("codec", ["int4", "topk"])
@pytest.mark.parametrize(("planner", "world"), [("star", 4), ("ring", 4), ("spanning-tree", 3), (None, 2)])
def test_inputs_result_and_residuals_add_up_whatever_the_tree(planner: str | None, world: int, codec: str) -> None:
    """What encoding loses anywhere, at leaves, aggregators and the root, is in the residual of some rank."""

    def body(group: Group) -> Any:
        residual, results = np.zeros(ITEMS, np.float32), []
        for step in range(3):
            before = residual.copy()
            result = group.all_reduce(_array(10 * step + group.rank), codec=codec, residual=residual)
            results.append((before, result.copy(), residual.copy()))
        return results

    answers = run_ranks(world, body, planner=planner)
    assert all(not isinstance(answer, Exception) for answer in answers), answers
    for step in range(3):
        given = sum(_array(10 * step + rank).astype(np.float64) for rank in range(world))
        before, after = (sum(answer[step][k].astype(np.float64) for answer in answers) for k in (0, 2))
        result = answers[0][step][1]
        assert np.abs(given + before - result - after).max() < 1e-4
        assert np.abs(after).max() > 0.1, "something was lost, and kept"


def test_a_residual_makes_up_for_what_earlier_rounds_lost() -> None:
    def body(group: Group) -> Any:
        array = np.linspace(0.0, 1.0, 1000, dtype=np.float32)
        residual = np.zeros_like(array)
        kept = np.mean([group.all_reduce(array, "mean", codec="int4", residual=residual) for _ in range(32)], axis=0)
        lost = np.mean([group.all_reduce(array, "mean", codec="int4") for _ in range(32)], axis=0)
        return float(np.abs(kept - array).max()), float(np.abs(lost - array).max())

    for kept, lost in run_ranks(2, body):
        assert kept < lost / 8


@pytest.mark.parametrize("codec", ["int4", "topk"])
def test_weighted_means_keep_their_residuals_in_units_of_the_input(codec: str) -> None:
    def body(group: Group) -> Any:
        residual = np.zeros(ITEMS, np.float32)
        handle = group.average_async(_array(group.rank), codec=codec, residual=residual)
        result = handle.wait()
        return handle.outcome.weights, result, residual

    answers = run_ranks(3, body)
    weights = answers[0][0]
    given, lost = (
        sum(weight * np.float64(of) for weight, of in zip(weights, arrays, strict=True))
        for arrays in ([_array(rank) for rank in range(3)], [answer[2] for answer in answers])
    )
    assert np.abs(given - answers[0][1] - lost).max() < 1e-4


def test_a_residual_that_does_not_fit_is_refused() -> None:
    def body(group: Group) -> Any:
        array = np.ones(10, np.float32)
        for given, residual, why in (
            (array, np.zeros(9, np.float32), "like array"),
            (array, np.zeros(10), "like array"),
            (array, array, "shares the memory"),
            (np.ones(10), np.zeros(10, np.float32), "needs a float32 array"),
        ):
            with pytest.raises(BadArray, match=why):
                group.all_reduce(given, codec="int8", residual=residual)
        return "refused"

    assert run_ranks(2, body) == ["refused"] * 2
