"""Routes of tree edges, also between sites without a direct link.

The direct link is taken where there is one; otherwise the path of least latency, and of fewest hops among equals.
Ties are broken by the order of the sites, so every machine finds the same routes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from tradewind.errors import DisconnectedMembers
from tradewind.network import Matrix, Network
from tradewind.planning.hops import hop_rate_bps
from tradewind.planning.plan import Route, Shard, default_chunk_bytes

HOP_COST_S = 1e-6
"""Latency in s added to every hop, to prefer fewer hops among paths of equal latency."""


class Routes:
    """The routes between all pairs of sites of a network, and the bandwidth of each for a single transfer."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._linked = network.bandwidth_bps > 0
        weight = np.where(self._linked, network.latency_s + HOP_COST_S, 0.0)
        if network.link_count == len(network) * (len(network) - 1):  # every pair has its link: nothing to search
            distance, predecessor = (
                weight,
                np.broadcast_to(np.arange(len(network), dtype=np.int32)[:, None], weight.shape),
            )
        else:
            distance, predecessor = dijkstra(csr_array(weight), return_predecessors=True)
        self.distance_s: Matrix = np.where(self._linked, weight, distance)
        """Latency of each route plus `HOP_COST_S` a hop; infinite where there is no route."""
        self._predecessor: npt.NDArray[np.int32] = predecessor
        self._known: dict[tuple[str, str], Route] = {}

    def path(self, src: int, dst: int) -> list[int]:
        """Rows of the sites on the route from `src` to `dst`, both included."""
        if self._linked[src, dst]:
            return [src, dst]
        path, site = [dst], dst
        while site != src:
            site = int(self._predecessor[src, site])
            if site < 0:
                names = self.network.names
                raise DisconnectedMembers(
                    f"{names[src]!r} cannot reach {names[dst]!r} in network {self.network.name!r}. Add a link, "
                    "or leave one of them out."
                )
            path.append(site)
        return path[::-1]

    def route(self, src: str, dst: str) -> Route:
        """The route by names."""
        found = self._known.get((src, dst))
        if found is None:
            index, names = self.network.index, self.network.names
            found = self._known[src, dst] = tuple(names[i] for i in self.path(index[src], index[dst]))
        return found

    def bandwidth_bps(self) -> Matrix:
        """The rate of a single transfer between each pair: the least of the links, NICs and trunks on its route.

        0 on the diagonal, and where there is no route.
        """
        rate = hop_rate_bps(self.network)
        return self._where_routed(np.where(self._linked, rate, self._along_paths(rate, np.minimum, np.inf)))

    def mean_bandwidth_bps(self) -> Matrix:
        """The average bandwidth over a route's hops, by which MTREE rates pairs for PSLD and PLINK (its IV.A)."""
        rate = hop_rate_bps(self.network)
        total = np.where(self._linked, rate, self._along_paths(rate, np.add, 0.0))
        hops = np.where(self._linked, 1.0, self._along_paths(np.ones_like(rate), np.add, 0.0))
        return self._where_routed(np.divide(total, hops, out=np.zeros_like(total), where=hops > 0))

    def _where_routed(self, value: Matrix) -> Matrix:
        routed = np.isfinite(self.distance_s) & ~np.eye(len(self.network), dtype=bool)
        return np.where(routed, value, 0.0)

    def _along_paths(self, hop_value: Matrix, combine: np.ufunc, nothing: float) -> Matrix:
        """A value of each hop combined along every shortest path.

        All pairs at once by pointer jumping: after k steps each site has seen the 2^k hops before it.
        """
        sites = np.arange(len(self.network))
        has_hop = self._predecessor >= 0
        before = np.where(has_hop, self._predecessor, sites[:, None])
        value = np.where(has_hop, hop_value[before, sites], nothing)
        while (before != sites[:, None]).any():
            value = combine(value, np.take_along_axis(value, before, axis=1))
            before = np.take_along_axis(before, before, axis=1)
        return value


def tree_shard(
    routes: Routes, nbytes: int, fraction: float, root: str, up: Mapping[str, str], down: Mapping[str, str]
) -> Shard:
    """A shard from parent pointers, its edges routed: each site's parent in the reduce and in the broadcast tree."""
    return Shard(
        fraction=fraction,
        root=root,
        reduce=tuple(routes.route(child, parent) for child, parent in up.items()),
        broadcast=tuple(routes.route(parent, child) for child, parent in down.items()),
        chunk_bytes=default_chunk_bytes(fraction * nbytes),
    )
