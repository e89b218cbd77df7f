"""Chunk sizes with the shortest predicted time: small ones fill the pipeline sooner, large ones cost fewer frames.

The first chunk crosses a tree alone, hop by hop, before the pipeline is full: four hops at 100 Mbps take 21 ms with
64 KiB, a tenth of a round of 0.2 s. With small chunks every rank handles more frames, until its processor is the
bottleneck. All shards of a plan get chunks that take about the same time to cross their trees, within limits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tradewind.network import Network
from tradewind.planning.cost import Floats, PipelinedCost
from tradewind.planning.host import MEASURED_HOST, HostCost
from tradewind.planning.plan import Plan

LEAST_CHUNK_BYTES = 16 * 1024
"""Smallest chunk that is worth a frame; a shard has at least one such chunk, unless the tensor is smaller."""

MOST_CHUNK_BYTES = 4 * 2**20
"""Beyond this, a frame costs nothing beside its bytes."""

_FRAMES_COUNT = 2.0
"""Frames count this many times when chunk sizes are chosen: a processor that is busy all the time has no slack."""

AS_GOOD = 0.02
"""Larger chunks, up to `ROOMY_CHUNK_BYTES`, are taken where the round takes at most this share longer: frames have
costs that no model has, such as waking up a thread."""

ROOMY_CHUNK_BYTES = 128 * 1024
"""Larger ones are used only if they save time: on a slow link they would hold up everything behind them."""

_STEP = 2**0.5


def best_chunk_bytes(plan: Plan, network: Network, host: HostCost = MEASURED_HOST) -> list[int]:
    """For each shard, the chunk size in bytes with which the plan is predicted to be fastest on these hosts."""
    spent = PipelinedCost(plan, network, host)
    return [int(size) for size in spent.kept.fitted(_best_sizes(spent))]


def with_best_chunks(plan: Plan, network: Network, host: HostCost = MEASURED_HOST) -> Plan:
    """The plan with the chunk sizes of `best_chunk_bytes`."""
    chunks = best_chunk_bytes(plan, network, host)
    shards = tuple(replace(shard, chunk_bytes=chunk) for shard, chunk in zip(plan.shards, chunks, strict=True))
    return replace(plan, shards=shards)


def with_fitted_chunks(plan: Plan, network: Network, host: HostCost = MEASURED_HOST) -> Plan:
    """The plan with the best sizes for chunks up to `ROOMY_CHUNK_BYTES`; larger ones were chosen on purpose."""
    best = zip(plan.shards, with_best_chunks(plan, network, host).shards, strict=True)
    return replace(plan, shards=tuple(old if old.chunk_bytes > ROOMY_CHUNK_BYTES else new for old, new in best))


def _best_sizes(spent: PipelinedCost) -> Floats:
    """Sizes from a common budget of time on the tree: the best budget of a geometric series."""
    fastest = np.zeros(len(spent.shard_bytes))
    np.maximum.at(fastest, spent.shard, spent.rate_bps)
    per_byte_s = np.maximum(8.0 * (spent.path_s(1.0 / spent.rate_bps) - 1.0 / fastest), 1e-18)
    waiting_s = spent.path_s(spent.waiting_s(np.full(len(fastest), float(LEAST_CHUNK_BYTES))))
    budget_s, last_s = LEAST_CHUNK_BYTES * float(per_byte_s.min()), MOST_CHUNK_BYTES * float(per_byte_s.max())
    tried: list[tuple[float, Floats]] = []
    while budget_s <= last_s * _STEP:
        sizes = np.clip(budget_s / per_byte_s, LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES)
        chunk = np.minimum(sizes, spent.shard_bytes)
        busy_s = max(spent.transfer_s, spent.connection_s, spent.busiest_processor(chunk, _FRAMES_COUNT)[0])
        tried.append((busy_s + float((waiting_s + per_byte_s * chunk).max()), sizes))
        if tried[-1][0] > 2 * tried[0][0] or (chunk >= spent.shard_bytes).all():
            break
        budget_s *= _STEP
    enough_s = min(seconds for seconds, _ in tried) * (1 + AS_GOOD)
    good = [sizes for seconds, sizes in tried if seconds <= enough_s]
    largest: Floats = np.minimum(good[-1], np.maximum(good[0], ROOMY_CHUNK_BYTES))
    return largest
