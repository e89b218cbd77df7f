"""Chunk sizes small enough that filling the pipeline takes a small share of the round.

The first chunk crosses a tree alone, hop by hop, before the pipeline is full. Relays make the path longer, and on a
short round 64 KiB per hop add up: four hops at 100 Mbps take 21 ms, a tenth of a round of 0.2 s.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tradewind.network import Network
from tradewind.planning.cost import transfer_seconds
from tradewind.planning.hops import flatten, hop_rates_bps, longest_path
from tradewind.planning.plan import Plan

FILL_SHARE = 0.015
"""The share of the round that filling the pipeline may take."""

LEAST_CHUNK_BYTES = 4096
"""Below this, headers and the work per chunk would cost more than a shorter fill saves."""


def filling_chunk_bytes(plan: Plan, network: Network, fill_share: float) -> list[int]:
    """For each shard, the chunk size in bytes that needs this share of the round to cross its trees alone.

    Latency is not counted: no chunk size changes it.
    """
    hops = flatten(plan, network)
    route_s_per_bit = np.zeros(len(hops.route_shard))
    np.add.at(route_s_per_bit, hops.route, 1.0 / hop_rates_bps(network, hops))
    path_s_per_bit = longest_path(hops, route_s_per_bit, len(plan.shards), len(network))
    fill_s = fill_share * transfer_seconds(plan, network, hops)
    bits = np.divide(fill_s, path_s_per_bit, out=np.full(len(plan.shards), 8.0 * plan.nbytes), where=path_s_per_bit > 0)
    return [int(size) for size in np.maximum(bits / 8.0, LEAST_CHUNK_BYTES)]


def with_quick_fill(plan: Plan, network: Network, fill_share: float = FILL_SHARE) -> Plan:
    """The plan with chunks no larger than before, and small enough to fill its trees in this share of the round."""
    shards = zip(plan.shards, filling_chunk_bytes(plan, network, fill_share), strict=True)
    return replace(plan, shards=tuple(replace(s, chunk_bytes=min(s.chunk_bytes, chunk)) for s, chunk in shards))
