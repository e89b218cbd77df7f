"""Trace records of networks and plans, for live runs and simulations alike."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tradewind.network import Network
from tradewind.planning.plan import Plan
from tradewind.trace.records import Record
from tradewind.units import format_count

MAX_RECORDED_SITES = 100
"""Larger networks have too many links and trees to record each."""


def network_records(network: Network, at_s: float) -> Iterator[Record]:
    """Where sites are, and the bandwidth and price of links between them as given; nothing for more than 100 sites."""
    if len(network) > MAX_RECORDED_SITES:
        return
    for site in network.sites:
        if site.lat is not None or site.provider or site.zone:
            about = {"phase": site.provider or "", "reason": site.zone or "", "lat": site.lat, "lon": site.lon}
            yield Record("site", at_s, at_s, site.name, **about)  # type: ignore[arg-type]
    for i, src in enumerate(network.names):
        for j, dst in enumerate(network.names):
            rate_bps = float(network.bandwidth_bps[i, j])
            if not network.is_local[i, j] and rate_bps > 0:
                price = float(network.usd_per_gb[i, j])
                yield Record("link", at_s, at_s, src, dst, phase="given", rate_bps=rate_bps, usd_per_gb=price)


def plan_records(version: int, plan: Plan, at_s: float) -> Iterator[Record]:
    """A plan's trees, and the decision for it with its reason.

    >>> from tradewind.planning.plan import Shard
    >>> plan = Plan("star", "net", ("a", "b"), 8, (Shard(1.0, "a", (("b", "a"),), (("a", "b"),), 8),))
    >>> [(record.kind, record.members, record.reason) for record in plan_records(3, plan, 0.0)]
    [('tree', ('b>a', 'a>b'), ''), ('decision', (), 'version 3: star, 1 tree')]
    """
    for index, shard in enumerate(plan.shards if len(plan.sites) <= MAX_RECORDED_SITES else ()):
        edges = dict.fromkeys(f"{a}>{b}" for route in (*shard.reduce, *shard.broadcast) for a, b in pairwise(route))
        yield Record(
            "tree",
            at_s,
            at_s,
            shard.root,
            step=version,
            shard=index,
            phase=plan.planner,
            nbytes=round(shard.fraction * plan.nbytes),
            members=tuple(edges),
        )
    said = f"version {version}: {plan.planner}, {format_count(len(plan.shards), 'tree')}"
    reason = f"{said}{'; ' + plan.reason if plan.reason else ''}"
    yield Record("decision", at_s, at_s, step=version, phase="plan", reason=reason)
