"""Buckets: a model's tensors copied into a few flat tensors, each averaged by one round or one part of a step.

A bucket has its own memory. Tensors are copied into it, the bucket is averaged in place, and copied back on success:
a round that fails leaves the model unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tradewind.arithmetic import storage_of
from tradewind.errors import BadOption
from tradewind.wire.messages import MAX_PARTS

BUCKET_BYTES = 4 * 2**20
"""Default bucket size with `overlap`, in bytes: large enough to amortise the messages of a round."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """A tensor of the model that is averaged."""

    name: str
    tensor: Tensor
    trained: bool
    """True for a parameter; False for a buffer (such as a running mean) or optimizer state."""


def tracked_tensors(model: nn.Module, buffers: bool = True) -> list[Tracked]:
    """The trainable parameters and, with `buffers`, the persistent floating-point buffers, in module order.

    Frozen parameters keep the values that all ranks started from. Integer buffers (`num_batches_tracked`) stay local
    to each rank, because their mean has no meaning. Raises `BadOption` if no parameter requires a gradient.
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
        raise BadOption(
            "the model has nothing to synchronise: none of its parameters requires a gradient. Set requires_grad=True "
            "on those to train."
        )
    return list(found.values())


class Bucket:
    """Tensors of one dtype, with one flat tensor of their total size on their device."""

    def __init__(self, tracked: Sequence[Tracked], dtype: torch.dtype | None = None) -> None:
        self.tracked = tuple(tracked)
        self.tensors = [t.tensor for t in tracked]
        self.dtype = dtype or self.tensors[0].dtype
        self.flat = torch.empty(sum(t.numel() for t in self.tensors), dtype=self.dtype, device=self.tensors[0].device)
        self._views = self.flat.split([t.numel() for t in self.tensors])

    @property
    def dtype_name(self) -> str:
        """The dtype's name in the wire format, such as `float32`."""
        return str(self.dtype).removeprefix("torch.")

    @torch.no_grad()
    def gather(self, out: Tensor | None = None) -> None:
        """Copy the tensors into the flat tensor, or into `out`."""
        views = self._views if out is None else out.split([t.numel() for t in self.tensors])
        for view, tensor in zip(views, self.tensors, strict=True):
            view.copy_(tensor.detach().reshape(-1))

    @torch.no_grad()
    def scatter(self, flat: Tensor | None = None) -> None:
        """Copy the flat tensor, or `flat`, back into the tensors."""
        views = self._views if flat is None else flat.split([t.numel() for t in self.tensors])
        for view, tensor in zip(views, self.tensors, strict=True):
            tensor.copy_(view.view(tensor.shape))


def pack(tracked: Iterable[Tracked], bucket_bytes: int | None = None, exact: bool = False) -> list[Bucket]:
    """Pack tensors into buckets of one dtype each, from the last tensor to the first (the order of gradients).

    `bucket_bytes` is the approximate size of a bucket; None packs one bucket per dtype. It is raised where needed so
    that there are at most `MAX_PARTS` buckets. `exact` keeps 16-bit dtypes in float32, for sums over many rounds.
    """
    backwards = list(tracked)[::-1]
    total = sum(t.tensor.numel() * t.tensor.element_size() for t in backwards)
    types = {t.tensor.dtype for t in backwards}
    # A bucket is closed when it is full, so all but the last of a type have at least the limit.
    limit = total if bucket_bytes is None else max(bucket_bytes, -(-total // (MAX_PARTS - len(types))))
    open_: dict[torch.dtype, list[Tracked]] = {}
    full: list[list[Tracked]] = []
    for item in backwards:
        storage_of(str(item.tensor.dtype).removeprefix("torch."))  # raises for a dtype that cannot be averaged
        group = open_.setdefault(item.tensor.dtype, [])
        group.append(item)
        if sum(t.tensor.numel() * t.tensor.element_size() for t in group) >= limit:
            full.append(open_.pop(item.tensor.dtype))
    return [Bucket(group, wide(group[0].tensor.dtype) if exact else None) for group in [*full, *open_.values()]]


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to accumulate in: float32 for 16-bit dtypes, otherwise the dtype itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
