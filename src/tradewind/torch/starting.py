"""The model that a worker starts from: rank 0's, as everybody's, or that of a run that is under way."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tradewind.errors import BadArray
from tradewind.runtime.group import Group

ALIGNMENT = 4
"""Broadcasts run over words of so many bytes."""


def start_from_others(group: Group, model: nn.Module) -> None:
    """Take the model that the others have, and offer it from now on to whoever joins later.

    Nobody offers one before everybody has rank 0's: whoever finds an offer joins a run that is under way, in which
    nobody else would take part in a broadcast.
    """
    fetched = group.fetch_state() if group.tolerant else None
    if fetched is None:
        put(model, torch.from_numpy(np.array(group.broadcast(packed(model).numpy().view(np.int32)))).view(torch.uint8))
    else:
        name, state = fetched
        if len(state) != len(packed(model)):
            raise BadArray(f"the model of {name!r} has {len(state)} bytes, the one here {len(packed(model))}.")
        put(model, torch.frombuffer(state, dtype=torch.uint8))
    # Read while it is trained, it may hold parts of two steps: no further apart than two workers are anyway.
    group.offer_state(lambda: packed(model).numpy().data)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [t.detach() for t in model.state_dict().values() if isinstance(t, Tensor) and t.numel()]


@torch.no_grad()
def packed(model: nn.Module) -> Tensor:
    """All parameters and saved buffers, bit by bit."""
    pieces = [t.cpu().contiguous().reshape(-1).view(torch.uint8) for t in _tensors(model)]
    nbytes = sum(map(len, pieces))
    whole = torch.zeros(-(-nbytes // ALIGNMENT) * ALIGNMENT, dtype=torch.uint8)
    torch.cat(pieces, out=whole[:nbytes])
    return whole


@torch.no_grad()
def put(model: nn.Module, whole: Tensor) -> None:
    """The other way round."""
    tensors = _tensors(model)
    lengths = [t.numel() * t.element_size() for t in tensors]
    for tensor, piece in zip(tensors, whole[: sum(lengths)].split(lengths), strict=True):
        tensor.copy_(piece.clone().view(tensor.dtype).view(tensor.shape))
