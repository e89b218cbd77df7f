"""Gradient compression with error feedback: what encoding loses of a bucket is added to it in the next step.

    dist.init_process_group("tradewind", pg_options=tradewind.torch.Options(compression="int8"))

compresses every all-reduce of floats of the group, DDP's buckets above all. A tensor that is reduced again and again,
as a bucket is, has a residual of its own: one more copy of the gradients, in float32, in host memory. `ErrorFeedback`
holds them. With DDP's comm hook the residuals belong to buckets by their parameters:

    feedback = tradewind.torch.ErrorFeedback("int8")
    model.register_comm_hook(feedback, tradewind.torch.compression_hook)

and `ErrorFeedback(codec_of=...)` chooses a codec for each bucket.

**Rules.** A residual starts at zero. It is dropped when its tensor is freed (DDP makes new buckets after the first
step), when the size of its bucket changes, and by `reset`, which is called when ranks of a tolerant run are lost or
join: so ranks that join start like all others. `state_dict` and `load_state_dict` are for checkpoints.

**CUDA tensors** are encoded on their device (`encoded_part`), where what that loses is kept: a second copy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

from tradewind.arithmetic import Array
from tradewind.errors import BadOption
from tradewind.runtime.group import Group
from tradewind.torch.tensors import Coding
from tradewind.wire.codecs import NONE, check_codec


class ErrorFeedback:
    """The residuals of one rank, by bucket.

    `codec`: how buckets are encoded (docs/guides/compression.md). `group`: the process group that reduces them, for
    `compression_hook`; the default group if None. `codec_of`: the codec of each bucket of DDP, the same on all ranks,
    for `compression_hook`; `codec` for all of them if None. Raises `UnknownName` for an unknown codec.
    """

    def __init__(
        self, codec: str = "int8", group: Any = None, codec_of: Callable[[dist.GradBucket], str] | None = None
    ) -> None:
        self.codec, self.group, self._codec_of = check_codec(codec), group, codec_of
        self._residuals: dict[Hashable, Array] = {}
        self._storages: dict[Hashable, StorageWeakRef] = {}
        self._loaded: list[Array] = []
        self._devices: dict[Hashable, torch.Tensor] = {}
        """What encoding on a device has lost, by bucket; the host's residual has what this rank lost as aggregator."""
        self._members: tuple[str, ...] | None = None

    @property
    def nbytes(self) -> int:
        """The memory of all residuals, on the host and on devices."""
        return sum(int(of.nbytes) for of in (*self._residuals.values(), *self._devices.values()))

    def residual(self, bucket: Hashable, items: int) -> Array:
        """The residual of a bucket, made on first use and when its size has changed."""
        found = self._residuals.get(bucket)
        if found is None or found.size != items:
            self._forget_freed()
            found = self._residuals[bucket] = self._from_checkpoint(items)
        return found

    def codec_of(self, bucket: dist.GradBucket) -> str:
        """The codec of a bucket of DDP. Raises `UnknownName` for an unknown codec."""
        return self.codec if self._codec_of is None else check_codec(self._codec_of(bucket))

    def coding_of(self, bucket: Hashable, tensor: torch.Tensor, codec: str) -> Coding:
        """How a bucket is encoded, with its residuals; one that is not encoded has none."""
        if codec == NONE:
            return Coding(NONE)
        residual = self.residual(bucket, tensor.numel())

        def followed(_: list[torch.Tensor], group: Group) -> Array:
            self.follow(group.names)
            return residual

        return Coding(codec, followed, lambda tensors: self._on_device(bucket, tensors))

    def residual_on_device(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """The residual, on their device, of tensors that are encoded there; it lives as long as `residual_of` them."""
        self.residual_of(tensors)
        return self._on_device(
            (StorageWeakRef(tensors[0].untyped_storage()).cdata, tensors[0].storage_offset()), tensors
        )

    def _on_device(self, bucket: Hashable, tensors: list[torch.Tensor]) -> torch.Tensor:
        items, found = sum(tensor.numel() for tensor in tensors), self._devices.get(bucket)
        if found is None or len(found) != items:
            found = self._devices[bucket] = torch.zeros(items, device=tensors[0].device)
        return found

    def residual_of(self, tensors: Iterable[torch.Tensor]) -> Array:
        """The residual of tensors that are reduced together; it lives as long as the memory of the first one."""
        tensors = list(tensors)
        storage = StorageWeakRef(tensors[0].untyped_storage())
        bucket = storage.cdata, tensors[0].storage_offset()  # not used again while a weak reference to it is kept
        found = self.residual(bucket, sum(tensor.numel() for tensor in tensors))
        self._storages[bucket] = storage
        return found

    def follow(self, members: tuple[str, ...]) -> None:
        """Reset all residuals if the ranks of the run are others than in the last call."""
        if self._members not in (None, members):
            self.reset()
        self._members = members

    def reset(self) -> None:
        """Set all residuals to zero."""
        self._loaded.clear()
        for residual in self._residuals.values():
            residual.fill(0.0)
        for lost in self._devices.values():
            lost.zero_()

    def state_dict(self) -> dict[str, Any]:
        """The residuals of this rank in the order in which buckets were first used, for a checkpoint of this rank."""
        self._forget_freed()
        whole = [torch.from_numpy(residual.copy()) for residual in (*self._residuals.values(), *self._loaded)]
        for residual, bucket in zip(whole, self._residuals, strict=False):
            if bucket in self._devices:
                residual += self._devices[bucket].cpu()
        return {"codec": self.codec, "residuals": whole}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`: buckets that are used from now on take the first residual of their size.

        Raises `BadOption` if the state is not one of error feedback.
        """
        if not isinstance(state.get("residuals"), list):
            raise BadOption(f"expected the state of ErrorFeedback with 'residuals', got keys {sorted(state)}.")
        self._residuals.clear()
        self._storages.clear()
        self._devices.clear()
        self._loaded = [residual.detach().cpu().float().reshape(-1).numpy().copy() for residual in state["residuals"]]

    def _from_checkpoint(self, items: int) -> Array:
        for place, residual in enumerate(self._loaded):
            if residual.size == items:
                return self._loaded.pop(place)
        return np.zeros(items, np.float32)

    def _forget_freed(self) -> None:
        for bucket in [bucket for bucket, storage in self._storages.items() if storage.expired()]:
            del self._storages[bucket]
            self._residuals.pop(bucket, None)
            self._devices.pop(bucket, None)


def compression_hook(feedback: ErrorFeedback, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's comm hook that averages buckets with the codec and the residuals of `feedback`.

    Raises `BadOption` if the group's backend is not tradewind.
    """
    from tradewind.torch.process_group import TradewindGroup

    group = feedback.group if feedback.group is not None else dist.distributed_c10d._get_default_group()
    if not isinstance(group, TradewindGroup):
        raise BadOption(
            f"compression_hook needs a process group of backend 'tradewind', got {dist.get_backend(group)!r}."
        )
    tensor = bucket.buffer()
    key = tuple(id(parameter) for parameter in bucket.parameters())
    coding = feedback.coding_of(key, tensor, feedback.codec_of(bucket))
    work = group.reduce_encoded(tensor.div_(group.size()), coding)
    averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return averaged


# DDP compares these with its own types; as text, which they are in this module, it refuses them.
compression_hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}


def error_feedback(group: Any = None) -> ErrorFeedback | None:
    """The residuals of a group with `compression`, for checkpoints; None if it has none.

    `group`: the default group if None.
    """
    group = group if group is not None else dist.distributed_c10d._get_default_group()
    found: ErrorFeedback | None = getattr(group, "feedback", None)
    return found
