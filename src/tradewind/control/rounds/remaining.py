"""What is left of a round, cut anew for another plan.

A plan gives each of its trees a share of the array. When a round goes on by another plan, shares are of what is not
final yet: the cuts are moved so that between two of them lies the tree's share of that. Chunks that are final stay
where they are, and are left out. Where old and new chunks do not begin at the same item, a new one is final if all of
it is; the rest of an old one is done again, by all members alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tradewind.planning.plan import Plan, split_points
from tradewind.wire import messages as m

Items = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a round starts again with; fields as in `wire.messages.Start`."""

    plan: Plan
    chunk_items: tuple[int, ...]
    done: tuple[bytes, ...]


def remaining(
    old: Plan, new: Plan, operation: m.Operation, chunk_items: Sequence[int], done: Sequence[bytes]
) -> Remaining:
    """The rest of a round by `old`, whose shards were cut into chunks of so many items, of which some are done.

    Both plans split the array among their shards once. Chunks are no larger than they were: that fitted everybody.
    """
    edges = _edges(old, operation.items, chunk_items)
    flags = [_flags(done[k] if done else b"", len(of_shard) - 1) for k, of_shard in enumerate(edges)]
    ends = np.concatenate([[0], *(of_shard[1:] for of_shard in edges)])
    left = np.concatenate([[0], *(np.diff(e) * ~f for e, f in zip(edges, flags, strict=True))]).cumsum()
    plan = _with_cuts_moved(new, ends, left)
    largest = max(chunk_items)
    cut = tuple(max(1, min(largest, shard.chunk_bytes // operation.item_bytes)) for shard in plan.shards)
    bits = [np.diff(np.interp(e, ends, left)) == 0 for e in _edges(plan, operation.items, cut)]
    return Remaining(plan, cut, tuple(np.packbits(of_shard, bitorder="little").tobytes() for of_shard in bits))


def _with_cuts_moved(plan: Plan, ends: Items, left: Items) -> Plan:
    """Each tree gets its share of what is left: so many items up to each end. One that gets no item goes."""
    if not left[-1]:
        return plan
    shares = np.cumsum([shard.fraction for shard in plan.shards])
    wanted = shares / shares[-1] * left[-1]
    behind = np.minimum(np.searchsorted(left, wanted), len(left) - 1)  # the first end with as much before it
    cuts = ends[behind] - (left[behind] - wanted)
    cuts[-1] = ends[-1]
    fractions = np.diff(cuts, prepend=0.0) / ends[-1]
    shards = tuple(replace(s, fraction=float(f)) for s, f in zip(plan.shards, fractions, strict=True) if f > 0)
    return replace(plan, shards=shards, predicted=None, proven_rate_bps=None)


def _edges(plan: Plan, items: int, chunk_items: Sequence[int]) -> list[Items]:
    """Of each shard, where its chunks begin and where the last one ends: as `engine.layout` cuts."""
    points = split_points([shard.fraction for shard in plan.shards], items)
    return [
        np.append(np.arange(start, end, size, dtype=np.int64), end)
        for start, end, size in zip(points, points[1:], chunk_items, strict=False)
    ]


def _flags(bits: bytes, count: int) -> NDArray[np.bool_]:
    """A bit a chunk, lowest first; those that are missing are not set."""
    whole = np.frombuffer(bits.ljust(-(-count // 8), b"\0"), np.uint8)
    return np.unpackbits(whole, count=count, bitorder="little").astype(bool)
