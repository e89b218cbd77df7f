"""Which chunks belong to which aggregator, and how that changes (CREW, Algorithms 1 and 2, Eq. 3).

A splitting gives every aggregator a block, a set of chunk numbers kept as ranges: one range per block at first, a few
after a rearrangement. CREW's ranks start to scatter by a default splitting, before the members are known; when they
are, better weights are known, too, and the splitting is rearranged so that most chunks that are already sent keep their
aggregator. Ranks send a block's chunks in ascending order, so the highest numbers, which are sent last, move.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tradewind.errors import InputError
from tradewind.network import Network
from tradewind.planning.plan import split_points

Block = tuple[range, ...]
"""Ascending, disjoint ranges of chunk numbers; chunks are numbered from 0."""


@dataclass(frozen=True, slots=True)
class Splitting:
    """The block of each aggregator: every chunk is in exactly one."""

    blocks: tuple[Block, ...]

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return sum(map(block_size, self.blocks))


def block_size(block: Block) -> int:
    """The number of chunks in a block."""
    return sum(map(len, block))


def split(weights: Sequence[float], chunks: int) -> Splitting:
    """Algorithm 1: consecutive blocks in proportion to the weights, which add up to 1.

    >>> split([0.5, 0.25, 0.25], 10).blocks
    ((range(0, 5),), (range(5, 8),), (range(8, 10),))

    Mechanism: CREW IV-A1 Algorithm 1, splitting by weights (live: tradewind/stragglers)
    """
    points = split_points(weights, chunks)
    return Splitting(tuple(_block(range(low, high)) for low, high in pairwise(points)))


def rearrange(current: Splitting, weights: Sequence[float]) -> Splitting:
    """Algorithm 2: blocks in proportion to new weights, moving as few chunks as possible.

    Blocks that are too large give up their highest chunks, and blocks that are too small take the lowest of those, in
    the order of the aggregators. Every size is that of a fresh split. The work grows with the number of ranges,
    not of chunks.

    >>> rearrange(split([0.5, 0.25, 0.25], 10), [0.2, 0.3, 0.5]).blocks
    ((range(0, 2),), (range(5, 8),), (range(2, 5), range(8, 10)))

    Mechanism: CREW IV-A2 Algorithm 2, rearranging with few moves (live: tradewind/combinations)
    """
    if len(weights) != len(current.blocks):
        raise InputError(f"{len(weights)} weights for a splitting of {len(current.blocks)} blocks: give one for each.")
    points = split_points(weights, current.chunks)
    sizes = [high - low for low, high in pairwise(points)]
    kept, moving = [], list[range]()
    for block, size in zip(current.blocks, sizes, strict=True):
        stays, leaves = _cut(block, size)
        kept.append(stays)
        moving.extend(leaves)
    spare: Block = tuple(sorted(moving, key=lambda chunks: chunks.start))
    blocks = []
    for block, size in zip(kept, sizes, strict=True):
        taken, spare = _cut(spare, size - block_size(block))
        blocks.append(_merge(block, taken))
    return Splitting(tuple(blocks))


def _block(chunks: range) -> Block:
    return (chunks,) if chunks else ()


def _cut(block: Block, size: int) -> tuple[Block, Block]:
    """The lowest `size` chunks of a block, and the rest."""
    low: list[range] = []
    for position, chunks in enumerate(block):
        if len(chunks) > size:
            middle = chunks.start + size
            low.extend(_block(range(chunks.start, middle)))
            return tuple(low), (range(middle, chunks.stop), *block[position + 1 :])
        low.append(chunks)
        size -= len(chunks)
    return tuple(low), ()


def _merge(block: Block, other: Block) -> Block:
    """Both blocks as one, ranges that touch joined."""
    merged: list[range] = []
    for chunks in sorted((*block, *other), key=lambda chunks: chunks.start):
        if merged and merged[-1].stop == chunks.start:
            merged[-1] = range(merged[-1].start, chunks.stop)
        else:
            merged.append(chunks)
    return tuple(merged)


def replacement(
    network: Network,
    members: Sequence[str],
    lost: Collection[str],
    block_share: float,
    load_share: Mapping[str, float],
) -> str | None:
    """The aggregator that replaces a lost one (Eq. (3)); None if no site can, and the round must be abandoned.

    Candidates (S) have live links to and from all members, and are not lost themselves; take links that are down out of
    the network. Each is rated by its total load, the present one (l_k) and the block (x_j), on its slowest link with a
    member in either direction. The load is the candidate's own: the printed l_i would be the same for all of them. The
    first in the network's order wins among equals.

    Mechanism: CREW IV-B Eq. (3), a lost aggregator is replaced by load and bandwidth
    """
    rows = np.array([network.index[network.site(name).name] for name in members])
    slowest = np.minimum(network.bandwidth_bps[rows], network.bandwidth_bps.T[rows])
    slowest[np.arange(len(rows)), rows] = np.inf
    bandwidth = slowest.min(axis=0)
    bandwidth[[network.index[network.site(name).name] for name in lost]] = 0.0
    if not bandwidth.any():
        return None
    load = np.array([load_share.get(name, 0.0) for name in network.names]) + block_share
    seconds = np.divide(load, bandwidth, out=np.full(len(load), np.inf), where=bandwidth > 0)
    return network.names[int(seconds.argmin())]
