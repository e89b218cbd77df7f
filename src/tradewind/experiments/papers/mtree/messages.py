"""The message model of MTREE IV-D: chunks on trees, one chunk on a link at a time.

A link takes alpha + beta mu seconds for a chunk of mu bytes (Hockney), and only then starts on the next one. A site
sends chunk c to its parent once it has received it from all children; the root sends it back down immediately. On a
path this is exactly the paper's Eq. (2); on a tree the paths wait for each other, chunk by chunk.

Trees run concurrently at the rates that the plan reserves for them, which `cost` confirms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tradewind.errors import BadPlan
from tradewind.network import Network
from tradewind.planning.chunking import optimal_chunk_bytes
from tradewind.planning.plan import Plan, Route, Shard

Times = npt.NDArray[np.float64]


def delivered(ready_s: Times, hop_s: float) -> Times:
    """The times at which a link has delivered each chunk, given the times at which its sender had it.

    Chunk c waits for itself and for the link: end(c) = max(ready(c), end(c - 1)) + hop. Unrolled, it is the
    largest of ready(k) + (c - k + 1) hop over k <= c: a running maximum.

    >>> delivered(np.array([0.0, 0.0, 5.0]), 2.0).tolist()
    [2.0, 4.0, 7.0]
    """
    number = np.arange(len(ready_s))
    ended: Times = np.maximum.accumulate(ready_s - number * hop_s) + (number + 1) * hop_s
    return ended


def shard_seconds(shard: Shard, network: Network, nbytes: int, chunks: int, broadcast: bool = True) -> float:
    """Seconds until the last site (without `broadcast`, the root) has the last of `chunks` equal chunks of a shard.

    Raises `BadPlan` for a shard without a rate.
    """
    if shard.rate_bps is None:
        raise BadPlan(f"the shard rooted at {shard.root!r} has no rate: the message model needs a rate for every tree.")
    sending_s = 8.0 * shard.fraction * nbytes / chunks / shard.rate_bps

    def along(route: Route, times: Times) -> Times:
        for src, dst in pairwise(route):
            times = delivered(times, network.latency_s[network.index[src], network.index[dst]] + sending_s)
        return times

    summed: dict[str, Times] = {}
    for route in _leaves_first(shard.reduce):
        arrived = along(route, summed.get(route[0], np.zeros(chunks)))
        summed[route[-1]] = np.maximum(summed.get(route[-1], np.zeros(chunks)), arrived)
    at = {shard.root: summed[shard.root]}
    if broadcast:
        for route in reversed(_leaves_first(tuple(route[::-1] for route in shard.broadcast))):
            at[route[0]] = along(route[::-1], at[route[-1]])
    return float(max(times[-1] for times in at.values()))


def plan_seconds(plan: Plan, network: Network, chunks: Sequence[int] | None = None, broadcast: bool = True) -> float:
    """Seconds until the slowest tree has ended. `chunks` is per shard; by default every shard is a single message."""
    counts = chunks or [1] * len(plan.shards)
    return max(
        shard_seconds(shard, network, plan.nbytes, count, broadcast)
        for shard, count in zip(plan.shards, counts, strict=True)
    )


def best_chunks(plan: Plan, network: Network, broadcast: bool = True) -> list[int]:
    """The best number of chunks (lambda*) of each shard for its longest path, there and back or one way."""
    counts = []
    for shard in plan.shards:
        size = shard.fraction * plan.nbytes
        latencies = longest_path_latencies_s(shard, network)
        path = latencies + latencies[::-1] if broadcast else latencies
        assert shard.rate_bps is not None
        counts.append(max(1, math.ceil(size / optimal_chunk_bytes(size, path, shard.rate_bps))))
    return counts


def longest_path_latencies_s(shard: Shard, network: Network) -> list[float]:
    """The link latencies on the path of largest latency from a site to the root, in seconds."""
    index = network.index
    ways: dict[str, list[float]] = {shard.root: []}
    for route in reversed(_leaves_first(shard.reduce)):
        hops = [float(network.latency_s[index[a], index[b]]) for a, b in pairwise(route)]
        ways[route[0]] = hops + ways[route[-1]]
    return max(ways.values(), key=lambda way: (sum(way), len(way)))


def _leaves_first(routes: tuple[Route, ...]) -> list[Route]:
    """The routes from child to parent, ordered so that a site's children precede the site itself."""
    by_parent: dict[str, list[Route]] = {}
    children = {route[0] for route in routes}
    for route in routes:
        by_parent.setdefault(route[-1], []).append(route)
    ordered: list[Route] = []
    waiting = [route for route in routes if route[-1] not in children]
    while waiting:
        route = waiting.pop()
        ordered.append(route)
        waiting += by_parent.get(route[0], [])
    return ordered[::-1]
