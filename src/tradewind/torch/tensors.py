"""Staging of tensors as flat host arrays for the runtime, without a copy where possible.

A contiguous CPU tensor is reduced in its own memory. Others are copied into a buffer and back: several small tensors
(so that they share one round), strided tensors, and CUDA tensors, which pass through pinned memory on two separate
streams. Pinned buffers come from PyTorch's pool and go back to it, so that a training loop allocates none after its
first steps: while one bucket is in the network, the next one fills another buffer.

    caller's stream   backward of bucket 1 | backward of bucket 2 | ...
    stream down                            | bucket 1 to the host | bucket 2 to the host | ...
    network                                                       | bucket 1             | bucket 2 ...
    stream up                                                                            | bucket 1 to the device
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed import ReduceOp

from tradewind.arithmetic import Array, can_compute
from tradewind.runtime.group import Group, Handle

OPERATIONS = {
    ReduceOp.SUM: "sum",
    ReduceOp.PREMUL_SUM: "sum",
    ReduceOp.AVG: "mean",
    ReduceOp.PRODUCT: "product",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
}
DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}
PACK_BYTES = 256 * 1024
"""Tensors smaller than this (in bytes) are packed together: copying them costs less than a round of their own."""


def operation_of(reduce_op: Any, tensors: Sequence[torch.Tensor]) -> str | None:
    """The runtime's name of a reduce operation; None if unsupported. A premultiplied sum is a sum of `multiplied`."""
    if is_premultiplied(reduce_op) and not all(tensor.dtype.is_floating_point for tensor in tensors):
        return None
    return OPERATIONS.get(getattr(reduce_op, "op", reduce_op))


def is_premultiplied(reduce_op: Any) -> bool:
    """Whether the operation multiplies each tensor by a factor before it adds them up, as FSDP does for its means."""
    return bool(getattr(reduce_op, "op", reduce_op) == ReduceOp.PREMUL_SUM)


def multiplied(tensors: Sequence[torch.Tensor], reduce_op: Any, in_place: bool = False) -> list[torch.Tensor]:
    """The tensors times the factor of a premultiplied sum; as they are for other operations."""
    if not is_premultiplied(reduce_op):
        return list(tensors)
    _, factor = reduce_op.__getstate__()  # the only way to it from Python
    with torch.no_grad():
        return [tensor.mul_(factor) if in_place else tensor * factor for tensor in tensors]


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the runtime can copy this tensor."""
    return tensor.layout is torch.strided and tensor.device.type in ("cpu", "cuda")


def is_supported(tensor: torch.Tensor, op: str) -> bool:
    """Whether the runtime can reduce this tensor with `op`."""
    is_known = is_dense(tensor) and tensor.dtype in DTYPES
    return is_known and (op == "mean" or can_compute(op, DTYPES[tensor.dtype]))


def as_array(flat: torch.Tensor) -> np.ndarray[Any, Any]:
    """A numpy array that shares the tensor's memory; bfloat16, which numpy lacks, becomes its bits in uint16."""
    array: np.ndarray[Any, Any]
    if flat.dtype is torch.bfloat16:
        array = flat.view(torch.int16).numpy().view(np.uint16)
    elif flat.dtype not in DTYPES:  # only copied
        array = flat.view(torch.uint8).numpy().view(f"V{flat.element_size()}")
    else:
        array = flat.numpy()
    return array


def grouped(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Group tensors into parts of one round each; ranks with the same shapes, dtypes and devices get the same parts."""
    small: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    parts: list[list[torch.Tensor]] = []
    for tensor in tensors:
        if len(tensors) == 1 or tensor.nbytes >= PACK_BYTES:
            parts.append([tensor])
        else:
            small.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return [*parts, *small.values()]


class Staged:
    """Tensors of one dtype on one device, and the flat host array in which they are reduced in place."""

    def __init__(self, tensors: list[torch.Tensor], wide: bool = False, filled: bool = True) -> None:
        """`filled`: whether the array must hold the tensors' values; otherwise it only receives theirs."""
        self._tensors = [tensor.detach() for tensor in tensors]
        first = self._tensors[0]
        self._kind = torch.float32 if wide and first.dtype.is_floating_point else first.dtype
        self.dtype = DTYPES.get(self._kind)
        """The runtime's name of the dtype; None if it can only be copied."""
        self.device = first.device if first.is_cuda else None
        self._copied: Any = None
        self._called: Any = None
        is_plain = first.is_contiguous() and not first.is_neg() and not first.is_conj() and self._kind is first.dtype
        self.is_direct = len(tensors) == 1 and is_plain and self.device is None
        """Whether the array is the tensor's own memory."""
        self.is_ordered = False
        if self.device is not None:
            self._follow_caller(self.device)
        if self.is_direct:
            self._flat = first.view(-1)
        elif not filled:
            size = sum(tensor.numel() for tensor in self._tensors)
            self._flat = torch.empty(size, dtype=first.dtype, pin_memory=self.device is not None)
        elif self.device is None:
            self._flat = torch.cat([tensor.reshape(-1) for tensor in self._tensors]).to(self._kind)
        else:
            self._flat = self._download()
        self.array = as_array(self._flat)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that are reduced."""
        return self._tensors

    def start(self, group: Group, op: str, coding: Coding) -> Handle:
        """Submit the all-reduce of the array to the runtime."""
        residual = None if coding.residual is None else coding.residual(self._tensors, group)
        array = self.array
        return group.all_reduce_async(array, op, out=array, dtype=self.dtype, codec=coding.codec, residual=residual)

    def ready(self) -> None:
        """Wait until the array holds the tensors' values (after a copy from a device)."""
        if self._copied is not None:
            self._copied.synchronize()

    def deliver(self) -> None:
        """Copy the array back into the tensors; on a device, in order of its current stream."""
        if self.is_direct:
            return
        if self.device is not None:
            torch.cuda.current_stream(self.device).wait_event(self._called)
        if len(self._tensors) == 1 and self._kind is self._tensors[0].dtype:
            self._tensors[0].copy_(self._flat.view(self._tensors[0].shape), non_blocking=True)
            return
        flat = self._flat if self.device is None else self._flat.to(self.device, non_blocking=True)
        start = 0
        for tensor in self._tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()

    def _follow_caller(self, device: torch.device) -> None:
        """Let the result wait for what the caller's stream has queued, which may use the old values of the tensors."""
        self._called = torch.cuda.current_stream(device).record_event()
        for tensor in self._tensors:  # their memory must not be reused before the copy has ended
            tensor.record_stream(copy_streams(device).up)

    def _download(self) -> torch.Tensor:
        """Start a copy to pinned memory after the current stream's queued work, without blocking that stream."""
        assert self.device is not None
        copying = copy_streams(self.device).down
        copying.wait_event(self._called)
        size = sum(tensor.numel() for tensor in self._tensors)
        flat = torch.empty(size, dtype=self._kind, pin_memory=True)
        with torch.cuda.stream(copying):
            start = 0
            for tensor in self._tensors:
                flat[start : start + tensor.numel()].copy_(tensor.reshape(-1), non_blocking=True)
                tensor.record_stream(copying)
                start += tensor.numel()
            self._copied = torch.cuda.Event(blocking=True)  # the thread that waits sleeps instead of polling
            self._copied.record(copying)
        return flat


class Coding(NamedTuple):
    """How an all-reduce is encoded."""

    codec: str | None = None
    """None: as the option of the run says."""
    residual: Callable[[list[torch.Tensor], Group], Array] | None = None
    """Returns the residual of tensors that are reduced together; None: they have none."""
    on_device: Callable[[list[torch.Tensor]], torch.Tensor] | None = None
    """Returns their residual on their device, if they are encoded there."""


PLAIN = Coding()


class CopyStreams(NamedTuple):
    """A device's streams for copies, separate from computation and from each other, so that all of them overlap."""

    down: Any
    """To the host. It waits for computations of the caller's stream."""
    up: Any
    """To the device. With one stream for both, a result would wait for the computation of a later bucket."""


_copy_streams: dict[torch.device, CopyStreams] = {}


def copy_streams(device: torch.device) -> CopyStreams:
    """The streams for copies of a device."""
    if device not in _copy_streams:
        _copy_streams[device] = CopyStreams(torch.cuda.Stream(device), torch.cuda.Stream(device))
    return _copy_streams[device]
