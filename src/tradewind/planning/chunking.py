"""How large a chunk should be on a path where each link carries one chunk at a time (MTREE III-C).

In the message model a link hands over a chunk of mu bytes every alpha + beta mu seconds: alpha is its latency, beta the
seconds per byte. Small chunks fill a long path sooner, but each pays the latency of the slowest link again. MTREE's Eq.
(3) adds both up for v bytes on l links:

    t(mu) = sum(alpha) + (v / mu - 1) max(alpha) + (l - 1) beta mu + beta v

Its minimum is at mu* = sqrt(v max(alpha) / ((l - 1) beta)). The paper's Eq. (7) prints this without v, which is
off by a factor of sqrt(v): 1.8 kB where 18 MB is best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def optimal_chunk_bytes(shard_bytes: float, latencies_s: Sequence[float], rate_bps: float) -> int:
    """The chunk size mu* that minimises Eq. (3), between one byte and the whole shard.

    `latencies_s` are the latencies of the links on the longest path, for an all-reduce up to the root and down
    again. A single link has nothing to overlap with, so nothing is cut.

    >>> optimal_chunk_bytes(1e9, [0.2, 0.1, 0.1, 0.2], 100e6)
    28867513
    >>> optimal_chunk_bytes(1e9, [0.2], 100e6)
    1000000000

    Mechanism: MTREE III-C Eq. (7), chunk size of a tree (live: tradewind/stragglers)
    """
    whole = max(1, math.ceil(shard_bytes))
    if len(latencies_s) <= 1:
        return whole
    seconds_per_byte = 8.0 / rate_bps
    best = math.sqrt(shard_bytes * max(latencies_s) / ((len(latencies_s) - 1) * seconds_per_byte))
    return max(1, min(whole, round(best)))


def path_seconds(chunks: float, chunk_bytes: float, latencies_s: Sequence[float], rate_bps: float) -> float:
    """Eq. (2): how long `chunks` chunks take along a path.

    The first chunk pays every link; each further one arrives as long after its predecessor as the slowest link
    needs. With chunks = v / chunk_bytes this is Eq. (3).

    >>> path_seconds(1, 1e6, [0.25, 0.5], 8e6), path_seconds(3, 1e6, [0.25, 0.5], 8e6)
    (2.75, 5.75)

    Mechanism: MTREE III-C Eq. (3), time of chunks along a path (live: tradewind/stragglers)
    """
    transmission_s = 8.0 * chunk_bytes / rate_bps
    first_s = sum(latencies_s) + len(latencies_s) * transmission_s
    return first_s + (chunks - 1) * (max(latencies_s) + transmission_s)
