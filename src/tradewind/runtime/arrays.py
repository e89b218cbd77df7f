"""Arrays as callers give them: converted where nothing is lost by it, refused at the call where something would be."""

from __future__ import annotations

from typing import Any

import numpy as np

from tradewind.arithmetic import Array, storage_of
from tradewind.errors import BadArray
from tradewind.node.payload import same_memory


def as_array(value: Any) -> Array:
    """A numpy array of a caller's value, in the same memory where there is one: lists and CPU tensors are converted.

    >>> as_array([1.5, 2.0])
    array([1.5, 2. ])
    """
    if isinstance(value, np.ma.MaskedArray):
        raise BadArray("a masked array cannot be synchronised: ranks may mask different items. Use array.filled(...).")
    try:
        return np.asarray(value)
    except Exception as error:  # whatever the other library raises, such as for a tensor that requires a gradient
        raise BadArray(
            f"a {type(value).__name__} cannot be used as a numpy array ({error}). Give an array, a list of numbers, or "
            "a tensor on the CPU; the bits of a bfloat16 tensor are tensor.view(torch.uint16), with dtype='bfloat16'."
        ) from error


def check_storage(array: Array, dtype: str) -> None:
    """Refuse an array whose bits are not those of the type that it is to be taken as."""
    if array.dtype != storage_of(dtype):
        raise BadArray(f"an array of {array.dtype} cannot be taken as {dtype}, which is held as {storage_of(dtype)}.")


def check_out(out: Any, array: Array, own: Array) -> None:
    """Refuse a place that cannot hold the result of combining `array`, whose contiguous form is `own`."""
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise BadArray(
            f"out must be a numpy array, got a {type(out).__name__}. For a tensor on the CPU give out=tensor.numpy()."
        )
    if out.shape != array.shape or out.dtype != array.dtype or not out.flags.c_contiguous:
        raise BadArray(
            f"out is a {out.dtype} array of shape {out.shape}, array one of {array.dtype} and {array.shape}: "
            "they must be alike, and out contiguous."
        )
    if not out.flags.writeable:
        raise BadArray("out is read-only. Give an array that can be written, or leave out= away to get a new one.")
    if np.may_share_memory(own, out) and not same_memory(own, out):
        raise BadArray("out shares a part of array's memory. Give array itself as out, or an array of its own.")
