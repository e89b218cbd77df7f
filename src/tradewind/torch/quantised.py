"""Rounds of replicas in one process: what each rank gets, and what it keeps for the next round, by production's rules.

Every rank is the root of an equal part of the array, as in an all-reduce without waste. A rank sends the other parts of
its array encoded; the root adds its own part in float32, encodes the sum, and all use what that decodes to. With error
feedback each rank keeps what its own encoding lost: of its contribution, and as the root of the sum
(`node.coded_payload`). So inputs, results and residuals always add up.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from tradewind.torch.tensor_codecs import ON_DEVICE, decode_tensor, encode_tensor, largest_of
from tradewind.wire.codecs import BLOCK_ITEMS, SPARSE_BLOCK_ITEMS, TopK, codec_of, wire_bytes


def after_a_hop(values: Tensor, codec: str) -> Tensor:
    """Float32 values as the receiver of a hop gets them."""
    if codec == "none":
        return values
    if codec in ON_DEVICE:
        return decode_tensor(encode_tensor(values, codec))
    made = codec_of(codec)
    assert isinstance(made, TopK)
    return _picked_after_a_hop(values, made)


def mean_by_hops(contributions: Tensor, codec: str, lost: Tensor | None = None) -> tuple[Tensor, int, int]:
    """The mean of rows that all ranks of a round get, the bytes of a contribution, and those of the mean, as sent.

    `lost`: what each rank has kept, in rows; it is in the contributions already, and is replaced by what is lost now.
    """
    count, items = contributions.shape
    own_bytes = wire_bytes(codec, items, 4)
    if codec == "none":
        return contributions.mean(dim=0), own_bytes, own_bytes
    made = codec_of(codec)
    sparse = made if isinstance(made, TopK) else None
    cut = [items * k // (count * SPARSE_BLOCK_ITEMS) * SPARSE_BLOCK_ITEMS for k in range(count)] + [items]
    roots = [slice(start, end) for start, end in pairwise(cut)]
    came = _rows_after_a_hop(contributions, codec)
    if sparse is None:
        for rank, own in enumerate(roots):
            came[rank, own] = contributions[rank, own]
    if lost is not None:
        torch.sub(contributions, came, out=lost)
    total = came.sum(dim=0) / count
    mean, mean_bytes = (after_a_hop(total, codec), own_bytes) if sparse is None else _sum_after_a_hop(total, sparse)
    if lost is not None:
        for rank, own in enumerate(roots):
            lost[rank, own] += (total[own] - mean[own]) * count
    return mean, own_bytes, mean_bytes


def _rows_after_a_hop(rows: Tensor, codec: str) -> Tensor:
    """Each row after a hop. Dense codecs encode all rows at once, filled with zeros to whole blocks: so blocks and
    their scales are those of each row alone.
    """
    if codec not in ON_DEVICE:
        return torch.stack([after_a_hop(row, codec) for row in rows])
    count, items = rows.shape
    missing = -items % BLOCK_ITEMS
    filled = torch.nn.functional.pad(rows, (0, missing)) if missing else rows
    return after_a_hop(filled.reshape(-1), codec).view(count, -1)[:, :items]


def _picked_after_a_hop(values: Tensor, codec: TopK) -> Tensor:
    """What a rank sends of its own array, as the receiver gets it: two levels for each block (`wire.sparse`)."""
    positions = largest_of(values, codec)
    picked = values[positions]
    found = torch.zeros_like(values)
    if not bool(torch.isfinite(picked).all()):
        found[positions] = after_a_hop(picked, "int8")
        return found
    groups = torch.nn.functional.pad(picked.abs(), (0, -len(picked) % codec.kept)).view(-1, codec.kept)
    places = torch.arange(groups.numel(), device=values.device).view_as(groups)
    counts = (places < len(picked)).sum(dim=1)
    wide = groups.double()
    upper = groups > (wide.sum(dim=1) / counts).float()[:, None]
    uppers = upper.sum(dim=1)
    lower_sums, upper_sums = wide.masked_fill(upper, 0.0).sum(dim=1), wide.masked_fill(~upper, 0.0).sum(dim=1)
    low = lower_sums / (counts - uppers).clamp_min(1)
    high = torch.where(uppers > 0, upper_sums / uppers.clamp_min(1), low)
    low = torch.where(counts > uppers, low, high)
    levels = torch.where(upper, high.float()[:, None], low.float()[:, None]).view(-1)[: len(picked)]
    found[positions] = torch.where(picked < 0, -levels, levels)
    return found


def _sum_after_a_hop(total: Tensor, codec: TopK) -> tuple[Tensor, int]:
    """A sparse sum as its receivers get it, and its bytes."""
    positions = torch.nonzero(total != 0)[:, 0]
    is_dense, nbytes = codec.sum_form(len(positions), len(total))
    if is_dense:
        return after_a_hop(total, "int8"), nbytes
    found = torch.zeros_like(total)
    found[positions] = after_a_hop(total[positions], "int8")
    return found, nbytes
