"""Shaping where every site is a process of its own: each paces and delays what it sends itself, and asks nobody.

That is exact as long as whatever several sites share can never be the bottleneck. Directed links and a site's way out
have one sender, so its process keeps them. A site's way in and a trunk have many: where these could be full while the
links that feed them are not, no single process can tell, and the network is refused rather than imitated wrongly.

The environment variable TRADEWIND_SHAPE names the file of the network to imitate; `tradewind.connect` obeys it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from tradewind.errors import BadNetwork
from tradewind.formats import read_network
from tradewind.network import Network
from tradewind.runtime.shaping import ShapedNetwork

SHAPE_VARIABLE = "TRADEWIND_SHAPE"
ROUNDING = 1e-9
"""Capacities that were scaled or read from text may miss their sum by this share."""


def shape_from_environment() -> ShapedNetwork | None:
    """What TRADEWIND_SHAPE asks for, for this process alone; None if it is not set."""
    path = os.environ.get(SHAPE_VARIABLE, "")
    return shape_alone(read_network(path)) if path else None


def shape_alone(network: Network) -> ShapedNetwork:
    """A shaped network for one of several processes, or a refusal that says what they would have to share."""
    ensure_separable(network)
    return ShapedNetwork(network)


def ensure_separable(network: Network) -> None:
    """Refuse a network that processes cannot imitate each on its own."""
    for problem in _shared_bottlenecks(network):
        raise BadNetwork(
            f"network {network.name!r} cannot be imitated by separate processes: {problem}, which only a network "
            "namespace or one process for all sites can share out. Leave that limit out, or use another backend."
        )
    if network.loss.any():
        i, j = (int(k) for k in np.unravel_index(network.loss.argmax(), network.loss.shape))
        raise BadNetwork(
            f"network {network.name!r}: link {network.names[i]}->{network.names[j]} loses {network.loss[i, j]:.2%} of "
            "its packets, and this transport cannot lose any. Leave loss out of the network, or use another backend."
        )


def _shared_bottlenecks(network: Network) -> Iterator[str]:
    """Limits on the traffic of several sites that bind before the sites' own limits do."""
    everybody = np.ones((len(network), len(network)), dtype=bool)
    for j, site in enumerate(network.sites):
        into = np.zeros_like(everybody)
        into[:, j] = True
        if _binds(network, into, site.ingress_bps):
            yield f"the way into {site.name!r} ({site.ingress_bps / 1e6:g} Mbps) is less than its links bring"
    for trunk, mask in zip(network.trunks, network.trunk_members, strict=True):
        if _binds(network, mask, trunk.capacity_bps):
            yield f"trunk {trunk.name!r} ({trunk.capacity_bps / 1e6:g} Mbps) is less than the links through it"


def _binds(network: Network, pairs: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], capacity_bps: float) -> bool:
    links_bps = np.where(pairs, network.bandwidth_bps, 0.0).sum(axis=1)
    sent_bps = np.minimum(links_bps, network.egress_bps)
    return int(np.count_nonzero(sent_bps)) > 1 and float(sent_bps.sum()) > capacity_bps * (1 + ROUNDING)
