"""Sum, mean, min, max, product and bitwise operations of chunks, folded in the order in which they are given.

16-bit floats are added in float32 and rounded once per site: they halve the bytes on the wire without losing precision
at every addition. numpy has no bfloat16, so bfloat16 arrays are held as 16-bit patterns (`uint16`), each the upper half
of a float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tradewind.errors import BadArray

Array = npt.NDArray[Any]

BLOCK_BYTES = 256 * 1024
"""Bytes processed at a time, so that a block is still in the CPU cache when the next part is added to it."""

COPY = "copy"
"""The operation of collectives that copy bytes instead of combining numbers."""
BITWISE = ("band", "bor", "bxor")
OPERATIONS = ("sum", "mean", "min", "max", "product", *BITWISE)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "mean": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "init": np.add,
    "push": np.add,
    COPY: lambda _, came, out: np.copyto(out, came),
}
_STORAGE: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
    "bytes": np.dtype(np.uint8),
}
DTYPES = tuple(name for name in _STORAGE if name != "bytes")  # bytes can be copied, but not summed
WHOLE = ("int32", "int64", "int8", "uint8", "bool")


def storage_of(dtype: str) -> np.dtype[Any]:
    """Return the numpy dtype that holds items of type `dtype`; raise `BadArray` if the type is not supported."""
    if dtype not in _STORAGE:
        raise BadArray(f"arrays of {dtype} cannot be synchronised. Convert to one of {', '.join(DTYPES)}.")
    return _STORAGE[dtype]


def name_dtype(array: Array) -> str:
    """Return the name of an array's type; raise `BadArray` if the type or its byte order is not supported."""
    name = array.dtype.name
    storage_of(name)
    if not array.dtype.isnative:
        raise BadArray(f"an array of {name} in foreign byte order cannot be synchronised. Use array.astype({name!r}).")
    return name


def check_operation(op: str, dtype: str, weighted: bool = False) -> None:
    """Raise `BadArray` if `op` cannot be computed on items of type `dtype`, or does not take weights."""
    if dtype not in DTYPES:
        raise BadArray(f"arrays of {dtype} cannot be summed. Convert to one of {', '.join(DTYPES)}.")
    if op not in OPERATIONS:
        raise BadArray(f"unknown operation {op!r}. Known: {', '.join(OPERATIONS)}.")
    if op == "mean" and dtype in WHOLE:
        raise BadArray(f"the mean of {dtype} is not a whole number. Use op='sum', or convert to float64.")
    if op in BITWISE and dtype not in WHOLE:
        raise BadArray(f"{op} needs whole numbers or bool, got {dtype}. Expected one of {', '.join(WHOLE)}.")
    if weighted and op != "mean":
        raise BadArray(f"weights need op='mean', got op={op!r}.")


def can_compute(op: str, dtype: str) -> bool:
    """Whether `op` can be computed on items of type `dtype`."""
    try:
        check_operation(op, dtype)
    except BadArray:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How one site combines the chunks of a round."""

    dtype: str
    op: str
    weight: float = 1.0
    """Factor for the site's own array."""
    root_scale: float = 1.0
    """Factor for the finished sum, applied at the root."""

    @property
    def adds(self) -> bool:
        """Whether parts are added; otherwise another operation combines them."""
        return _FUNCTIONS[self.op] is np.add

    @property
    def gathers(self) -> bool:
        """Whether all parts of a sum must be present before they are added, so that the sum is rounded once."""
        return self.dtype in ("float16", "bfloat16")

    def combine(
        self,
        out: Array,
        own: Array | None,
        parts: Sequence[Array],
        finish: bool = False,
        weights: Sequence[float] = (),
    ) -> None:
        """Fold `own` x weight (if given) and the parts from left to right into `out`, which may be one of them.

        `finish`: whether this completes the sum at the root, which applies `root_scale`. `weights`: factors of the
        parts; none if each part was multiplied by its sender.
        """
        scale = self.root_scale if finish else 1.0
        step = BLOCK_BYTES // out.itemsize
        with np.errstate(all="ignore"):  # infinity is a valid result
            for start in range(0, len(out), step):
                block = slice(start, start + step)
                mine = None if own is None else own[block]
                self._fold(out[block], mine, [part[block] for part in parts], scale, weights)

    def adder(self, own: bool, finish: bool, weight: float = 1.0) -> Callable[..., object]:
        """Return a function `(first, received, out=)` that adds a received block, times `weight`, to `first`.

        `own`: whether `first` is the site's own input. In most cases this is numpy's own function. The caller must
        silence numpy's warnings.
        """
        scale = self.root_scale if finish else 1.0
        if weight != 1.0:
            if own:
                return lambda first, came, out: self._fold(out, first, [came], scale, (weight,))
            return lambda first, came, out: self._fold(out, None, [first, came], scale, (1.0, weight))
        if not self.gathers and scale == 1.0 and not (own and self.weight != 1.0):
            return _FUNCTIONS[self.op]
        if own:
            return lambda first, came, out: self._fold(out, first, [came], scale)
        return lambda first, came, out: self._fold(out, None, [first, came], scale)

    def _fold(
        self, out: Array, own: Array | None, parts: list[Array], scale: float, weights: Sequence[float] = ()
    ) -> None:
        if weights and not self.gathers:
            parts = [p if w == 1.0 else np.multiply(p, out.dtype.type(w)) for p, w in zip(parts, weights, strict=True)]
        if self.gathers:
            wide = [widen(part, self.dtype) for part in ([] if own is None else [own]) + parts]
            for part, weight in zip(wide[len(wide) - len(weights) :], weights, strict=True):
                part *= np.float32(weight)
            total = wide[0]
            if own is not None and self.weight != 1.0:
                total *= np.float32(self.weight)
            for part in wide[1:]:
                _FUNCTIONS[self.op](total, part, out=total)
            if scale != 1.0:
                total *= np.float32(scale)
            narrow(total, out, self.dtype)
            return
        first, rest = parts[0] if own is None else own, parts if own is not None else parts[1:]
        if own is not None and self.weight != 1.0:
            first = np.multiply(own, out.dtype.type(self.weight), out=out)
        for part in rest:
            _FUNCTIONS[self.op](first, part, out=out)
            first = out
        if first is not out and not rest:
            out[...] = first
        if scale != 1.0:
            np.multiply(out, out.dtype.type(scale), out=out)


def combine_all(dtype: str, op: str, arrays: Sequence[Array], weights: Sequence[float]) -> Array:
    """Return the result of `op` over all arrays, folded in the order given; `weights` apply to a mean only.

    The result equals that of a root whose children are all other members: equal weights become one factor at the end.

    >>> combine_all("float32", "mean", [np.float32([1, 2]), np.float32([3, 6])], [0.5, 0.5])
    array([2., 4.], dtype=float32)
    >>> combine_all("float32", "mean", [np.float32([1, 2]), np.float32([3, 6])], [0.75, 0.25])
    array([1.5, 3. ], dtype=float32)
    """
    out = np.empty_like(arrays[0])
    parts, scale = list(arrays), 1.0
    if op == "mean" and len(set(weights)) == 1:
        scale = weights[0]
    elif op == "mean":
        parts = [np.empty_like(array) for array in arrays]
        for part, array, weight in zip(parts, arrays, weights, strict=True):
            Arithmetic(dtype, op, weight=weight).combine(part, array, [])
    Arithmetic(dtype, op, root_scale=scale).combine(out, None, parts, finish=True)
    return out


def arithmetic_of(op: str, dtype: str, weights: Mapping[str, float], site: str) -> Arithmetic:
    """Return a site's arithmetic for an operation: equal weights are one factor at the root, others one per member."""
    if op == COPY:
        return Arithmetic("bytes", op)
    if op != "mean":
        return Arithmetic(dtype, op)
    given = list(weights.values())
    if len(set(given)) == 1:
        return Arithmetic(dtype, op, root_scale=given[0])
    return Arithmetic(dtype, op, weight=weights.get(site, 1.0))


def widen(part: Array, dtype: str) -> npt.NDArray[np.float32]:
    """Return items in float32: a copy, unless they are float32."""
    if dtype == "bfloat16":
        return np.left_shift(part.astype(np.uint32), 16).view(np.float32)
    return part.astype(np.float32, copy=dtype != "float32")


def narrow(total: npt.NDArray[np.float32], out: Array, dtype: str) -> None:
    """Round to nearest, ties to even, and store in `out`."""
    if dtype != "bfloat16":
        out[...] = total
        return
    bits = total.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    not_a_number = np.isnan(total)
    rounded[not_a_number] = (bits[not_a_number] >> 16) | 0x40  # rounding up must not turn NaN into infinity
    out[...] = rounded
