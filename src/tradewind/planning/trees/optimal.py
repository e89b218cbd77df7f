"""`optimal`: the all-reduce that completes soonest, and the highest rate that any can reach, with a proof.

Every all-reduce that adds element by element sends each part of the tensor up some tree and down some tree. The best
rate is the largest packing of such trees into the network's capacities (`packing`). Two cases:

- **Symmetric** capacities: up and down use the same tree, and the cheapest one is a minimum spanning tree. The limit is
  the weakest partition (`partition`), known exactly beforehand: the search stops when it is reached.
- **Directed**: a column is a root with a tree towards it and a tree away from it, each a cheapest arborescence
  (Chu-Liu and Edmonds). The prices of the program prove the bound. Where all sites are members, the first columns are
  the trees of `relay`'s program, which come within a percent of the limit in one solution.

NIC caps and trunks are further rows. A packing near the limit has about as many trees as links. What counts is the time
of these bytes, so a packing is not improved further once that would save less than `CLOSE` of the time, and trees are
dropped while the predicted time stays (`completion`). Heights are tried in turn, low ones first where latency counts,
and the plan with the shortest predicted time is taken.

With `gap` the packing goes on to that share of the limit, and no tree is dropped. With `max_height` trees are grown
within the limit and may miss the best; with `max_trees` a local search looks for the best few (`few_trees`). All keep
the bound of the unlimited problem, so the gap that is shown is certified in every case, also when time runs out.

Sites that are not members help where a tree passes through them; trees are then cut back to what the members need, and
the gap is relative to the bound for the members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from tradewind.errors import InfeasiblePlan
from tradewind.network import Network
from tradewind.planning import Clock, no_clock
from tradewind.planning.bound import Bound, bound, lowest_latency_s
from tradewind.planning.completion import AS_FAST, Completed, completed
from tradewind.planning.connections import byte_at_once_s
from tradewind.planning.fill import MOST_CHUNK_BYTES, with_best_chunks
from tradewind.planning.flows.relay_columns import relay_columns
from tradewind.planning.host import HostOptions
from tradewind.planning.plan import Plan
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
from tradewind.planning.trees.tree_sources import DirectedPairs, SymmetricTrees, tree_shard, with_shares
from tradewind.units import format_rate

_LOW_HEIGHTS = (2, 3, 4)
"""Heights that are tried, in hops, before trees of any height: on dense networks they lose nothing."""

CLOSE = 0.005
"""A packing is close enough to the limit when more rate would shorten the round by less than this share."""

_LATENCY_COUNTS = 0.03
"""Trees of low latency are tried where the latency up and down the lowest tree is this share of the transfer."""

_LOW_LATENCIES = (1.0, 1.15, 1.4, 2.0)
"""Heights in latency that are tried then, in multiples of the least one."""

_SEEDED_SITES = 40
"""Up to this many sites `relay`'s program gives the first columns; beyond, it takes too long."""

_BESIDE_PROCESSOR = 0.2
"""Where processors need longer than links, a packing that takes this share of their time is close enough: the rest
gives room to even out their load."""

_WORSE = 1.02
_FEW_ROWS = 100
_SEEDED_FILL, _LOW_SITES = 0.1, 12
"""Up to this many sites low trees are tried beside the seeded ones, where filling those takes this share or more."""

_FAIR_PART = 0.3
_FAIR_GAIN = 0.05
"""The least gain of twice as many laid trees that is worth the time to lay more."""

_CRUMB = 1e-7
"""Trees that carry less than this share of the rate are the solver's rounding, not part of the plan."""


@dataclass(frozen=True)
class OptimalOptions(HostOptions):
    """Limits on the number and height of trees, when to stop, and what frames cost the hosts."""

    max_trees: int | None = None
    """The most trees (K); by default as few as the predicted time allows."""
    max_height: float | None = None
    """The largest distance of a member from a root (H); by default what gives the shortest time."""
    height_in: str = "hops"
    """Whether `max_height` counts `hops` or `ms` of latency."""
    gap: float | None = None
    """Pack trees up to this share of the limit and keep all of them; by default, stop where it saves no time."""
    time_limit_s: float = 20.0
    """Return the best so far after this many seconds, where the caller has a clock."""
    attempts: int = ATTEMPTS
    """Searches for the best few trees under `max_trees`; the best of them counts."""
    seed: int = 0
    """Seed of these searches."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
    network: Network, members: tuple[str, ...], nbytes: int, options: OptimalOptions, clock: Clock = no_clock
) -> Plan:
    """The all-reduce that completes soonest: few trees, packed near the limit, with a proof."""
    deadline_s = clock() + options.time_limit_s

    def out_of_time() -> bool:
        return clock() > deadline_s

    problem = _Problem(network, members, nbytes, options, bound(network, members, nbytes), out_of_time)
    if options.max_trees is not None:
        return problem.few(options.max_trees)
    return problem.quickest()


@dataclass(frozen=True, slots=True)
class _Packing:
    source: Trees
    columns: list[Column]
    rates_bps: Floats
    limit_bps: float
    """The proven upper bound on the rate of any packing."""


@dataclass(frozen=True)
class _Problem:
    network: Network
    members: tuple[str, ...]
    nbytes: int
    options: OptimalOptions
    limit: Bound
    out_of_time: Callable[[], bool]

    def few(self, max_trees: int) -> Plan:
        """At most `max_trees` trees, by local search from the packing without that limit."""
        height = self.options.max_height
        packing = self._pack(self._source(height, self.options.height_in == "hops"), self.limit.rate_bps)
        if packing is None:
            raise InfeasiblePlan("no tree within max_height reaches all members. Allow a larger one.")
        columns, rates_bps = packing.columns, packing.rates_bps
        if int((rates_bps > 0).sum()) > max_trees:
            found = best_few(
                packing.source,
                columns,
                Packed(rates_bps, np.array([])),
                max_trees,
                packing.limit_bps * (1 - self._gap(packing.source)),
                np.random.default_rng(self.options.seed),
                self.out_of_time,
                self.options.attempts,
            )
            columns, rates_bps = list(found.columns), found.rates_bps
        plan = _plan(self.network, self.members, self.nbytes, packing.source, columns, rates_bps)
        return self._explained(with_best_chunks(plan, self.network, self.options.host), packing.limit_bps)

    def quickest(self) -> Plan:
        """The plan with the shortest predicted time among the heights that are worth trying."""
        best: Completed | None = None
        before: tuple[bool, float] | None = None
        worse: set[bool] = set()  # kinds of height, in hops or not, of which higher trees fill later still
        limit_bps = self.limit.rate_bps
        as_fast = AS_FAST if self.options.gap is None else 0.0
        for source, least_fill_s in self._sources():
            if best is not None and (self.out_of_time() or not self._may_win(best, limit_bps, least_fill_s)):
                continue
            if source.in_hops in worse and source.max_height is not None:
                continue
            packing = self._pack(source, limit_bps)
            if packing is None:
                continue
            limit_bps = min(limit_bps, packing.limit_bps)
            plan = _plan(self.network, self.members, self.nbytes, source, packing.columns, packing.rates_bps)
            found = completed(plan, self.network, self.options.host, as_fast, self.out_of_time)
            if best is None or self._better(found, best):
                best = found
            elif before and before[0] == source.in_hops and found.seconds > _WORSE * before[1] and not self.options.gap:
                worse.add(source.in_hops)
            before = source.in_hops, found.seconds
        if best is None:
            raise InfeasiblePlan("no tree within max_height reaches all members. Allow a larger one.")
        return self._explained(best.plan, limit_bps)

    def _better(self, found: Completed, best: Completed) -> bool:
        """With `gap` the rate counts first, as it was asked for; without it, the time."""
        if self.options.gap is not None:
            more = (found.plan.rate_bps or 0.0) / (best.plan.rate_bps or 1.0) - 1
            if abs(more) > self.options.gap:
                return more > 0
        return found.seconds < best.seconds

    def _may_win(self, best: Completed, limit_bps: float, least_fill_s: float) -> bool:
        if self.options.gap is not None:
            return (best.plan.rate_bps or 0.0) < limit_bps * (1 - self.options.gap)
        busy_s = max(8.0 * self.nbytes / limit_bps, self._least_processor_s)
        return best.seconds > max(self.limit.seconds, busy_s + least_fill_s) * (1 + 2 * CLOSE)

    @property
    def _least_processor_s(self) -> float:
        """The processor time of a rank if all ranks share the work of any tree evenly, in the largest chunks."""
        hops, host = len(self.members) - 1, self.options.host
        all_s = 4.0 * hops * self.nbytes * (byte_at_once_s(self.network, host) + host.frame_s / MOST_CHUNK_BYTES)
        return all_s / min(hops + 1, host.cores)

    def _sources(self) -> Iterator[tuple[Trees, float]]:
        """Trees of different heights, and the least time that such trees need to fill, beside those before them."""
        if self.options.max_height is not None:
            yield self._source(self.options.max_height, self.options.height_in == "hops"), 0.0
            return
        near_s, there_and_back_s = lowest_latency_s(self.network, self.members)
        if there_and_back_s > _LATENCY_COUNTS * 8.0 * self.nbytes / self.limit.rate_bps and self.options.gap is None:
            below_s = 0.0
            for times in _LOW_LATENCIES:
                source = self._source(1000.0 * near_s * times * (1 + 1e-9), in_hops=False)
                if source.roots:
                    yield source, max(there_and_back_s, below_s)
                below_s = near_s * times + there_and_back_s - near_s
        seeded = self._seeded() and self.options.gap is None
        if seeded:
            yield self._source(None), there_and_back_s
        for low in _LOW_HEIGHTS if not seeded else _LOW_HEIGHTS[:1]:
            source = self._source(low)
            if source.roots and low < source.sites - 1 and not (seeded and source.sites > _LOW_SITES):
                yield source, there_and_back_s + (_SEEDED_FILL * self.limit.seconds if seeded else 0.0)
        if not seeded:
            yield self._source(None), there_and_back_s

    def _source(self, max_height: float | None, in_hops: bool = True) -> Trees:
        kind = SymmetricTrees if self.network.is_symmetric else DirectedPairs
        height = max_height if in_hops or max_height is None else max_height / 1000.0
        source = kind(self.network, self.members, height, in_hops)
        if not source.roots and self.options.max_height is not None:
            raise InfeasiblePlan(
                f"no site of {self.network.name!r} reaches all members within max_height {self.options.max_height:g} "
                f"{self.options.height_in}. Allow a larger one."
            )
        return source

    def _seeded(self) -> bool:
        """Whether `relay`'s program gives the first columns of trees of any height."""
        whole = len(self.members) == len(self.network)
        return whole and not self.network.is_symmetric and 2 < len(self.members) <= _SEEDED_SITES

    def _is_patient(self, source: Trees) -> bool:
        """Whether it is worth packing to the end: no other height is tried after this one, or it takes little time."""
        last = source.max_height is None or (self.options.max_height is not None and self.options.gap is not None)
        return last or len(source.capacities.capacity_bps) <= _FEW_ROWS

    def _gap(self, source: Trees) -> float:
        if self.options.gap is not None:
            return self.options.gap
        return 1e-6 if len(source.capacities.capacity_bps) <= SIMPLEX_ROWS else 1e-3

    def _enough_bps(self, limit_bps: float, source: Trees) -> float:
        """The rate at which packing ends."""
        if self.options.gap is not None or self.options.max_trees is not None:
            return limit_bps * (1 - self._gap(source))
        transfer_s = 8.0 * self.nbytes / limit_bps
        beside_s = max(0.0, _BESIDE_PROCESSOR * self._least_processor_s - transfer_s)
        return 8.0 * self.nbytes / (transfer_s + beside_s + CLOSE * max(transfer_s, self.limit.seconds))

    def _pack(self, source: Trees, limit_bps: float) -> _Packing | None:
        """Columns and rates that are near enough to the limit, or as near as time and pricing allow; and the limit.

        Where the gap is not given, it gives up when a round no longer closes a fair part of the gap. None where no tree
        within the height reaches all members.
        """
        if isinstance(source, DirectedPairs) and source.max_height is None and self._seeded():
            columns, rates_bps = relay_columns(self.network, source)
            if float(rates_bps.sum()) >= self._enough_bps(limit_bps, source):
                return _Packing(source, columns, rates_bps, max(limit_bps, float(rates_bps.sum())))
        else:
            columns = []
        program = PackingProgram(source.capacities)
        program.add(columns)
        packed = self._started(program, source, limit_bps)
        if packed is None:
            return None
        rows, patient = len(source.capacities.capacity_bps), self._is_patient(source)
        while packed.total_bps < self._enough_bps(limit_bps, source) and not self.out_of_time():
            link_prices = source.capacities.link_prices(packed.prices)
            if source.exact:
                least = source.least_cost(link_prices)
                limit_bps = min(limit_bps, dual_bound_bps(source.capacities, packed.prices, least))
            added = program.add(source.cheaper_than_one(link_prices))
            if rows > SIMPLEX_ROWS:  # every solution takes seconds there: add more columns each time
                laid = laid_by_weights(source.capacities, source.cheapest, limit_bps, self.out_of_time, packed.prices)
                added += program.add(islice(laid, 2 * source.sites))
            if not added:
                break
            before_bps, packed = packed.total_bps, program.solve()
            fair_bps = _FAIR_PART * (self._enough_bps(limit_bps, source) - before_bps)
            if not patient and packed.total_bps - before_bps < fair_bps:
                break
        return _Packing(source, program.columns, packed.rates_bps, max(limit_bps, packed.total_bps))

    def _started(self, program: PackingProgram, source: Trees, limit_bps: float) -> Packed | None:
        """The program with trees laid by weights: a few first, and the rest where these do not carry enough."""
        rows = len(source.capacities.capacity_bps)
        count = min(max(3 * source.sites, rows + rows // 2), 8 * source.sites)
        laid = laid_by_weights(source.capacities, source.cheapest, limit_bps, self.out_of_time)
        packed, laying = Packed(np.array([]), np.array([])), max(1, source.sites // 2)
        while True:
            before_bps = packed.total_bps
            program.add(islice(laid, min(laying, count)))
            if not program.columns:
                return None
            packed, count = program.solve(), count - laying
            enough = packed.total_bps >= self._enough_bps(limit_bps, source)
            hurried = self.options.gap is None and rows > _FEW_ROWS
            stuck = hurried and packed.total_bps < before_bps * (1 + _FAIR_GAIN)
            if enough or stuck or count <= 0 or self.out_of_time():
                return packed
            laying = len(program.columns)

    def _explained(self, plan: Plan, limit_bps: float) -> Plan:
        """The plan with its reason and the proven limit."""
        total_bps = plan.rate_bps or 0.0
        short = 1 - total_bps / limit_bps
        proof = (
            "which is the limit" if short <= 1e-6 else f"{short:.2%} below the proven limit of {format_rate(limit_bps)}"
        )
        carried = "1 tree carries" if len(plan.shards) == 1 else f"{len(plan.shards)} trees carry"
        reason = f"{carried} {format_rate(total_bps)}, {proof}"
        return replace(plan, reason=reason, proven_rate_bps=max(limit_bps, total_bps))


def _plan(
    network: Network,
    members: tuple[str, ...],
    nbytes: int,
    source: Trees,
    columns: list[Column],
    rates_bps: Floats,
) -> Plan:
    kept = np.flatnonzero(rates_bps > _CRUMB * rates_bps.sum())
    order = kept[np.argsort(-rates_bps[kept], kind="stable")]
    shards = [tree_shard(source.names, source.pair(columns[i]), float(rates_bps[i])) for i in order.tolist()]
    return Plan("optimal", network.name, members, nbytes, tuple(with_shares(shards, nbytes)))
