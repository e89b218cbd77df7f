"""A model's tensors as a few flat arrays: what one round, or one part of a step, averages.

A bucket has memory of its own. Tensors are copied into it, it is averaged in place, and copied back when that went
well: a round that fails leaves the model as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tradewind.arithmetic import Array, storage_of
from tradewind.errors import BadOption
from tradewind.torch.tensors import as_array
from tradewind.wire.messages import MAX_PARTS

BUCKET_BYTES = 4 * 2**20
"""Of a part, when layers are averaged one after the other: large enough for a round to be worth its messages."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """A tensor that is averaged."""

    name: str
    tensor: Tensor
    trained: bool
    """Whether it is a parameter; else a buffer, such as a running mean."""


def tracked_tensors(model: nn.Module, buffers: bool = True) -> list[Tracked]:
    """Parameters that are trained and, with `buffers`, saved buffers of floating point, module by module.

    Frozen parameters stay as everybody got them at the start. Counters (`num_batches_tracked`) are each worker's own:
    the mean of two counts is the count of neither.
    """
    saved = set(model.state_dict(keep_vars=True))
    found: dict[int, Tracked] = {}
    for prefix, module in model.named_modules():
        dot = f"{prefix}." if prefix else ""
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                found.setdefault(id(parameter), Tracked(dot + name, parameter, True))
        for name, buffer in module.named_buffers(recurse=False):
            if buffers and buffer.is_floating_point() and dot + name in saved:
                found.setdefault(id(buffer), Tracked(dot + name, buffer, False))
    if not any(tracked.trained for tracked in found.values()):
        raise BadOption("the model has no parameter that requires a gradient: there is nothing to synchronise.")
    return list(found.values())


class Bucket:
    """Tensors of one type, as one flat array."""

    def __init__(self, tracked: Sequence[Tracked], dtype: torch.dtype | None = None) -> None:
        self.tracked = tuple(tracked)
        self.tensors = [t.tensor for t in tracked]
        self.dtype = dtype or self.tensors[0].dtype
        self.flat = torch.empty(sum(t.numel() for t in self.tensors), dtype=self.dtype)
        self._views = self.flat.split([t.numel() for t in self.tensors])

    @property
    def dtype_name(self) -> str:
        """What the wire calls its type."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def array(self) -> Array:
        """The same memory, for rounds."""
        return as_array(self.flat)

    @torch.no_grad()
    def gather(self, out: Tensor | None = None) -> None:
        """Copy the tensors in, or to `out`."""
        views = self._views if out is None else out.split([t.numel() for t in self.tensors])
        for view, tensor in zip(views, self.tensors, strict=True):
            view.copy_(tensor.detach().reshape(-1))

    @torch.no_grad()
    def scatter(self, flat: Tensor | None = None) -> None:
        """Copy it, or `flat`, back into the tensors."""
        views = self._views if flat is None else flat.split([t.numel() for t in self.tensors])
        for view, tensor in zip(views, self.tensors, strict=True):
            tensor.copy_(view.view(tensor.shape))


def pack(tracked: Iterable[Tracked], bucket_bytes: int | None = None, exact: bool = False) -> list[Bucket]:
    """Buckets of one type each, of about so many bytes, from the last tensor to the first: as gradients come.

    None: one bucket a type. `exact`: sixteen-bit types are kept in float32, for sums that go on over many rounds.
    There are never more than a step can have parts, whatever was asked for.
    """
    backwards = list(tracked)[::-1]
    total = sum(t.tensor.numel() * t.tensor.element_size() for t in backwards)
    types = {t.tensor.dtype for t in backwards}
    # A bucket is closed when it is full, so all but the last of a type have at least the limit.
    limit = total if bucket_bytes is None else max(bucket_bytes, -(-total // (MAX_PARTS - len(types))))
    open_: dict[torch.dtype, list[Tracked]] = {}
    full: list[list[Tracked]] = []
    for item in backwards:
        storage_of(str(item.tensor.dtype).removeprefix("torch."))  # refuse what no round can average
        group = open_.setdefault(item.tensor.dtype, [])
        group.append(item)
        if sum(t.tensor.numel() * t.tensor.element_size() for t in group) >= limit:
            full.append(open_.pop(item.tensor.dtype))
    return [Bucket(group, wide(group[0].tensor.dtype) if exact else None) for group in [*full, *open_.values()]]


def wide(dtype: torch.dtype) -> torch.dtype:
    """A type in which small changes add up."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
