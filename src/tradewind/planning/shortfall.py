"""Why a plan takes longer than the limit, in words.

The limit's own argument states why *no* plan can be faster. A plan can be slower for five reasons: its trees load the
most loaded link, NIC or trunk more than the limit's packing would (bandwidth), a rank needs longer to handle its frames
and bytes than the links to carry them (processor), TCP connections carry less than their link (connections), the first
chunk travels up one tree and down again (latency), and it is received whole before it is forwarded (chunk size).
"""

from __future__ import annotations

import numpy as np

from tradewind.network import Network
from tradewind.planning.bound import least_bytes
from tradewind.planning.cost import Cost, busiest_resource
from tradewind.planning.hops import flatten, longest_path
from tradewind.planning.plan import Plan, Prediction
from tradewind.units import format_count, format_duration, format_size

_AT_THE_LIMIT = 0.995
_WORTH_SAYING = 0.05
"""The least share of the shortfall that a cause must have to be named."""


def explain_shortfall(plan: Plan, network: Network, spent: Cost, predicted: Prediction) -> str:
    """Why the plan is slower than the limit, the largest cause first."""
    if predicted.efficiency >= _AT_THE_LIMIT:
        return "it is as fast as the limit"
    missing_s = predicted.seconds - predicted.bound_seconds
    limit_transfer_s = 8.0 * least_bytes(plan.nbytes, plan.sum_sizes) / predicted.bound_rate_bps
    latency_s = _latency_seconds(plan, network)
    slow_transfer_s = spent.transfer_seconds - limit_transfer_s
    slow_hosts_s = spent.busy_seconds - spent.transfer_seconds
    more_latency_s = latency_s - (predicted.bound_seconds - limit_transfer_s)
    chunk_s = spent.fill_seconds - latency_s
    used = format_count(len(plan.shards), "tree") + (" uses " if len(plan.shards) == 1 else " use ")
    used += f"{np.count_nonzero(spent.link_bytes)} of {format_count(network.link_count, 'link')}"
    _, busiest = busiest_resource(spent.link_bytes, network)
    chunk = format_size(max(shard.chunk_bytes for shard in plan.shards))
    causes = [
        (
            slow_transfer_s,
            f"bandwidth ({busiest} is busy for {format_duration(spent.transfer_seconds)}, where the limit is "
            f"{format_duration(limit_transfer_s)}; {used})",
        ),
        (
            slow_hosts_s,
            f"handling ({spent.bottleneck} is busy for {format_duration(spent.processor_seconds)}, with its part of "
            f"{format_count(round(spent.frames), 'frame')} and their bytes)"
            if spent.busy_seconds == spent.processor_seconds
            else f"connections ({spent.bottleneck} need {format_duration(spent.connection_seconds)} for their bytes)",
        ),
        (more_latency_s, f"latency ({format_duration(latency_s)} on the longest path up a tree and down again)"),
        (chunk_s, f"chunk size (the first chunk of {chunk} is received whole before each further hop)"),
    ]
    causes = sorted((cause for cause in causes if cause[0] > _WORTH_SAYING * missing_s), reverse=True)
    return f"{format_duration(missing_s)} more than the limit: " + ", ".join(
        f"{format_duration(seconds)} by {text}" for seconds, text in causes
    )


def _latency_seconds(plan: Plan, network: Network) -> float:
    """The time in s to fill the pipeline with chunks of size zero."""
    hops = flatten(plan, network)
    route_s = np.zeros(len(hops.route_shard))
    np.add.at(route_s, hops.route, network.latency_s[hops.src, hops.dst])
    return float(longest_path(hops, route_s, len(plan.shards), len(network)).max())
