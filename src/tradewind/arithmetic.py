"""Sums, means, extremes and products of chunks, in the order in which they are given.

Sixteen-bit floats are added in float32 and rounded once a site: half the bytes on the wire without half the digits lost
at every addition. numpy has no bfloat16, so its arrays are 16-bit patterns (`uint16`); a bfloat16 is the upper half
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
"""Worked on at a time, so that what one part brought into the cache is still there for the next."""

OPERATIONS = ("sum", "mean", "min", "max", "product")
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "mean": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
    "broadcast": lambda _, came, out: np.copyto(out, came),
}
_STORAGE: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "bytes": np.dtype(np.uint8),
}
DTYPES = tuple(name for name in _STORAGE if name != "bytes")  # which can be broadcast, but not summed


def storage_of(dtype: str) -> np.dtype[Any]:
    """How numpy holds items of that type."""
    if dtype not in _STORAGE:
        raise BadArray(f"arrays of {dtype} cannot be synchronised. Convert to one of {', '.join(DTYPES)}.")
    return _STORAGE[dtype]


def name_dtype(array: Array) -> str:
    """The name of an array's type, refused if it is none of ours."""
    name = array.dtype.name
    storage_of(name)
    if not array.dtype.isnative:
        raise BadArray(f"an array of {name} in foreign byte order cannot be synchronised. Use array.astype({name!r}).")
    return name


def check_operation(op: str, dtype: str, weighted: bool = False) -> None:
    """Refuse what cannot be computed."""
    if dtype not in DTYPES:
        raise BadArray(f"arrays of {dtype} cannot be summed. Convert to one of {', '.join(DTYPES)}.")
    if op not in OPERATIONS:
        raise BadArray(f"no operation is called {op!r}. Known: {', '.join(OPERATIONS)}.")
    if op == "mean" and dtype.startswith("int"):
        raise BadArray(f"the mean of {dtype} is not a whole number. Use op='sum', or convert to float64.")
    if weighted and op != "mean":
        raise BadArray(f"weights go with op='mean', not with {op!r}.")


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a round's chunks are combined at one site."""

    dtype: str
    op: str
    weight: float = 1.0
    """What the site's own array is multiplied with."""
    root_scale: float = 1.0
    """What a finished sum is multiplied with at the root."""

    @property
    def gathers(self) -> bool:
        """Whether all parts of a sum have to be there at once, to be rounded once."""
        return self.dtype in ("float16", "bfloat16")

    def combine(self, out: Array, own: Array | None, parts: Sequence[Array], finish: bool = False) -> None:
        """out = own x weight, if given, and the parts, folded from left to right; `out` may be one of them.

        `finish`: this completes the sum at the root.
        """
        scale = self.root_scale if finish else 1.0
        step = BLOCK_BYTES // out.itemsize
        with np.errstate(all="ignore"):  # an infinity is a result like any other
            for start in range(0, len(out), step):
                block = slice(start, start + step)
                mine = None if own is None else own[block]
                self._fold(out[block], mine, [part[block] for part in parts], scale)

    def adder(self, own: bool, finish: bool) -> Callable[..., object]:
        """How a block and what came for it become a block of sums: (first, came, out=); `own`: the first is the input.

        Mostly numpy's own function. Whoever calls it silences numpy's warnings.
        """
        scale = self.root_scale if finish else 1.0
        if not self.gathers and scale == 1.0 and not (own and self.weight != 1.0):
            return _FUNCTIONS[self.op]
        if own:
            return lambda first, came, out: self._fold(out, first, [came], scale)
        return lambda first, came, out: self._fold(out, None, [first, came], scale)

    def _fold(self, out: Array, own: Array | None, parts: list[Array], scale: float) -> None:
        if self.gathers:
            wide = [_widen(part, self.dtype) for part in ([] if own is None else [own]) + parts]
            total = wide[0]
            if own is not None and self.weight != 1.0:
                total *= np.float32(self.weight)
            for part in wide[1:]:
                _FUNCTIONS[self.op](total, part, out=total)
            if scale != 1.0:
                total *= np.float32(scale)
            _narrow(total, out, self.dtype)
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
    """What all arrays come to, in the order given; weights count in a mean.

    As at a root whose children are everybody else: equal weights are one division at the end.

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
    """A site's part in an operation: equal weights are one division at the root, others a factor for each member."""
    if op == "broadcast":
        return Arithmetic("bytes", op)
    if op != "mean":
        return Arithmetic(dtype, op)
    given = list(weights.values())
    if len(set(given)) == 1:
        return Arithmetic(dtype, op, root_scale=given[0])
    return Arithmetic(dtype, op, weight=weights.get(site, 1.0))


def _widen(part: Array, dtype: str) -> npt.NDArray[np.float32]:
    """A copy in float32."""
    if dtype == "float16":
        return part.astype(np.float32)
    return np.left_shift(part.astype(np.uint32), 16).view(np.float32)


def _narrow(total: npt.NDArray[np.float32], out: Array, dtype: str) -> None:
    """Rounded to nearest, ties to even."""
    if dtype == "float16":
        out[...] = total
        return
    bits = total.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    not_a_number = np.isnan(total)
    rounded[not_a_number] = (bits[not_a_number] >> 16) | 0x40  # rounding up must not turn NaN into infinity
    out[...] = rounded
