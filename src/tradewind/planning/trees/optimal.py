"""`optimal`: the exact best all-reduce, with a proof.

Every all-reduce that adds element by element sends each part of the tensor up some tree and down some tree. The best
one is the largest packing of such trees into the network's capacities (`packing`). Two cases:

- **Symmetric** capacities: up and down use the same tree, and the cheapest one is a minimum spanning tree. The limit is
  the weakest partition (`partition`), known exactly beforehand: the search stops when it is reached.
- **Directed**: a column is a root with a tree towards it and a tree away from it, each a cheapest arborescence
  (Chu-Liu and Edmonds). The prices of the program prove the bound.

NIC caps and trunks are further rows. Low trees are preferred where they carry as much, because they fill sooner. With
`max_height` trees are grown within the limit and may miss the best; with `max_trees` a local search looks for the best
few (`few_trees`). Both keep the bound of the unlimited problem, so the gap that is shown is certified in every case,
also when time runs out.

Sites that are not members help where a tree passes through them; trees are then cut back to what the members need, and
the gap is relative to the bound for the members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tradewind.errors import InfeasiblePlan
from tradewind.network import Network
from tradewind.planning import Clock, no_clock
from tradewind.planning.bound import bound
from tradewind.planning.plan import Plan, Shard, default_chunk_bytes
from tradewind.planning.trees.arborescence import Parents
from tradewind.planning.trees.few_trees import ATTEMPTS, Trees, best_few
from tradewind.planning.trees.packing import (
    SIMPLEX_ROWS,
    Column,
    Floats,
    Packed,
    PackingProgram,
    dual_bound_bps,
    laid_by_weights,
)
from tradewind.planning.trees.tree_sources import DirectedPairs, SymmetricTrees, TreePair
from tradewind.planning.trees.warm_start import replanned
from tradewind.units import format_rate

_LOW_HEIGHTS = (2, 3, 4)
"""Heights that are tried, in hops, before trees of any height: on dense networks they lose nothing."""

_FAIR_PART = 0.3

_CRUMB = 1e-7
"""Trees that carry less than this share of the rate are the solver's rounding, not part of the plan."""


@dataclass(frozen=True)
class OptimalOptions:
    """Limits on the number and height of trees, and when to stop."""

    max_trees: int | None = None
    """The most trees (K); by default as many as needed."""
    max_height: float | None = None
    """The largest distance of a member from a root (H); by default as low as the best rate allows."""
    height_in: str = "hops"
    """Whether `max_height` counts `hops` or `ms` of latency."""
    gap: float | None = None
    """Stop within this share of the limit; by default 1e-6, or 1e-3 where that takes minutes (over 600 capacities)."""
    time_limit_s: float = 20.0
    """Return the best so far after this many seconds, where the caller has a clock."""
    attempts: int = ATTEMPTS
    """Searches for the best few trees under `max_trees`; the best of them counts."""
    seed: int = 0
    """Seed of these searches."""

    def __post_init__(self) -> None:
        if self.max_trees is not None and self.max_trees < 1:
            raise ValueError(f"max_trees must be at least 1, got {self.max_trees}")
        if self.max_height is not None and not self.max_height > 0:
            raise ValueError(f"max_height must be > 0, got {self.max_height}")
        if self.height_in not in ("hops", "ms"):
            raise ValueError(f"height_in must be 'hops' or 'ms', got {self.height_in!r}")
        if self.gap is not None and not 0 <= self.gap < 1:
            raise ValueError(f"gap must be in [0, 1), got {self.gap}")
        if self.attempts < 0:
            raise ValueError(f"attempts must be >= 0, got {self.attempts}")
        if not self.time_limit_s > 0:
            raise ValueError(f"time_limit_s must be > 0, got {self.time_limit_s}")


def plan_optimal(
    network: Network,
    members: tuple[str, ...],
    nbytes: int,
    options: OptimalOptions,
    clock: Clock = no_clock,
    previous: Plan | None = None,
) -> Plan:
    """The best possible all-reduce: trees packed up to the limit, with a proof.

    From a `previous` plan, one without a proof and within 1% of the limit, unless the number or the height of trees is
    limited.
    """
    deadline_s = clock() + options.time_limit_s

    def out_of_time() -> bool:
        return clock() > deadline_s

    if previous is not None and options.max_trees is None and options.max_height is None:
        again = replanned(network, members, nbytes, previous, out_of_time)
        if again is not None:
            return replace(again, planner="optimal")
    packing = _lowest_packing(network, members, options, bound(network, members, nbytes).rate_bps, out_of_time)
    columns, rates_bps = packing.columns, packing.packed.rates_bps
    if options.max_trees is not None and int((rates_bps > 0).sum()) > options.max_trees:
        enough_bps = packing.limit_bps * (1 - _gap(packing.source, options))
        few = best_few(
            packing.source,
            columns,
            packing.packed,
            options.max_trees,
            enough_bps,
            np.random.default_rng(options.seed),
            out_of_time,
            options.attempts,
        )
        columns, rates_bps = list(few.columns), few.rates_bps
    return _plan(network, members, nbytes, packing.source, columns, rates_bps, packing.limit_bps)


@dataclass(frozen=True, slots=True)
class _Packing:
    source: Trees
    columns: list[Column]
    packed: Packed
    limit_bps: float
    """The proven upper bound on the rate of any packing."""


def _gap(source: Trees, options: OptimalOptions) -> float:
    if options.gap is not None:
        return options.gap
    return 1e-6 if len(source.capacities.capacity_bps) <= SIMPLEX_ROWS else 1e-3


def _lowest_packing(
    network: Network, members: tuple[str, ...], options: OptimalOptions, limit_bps: float, stop: Callable[[], bool]
) -> _Packing:
    """The packing with the highest rate and, where that costs no rate, low trees."""
    kind = SymmetricTrees if network.is_symmetric else DirectedPairs
    in_hops = options.height_in == "hops"
    if options.max_height is not None:
        source = kind(network, members, options.max_height if in_hops else options.max_height / 1000.0, in_hops)
        if not source.roots:
            raise InfeasiblePlan(
                f"no site of {network.name!r} reaches all members within max_height {options.max_height:g} "
                f"{options.height_in}. Allow a larger one."
            )
        return _pack(source, limit_bps, _gap(source, options), stop)
    best: _Packing | None = None
    for low in (*_LOW_HEIGHTS, None) if options.max_trees is None else (None,):  # few trees need all heights
        source = kind(network, members, low, in_hops=True)
        if not source.roots or (low is not None and low >= source.sites - 1) or (best is not None and stop()):
            continue
        gap = _gap(source, options)
        found = _pack(source, limit_bps, gap, stop, patient=low is None)
        limit_bps = min(limit_bps, found.limit_bps)
        if best is None or found.packed.total_bps > best.packed.total_bps:
            best = found
        if best.packed.total_bps >= limit_bps * (1 - gap):
            break
    assert best is not None  # where the height is not limited, every site can be a root
    return replace(best, limit_bps=limit_bps)


def _pack(
    source: Trees, limit_bps: float, gap: float, out_of_time: Callable[[], bool], patient: bool = True
) -> _Packing:
    """Columns and rates within `gap` of the limit, or as near as time and pricing allow; and the proven limit.

    An impatient packing gives up when a round no longer closes a fair part of the gap: other trees will do better.
    """
    capacities = source.capacities
    rows = len(capacities.capacity_bps)
    count = min(max(3 * source.sites, rows + rows // 2), 8 * source.sites)
    laid = laid_by_weights(capacities, source.cheapest, count, limit_bps, out_of_time)
    if not laid:
        raise InfeasiblePlan("no tree within max_height reaches all members. Allow a larger one.")
    program = PackingProgram(capacities)
    program.add(laid)
    packed = program.solve()
    while packed.total_bps < limit_bps * (1 - gap) and not out_of_time():
        link_prices = capacities.link_prices(packed.prices)
        if source.exact:
            limit_bps = min(limit_bps, dual_bound_bps(capacities, packed.prices, source.least_cost(link_prices)))
        added = program.add(source.cheaper_than_one(link_prices))
        if rows > SIMPLEX_ROWS:  # every solution takes seconds there: add more columns each time
            batch = 2 * source.sites
            added += program.add(
                laid_by_weights(capacities, source.cheapest, batch, limit_bps, out_of_time, around=packed.prices)
            )
        if not added:
            break
        before_bps, packed = packed.total_bps, program.solve()
        if not patient and packed.total_bps - before_bps < _FAIR_PART * (limit_bps - before_bps):
            break
    return _Packing(source, program.columns, packed, max(limit_bps, packed.total_bps))


def _plan(
    network: Network,
    members: tuple[str, ...],
    nbytes: int,
    source: Trees,
    columns: list[Column],
    rates_bps: Floats,
    limit_bps: float,
) -> Plan:
    kept = np.flatnonzero(rates_bps > _CRUMB * rates_bps.sum())
    total_bps = float(rates_bps[kept].sum())
    order = kept[np.argsort(-rates_bps[kept], kind="stable")]
    shards = tuple(
        _shard(source.names, source.pair(columns[i]), float(rates_bps[i]), total_bps, nbytes) for i in order.tolist()
    )
    short = 1 - total_bps / limit_bps
    proof = "which is the limit" if short <= 1e-6 else f"{short:.2%} below the proven limit of {format_rate(limit_bps)}"
    carried = "1 tree carries" if len(shards) == 1 else f"{len(shards)} trees carry"
    reason = f"{carried} {format_rate(total_bps)}, {proof}"
    return Plan("optimal", network.name, members, nbytes, shards, reason=reason, proven_rate_bps=limit_bps)


def _shard(names: tuple[str, ...], pair: TreePair, rate_bps: float, total_bps: float, nbytes: int) -> Shard:
    fraction = rate_bps / total_bps
    return Shard(
        fraction=fraction,
        root=names[pair.root],
        reduce=tuple((names[child], names[parent]) for child, parent in _edges(pair.up)),
        broadcast=tuple((names[parent], names[child]) for child, parent in _edges(pair.down)),
        chunk_bytes=default_chunk_bytes(fraction * nbytes),
        rate_bps=rate_bps,
    )


def _edges(parent: Parents) -> list[tuple[int, int]]:
    return [(child, above) for child, above in enumerate(parent.tolist()) if above not in (-1, child)]
