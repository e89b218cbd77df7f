"""Sparse vectors in few bytes: which items of a chunk are kept, and where they are.

**Positions** of n kept items among `items` are sorted, and cut into l low bits and the rest, where 2**l is about the
mean distance of two of them (Elias and Fano's code). The low bits follow each other. The rest never falls from one
position to the next, so it is written in unary: for the i-th position, bit `rest + i` is set. That takes
n (l + 1) + items / 2**l bits: 8 bits for one of 64 items, where an index of 12 bits within a block of 4096 needs 12.
Where more than about a third are kept, a bitmap is smaller. The size follows from n and `items` alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Raw = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

_MAGNITUDE = np.uint32(0x7FFFFFFF)


def largest(values: Floats, block: int, kept: int) -> Positions:
    """Return the sorted positions of the `kept` largest magnitudes of each block; of a shorter last block, its share.

    NaN counts as the largest, then infinity: they are kept first. Of equal magnitudes the first ones are kept.

    >>> largest(np.array([1, -3, 2, 0, 5, 5], np.float32), 4, 2).tolist()
    [1, 2, 4]
    """
    magnitudes = values.view(np.uint32) & _MAGNITUDE  # in the order of the magnitudes, NaN last
    whole = len(values) // block * block
    found = [_largest_of_rows(magnitudes[:whole].reshape(-1, block), kept)]
    if rest := len(values) - whole:
        found.append(whole + _largest_of_rows(magnitudes[whole:].reshape(1, rest), share_of(rest, block, kept)))
    return np.concatenate(found)


def share_of(items: int, block: int, kept: int) -> int:
    """Return how many items of a block with this many are kept, if `kept` of a whole one are.

    >>> share_of(4096, 4096, 64), share_of(100, 4096, 64), share_of(1, 4096, 64)
    (64, 2, 1)
    """
    return -(-items * kept // block)


def count_of(items: int, block: int, kept: int) -> int:
    """Return how many items of a chunk `largest` returns.

    >>> count_of(8292, 4096, 64)
    130
    """
    return items // block * kept + share_of(items % block, block, kept)


def _largest_of_rows(magnitudes: npt.NDArray[np.uint32], kept: int) -> Positions:
    rows, items = magnitudes.shape
    if not rows:
        return np.empty(0, np.int64)
    least = np.partition(magnitudes, items - kept, axis=1)[:, items - kept, None]
    chosen = magnitudes >= least
    too_many = np.flatnonzero(np.count_nonzero(chosen, axis=1) > kept)
    if len(too_many):  # several have the least magnitude that is kept
        above = magnitudes[too_many] > least[too_many]
        equal = magnitudes[too_many] == least[too_many]
        room = kept - np.count_nonzero(above, axis=1)
        chosen[too_many] = above | (equal & (np.cumsum(equal, axis=1) <= room[:, None]))
    return np.flatnonzero(chosen.reshape(-1))


def _low_bits(count: int, items: int) -> int:
    return max(0, (items // max(1, count)).bit_length() - 1)


def _bits(count: int, items: int) -> tuple[int, int]:
    """Return the number of low bits of a position, and of all bits, or (0, items) where a bitmap is smaller."""
    low = _low_bits(count, items)
    total = count * (low + 1) + (items >> low) + 1
    return (low, total) if total < items else (0, items)


def positions_bytes(count: int, items: int) -> int:
    """Return the size of so many packed positions among `items`.

    >>> positions_bytes(64, 4096), positions_bytes(2048, 4096), positions_bytes(0, 4096)
    (65, 512, 1)
    """
    return -(-_bits(count, items)[1] // 8)


def pack_positions(positions: Positions, items: int, out: Raw) -> None:
    """Pack sorted positions into `out`, which has `positions_bytes` bytes."""
    count = len(positions)
    low, total = _bits(count, items)
    bits = np.zeros(total, np.uint8)
    if total == items:
        bits[positions] = 1
    else:
        bits[: count * low] = ((positions[:, None] >> np.arange(low)) & 1).reshape(-1)
        bits[count * low :][(positions >> low) + np.arange(count)] = 1
    out[:] = np.packbits(bits)


def unpack_positions(packed: Raw, count: int, items: int) -> Positions:
    """Return the positions that were packed; raise `ValueError` if these bytes cannot be so many of them."""
    low, total = _bits(count, items)
    bits = np.unpackbits(packed, count=total)
    is_bitmap = total == items
    found: Positions = np.flatnonzero(bits if is_bitmap else bits[count * low :])
    if len(found) != count:
        raise ValueError(f"expected {count} positions, got {len(found)}")
    if not is_bitmap:
        found = (found - np.arange(count)) << low
        found += bits[: count * low].reshape(count, low) @ (1 << np.arange(low))
    if count and (found[-1] >= items or (np.diff(found) <= 0).any()):
        raise ValueError(f"positions must rise, and be below {items}")
    return found


def two_levels(magnitudes: Floats, starts: Positions) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return two levels for each group of magnitudes, and for each magnitude whether it gets the upper one.

    Groups begin at `starts`, and none is empty. They are split at their mean, and the levels are the means of both
    sides: a step of Lloyd's algorithm from the mean, which keeps the sum of the magnitudes.

    >>> levels, upper = two_levels(np.array([1, 2, 9, 4, 4], np.float32), np.array([0, 3]))
    >>> levels.tolist(), upper.tolist()
    ([[1.5, 9.0], [4.0, 4.0]], [False, False, True, False, False])
    """
    counts = np.diff(np.append(starts, len(magnitudes)))
    wide = magnitudes.astype(np.float64)
    sums = np.add.reduceat(wide, starts)
    upper = magnitudes > np.repeat(sums / counts, counts).astype(np.float32)
    uppers = np.add.reduceat(upper.astype(np.int64), starts)
    upper_sums = np.add.reduceat(np.where(upper, wide, 0.0), starts)
    low = np.add.reduceat(np.where(upper, 0.0, wide), starts) / np.maximum(counts - uppers, 1)
    high = np.where(uppers > 0, upper_sums / np.maximum(uppers, 1), low)
    return np.stack([np.where(counts > uppers, low, high), high], axis=1).astype(np.float32), upper
