"""A part of an all-reduce that is encoded on its device: only encoded bytes are copied to the host, and back.

The tensors are encoded on the device (`tensor_codecs`), and the bytes copied to pinned memory. The host decodes them:
for the runtime it is an array like any other, whose values a leaf encodes again to the same codes, since shards are cut
between blocks. The encoded result is collected beside the array (`EncodedCopy`), copied to the device and decoded
there, to the bits that all other ranks have. Where a round has no such form (a small one, or one repaired with other
cuts), the array is copied as it is.

**Error feedback.** What the device's encoding loses is kept on the device, and what this rank loses as an aggregator on
the host, as for other tensors. Both are in the next step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tradewind.arithmetic import Array
from tradewind.runtime.group import Group, Handle
from tradewind.torch.tensor_codecs import decode_tensor, encode_tensor, encoded_bytes
from tradewind.torch.tensors import Coding, copy_streams
from tradewind.wire.codecs import Dense, codec_of
from tradewind.wire.encoded_copy import EncodedCopy


class EncodedPart:
    """Tensors on one device that are reduced as float32, and encoded there."""

    is_direct = is_ordered = False
    """The result is copied into the tensors, in any order of parts."""

    def __init__(self, tensors: list[Tensor], codec: str, residual: Tensor | None = None) -> None:
        """`codec`: one of `tensor_codecs.ON_DEVICE`. `residual`: what was lost before, on the same device."""
        self.tensors = [tensor.detach() for tensor in tensors]
        first = self.tensors[0]
        self.device: torch.device | None = first.device if first.is_cuda else None
        made = codec_of(codec)
        assert isinstance(made, Dense)
        self._codec, self._made, self._residual = codec, made, residual
        self._items = sum(tensor.numel() for tensor in self.tensors)
        self._sent, self._came = (self._bytes() for _ in range(2))
        self._array: Array = torch.empty(self._items).numpy()
        self._handle: Handle | None = None
        self._copy = EncodedCopy(codec, self._items, self._came.numpy())
        self._copied: Any = None
        self._called: Any = None
        self._encode()

    def _bytes(self) -> Tensor:
        """Memory of the host for the encoded tensors."""
        return torch.empty(self._made.most_bytes(self._items), dtype=torch.uint8, pin_memory=self.device is not None)

    @torch.no_grad()
    def _encode(self) -> None:
        """Encode after the current stream's queued work and start the copy to the host; that stream is not blocked."""
        if self.device is None:
            self._encode_here()
            return
        down, up = copy_streams(self.device)
        self._called = torch.cuda.current_stream(self.device).record_event()
        down.wait_event(self._called)
        with torch.cuda.stream(down):
            self._encode_here()
            for tensor in self.tensors:  # their memory must not be reused before the copies have ended
                tensor.record_stream(down)
                tensor.record_stream(up)
            self._copied = torch.cuda.Event(blocking=True)
            self._copied.record(down)

    def _encode_here(self) -> None:
        flat = torch.cat([tensor.reshape(-1).to(torch.float32) for tensor in self.tensors])
        if self._residual is not None:
            flat += self._residual
        encoded = encode_tensor(flat, self._codec)
        if self._residual is not None:
            lost = flat - decode_tensor(encoded)
            self._residual.copy_(torch.where(torch.isfinite(lost), lost, 0.0))
        scales = encoded.scales.view(torch.uint8)
        self._sent[: len(scales)].copy_(scales, non_blocking=True)
        self._sent[len(scales) :].copy_(encoded.codes, non_blocking=True)

    def ready(self) -> None:
        """Wait until the encoded tensors are on the host, and decode them."""
        if self._copied is not None:
            self._copied.synchronize()
        self._made.decode(self._sent.numpy(), self._array)

    def start(self, group: Group, op: str, coding: Coding) -> Handle:
        """Submit the all-reduce of the array to the runtime."""
        residual = None if coding.residual is None else coding.residual(self.tensors, group)
        self._handle = group.all_reduce_async(
            self._array, op, out=self._array, codec=self._codec, residual=residual, encoded=self._copy
        )
        return self._handle

    @property
    def is_encoded(self) -> bool:
        """Whether the result has an encoded form, which alone is copied to the device."""
        return self._copy.is_complete

    @torch.no_grad()
    def deliver(self) -> None:
        """Copy the result into the tensors; on a device, in order of its current stream."""
        assert self._handle is not None
        device = torch.device("cpu") if self.device is None else self.device
        if self.device is not None:
            torch.cuda.current_stream(self.device).wait_event(self._called)
        if self.is_encoded:
            raw = self._came.to(device, non_blocking=True)
            flat = decode_tensor(encoded_bytes(self._codec, self._items, raw))
        else:
            flat = torch.from_numpy(self._array).to(device, non_blocking=True)
            if self._handle.outcome.alone and self._residual is not None:  # there was no round: nothing is lost
                flat = flat + self._residual
                self._residual.zero_()
        start = 0
        for tensor in self.tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()
