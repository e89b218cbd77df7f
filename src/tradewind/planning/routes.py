"""How a tree edge runs where two sites have no link of their own.

The direct link is taken where there is one; otherwise the path of least latency, and of fewest hops among equals.
Ties are broken by the order of the sites, so every machine finds the same routes.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from tradewind.errors import DisconnectedMembers
from tradewind.network import Matrix, Network
from tradewind.planning.plan import Route

HOP_COST_S = 1e-6
"""Added to every hop: it decides between paths of equal latency, also where all latencies are zero."""


class Routes:
    """Least-latency routes between all pairs of sites of a network."""

    def __init__(self, network: Network) -> None:
        self.network = network
        weight = np.where(network.bandwidth_bps > 0, network.latency_s + HOP_COST_S, 0.0)
        distance, predecessor = dijkstra(csr_array(weight), return_predecessors=True)
        self.distance_s: Matrix = distance
        self._predecessor: npt.NDArray[np.int32] = predecessor

    def path(self, src: int, dst: int) -> list[int]:
        """Rows of the sites on the route from `src` to `dst`, both included."""
        if self.network.bandwidth_bps[src, dst]:
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
        index, names = self.network.index, self.network.names
        return tuple(names[i] for i in self.path(index[src], index[dst]))

    def bandwidth_bps(self) -> Matrix:
        """What one transfer alone gets between each pair: the least link on its route; 0 on the diagonal."""
        n = len(self.network)
        matrix = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                if i != j:
                    path = self.path(i, j)
                    matrix[i, j] = min(self.network.bandwidth_bps[a, b] for a, b in pairwise(path))
        return matrix
