"""Routes between sites that have no direct link.

Sites of a sparse network still have to reach each other: a rank its controller, Gloo its neighbours in rank order.
As on the Internet, packets are then forwarded by other sites and use the links on the route. A route has the fewest
hops; among those, the fastest slowest link; ties are broken by the order of sites, so that every run routes alike.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tradewind.network import Network

NOWHERE = -1


def next_hops(network: Network) -> npt.NDArray[np.int32]:
    """The next hop from each site (row) to each destination (column); `NOWHERE` without a route, and to itself.

    >>> from tradewind.network import Link, Site
    >>> line = [Link("a", "b", 1e6), Link("b", "c", 1e6), Link("c", "a", 1e6)]
    >>> next_hops(Network.from_links("ring", [Site("a"), Site("b"), Site("c")], line)).tolist()
    [[-1, 1, 1], [2, -1, 2], [0, 0, -1]]
    """
    n = len(network)
    hop = np.full((n, n), NOWHERE, dtype=np.int32)
    for destination in range(n):
        width_bps = np.zeros(n)
        width_bps[destination] = np.inf
        frontier = [destination]
        while frontier:  # ring by ring away from the destination
            found: dict[int, tuple[float, int]] = {}
            for via in frontier:
                for site in np.flatnonzero(network.bandwidth_bps[:, via]).tolist():
                    if width_bps[site] == 0:
                        wide_bps = min(float(network.bandwidth_bps[site, via]), float(width_bps[via]))
                        if site not in found or wide_bps > found[site][0]:
                            found[site] = (wide_bps, via)
            for site, (wide_bps, via) in found.items():
                width_bps[site], hop[site, destination] = wide_bps, via
            frontier = sorted(found)
    return hop
