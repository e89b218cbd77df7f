"""Paths of least transfer delay, with ties broken in one way.

NetStorm weighs a link by the time one unit of data needs on it, the inverse of its throughput, and sends along the
paths whose weights add up to the least. Shortest-path routines leave ties open, and paths that break ties
differently do not form a tree. Here every site's next hop towards a root is fixed by the distances alone: among the
next hops on some fastest path, the one nearest to the root, then the first in the network's order. Following next
hops always comes nearer to the root, so they form a tree, and every machine finds the same one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from tradewind.network import Matrix, Network
from tradewind.planning.hops import hop_rate_bps

Indices = npt.NDArray[np.int64]

_SAME = 1e-12
"""Relative difference below which two delays are equal: sums of the same delays in another order differ by less."""


def transfer_delay(network: Network) -> Matrix:
    """NetStorm's w_trans: seconds per bit on each link, infinite where there is none.

    A link's throughput is what one transfer alone can reach on it, so a NIC or a trunk below the link's own bandwidth
    counts, as in a measurement.

    Mechanism: NetStorm III-A, delay of a link by its throughput (live: netstorm/fig15)
    """
    rate = hop_rate_bps(network)
    return np.divide(1.0, rate, out=np.full_like(rate, np.inf), where=rate > 0)


class FastestPaths:
    """The fastest paths between all pairs of sites under a matrix of delays.

    Mechanism: NetStorm IV-A Theorem 1, trees of fastest paths (FAPT) (live: netstorm/fig15)
    """

    def __init__(self, delay: Matrix) -> None:
        self.delay = delay
        self.distance: Matrix = dijkstra(csr_array(np.where(np.isfinite(delay), delay, 0.0)))
        """Delay of the fastest path between each pair; infinite where there is none."""

    def next_hops(self, root: int) -> Indices:
        """Each site's next hop on its path to the root: the reduce tree; -1 where there is none, and at the root."""
        return _next_hops(self.delay, self.distance[:, root])

    def last_hops(self, root: int) -> Indices:
        """The site before each site on the path from the root to it: the broadcast tree; -1 as above."""
        return _next_hops(self.delay.T, self.distance[root])


def next_hops_to(delay: Matrix, root: int) -> Indices:
    """As `FastestPaths(delay).next_hops(root)`, computed for one root only."""
    reversed_links = csr_array(np.where(np.isfinite(delay), delay, 0.0).T)
    return _next_hops(delay, dijkstra(reversed_links, indices=root))


def _next_hops(delay: Matrix, distance: npt.NDArray[np.float64]) -> Indices:
    nearer = distance[None, :] < distance[:, None]
    on_a_path = nearer & (delay + distance[None, :] <= distance[:, None] * (1 + _SAME)) & np.isfinite(distance)[:, None]
    hop: Indices = np.where(on_a_path, distance[None, :], np.inf).argmin(axis=1)
    return np.where(on_a_path.any(axis=1), hop, -1)
