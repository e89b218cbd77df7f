"""Trace records of networks and plans, for live runs and simulations alike."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tradewind.network import Network
from tradewind.planning.plan import Plan
from tradewind.trace.records import Record
from tradewind.units import format_count

MAX_RECORDED_SITES = 100
"""Larger networks have too many links and trees to record each: only links of plans are recorded."""
MAX_RECORDED_LINKS = 20_000
"""The most links of a plan that are recorded."""


def network_records(network: Network, at_s: float) -> Iterator[Record]:
    """Where sites are, and bandwidth, latency and price of links between them as given; links of at most 100 sites."""
    for site in network.sites:
        if site.lat is not None or site.provider or site.zone:
            about = {"phase": site.provider or "", "reason": site.zone or "", "lat": site.lat, "lon": site.lon}
            yield Record("site", at_s, at_s, site.name, **about)  # type: ignore[arg-type]
    if len(network) <= MAX_RECORDED_SITES:
        for i, src in enumerate(network.names):
            for j, dst in enumerate(network.names):
                if not network.is_local[i, j] and network.bandwidth_bps[i, j] > 0:
                    yield _given(network, src, dst, at_s)


def used_link_records(network: Network, plan: Plan, known: set[tuple[str, str]], at_s: float) -> Iterator[Record]:
    """The links of a plan on a network whose links are not all recorded, without those in `known`, which gets them.

    >>> from tradewind.catalog import load_network
    >>> from tradewind.planning import make_plan
    >>> mesh = load_network("mesh", n=101, seed=0)
    >>> plan, known = make_plan("star", mesh, 8_000), set()
    >>> len(list(network_records(mesh, 0.0))), len(list(used_link_records(mesh, plan, known, 0.0)))
    (0, 200)
    >>> list(used_link_records(mesh, plan, known, 0.0))
    []
    """
    if len(network) <= MAX_RECORDED_SITES:
        return
    for shard in plan.shards:
        for route in (*shard.reduce, *shard.broadcast):
            for src, dst in pairwise(route):
                is_new = (src, dst) not in known and len(known) < MAX_RECORDED_LINKS
                if is_new and src in network.index and dst in network.index:
                    known.add((src, dst))
                    yield _given(network, src, dst, at_s)


def _given(network: Network, src: str, dst: str, at_s: float) -> Record:
    i, j = network.index[src], network.index[dst]
    return Record(
        "link",
        at_s,
        at_s,
        src,
        dst,
        phase="given",
        rate_bps=float(network.bandwidth_bps[i, j]),
        usd_per_gb=float(network.usd_per_gb[i, j]),
        latency_s=float(network.latency_s[i, j]),
    )


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
