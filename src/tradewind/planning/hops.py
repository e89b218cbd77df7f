"""A plan flattened into arrays against a network: one row per hop, one per route.

Predicting, drawing and accounting all ask the same two questions, "what does each link carry?" and "how long
are the paths?". Answering them on arrays takes a few milliseconds for 60 shards over 60 sites.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from tradewind.errors import UnknownName
from tradewind.network import Matrix, Network
from tradewind.planning.plan import Plan

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Hops:
    """Sites are rows of the network. Routes are in plan order: all reduce routes, then all broadcast routes."""

    src: Indices
    dst: Indices
    route: Indices
    """Of each hop: the route it belongs to."""
    route_shard: Indices
    route_start: Indices
    route_end: Indices
    reduce_routes: int
    """The first so many routes belong to reduce trees, the rest to broadcast trees."""

    @property
    def shard(self) -> Indices:
        """Of each hop: its shard."""
        return self.route_shard[self.route]


def flatten(plan: Plan, network: Network) -> Hops:
    """The hops of a valid plan."""
    per_phase = [[shard.reduce for shard in plan.shards], [shard.broadcast for shard in plan.shards]]
    routes = [route for phase in per_phase for tree in phase for route in tree]
    trees_per_phase = [[len(tree) for tree in phase] for phase in per_phase]
    shards = np.arange(len(plan.shards))
    route_shard = np.concatenate([np.repeat(shards, counts) for counts in trees_per_phase])
    index = network.index
    try:
        sites = np.array(list(map(index.__getitem__, chain.from_iterable(routes))), dtype=np.int64)
    except KeyError as error:
        raise UnknownName("site", str(error.args[0]), network.names) from None
    length = np.array(list(map(len, routes)), dtype=np.int64)
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


def bytes_per_link(plan: Plan, network: Network, hops: Hops | None = None) -> Matrix:
    """What each directed link carries in one round, in bytes."""
    hops = hops or flatten(plan, network)
    n = len(network)
    share = np.array([shard.fraction for shard in plan.shards])
    carried = np.bincount(hops.src * n + hops.dst, weights=share[hops.shard] * plan.nbytes, minlength=n * n)
    return carried.astype(np.float64, copy=False).reshape(n, n)


def hop_rate_bps(network: Network) -> Matrix:
    """The most that one transfer can reach on each link: the least of link, NICs and trunks."""
    rate = np.minimum(network.bandwidth_bps, network.egress_bps[:, None])
    rate = np.minimum(rate, network.ingress_bps[None, :])
    for trunk, mask in zip(network.trunks, network.trunk_members, strict=True):
        rate = np.where(mask, np.minimum(rate, trunk.capacity_bps), rate)
    return rate


def longest_path(hops: Hops, weight: npt.NDArray[np.float64], shards: int, sites: int) -> npt.NDArray[np.float64]:
    """For each shard, the largest sum of route weights from a leaf up to the root and down to a leaf again.

    Trees are followed by pointer jumping, all shards at once: after k steps each site has seen 2^k ancestors. Only
    sites that some route touches are looked at.
    """
    total = np.zeros(shards)
    touched = np.zeros(sites, dtype=bool)
    touched[hops.route_start] = touched[hops.route_end] = True
    column = np.cumsum(touched) - 1
    starts, ends, sites = column[hops.route_start], column[hops.route_end], int(touched.sum())
    for phase in (slice(0, hops.reduce_routes), slice(hops.reduce_routes, None)):
        shard, start, end = (a[phase] for a in (hops.route_shard, starts, ends))
        child, parent = (start, end) if phase.start == 0 else (end, start)
        towards = np.tile(np.arange(sites), (shards, 1))
        cost = np.zeros((shards, sites))
        towards[shard, child] = parent
        cost[shard, child] = weight[phase]
        rows = np.arange(shards)[:, None]
        for _ in range(sites.bit_length()):
            further = towards[rows, towards]
            cost = cost + cost[rows, towards]
            if np.array_equal(further, towards):
                break
            towards = further
        total += cost.max(axis=1)
    return total
