"""Codecs of `wire.codecs` on tensors: what arrives after one hop, bit for bit, computed where the tensor is.

Encoding a hundred million parameters at every step with numpy takes longer than training with them. A test compares
these with the production codecs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tradewind.wire.codecs import BLOCK_ITEMS, TopK, codec_of, wire_bytes

_LIMITS = {"int8": 127.0, "int4": 7.0, "fp8": 448.0}
_SMALLEST_SCALE = 2.0**-126


def after_a_hop(values: Tensor, codec: str) -> Tensor:
    """Finite float32 values as the receiver of a hop gets them."""
    if codec == "none":
        return values
    if codec == "bf16":
        return values.to(torch.bfloat16).to(torch.float32)
    if codec in _LIMITS:
        return _scaled(values, codec)
    return _by_numpy(values, codec)


def _scaled(values: Tensor, codec: str) -> Tensor:
    padded = torch.nn.functional.pad(values, (0, -len(values) % BLOCK_ITEMS)).view(-1, BLOCK_ITEMS)
    scale = (padded.abs().amax(dim=1, keepdim=True) / _LIMITS[codec]).clamp_min(_SMALLEST_SCALE)
    codes = padded * (1.0 / scale)
    codes = codes.to(torch.float8_e4m3fn).to(torch.float32) if codec == "fp8" else codes.round()
    return (codes * scale).view(-1)[: len(values)]


def _by_numpy(values: Tensor, codec: str) -> Tensor:
    made = codec_of(codec)
    assert made is not None
    given = values.cpu().numpy()
    encoded = torch.empty(made.most_bytes(len(given)), dtype=torch.uint8).numpy()
    decoded = torch.empty(len(given))
    made.encode(given, encoded)
    made.decode(encoded, decoded.numpy())
    return decoded.to(values.device)


def mean_by_hops(contributions: Sequence[Tensor], codec: str) -> tuple[Tensor, int, int]:
    """The mean that all ranks of a round get: summed in float32 at one root, encoded on the hops to and from it.

    Also returns the bytes of a contribution and of the mean, as they are sent.
    """
    total = torch.zeros_like(contributions[0])
    for contribution in contributions:
        total += after_a_hop(contribution / len(contributions), codec)
    made, items = codec_of(codec), len(total)
    own_bytes = wire_bytes(codec, items, 4)
    if not isinstance(made, TopK):
        return after_a_hop(total, codec), own_bytes, own_bytes
    given, encoded = total.cpu().numpy(), np.empty(made.most_bytes(items, len(contributions)), np.uint8)
    made.encode_sum(given, encoded)
    made.decode(encoded, given)
    return torch.from_numpy(given).to(total.device), own_bytes, made.length(encoded)
