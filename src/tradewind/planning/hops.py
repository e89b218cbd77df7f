"""A plan flattened into arrays against a network: one row per hop, one per route.

Predicting, drawing and accounting need the bytes on each link and the lengths of paths. Computing them on arrays takes
a few milliseconds for 60 shards over 60 sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from tradewind.errors import UnknownName
from tradewind.network import Matrix, Network
from tradewind.planning.plan import Plan

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Hops:
    """The hops of a plan. Sites are rows of the network; routes are in plan order, reduce routes before broadcast
    routes.
    """

    src: Indices
    dst: Indices
    route: Indices
    """The route of each hop."""
    route_shard: Indices
    route_start: Indices
    route_end: Indices
    reduce_routes: int
    """The number of routes of reduce trees, which come first; the rest belong to broadcast trees."""

    @property
    def shard(self) -> Indices:
        """The shard of each hop."""
        return self.route_shard[self.route]


def flatten(plan: Plan, network: Network) -> Hops:
    """The hops of a valid plan; sites are rows of the network."""
    try:
        return flatten_sites(plan, network.index)
    except KeyError as error:
        raise UnknownName("site", str(error.args[0]), network.names) from None


def flatten_sites(plan: Plan, rows: Mapping[str, int]) -> Hops:
    """The hops of a valid plan, given the row of each site; raises `KeyError` for a site without one."""
    per_phase = [[shard.reduce for shard in plan.shards], [shard.broadcast for shard in plan.shards]]
    routes = list(chain.from_iterable(chain.from_iterable(per_phase)))
    trees_per_phase = [[len(tree) for tree in phase] for phase in per_phase]
    shards = np.arange(len(plan.shards))
    route_shard = np.concatenate([np.repeat(shards, counts) for counts in trees_per_phase])
    sites = np.fromiter(map(rows.__getitem__, chain.from_iterable(routes)), dtype=np.int64)
    length = np.fromiter(map(len, routes), dtype=np.int64, count=len(routes))
    last = np.cumsum(length) - 1
    is_source = np.ones(len(sites), dtype=bool)
    is_source[last] = False
    source = np.flatnonzero(is_source)
    return Hops(
        src=sites[source],
        dst=sites[source + 1],
        route=np.repeat(np.arange(len(routes)), length - 1),
        route_shard=route_shard,
        route_start=sites[last - length + 1],
        route_end=sites[last],
        reduce_routes=sum(trees_per_phase[0]),
    )


def link_shares(plan: Plan) -> dict[tuple[str, str], float]:
    """The bytes that a valid plan sends on each link, relative to the size of its arrays."""
    found: dict[tuple[str, str], float] = {}
    for shard, up in zip(plan.shards, sizes_up(plan), strict=True):
        sized = [*((route, up[route[0]]) for route in shard.reduce), *((route, 1.0) for route in shard.broadcast)]
        for route, size in sized:
            for hop in pairwise(route):
                found[hop] = found.get(hop, 0.0) + shard.fraction * size
    return found


def sizes_up(plan: Plan) -> list[dict[str, float]]:
    """For each shard, the size of the sum that each site sends up, relative to that of the result.

    Sparse sums grow from hop to hop (`Plan.sum_sizes`).
    """
    members, found = set(plan.members), []
    for shard in plan.shards:
        parent = {route[0]: route[-1] for route in shard.reduce}
        below = dict.fromkeys(parent, 0)
        for site in members.intersection(parent):
            while site in parent:
                below[site] += 1
                site = parent[site]
        sizes = plan.sum_sizes
        found.append({site: sizes[min(count, len(sizes)) - 1] if sizes else 1.0 for site, count in below.items()})
    return found


def hop_sizes(plan: Plan, hops: Hops) -> npt.NDArray[np.float64]:
    """The size of what each hop carries, relative to the result."""
    of_route = np.ones(len(hops.route_shard))
    if plan.sum_sizes:
        up = zip(plan.shards, sizes_up(plan), strict=True)
        of_route[: hops.reduce_routes] = [sizes[route[0]] for shard, sizes in up for route in shard.reduce]
    return of_route[hops.route]


def bytes_per_link(plan: Plan, network: Network, hops: Hops | None = None) -> Matrix:
    """The bytes that each directed link carries in one round."""
    hops = hops or flatten(plan, network)
    n = len(network)
    share = np.array([shard.fraction for shard in plan.shards])
    carried_bytes = share[hops.shard] * plan.nbytes * hop_sizes(plan, hops)
    carried = np.bincount(hops.src * n + hops.dst, weights=carried_bytes, minlength=n * n)
    return carried.astype(np.float64, copy=False).reshape(n, n)


def hop_rate_bps(network: Network) -> Matrix:
    """The highest rate of one transfer on each link: the least of link, NICs and trunks."""
    rate = np.minimum(network.bandwidth_bps, network.egress_bps[:, None])
    rate = np.minimum(rate, network.ingress_bps[None, :])
    for trunk, mask in zip(network.trunks, network.trunk_members, strict=True):
        rate = np.where(mask, np.minimum(rate, trunk.capacity_bps), rate)
    rate = np.where(network.is_local, network.bandwidth_bps, rate) if network.shares_sites else rate
    if not network.has_machines:
        return rate
    by_machine = np.minimum.outer(network.machine_egress_bps, network.machine_ingress_bps)
    return np.where(network.is_same_machine, rate, np.minimum(rate, by_machine))


def hop_rates_bps(network: Network, hops: Hops) -> npt.NDArray[np.float64]:
    """As `hop_rate_bps`, for these hops only: a plan uses few of the links of a large network."""
    src, dst = hops.src, hops.dst
    rate = np.minimum(network.bandwidth_bps[src, dst], network.egress_bps[src])
    rate = np.minimum(rate, network.ingress_bps[dst])
    for trunk, mask in zip(network.trunks, network.trunk_members, strict=True):
        rate = np.where(mask[src, dst], np.minimum(rate, trunk.capacity_bps), rate)
    is_local = network.first_row[src] == network.first_row[dst]
    rate = np.where(is_local, network.bandwidth_bps[src, dst], rate)
    if not network.has_machines:
        return rate
    by_machine = np.minimum(network.machine_egress_bps[src], network.machine_ingress_bps[dst])
    return np.where(network.machine_row[src] == network.machine_row[dst], rate, np.minimum(rate, by_machine))


@dataclass(frozen=True, slots=True)
class TreeEdges:
    """The routes of one phase as edges from child to parent, in plan order; the last position stands for no edge."""

    shard: Indices
    child: Indices
    parent: Indices
    next: Indices
    """The edge from each edge's parent upwards; the last position where there is none or the parent is a root."""

    def __len__(self) -> int:
        return len(self.shard)


def tree_edges(hops: Hops, broadcast: bool, shards: int, sites: int) -> TreeEdges:
    """The reduce trees or the broadcast trees of all shards."""
    phase = slice(hops.reduce_routes, None) if broadcast else slice(0, hops.reduce_routes)
    shard, start, end = hops.route_shard[phase], hops.route_start[phase], hops.route_end[phase]
    child, parent = (end, start) if broadcast else (start, end)
    position = np.full(shards * sites, len(shard))
    position[shard * sites + child] = np.arange(len(shard))
    return TreeEdges(shard, child, parent, np.append(position[shard * sites + parent], len(shard)))


def longest_path(hops: Hops, weight: npt.NDArray[np.float64], shards: int, sites: int) -> npt.NDArray[np.float64]:
    """For each shard, the largest sum of route weights from a leaf up to the root and down to a leaf again.

    Trees are followed by pointer jumping, all shards at once: after k steps each edge has seen 2^k of those above it.
    """
    total = np.zeros(shards)
    for broadcast in (False, True):
        edges = tree_edges(hops, broadcast, shards, sites)
        towards = edges.next
        of_phase = weight[hops.reduce_routes :] if broadcast else weight[: hops.reduce_routes]
        cost = np.append(of_phase, 0.0)
        for _ in range(sites.bit_length()):
            if not (towards < len(edges)).any():
                break
            cost = cost + cost[towards]
            towards = towards[towards]
        longest = np.zeros(shards)
        np.maximum.at(longest, edges.shard, cost[:-1])
        total += longest
    return total
