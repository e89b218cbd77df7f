"""Rounds of replicas in one process: what each rank gets, and what it keeps for the next round, by production's rules.

Every rank is the root of an equal part of the array, as in an all-reduce without waste. A rank sends the other parts of
its array encoded; the root adds its own part in float32, encodes the sum, and all use what that decodes to. With error
feedback each rank keeps what its own encoding lost: of its contribution, and as the root of the sum
(`node.coded_payload`). So inputs, results and residuals always add up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tradewind.torch.tensor_codecs import ON_DEVICE, decode_tensor, encode_tensor, largest_of
from tradewind.wire.codecs import SPARSE_BLOCK_ITEMS, TopK, codec_of, wire_bytes


def after_a_hop(values: Tensor, codec: str) -> Tensor:
    """Float32 values as the receiver of a hop gets them."""
    if codec == "none":
        return values
    if codec in ON_DEVICE:
        return decode_tensor(encode_tensor(values, codec))
    made = codec_of(codec)
    assert isinstance(made, TopK)
    positions = largest_of(values, made)
    kept = torch.zeros_like(values)
    # The codec keeps the same items of an array that has only these; its levels are made of them alone.
    kept[positions] = values[positions]
    given = kept.cpu().numpy()
    encoded = np.empty(made.most_bytes(len(given)), np.uint8)
    made.encode(given, encoded)
    made.decode(encoded, given)
    return torch.from_numpy(given).to(values.device)


def mean_by_hops(
    contributions: Sequence[Tensor], codec: str, residuals: Sequence[Tensor | None] = ()
) -> tuple[Tensor, int, int]:
    """The mean that all ranks of a round get, the bytes of a contribution, and those of the mean, as they are sent.

    `residuals`: what each rank has kept; it is in the contribution already, and is replaced by what is lost now.
    """
    count, items = len(contributions), len(contributions[0])
    own_bytes = wire_bytes(codec, items, 4)
    if codec == "none":
        return torch.stack(list(contributions)).mean(dim=0), own_bytes, own_bytes
    made = codec_of(codec)
    sparse = made if isinstance(made, TopK) else None
    cut = [items * k // (count * SPARSE_BLOCK_ITEMS) * SPARSE_BLOCK_ITEMS for k in range(count)] + [items]
    total = torch.zeros_like(contributions[0])
    for rank, contribution in enumerate(contributions):
        own = slice(cut[rank], cut[rank + 1])
        came = after_a_hop(contribution, codec)
        if sparse is None:
            came[own] = contribution[own]
        total += came
        if residuals and (residual := residuals[rank]) is not None:
            residual.copy_(contribution - came)
    total /= count
    mean, mean_bytes = (after_a_hop(total, codec), own_bytes) if sparse is None else _sum_after_a_hop(total, sparse)
    for rank, residual in enumerate(residuals):
        if residual is not None:
            own = slice(cut[rank], cut[rank + 1])
            residual[own] += ((total[own] - mean[own]) * count).to(residual.device)
    return mean, own_bytes, mean_bytes


def _sum_after_a_hop(total: Tensor, codec: TopK) -> tuple[Tensor, int]:
    """A sparse sum as its receivers get it, and its bytes."""
    given = total.cpu().numpy().copy()
    encoded = np.empty(codec.most_bytes(len(given), len(given)), np.uint8)
    codec.encode_sum(given, encoded)
    codec.decode(encoded, given)
    return torch.from_numpy(given).to(total.device), codec.length(encoded)
