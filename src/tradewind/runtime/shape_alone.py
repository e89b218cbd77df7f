"""Shaping with one process per site: each process paces and delays its own traffic without coordination.

That is exact if no shared capacity can be the bottleneck. Directed links and a site's egress have one sender, whose
process enforces them. A site's ingress and a trunk have many senders: if these could be full while the links that feed
them are not, no single process knows, and BadNetwork is raised instead of an inexact imitation.

The environment variable TRADEWIND_SHAPE names the file of the network to imitate; `tradewind.connect` applies it.
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
"""The relative rounding error of capacities that were scaled or read from text."""


def shape_from_environment() -> ShapedNetwork | None:
    """The shaped network that TRADEWIND_SHAPE names, for this process alone; None if it is not set."""
    path = os.environ.get(SHAPE_VARIABLE, "")
    return shape_alone(read_network(path)) if path else None


def shape_alone(network: Network) -> ShapedNetwork:
    """A shaped network for one of several processes; raises BadNetwork if they would have to coordinate."""
    ensure_separable(network)
    return ShapedNetwork(network)


def ensure_separable(network: Network) -> None:
    """Raise BadNetwork for a network that separate processes cannot imitate exactly."""
    for problem in _shared_bottlenecks(network):
        raise BadNetwork(
            f"network {network.name!r} cannot be imitated by separate processes: {problem}, which only network "
            "namespaces or one process for all sites can imitate. Remove that limit, or use another backend."
        )
    if network.loss.any():
        i, j = (int(k) for k in np.unravel_index(network.loss.argmax(), network.loss.shape))
        raise BadNetwork(
            f"network {network.name!r}: link {network.names[i]}->{network.names[j]} loses {network.loss[i, j]:.2%} of "
            "its packets, which this transport cannot imitate. Remove loss from the network, or use another backend."
        )


def _shared_bottlenecks(network: Network) -> Iterator[str]:
    """Shared capacities, described for messages, that are reached before the limits of single senders are."""
    for site in network.sites_only().sites:
        if site.ranks > 1:
            yield f"the {site.ranks} ranks of {site.name!r} share its links"
        if site.machines:
            yield f"{site.name!r} has machines with NICs of their own"
    for j, site in enumerate(network.sites):
        into = np.zeros((len(network), len(network)), dtype=bool)
        into[:, j] = True
        if _binds(network, into, site.ingress_bps):
            yield f"the ingress of {site.name!r} ({site.ingress_bps / 1e6:g} Mbps) is less than its links carry"
    for trunk, mask in zip(network.trunks, network.trunk_members, strict=True):
        if _binds(network, mask, trunk.capacity_bps):
            yield f"trunk {trunk.name!r} ({trunk.capacity_bps / 1e6:g} Mbps) is less than the links through it"


def _binds(network: Network, pairs: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], capacity_bps: float) -> bool:
    links_bps = np.where(pairs, network.bandwidth_bps, 0.0).sum(axis=1)
    sent_bps = np.minimum(links_bps, network.egress_bps)
    return int(np.count_nonzero(sent_bps)) > 1 and float(sent_bps.sum()) > capacity_bps * (1 + ROUNDING)
