"""Arrays as callers pass them: converted without loss, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tradewind.arithmetic import Array, storage_of
from tradewind.errors import BadArray
from tradewind.node.payload import same_memory


def copyable(array: ArrayLike) -> Array:
    """An array of a caller's value whose bytes may be copied to other ranks; raises `BadArray` for objects."""
    given = as_array(array)
    if given.dtype.hasobject:
        raise BadArray("an array of Python objects cannot be sent. Convert it to numbers or bytes.")
    return given


def rows_of(array: ArrayLike) -> Array:
    """A contiguous array with at least one axis, along which it is cut or joined."""
    return np.atleast_1d(np.ascontiguousarray(copyable(array)))


def as_array(value: Any) -> Array:
    """A numpy array of a caller's value, sharing its memory if possible; lists and CPU tensors are converted.

    Raises BadArray where the conversion would lose something.

    >>> as_array([1.5, 2.0])
    array([1.5, 2. ])
    """
    if isinstance(value, np.ma.MaskedArray):
        raise BadArray("a masked array cannot be synchronised: ranks may mask different items. Use array.filled(...).")
    try:
        return np.asarray(value)
    except Exception as error:  # of the other library, such as for a tensor that requires a gradient
        raise BadArray(
            f"a {type(value).__name__} cannot be used as a numpy array ({error}). Give an array, a list of numbers, or "
            "a tensor on the CPU; the bits of a bfloat16 tensor are tensor.view(torch.uint16), with dtype='bfloat16'."
        ) from error


def check_storage(array: Array, dtype: str) -> None:
    """Raise BadArray if the array's dtype is not the one that `dtype` is stored as."""
    if array.dtype != storage_of(dtype):
        raise BadArray(f"dtype={dtype!r} needs an array of {storage_of(dtype)}, got one of {array.dtype}.")


def check_out(out: Any, array: Array, own: Array) -> None:
    """Raise BadArray if `out` cannot hold the result for `array`, whose contiguous form is `own`."""
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise BadArray(
            f"out must be a numpy array, got a {type(out).__name__}. For a tensor on the CPU give out=tensor.numpy()."
        )
    if out.shape != array.shape or out.dtype != array.dtype or not out.flags.c_contiguous:
        raise BadArray(
            f"out must be a contiguous {array.dtype} array of shape {array.shape} like array, got a "
            f"{'' if out.flags.c_contiguous else 'non-contiguous '}{out.dtype} array of shape {out.shape}."
        )
    if not out.flags.writeable:
        raise BadArray("out is read-only. Pass a writable array, or omit out= to get a new one.")
    if np.may_share_memory(own, out) and not same_memory(own, out):
        raise BadArray("out overlaps the memory of array in part. Pass array itself as out, or a separate array.")


def check_residual(residual: Any, array: Array) -> None:
    """Raise BadArray if `residual` cannot hold what encoding loses of `array`."""
    if array.dtype != np.float32:
        raise BadArray(f"residual= needs a float32 array, got one of {array.dtype}. Convert the array.")
    fits = isinstance(residual, np.ndarray) and residual.dtype == np.float32 and residual.shape == array.shape
    if not fits or not residual.flags.c_contiguous or not residual.flags.writeable:
        raise BadArray(f"residual must be a writable contiguous float32 array of shape {array.shape} like array.")
    if np.may_share_memory(residual, array):
        raise BadArray("residual shares the memory of array. Pass a separate array.")
