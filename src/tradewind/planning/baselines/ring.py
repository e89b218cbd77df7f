"""The ring: every link between neighbours carries 2 (n - 1) / n of the tensor.

Reduce-scatter and all-gather are n shards whose trees are paths: shard k is summed along the ring until it is complete
at the k-th member, and its result travels around once more. A ring is as fast as its slowest link, so its order
determines its speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tradewind.errors import BadOption
from tradewind.network import Matrix, Network
from tradewind.planning.plan import Plan, Shard, default_chunk_bytes
from tradewind.planning.routes import Routes
from tradewind.units import format_rate

EXACT_AT_MOST = 16
"""The exact search keeps a number for every subset of the members: 16 take a tenth of a second, 20 several."""


@dataclass(frozen=True)
class RingOptions:
    """How to order the ring."""

    order: Literal["greedy", "exact", "given", "auto"] = "greedy"
    """greedy: as published; exact: the widest ring there is, up to 16 members; given: the members' order, as Gloo
    does by rank; auto: exact where that is possible, else greedy."""
    start: str | None = None
    """Where greedy starts; by default at the first member."""


def plan_ring(network: Network, members: tuple[str, ...], nbytes: int, options: RingOptions) -> Plan:
    """Ring all-reduce: n shards run around one ring of all members.

    CREW's baseline starts its greedy ring at a random member; so that every site finds the same ring, this one starts
    at the first member or at `start`, and does not try the others.
    """
    routes = Routes(network)
    order = _ring_order(routes, members, options)
    shards = _ring_shards(routes, order, nbytes)
    bandwidth = routes.bandwidth_bps()
    rows = [network.index[name] for name in order]
    slowest = min(range(len(rows)), key=lambda k: bandwidth[rows[k - 1], rows[k]])
    width = format_rate(bandwidth[rows[slowest - 1], rows[slowest]])
    reason = f"{options.order} order; its slowest hop is {order[slowest - 1]}->{order[slowest]} with {width}"
    return Plan("ring", network.name, members, nbytes, shards, reason=reason)


def _ring_shards(routes: Routes, order: Sequence[str], nbytes: int) -> tuple[Shard, ...]:
    """The trees of `ring_trees` as shards: every path is a part of the same n hops, so each hop is routed once."""
    n = len(order)
    hops = [routes.route(order[k], order[(k + 1) % n]) for k in range(n)] * 2
    chunk_bytes = default_chunk_bytes(nbytes / n)
    return tuple(
        Shard(1 / n, root, tuple(hops[k + 1 : k + n]), tuple(hops[k : k + n - 1]), chunk_bytes)
        for k, root in enumerate(order)
    )


def ring_trees(order: Sequence[str]) -> Iterator[tuple[str, dict[str, str], dict[str, str]]]:
    """Each member as a root, with the parents of its reduce path and of its broadcast path, both along the ring.

    >>> next(ring_trees("abc"))
    ('a', {'b': 'c', 'c': 'a'}, {'b': 'a', 'c': 'b'})
    """
    n = len(order)
    for k, root in enumerate(order):
        after = [order[(k + step) % n] for step in range(1, n)]
        yield (
            root,
            dict(zip(after, [*after[1:], root], strict=True)),
            dict(zip(after, [root, *after[:-1]], strict=True)),
        )


def auto_order(routes: Routes, members: Sequence[str]) -> list[str]:
    """The widest ring where finding it is quick, else the greedy one."""
    return _ring_order(routes, members, RingOptions(order="auto"))


def _ring_order(routes: Routes, members: Sequence[str], options: RingOptions) -> list[str]:
    """The members in the direction in which data flows."""
    if options.start is not None and options.start not in members:
        raise BadOption(f"ring: start {options.start!r} is not a member. Members: {', '.join(members)}.")
    if options.start is not None and options.order != "greedy":
        raise BadOption(f"ring: start only matters for order 'greedy', not for {options.order!r}. Leave it out.")
    if options.order == "exact" and len(members) > EXACT_AT_MOST:
        raise BadOption(
            f"ring: the exact order is found for up to {EXACT_AT_MOST} members, here are {len(members)}. "
            "Use order 'greedy', or 'auto' for exact where possible."
        )
    if options.order == "given":
        return list(members)
    rows = [routes.network.index[name] for name in members]
    bandwidth = routes.bandwidth_bps()[np.ix_(rows, rows)]
    if options.order == "greedy" or len(members) > EXACT_AT_MOST:
        start = 0 if options.start is None else members.index(options.start)
        return [members[k] for k in _greedy_cycle(bandwidth, start)]
    return [members[k] for k in _widest_cycle(bandwidth, routes.distance_s[np.ix_(rows, rows)])]


def _greedy_cycle(bandwidth_bps: Matrix, start: int) -> list[int]:
    """A cycle that always continues with the new member that has the largest bandwidth from the last one."""
    order = [start]
    left = np.ones(len(bandwidth_bps), dtype=bool)
    left[start] = False
    while left.any():
        order.append(int(np.where(left, bandwidth_bps[order[-1]], -1.0).argmax()))
        left[order[-1]] = False
    return order


def _widest_cycle(bandwidth_bps: Matrix, distance_s: Matrix) -> list[int]:
    """The cycle whose slowest hop is fastest; among those, the shortest, which also keeps routed hops out of it.

    Each pair counts as if it were alone. Where routed hops share links, another ring can be faster in the end.
    """
    order = _least_cycle(-bandwidth_bps, np.maximum)
    width_bps = min(bandwidth_bps[order[k - 1], order[k]] for k in range(len(order)))
    return _least_cycle(np.where(bandwidth_bps >= width_bps, distance_s, np.inf), np.add)


def _least_cycle(weight: Matrix, combine: np.ufunc) -> list[int]:
    """The directed cycle through all rows with the least weight, added up (np.add) or at worst (np.maximum).

    Held and Karp: the best path from row 0 through a set of rows to its last row extends the best path through one row
    less. A set is a number whose bit v stands for row v + 1; all sets of one size are done at once.
    """
    others = len(weight) - 1
    least = np.full((1 << others, others), np.inf)
    least[1 << np.arange(others), np.arange(others)] = weight[0, 1:]
    sets = np.arange(1 << others)
    size = sum((sets >> v) & 1 for v in range(others))
    for visited in range(2, others + 1):
        of_size = sets[size == visited]
        for last in range(others):
            ending = of_size[(of_size >> last) & 1 == 1]
            least[ending, last] = combine(least[ending ^ (1 << last)], weight[1:, last + 1]).min(axis=1)
    order = [0]
    remaining = len(sets) - 1
    while remaining:
        last = int(combine(least[remaining], weight[1:, order[-1]]).argmin())
        order.append(last + 1)
        remaining ^= 1 << last
    return [0, *order[:0:-1]]
