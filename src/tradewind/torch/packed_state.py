"""States as bytes, to be sent to ranks that join: nested dicts and lists of numbers, text and tensors; no pickle."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import torch
from torch import Tensor

from tradewind.errors import BadFrame, BadOption

_TENSOR = 1
"""Code of a tensor in the description: its dtype, shape, and the place of its bytes."""
_LENGTH = struct.Struct("!Q")


class Placed(msgspec.Struct, array_like=True):
    """A tensor in the description of a state."""

    dtype: str
    shape: tuple[int, ...]
    first: int
    nbytes: int


@torch.no_grad()
def pack_state(state: Any) -> bytearray:
    """The bytes of a state. Raises `BadOption` for values other than numbers, text, lists, dicts and tensors.

    >>> unpack_state(pack_state({"step": 3, 5: [torch.ones(2)]}))
    {'step': 3, 5: [tensor([1., 1.])]}
    """
    raw: list[Tensor] = []
    used = 0

    def place(value: Any) -> Any:
        nonlocal used
        if not isinstance(value, Tensor):
            raise BadOption(
                f"a state with a {type(value).__name__} cannot be sent: use numbers, text, lists and tensors."
            )
        whole = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        name = str(value.dtype).removeprefix("torch.")
        placed = Placed(name, tuple(value.shape), used, whole.numel())
        raw.append(whole)
        used += whole.numel()
        return msgspec.msgpack.Ext(_TENSOR, msgspec.msgpack.encode(placed))

    about = msgspec.msgpack.encode(state, enc_hook=place)
    packed = bytearray(_LENGTH.size + len(about) + used)
    head = _LENGTH.pack(len(about)) + about
    packed[: len(head)] = head
    if used:
        torch.cat(raw, out=torch.frombuffer(packed, dtype=torch.uint8, offset=len(head), count=used))
    return packed


def unpack_state(data: bytearray) -> Any:
    """The state of `pack_state`; its tensors share the memory of `data`. Raises `BadFrame` if it is none."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        begin = _LENGTH.size + length

        def take(code: int, about: memoryview) -> Tensor:
            placed = msgspec.msgpack.decode(about, type=Placed)
            dtype = getattr(torch, placed.dtype)
            if code != _TENSOR or not isinstance(dtype, torch.dtype):
                raise ValueError(placed.dtype)
            if not placed.nbytes:
                return torch.empty(placed.shape, dtype=dtype)
            raw = torch.frombuffer(data, dtype=torch.uint8, offset=begin + placed.first, count=placed.nbytes)
            if (begin + placed.first) % dtype.itemsize:
                raw = raw.clone()
            return raw.view(dtype).view(placed.shape)

        return msgspec.msgpack.decode(memoryview(data)[_LENGTH.size : begin], ext_hook=take)
    except (struct.error, msgspec.MsgspecError, ValueError, AttributeError, RuntimeError, TypeError) as error:
        raise BadFrame(f"the received state is not one of tradewind.torch ({error}).") from error
