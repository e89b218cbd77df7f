"""How much of a round a site may have to keep, and the chunk sizes and windows that bound it.

Some chunks are kept until they can be used or sent on: contributions that arrive out of order or before the site itself
has started, relayed chunks, and sums at sites that are not members and have no array to store them in. The sender of
such a flow may be ahead of its receiver by at most a window of chunks. A plan of many trees has so many flows that even
the least window of the planned chunks would exceed the bound: then chunks are smaller than the plan says, there are
more frames, and the round takes longer. So the data plane (`node.engine.layout`) and the prediction (`cost`) both take
chunk sizes from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tradewind.planning.hops import Hops, Indices, flatten_sites
from tradewind.planning.plan import Plan

KEPT_BYTES = 128 * 2**20
"""Most bytes that a site keeps of a round beside its arrays. It bounds the worst case, a site that stands still while
its peers send. With 40 MiB, plans for 180 MB on 32 sites had 4.6 times the planned frames, and with no bound at all
their sites kept 17 MB (engines on virtual links)."""
MIN_CHUNK_BYTES = 4096
"""Chunks are not made smaller than this to fit the window: a plan with more flows needs more memory."""
MIN_WINDOW = 2
"""Smallest window: one chunk in flight while another is processed."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KeptFlows:
    """The flows whose receivers may have to keep chunks: the row of each receiver, relays included, and its shard."""

    site: Indices
    shard: Indices
    shard_bytes: Floats
    """Bytes of each shard of the plan."""

    @classmethod
    def of(cls, plan: Plan, hops: Hops, stored: npt.NDArray[np.bool_], nbytes: float) -> KeptFlows:
        """The flows of a plan for an array of `nbytes`, given the routes whose chunks are stored in place at once."""
        keeps = ~stored[hops.route]
        fraction = np.array([shard.fraction for shard in plan.shards])
        return cls(hops.dst[keeps], hops.shard[keeps], np.ceil(nbytes * fraction))

    def kept_bytes(self, chunk_bytes: Floats, window: float) -> float:
        """The most bytes that a site keeps if each flow is ahead by a window, or by a chunk more than its shard has."""
        of_shard = np.minimum(window * chunk_bytes, self.shard_bytes + chunk_bytes)
        return float(np.bincount(self.site, of_shard[self.shard]).max()) if len(self.site) else 0.0

    def fitted(self, chunk_bytes: Floats) -> Floats:
        """The chunk sizes, limited so that a window of one chunk more than the least keeps within `KEPT_BYTES`."""

        def kept(limit: float) -> float:
            return self.kept_bytes(np.minimum(chunk_bytes, limit), MIN_WINDOW + 1)

        low, high = MIN_CHUNK_BYTES, int(max(MIN_CHUNK_BYTES, chunk_bytes.max(initial=0)))
        if kept(high) > KEPT_BYTES:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if kept(middle) <= KEPT_BYTES else (low, middle)
            high = low
        fitting: Floats = np.minimum(chunk_bytes, high)
        return fitting

    def window(self, chunk_bytes: Floats) -> int:
        """The largest window in chunks that keeps within `KEPT_BYTES`; all chunks of the longest shard need no more."""
        low, high = MIN_WINDOW, MIN_WINDOW + int(np.ceil(self.shard_bytes / np.maximum(chunk_bytes, 1)).max(initial=0))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.kept_bytes(chunk_bytes, middle) <= KEPT_BYTES else (low, middle - 1)
        return low


def kept_flows(plan: Plan, nbytes: float, scattered: bool = False, coded: bool = False) -> KeptFlows:
    """The kept flows of a plan. `scattered`: members may have sent before their round was known; `coded`: chunks are
    encoded, and a member that sends a result on keeps it until then.
    """
    sites = {name: row for row, name in enumerate(plan.sites)}
    hops = flatten_sites(plan, sites)
    return KeptFlows.of(plan, hops, stored_routes(plan, hops, sites, scattered, coded), nbytes)


def stored_routes(
    plan: Plan, hops: Hops, sites: Mapping[str, int], scattered: bool = False, coded: bool = False
) -> npt.NDArray[np.bool_]:
    """Whether the chunks of each route are stored in their place at once: results that come directly to a member.

    A result cannot arrive before the member has contributed, and so has started; unless members contribute before they
    know their round.
    """
    routes = np.arange(len(hops.route_shard))
    reduced = np.array([bool(shard.reduce) for shard in plan.shards])
    is_member = np.zeros(max(sites.values(), default=-1) + 1, dtype=bool)
    is_member[[sites[name] for name in plan.members]] = True
    is_direct = np.bincount(hops.route, minlength=len(routes)) == 1
    stored = (routes >= hops.reduce_routes) & reduced[hops.route_shard] & is_direct & is_member[hops.route_end]
    if scattered:
        stored[:] = False
    if coded:
        passing = {*zip(hops.route_shard[hops.reduce_routes :], hops.route_start[hops.reduce_routes :], strict=True)}
        ends = zip(hops.route_shard, hops.route_end, strict=True)
        stored &= np.fromiter((end not in passing for end in ends), dtype=bool, count=len(routes))
    found: npt.NDArray[np.bool_] = stored
    return found
