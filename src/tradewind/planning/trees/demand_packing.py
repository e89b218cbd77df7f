"""The collective that completes soonest: trees or routes for every demand, packed into the network's capacities.

    minimise t   subject to   the trees of each demand carry its share,
                              the load of every link, NIC and trunk is at most its capacity x t

has far too many columns to write down, so they are made as needed: the prices of the capacities give the cost of each
link, and the cheapest tree of a demand under these prices is its next column (Chu-Liu and Edmonds; for a single target
the cheapest path). The same prices prove that no packing is faster. The first columns come from multiplicative weights,
as for `optimal`.

A `reduce` or `reduce-scatter` is packed as its mirror, on the network with all links turned around, and turned back.
Trees that are not worth a frame are dropped, and the time is predicted with latency and frames (`completion`). Heights
are tried in turn, low ones first, and the plan with the shortest predicted time is taken.

Sites that are not members help where a tree passes through them; what only they need is cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import highspy
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from tradewind.errors import InternalError
from tradewind.network import Matrix, Network
from tradewind.planning.bound import bound
from tradewind.planning.collective import Collective, Demand, demands_of
from tradewind.planning.completion import AS_FAST, Completed, completed, never
from tradewind.planning.cost import cost
from tradewind.planning.halves import mirror_plan
from tradewind.planning.host import MEASURED_HOST, HostCost
from tradewind.planning.plan import Plan, Route, Shard, default_chunk_bytes
from tradewind.planning.routes import HOP_COST_S, Routes
from tradewind.planning.trees.arborescence import cheapest_arborescence, grown_tree
from tradewind.planning.trees.packing import Floats, Indices
from tradewind.planning.trees.tree_sources import link_capacities, participating
from tradewind.units import format_count, format_rate

_LOW_HEIGHTS = (1.0, 2.0)
"""Heights of trees in hops that are tried before trees of any height."""

_LOW_LATENCIES = (1.0, 1.4, 2.0)
"""Heights in multiples of the least latency of a demand, which are tried where latency counts."""

_LATENCY_COUNTS = 0.03
"""Latency counts where the longest one of a demand is this share of the transfer."""

_CLOSE = 0.01
"""No further height is tried when a plan is this close to the limit."""

_LAID, _LAID_PER_SITE = 6, 3
"""How many trees of each demand are laid by weights before the program is solved, and at least for each site in all."""

_GAP = 2e-3
"""The program is solved when its prices prove that no packing is faster by more than this share."""

_ROUNDS, _TREES_PER_SITE = 40, 20
"""How often the program is solved at most; more often where few demands give few trees each time."""

_MANY_DEMANDS = 64
"""With more demands than this, none has trees to spare: all are kept."""

_CRUMB = 1e-6
_IMPROVES = 1 - 1e-7


def plan_demands(
    network: Network,
    members: tuple[str, ...],
    nbytes: int,
    collective: Collective,
    host: HostCost = MEASURED_HOST,
    stop: Callable[[], bool] = never,
) -> Plan:
    """The plan of a collective other than the all-reduce with the shortest predicted time."""
    mirrored = collective.is_mirrored
    facing, forward = (network.reversed(), collective.mirror) if mirrored else (network, collective)
    limit = bound(network, members, nbytes, collective)
    demands = demands_of(forward, members)
    best: Completed | None = None
    proven_s = 0.0
    for height in _heights(facing, demands, forward, 8.0 * nbytes / limit.rate_bps):
        if best is not None and (stop() or best.seconds <= limit.seconds * (1 + _CLOSE)):
            break
        packed = _packed(facing, members, demands, height, stop)
        if packed is None:
            continue
        proven_s = max(proven_s, packed.least_s)
        shards = tuple(_shards(demands, packed, nbytes))
        plan = Plan("optimal", network.name, members, nbytes, shards, collective=forward)
        found = completed(plan, facing, host, AS_FAST if len(demands) <= _MANY_DEMANDS else 0.0, stop)
        if best is None or found.seconds < best.seconds:
            best = found
    if best is None:
        raise InternalError(
            f"no tree reaches the members of {collective} on {network.name!r}, which was checked before."
        )
    rate_bps = cost(best.plan, facing, host=host).steady_rate_bps
    proven_bps = max(rate_bps, 1.0 / proven_s if proven_s else limit.rate_bps)
    carried = format_count(len(best.plan.shards), "route" if forward.is_routed else "tree")
    reason = f"{carried} at {format_rate(rate_bps)} of the tensor, proven limit {format_rate(proven_bps)}"
    plan = replace(best.plan, reason=reason, proven_rate_bps=proven_bps)
    return mirror_plan(plan, collective) if mirrored else plan


@dataclass(frozen=True, slots=True)
class _Height:
    """How far from its source a tree may reach: hops, or multiples of the least latency that reaches all targets."""

    limit: float
    in_hops: bool


def _heights(
    network: Network, demands: tuple[Demand, ...], collective: Collective, transfer_s: float
) -> Iterator[_Height | None]:
    if not collective.is_routed:
        farthest_s = max(Routes(network).distance_s[network.index[demand.source]].max() for demand in demands)
        if farthest_s > _LATENCY_COUNTS * transfer_s:
            yield from (_Height(times, in_hops=False) for times in _LOW_LATENCIES)
        yield from (_Height(hops, in_hops=True) for hops in _LOW_HEIGHTS)
    yield None


@dataclass(frozen=True, slots=True)
class _Tree:
    """A tree of one demand: its links by number, and its routes."""

    demand: int
    links: Indices
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class _PackedTrees:
    trees: list[_Tree]
    shares: Floats
    least_s: float
    """Proven least time in s for each bit of the tensor; 0 where nothing is proven."""


def _shards(demands: tuple[Demand, ...], packed: _PackedTrees, nbytes: int) -> Iterator[Shard]:
    """The shards of every demand, in its order, with shares that add up exactly."""
    for number, demand in enumerate(demands):
        own = [k for k, tree in enumerate(packed.trees) if tree.demand == number and packed.shares[k] > _CRUMB]
        total = float(packed.shares[own].sum())
        for k in sorted(own, key=lambda k: -packed.shares[k]):
            fraction = demand.share * float(packed.shares[k]) / total
            chunk = default_chunk_bytes(fraction * nbytes)
            yield Shard(fraction, demand.source, (), packed.trees[k].routes, chunk)


class _Source:
    """The cheapest trees of demands under given link prices."""

    def __init__(
        self, network: Network, members: tuple[str, ...], demands: tuple[Demand, ...], height: _Height | None
    ) -> None:
        self.rows = participating(network, members)
        self.names = tuple(network.names[i] for i in self.rows)
        self.height = height
        index = {name: k for k, name in enumerate(self.names)}
        self.source = [index[demand.source] for demand in demands]
        self.targets = [np.array([index[name] for name in demand.targets]) for demand in demands]
        self.links = np.argwhere(network.bandwidth_bps[np.ix_(self.rows, self.rows)] > 0)
        self.number = np.full((len(self.rows), len(self.rows)), -1, dtype=np.int64)
        self.number[self.links[:, 0], self.links[:, 1]] = np.arange(len(self.links))
        self.capacities = link_capacities(network, self.rows, self.links, both_ways=False)
        latency_s = network.latency_s[np.ix_(self.rows, self.rows)] + HOP_COST_S
        self.length: Matrix = np.where(self.number >= 0, 1.0 if height and height.in_hops else latency_s, np.inf)
        self.most = [self._most(k) for k in range(len(demands))]
        routed = all(len(targets) == 1 for targets in self.targets)
        self.is_exact = height is None and (routed or len(self.rows) == len(members))

    def _most(self, demand: int) -> float:
        """The largest length of a path of a demand's tree."""
        if self.height is None or self.height.in_hops:
            return np.inf if self.height is None else self.height.limit
        away = dijkstra(csr_array(np.where(np.isfinite(self.length), self.length, 0.0)), indices=self.source[demand])
        return float(away[self.targets[demand]].max()) * self.height.limit * (1 + 1e-9)

    def cheapest(self, prices: Floats, which: list[int]) -> Iterator[_Tree | None]:
        """A cheap tree for each of these demands; None where none is low enough."""
        cost = np.full(self.number.shape, np.inf)
        cost[self.links[:, 0], self.links[:, 1]] = self.capacities.link_prices(prices)
        before: Matrix | None = None
        if any(len(self.targets[k]) == 1 for k in which):
            trifle = float(cost[np.isfinite(cost)].max()) * 1e-9 + 1e-300  # zero means no link there
            weight = np.where(np.isfinite(cost), cost + trifle, 0.0)
            _, before = dijkstra(csr_array(weight), return_predecessors=True)
        for k in which:
            if len(self.targets[k]) == 1 and before is not None:
                yield self._path(k, before)
            else:
                yield self._tree(k, cost)

    def _path(self, demand: int, before: Matrix) -> _Tree:
        source, path = self.source[demand], [int(self.targets[demand][0])]
        while path[-1] != source:
            path.append(int(before[source, path[-1]]))
        path.reverse()
        links = self.number[path[:-1], path[1:]]
        return _Tree(demand, links, (tuple(self.names[site] for site in path),))

    def _tree(self, demand: int, cost: Matrix) -> _Tree | None:
        source = self.source[demand]
        if self.height is None:
            parent = cheapest_arborescence(cost, source)
        else:
            grown = grown_tree(cost, self.length, source, self.most[demand])
            if grown is None:
                return None
            parent = grown
        needed = np.zeros(len(parent), dtype=bool)
        needed[source] = True
        for target in self.targets[demand].tolist():
            while not needed[target]:
                needed[target] = True
                target = int(parent[target])
        child = np.flatnonzero(needed & (np.arange(len(parent)) != source))
        routes = tuple((self.names[int(parent[site])], self.names[site]) for site in child.tolist())
        return _Tree(demand, self.number[parent[child], child], routes)


def _packed(
    network: Network,
    members: tuple[str, ...],
    demands: tuple[Demand, ...],
    height: _Height | None,
    stop: Callable[[], bool],
) -> _PackedTrees | None:
    """Trees of every demand and their shares; None where a demand has no tree within the height."""
    source = _Source(network, members, demands, height)
    every, share = list(range(len(demands))), np.array([demand.share for demand in demands])
    program = _Program(source, share)
    load = np.zeros(len(source.capacities.capacity_bps))
    sites = len(source.rows)
    laid = max(_LAID, _LAID_PER_SITE * sites // len(demands))
    for _ in range(laid):
        for k in every:
            prices = np.exp(4.0 * load / max(float(load.max()), 1e-300)) / source.capacities.capacity_bps
            tree = next(source.cheapest(prices, [k]))
            if tree is None:
                return None
            program.add(tree)
            load += share[k] / laid * source.capacities.load(tree.links) / source.capacities.capacity_bps
    least_s = 0.0
    seconds, prices, worth = program.solve()
    for _ in range(max(_ROUNDS, _TREES_PER_SITE * sites // len(demands))):
        found = [tree for tree in source.cheapest(prices, every) if tree is not None]
        link_prices = source.capacities.link_prices(prices)
        cost = np.array([float(link_prices[tree.links].sum()) for tree in found])
        if source.is_exact:
            least_s = max(least_s, float(share @ cost))
        if seconds <= least_s * (1 + _GAP) or stop():
            break
        better = [tree for tree, price in zip(found, cost, strict=True) if price < worth[tree.demand] * _IMPROVES]
        if not sum(map(program.add, better)):
            break
        seconds, prices, worth = program.solve()
    return _PackedTrees(program.trees, program.shares, least_s)


class _Program:
    """The linear program over the trees found so far, solved by the simplex method from its last solution."""

    def __init__(self, source: _Source, share: Floats) -> None:
        self._capacities = source.capacities
        self.trees: list[_Tree] = []
        self.shares: Floats = np.array([])
        self._seen: set[tuple[int, bytes]] = set()
        capacity = source.capacities.capacity_bps
        self._scale = float(capacity.max())
        self._rows = len(capacity)
        self._highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self._highs.setOptionValue("output_flag", False)
        self._highs.setOptionValue("threads", 1)
        none, nothing = np.array([], dtype=np.int32), np.array([])
        for _ in range(self._rows):
            self._highs.addRow(-highspy.kHighsInf, 0.0, 0, none, nothing)
        for part in share:
            self._highs.addRow(float(part), float(part), 0, none, nothing)
        rows = np.arange(self._rows, dtype=np.int32)
        self._highs.addCol(1.0, 0.0, highspy.kHighsInf, self._rows, rows, -capacity / self._scale)

    def add(self, tree: _Tree) -> bool:
        """Add a tree; False if it is known."""
        key = tree.demand, np.sort(tree.links).tobytes()
        if key in self._seen:
            return False
        self._seen.add(key)
        self.trees.append(tree)
        load = self._capacities.load(tree.links)
        used = np.flatnonzero(load)
        rows = np.append(used, self._rows + tree.demand).astype(np.int32)
        self._highs.addCol(0.0, 0.0, highspy.kHighsInf, len(rows), rows, np.append(load[used], 1.0))
        return True

    def solve(self) -> tuple[float, Floats, Floats]:
        """The time in s of one bit, the prices of the capacities, and what a demand pays for its share."""
        self._highs.run()
        if self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise InternalError(f"the packing of {len(self.trees)} trees could not be computed.")
        solution = self._highs.getSolution()
        values, duals = np.array(solution.col_value), np.array(solution.row_dual)
        self.shares = np.maximum(values[1:], 0.0)
        prices = np.maximum(-duals[: self._rows], 0.0) / self._scale
        return float(values[0]) / self._scale, prices, duals[self._rows :] / self._scale
