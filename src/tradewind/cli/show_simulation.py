"""Results of simulations as tables and as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from tradewind.network import Network
    from tradewind.sim import SimulationResult

_BUSIEST_LINKS = 10


def show(results: list[SimulationResult], network: Network, links: bool) -> None:
    """Print a table with one row per scheme, and discarded and lost bytes; `links` adds the busiest links."""
    from tradewind.cli.output import console
    from tradewind.cli.output import show as show_table
    from tradewind.units import format_count, format_duration, format_size, format_usd

    out, first = console(), results[0]
    sent = f" sent as {format_size(first.wire_bytes)}" if first.wire_bytes != first.nbytes else ""
    head = f"{network.name}: {format_count(len(first.workers), 'rank')}, {format_size(first.nbytes)}{sent}"
    out.print(f"{head}, {format_duration(first.seconds)} of training, seed {first.seed}")
    show_table(out, _table(results, network))
    out.print(
        "rounds, wait: per rank; scale, sync: per round; wasted: waits that gained no member; "
        "used, busiest: of links and NICs"
    )
    for result in results:
        for what, nbytes in (("discarded", result.discarded_bytes), ("lost to failures", result.lost_bytes)):
            if nbytes:
                out.print(f"{result.scheme.name}: {format_size(nbytes)} {what}")
        if network.usd_per_gb.any():
            usd = network.egress_usd(result.link_bytes)
            hourly = format_usd(usd / result.seconds * 3600)
            out.print(f"{result.scheme.name}: egress for {format_usd(usd)}, {hourly} an hour")
    if links:
        for result in results:
            show_table(out, _links_table(result, network))


def _table(results: list[SimulationResult], network: Network) -> Table:
    from tradewind.cli.output import table
    from tradewind.units import format_duration, format_size

    made = table(
        "scheme",
        ">rounds",
        ">scale",
        ">sync",
        ">limit",
        ">of limit",
        ">wait",
        ">wasted",
        ">computing",
        ">sent",
        ">used",
        ">busiest",
    )
    for result in results:
        limit_s, took_s = result.limit_s(network)
        shown = result.finished_rounds > 0
        made.add_row(
            result.scheme.name,
            f"{result.rounds_per_worker:.1f}",
            f"{result.average_scale:.1f}" if shown else "-",
            format_duration(result.average_sync_s) if shown else "-",
            format_duration(limit_s) if math.isfinite(limit_s) else "-",
            f"{100 * limit_s / took_s:.0f}%" if math.isfinite(limit_s) else "-",
            format_duration(result.average_wait_s) if shown else "-",
            format_duration(result.wasted_wait_s),
            f"{100 * result.compute_share:.0f}%",
            format_size(result.total_bytes),
            f"{100 * result.utilisation:.1f}%",
            f"{100 * result.peak_utilisation:.1f}%",
        )
    return made


def _links_table(result: SimulationResult, network: Network) -> Table:
    import numpy as np

    from tradewind.cli.output import table
    from tradewind.units import format_size

    made = table("link", ">sent", ">used", title=f"{result.scheme.name}: busiest links")
    possible = result.link_capacity_bytes > 0
    used = np.divide(
        result.link_bytes, result.link_capacity_bytes, out=np.zeros_like(result.link_bytes), where=possible
    )
    for key in np.argsort(-used, axis=None, kind="stable")[:_BUSIEST_LINKS]:
        i, j = divmod(int(key), len(network))
        if result.link_bytes[i, j]:
            link = f"{network.names[i]}->{network.names[j]}"
            made.add_row(link, format_size(float(result.link_bytes[i, j])), f"{100 * used[i, j]:.1f}%")
    return made


def as_json(result: SimulationResult, network: Network) -> dict[str, Any]:
    """The result with the keys of docs/reference/cli.md."""
    limit_s, took_s = result.limit_s(network)
    scheme = result.scheme
    return {
        "network": result.network,
        "scheme": scheme.name,
        "policy": scheme.policy,
        "planner": scheme.planner,
        "execution": scheme.execution,
        "discipline": scheme.order,
        "seed": result.seed,
        "bytes": result.nbytes,
        "wire_bytes": result.wire_bytes,
        "seconds": result.seconds,
        "egress_usd": network.egress_usd(result.link_bytes) if network.usd_per_gb.any() else None,
        "rounds_per_worker": result.rounds_per_worker,
        "rounds": result.finished_rounds,
        "steps": result.steps,
        "average_scale": result.average_scale,
        "average_sync_seconds": result.average_sync_s,
        "average_wait_seconds": result.average_wait_s,
        "wasted_wait_seconds": result.wasted_wait_s,
        "limit_seconds": limit_s,
        "share_of_limit": limit_s / took_s,
        "computing": result.compute_share,
        "sent_bytes": result.total_bytes,
        "discarded_bytes": result.discarded_bytes,
        "lost_bytes": result.lost_bytes,
        "utilisation": result.utilisation,
        "peak_utilisation": result.peak_utilisation,
        "workers": [
            {"name": w.name, "steps": w.steps, "rounds": w.rounds, "wait_seconds": w.wait_s, "sync_seconds": w.sync_s}
            for w in result.workers
        ],
        "link_bytes": {
            f"{network.names[i]}->{network.names[j]}": float(result.link_bytes[i, j])
            for i, j in zip(*result.link_bytes.nonzero(), strict=True)
        },
        "flows": result.flows,
        "events": result.events,
    }
