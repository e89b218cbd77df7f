"""Completion-time planning: predicted time, trees, frames and planning time by sites and bytes.

Directed meshes of 20 to 155 Mbps without latency, and 62 cloud regions with it. Times are predicted by `cost`, with the
processor time of frames; the limit is that of the network alone. Planning time is processor time of single runs, so
that other work of the machine does not count.
"""

from __future__ import annotations

import time
from typing import Any, TextIO

from tradewind.catalog import load_network
from tradewind.network import Network
from tradewind.planning import planner, planner_options
from tradewind.planning.bound import bound
from tradewind.planning.cost import cost
from tradewind.planning.plan import Plan

SITES = (4, 8, 12, 16, 24, 32)
SIZES_MB = (1, 10, 40, 180)


def run(out: TextIO) -> dict[str, Any]:
    """Plan everything, and write the tables."""
    planned("auto", load_network("mesh", n=4), 10**6)  # loads the planners' modules
    rows = [_row(load_network("mesh", n=sites), f"mesh of {sites}", mb) for sites in SITES for mb in SIZES_MB]
    rows += [_row(load_network("skyplane"), "skyplane (62)", mb) for mb in SIZES_MB]
    columns = "network | MB | limit | planner | predicted | of the limit | trees | smallest shard | frames | planning"
    out.write(f"| {columns} |\n")
    out.write("|---|---:|---:|---|---:|---:|---:|---:|---:|---:|\n")
    for row in rows:
        for name in ("optimal", "auto"):
            one = row[name]
            out.write(
                f"| {row['network']} | {row['mb']} | {_ms(row['limit_s'])} | `{name}` | {_ms(one['seconds'])} "
                f"| {row['limit_s'] / one['seconds']:.1%} | {one['trees']} | {one['smallest_bytes'] / 1e3:.0f} kB "
                f"| {one['frames']:.0f} | {one['planning_s']:.2f} s |\n"
            )
    return {"rows": rows}


def _row(network: Network, label: str, mb: int) -> dict[str, Any]:
    nbytes = mb * 10**6
    limit_s = bound(network, network.names, nbytes).seconds
    found = {name: planned(name, network, nbytes) for name in ("optimal", "auto")}
    return {"network": label, "mb": mb, "limit_s": limit_s, **found}


def planned(name: str, network: Network, nbytes: int) -> dict[str, Any]:
    """The plan's figures, and the processor time of planning."""
    start_s = time.process_time()
    plan: Plan = planner(name).function(network, network.names, nbytes, planner_options(name, {}))
    planning_s, spent = time.process_time() - start_s, cost(plan, network)
    return {
        "seconds": spent.seconds,
        "trees": len(plan.shards),
        "smallest_bytes": min(shard.fraction for shard in plan.shards) * nbytes,
        "frames": spent.frames,
        "bottleneck": spent.bottleneck,
        "planning_s": planning_s,
    }


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
