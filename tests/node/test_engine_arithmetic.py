"""Sums of every type and operation agree with numpy in higher precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tradewind.arithmetic import (
    BITWISE,
    DTYPES,
    OPERATIONS,
    WHOLE,
    Arithmetic,
    Array,
    check_operation,
    name_dtype,
    storage_of,
)
from tradewind.errors import BadArray

FOLD: dict[str, Callable[..., Any]] = {"sum": np.sum, "mean": np.sum, "min": np.min, "max": np.max, "product": np.prod}
BITS = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}


def to_bfloat16(values: npt.ArrayLike) -> Array:
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bfloat16(values: Array) -> Array:
    return (values.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPERATIONS)
def test_every_operation_on_every_type(op: str, dtype: str) -> None:
    if (op == "mean" and dtype in WHOLE) or (op in BITWISE and dtype not in WHOLE):
        with pytest.raises(BadArray, match="op='sum'" if op == "mean" else "whole numbers or bool"):
            check_operation(op, dtype)
        return
    most = {"bool": 2, "int8": 5}.get(dtype, 6)  # products of int8 stay below 128
    values = np.random.default_rng(0).integers(0, most, (3, 300_000)).astype(np.float64)
    store = to_bfloat16 if dtype == "bfloat16" else (lambda v: v.astype(dtype))
    load = from_bfloat16 if dtype == "bfloat16" else (lambda v: v)
    own, *parts = (store(v) for v in values)
    out = np.zeros_like(own)
    Arithmetic(dtype, op, root_scale=0.25 if op == "mean" else 1.0).combine(out, own, parts, finish=True)
    if op in BITWISE:
        expected = BITS[op].reduce(values.astype(storage_of(dtype)), axis=0).astype(np.float64)
    else:
        expected = FOLD[op](values, axis=0) * (0.25 if op == "mean" else 1.0)
    if dtype == "bool":
        expected = expected.astype(bool).astype(np.float64)  # the sum of truth values is or, their product and
    np.testing.assert_allclose(load(out).astype(np.float64), expected, rtol=2**-7 if dtype == "bfloat16" else 1e-3)
    if dtype in WHOLE or dtype.startswith(("float32", "float64")):
        np.testing.assert_array_equal(out, expected.astype(dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_added_in_float32_and_rounded_once(dtype: str) -> None:
    """256 (or 2048) and many small parts: each alone would be rounded away."""
    store = to_bfloat16 if dtype == "bfloat16" else (lambda v: np.asarray(v, np.float16))
    big = 256.0 if dtype == "bfloat16" else 2048.0
    out = store([0.0])
    Arithmetic(dtype, "sum").combine(out, store([big]), [store([0.5])] * 8)
    assert out == store([big + 4.0])


def test_bfloat16_rounds_to_even_and_keeps_infinity_and_nan() -> None:
    out = np.zeros(4, np.uint16)
    parts = to_bfloat16([1.0, 1.0078125, np.inf, np.nan])
    small = to_bfloat16([2**-8, 2**-8, 1.0, 1.0])
    Arithmetic("bfloat16", "sum").combine(out, parts, [small])
    got = from_bfloat16(out)
    assert got[0] == 1.0 and got[1] == 1.015625 and np.isinf(got[2]) and np.isnan(got[3])


def test_a_result_may_be_one_of_the_parts() -> None:
    for dtype in ("float32", "float16"):
        out, part = np.full(5, 2.0, dtype), np.full(5, 3.0, dtype)
        Arithmetic(dtype, "product").combine(out, None, [out, part])
        assert (out == 6).all()


def test_what_cannot_be_computed_is_refused_with_what_to_do() -> None:
    with pytest.raises(BadArray, match="complex64 cannot be synchronised"):
        name_dtype(np.zeros(1, np.complex64))
    with pytest.raises(BadArray, match="byte order"):
        name_dtype(np.zeros(1, ">f4"))
    with pytest.raises(BadArray, match="unknown operation 'median'"):
        check_operation("median", "float32")
    with pytest.raises(BadArray, match="weights need op='mean'"):
        check_operation("sum", "float32", weighted=True)
    assert storage_of("bfloat16") == np.uint16
