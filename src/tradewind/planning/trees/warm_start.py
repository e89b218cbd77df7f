"""Replanning from the trees of an earlier plan, when a few links have changed since.

Most trees of the earlier plan are still good. Some use links that now carry less, and none uses what other links now
carry more. So trees on overloaded links are reduced until they fit, and what is then missing to the limit is laid on
new trees, a batch at a time, each the cheapest where a capacity costs exponentially more the more it is filled: such
trees avoid what is full and use what is free. Where that no longer helps, the packing program (`packing`) sets the
best rates for all trees, earlier and new.

The program's own prices are not used to find trees. They are zero on every capacity that is not quite full, so the
next trees overload just these: on 24 sites that took over 40 programs, this takes one or none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tradewind.network import Network
from tradewind.planning.bound import bound
from tradewind.planning.hops import Hops, flatten, longest_path
from tradewind.planning.plan import Plan, Shard, default_chunk_bytes
from tradewind.planning.quick_bound import quick_bound_bps
from tradewind.planning.trees.few_trees import Trees
from tradewind.planning.trees.packing import Column, Floats, PackingProgram
from tradewind.planning.trees.tree_sources import DirectedPairs, SymmetricTrees, tree_shard
from tradewind.units import format_count, format_rate

GAP = 8e-3
"""The share of the limit at which replanning ends: less than what the estimates of links are wrong by."""

FAR = 2e-2
"""A plan that is farther from the limit than this share is planned afresh."""

_BATCHES = 4
_BATCH_TREES = 128
"""The most trees of a batch. Small networks need 4 for every site; a plan of few trees gets few more."""
_LEAST_TREES = 4
_HELPS = 0.5
"""A batch helps if it leaves no more than this share of what was missing; if not, the program is solved instead."""
_STEEPEST = 300.0
_SIMPLEX_ROWS = 120
"""Beyond, the interior point method is faster, since there is no earlier solution to start from."""
_CRUMB = 1e-5
"""Trees that carry less than this share of the rate are left out."""


def replanned(
    network: Network,
    members: tuple[str, ...],
    nbytes: int,
    previous: Plan,
    stop: Callable[[], bool],
) -> Plan | None:
    """A plan for the network as it is now, made from the trees of a previous one.

    None where these trees are no start: none can be used, or what is found is more than `FAR` below the limit. New
    trees are no higher than the highest of the previous ones. `stop` ends the search early. The plan has the name of
    the previous planner.
    """
    if set(previous.members) != set(members) or not set(previous.sites) <= network.index.keys():
        return None
    hops = flatten(previous, network)
    source = _source(network, members, previous, hops)
    shards = _columns(source, network, previous, hops)
    if not shards or not source.roots:
        return None
    limit_bps = quick_bound_bps(network, members)
    program = PackingProgram(source.capacities, _SIMPLEX_ROWS)
    program.add(column for column, _ in shards.values())
    fraction = np.array([shards[column.key][1].fraction for column in program.columns])
    rates_bps = _fitting(program, limit_bps * fraction / fraction.sum())
    enough_bps = limit_bps * (1 - GAP)
    for _ in range(_BATCHES):
        missing_bps = limit_bps - float(rates_bps.sum())
        if rates_bps.sum() >= enough_bps or stop():
            break
        rates_bps = _fitting(program, _with_batch(source, program, rates_bps, limit_bps, stop))
        if rates_bps.sum() < enough_bps and limit_bps - rates_bps.sum() > missing_bps * _HELPS:
            rates_bps = program.solve().rates_bps
            if limit_bps - rates_bps.sum() > missing_bps * _HELPS:
                break
    if rates_bps.sum() < enough_bps and rates_bps.sum() < (1 - FAR) * bound(network, members, nbytes).rate_bps:
        return None
    old = {key: shard for key, (_, shard) in shards.items()}
    return _plan(previous, network, members, nbytes, _rated(source, program.columns, rates_bps, old))


def _source(network: Network, members: tuple[str, ...], previous: Plan, hops: Hops) -> Trees:
    """Trees no higher than the previous ones; used both ways where the network and all previous trees are so."""
    both_ways = network.is_symmetric and all(
        set(shard.reduce) == {route[::-1] for route in shard.broadcast} for shard in previous.shards
    )
    links_of_route = np.bincount(hops.route, minlength=len(hops.route_shard)).astype(np.float64)
    up_and_down = longest_path(hops, links_of_route, len(previous.shards), len(network))
    height = float(np.ceil(up_and_down.max() / 2))
    return (SymmetricTrees if both_ways else DirectedPairs)(network, members, height, in_hops=True)


def _columns(source: Trees, network: Network, previous: Plan, hops: Hops) -> dict[bytes, tuple[Column, Shard]]:
    """The previous trees of which every link still exists, as columns, with their shards."""
    place = np.full(len(network), -1, dtype=np.int64)
    place[source.rows] = np.arange(source.sites)
    src, dst = place[hops.src], place[hops.dst]
    exists = (src >= 0) & (dst >= 0)
    exists[exists] = np.isfinite(source.length[src[exists], dst[exists]])
    is_up = hops.route < hops.reduce_routes
    found: dict[bytes, tuple[Column, Shard]] = {}
    order = np.argsort(hops.shard, kind="stable")  # a shard's reduce tree comes first in it
    counts = np.bincount(hops.shard, minlength=len(previous.shards))
    for shard, of_shard in zip(previous.shards, np.split(order, np.cumsum(counts)[:-1]), strict=True):
        if not shard.broadcast or not exists[of_shard].all():
            continue
        if isinstance(source, SymmetricTrees):
            of_shard = of_shard[~is_up[of_shard]]
        numbers = source.number[src[of_shard], dst[of_shard]]
        column = Column(numbers, int(is_up[of_shard].sum()), int(place[network.index[shard.root]]))
        found[column.key] = (column, shard)
    return found


def _fitting(program: PackingProgram, rates_bps: Floats) -> Floats:
    """These rates, with those of all trees on an overloaded capacity reduced in proportion."""
    capacity_bps = program.capacities.capacity_bps
    fits = capacity_bps / np.maximum(program.load(rates_bps), capacity_bps)
    fitting: Floats = rates_bps * np.array([fits[load > 0].min() for load in program.loads])
    return fitting


def _with_batch(
    source: Trees, program: PackingProgram, rates_bps: Floats, limit_bps: float, stop: Callable[[], bool]
) -> Floats:
    """Add a batch of trees to the program that carry what is missing to the limit, in equal parts; returns all rates.

    Each is the cheapest where a capacity costs exponentially more the more it would be filled.
    """
    capacities = source.capacities
    load_bps = program.load(rates_bps)
    count = min(4 * source.sites, _BATCH_TREES, max(len(rates_bps), _LEAST_TREES))
    part_bps = (limit_bps - float(rates_bps.sum())) / count
    rates = rates_bps.tolist()
    for number in range(count):
        over = (load_bps + part_bps) / capacities.capacity_bps - 1
        prices = np.exp(np.clip(over * limit_bps / part_bps, -_STEEPEST, _STEEPEST)) / capacities.capacity_bps
        column = source.cheapest(capacities.link_prices(prices), number)
        if column is not None:
            place = program.place(column)
            rates += [0.0] * (place + 1 - len(rates))
            rates[place] += part_bps
            load_bps += part_bps * capacities.load(column.links)
        if stop():
            break
    return np.array(rates)


def _rated(source: Trees, columns: list[Column], rates_bps: Floats, old: dict[bytes, Shard]) -> list[Shard]:
    """The trees that carry something as shards, the largest first; previous ones with the routes they had."""
    order = np.argsort(-rates_bps, kind="stable")
    shards = []
    for i in order[rates_bps[order] > _CRUMB * rates_bps.sum()].tolist():
        known = old.get(columns[i].key)
        rate_bps = float(rates_bps[i])
        shards.append(
            tree_shard(source.names, source.pair(columns[i]), rate_bps)
            if known is None
            else replace(known, rate_bps=rate_bps)
        )
    return shards


def _plan(previous: Plan, network: Network, members: tuple[str, ...], nbytes: int, shards: list[Shard]) -> Plan:
    total_bps = sum(shard.rate_bps or 0.0 for shard in shards)
    finished = []
    for shard in shards:
        fraction = (shard.rate_bps or 0.0) / total_bps
        finished.append(replace(shard, fraction=fraction, chunk_bytes=default_chunk_bytes(fraction * nbytes)))
    kept = len({(s.reduce, s.broadcast) for s in shards} & {(s.reduce, s.broadcast) for s in previous.shards})
    reason = (
        f"{format_count(len(shards), 'tree')} of {format_rate(total_bps)} in all, {kept} of them as in the plan before"
    )
    return Plan(previous.planner, network.name, members, nbytes, tuple(finished), reason=reason)
