"""The number of TCP connections that a run opens to a peer, and what they and the threads behind them carry.

A connection is limited by its send buffer, of which a round trip empties one filling, and on fast networks by its
threads: one at either end handles all its bytes, so it carries no more than one core. On slow networks one thread
serves all connections of a rank. The runtime opens connections by these rules (`runtime.connections` adds some while it
runs), and `cost` predicts with them.

The numbers by cores were chosen on 16 cores, by code before checksums of frames and kernels in C: two processes carried
2.5 times as much with four connections as with one, and four processes most with two (`python -m benchmarks host_cost`
measures it again).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tradewind.network import Matrix, Network
from tradewind.planning.host import MAX_CONNECTIONS, STREAM_BYTES, HostCost

FAST_BPS = 2e9
"""Networks whose median link is slower are served by one thread of a rank, faster ones by two for each connection."""
MOST_AT_START = 4
"""Connections to a peer at the start, unless the length of the link needs more."""
_STREAMS = 8
"""Connections of a rank to all its peers on a fast network, at the start: the threads share one interpreter."""

Floats = npt.NDArray[np.float64]


def connections_needed(bandwidth_bps: float, latency_s: float) -> int:
    """The number of TCP connections that fill a link.

    >>> connections_needed(100e6, 0.1), connections_needed(1e9, 0.1), connections_needed(10e9, 0.0)
    (1, 6, 1)
    """
    in_flight_bytes = bandwidth_bps / 8 * 2 * latency_s
    return max(1, min(MAX_CONNECTIONS, math.ceil(in_flight_bytes / STREAM_BYTES)))


def connections_by_cores(rank_cores: float, peers: int) -> int:
    """The number of connections to each of `peers` peers on a fast network, for a rank with so many cores.

    >>> connections_by_cores(8, 1), connections_by_cores(4, 3), connections_by_cores(1, 1)
    (4, 2, 1)
    """
    return max(1, int(min(MOST_AT_START, rank_cores // 2, _STREAMS // max(1, peers))))


def is_slow(network: Network | None) -> bool:
    """Whether the median link between sites is below `FAST_BPS` in the given network; False without a network."""
    if network is None:
        return False
    links_bps = network.bandwidth_bps[(network.bandwidth_bps > 0) & ~network.is_local]
    return bool(links_bps.size and np.median(links_bps) < FAST_BPS)


def link_connections(network: Network, host: HostCost) -> Matrix:
    """The connections between each pair of ranks: those of `host`, or as many as a run that knows the network opens."""
    if host.connections:
        return np.full(network.bandwidth_bps.shape, float(host.connections))
    in_flight_bytes = network.bandwidth_bps / 8 * 2 * network.latency_s
    by_delay = np.ceil(np.maximum(in_flight_bytes, in_flight_bytes.T) / STREAM_BYTES)
    by_cores = 1 if is_slow(network) else connections_by_cores(host.rank_cores, len(network) - 1)
    counts: Matrix = np.clip(by_delay, by_cores, MAX_CONNECTIONS)
    return counts


def carried_bps(network: Network, host: HostCost) -> Matrix:
    """What the connections of each link carry: limited by their send buffers, and on fast networks by their threads.

    Nothing limits those inside a site, which are no TCP connections of the network.
    """
    with np.errstate(divide="ignore"):
        by_buffer = 8 * host.stream_bytes / (network.latency_s + network.latency_s.T)
    by_thread = np.inf if is_slow(network) or not host.byte_s else 8 / host.byte_s
    by_link = link_connections(network, host) * np.minimum(by_buffer, by_thread)
    carried: Matrix = np.where(network.is_local, np.inf, by_link)
    return carried


def carried_network(network: Network, host: HostCost) -> Network:
    """The network with links that have no more than their connections carry; itself where these are enough."""
    carried = carried_bps(network, host)
    if (carried >= network.bandwidth_bps).all():
        return network
    return network.with_bandwidth(np.minimum(network.bandwidth_bps, carried))


def busy_threads(network: Network, host: HostCost, link_bytes: Matrix) -> Floats:
    """For each rank, how many threads handle its bytes at the same time, on the cores that it has."""
    if is_slow(network):
        return np.ones(len(network))
    used = (link_bytes > 0) | (link_bytes.T > 0)
    threads = 2 * np.where(used, link_connections(network, host), 0.0).sum(axis=1)
    busy: Floats = np.maximum(1.0, np.minimum(host.rank_cores, threads))
    return busy


def byte_at_once_s(network: Network, host: HostCost) -> float:
    """The time of a byte at a rank that uses all of its links: its threads handle several bytes at the same time."""
    return host.byte_s / float(busy_threads(network, host, network.bandwidth_bps).min())
