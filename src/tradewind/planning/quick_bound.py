"""An upper bound on the rate that takes milliseconds even for thousands of sites; `bound` is tighter and slower."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tradewind.network import Network
from tradewind.planning.hops import hop_rate_bps


def quick_bound_bps(network: Network, members: tuple[str, ...], zones: npt.NDArray[np.int64] | None = None) -> float:
    """The least that a member alone, a zone, all zones or all sites together can exchange.

    `zones` numbers the zone of each site. Zones and all sites count only where every site is a member (`partition`).
    """
    rate = hop_rate_bps(network)
    rows = [network.index[name] for name in members]
    sent = np.minimum(rate.sum(axis=1), network.egress_bps)
    received = np.minimum(rate.sum(axis=0), network.ingress_bps)
    limits = [float(sent[rows].min()), float(received[rows].min())]
    if len(members) == len(network):
        limits.append(min(float(sent.sum()), float(received.sum())) / (2 * (len(members) - 1)))
        if zones is not None and zones.max() > 0:
            crossing = np.where(zones[:, None] != zones[None, :], rate, 0.0)
            out, into = (np.bincount(zones, weights=crossing.sum(axis=axis)) for axis in (1, 0))
            limits += [float(out.min()), float(into.min()), float(out.sum()) / (2 * int(zones.max()))]
    return min(limits)
