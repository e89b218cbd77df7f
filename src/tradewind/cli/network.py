"""`tradewind network NAME`: one network, as a table or as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tradewind.cli.arguments import (
    DefaultBandwidthOption,
    JsonOption,
    LatencyOption,
    NetworkArgument,
    OptionOption,
    SeedOption,
)

if TYPE_CHECKING:
    from rich.table import Table

    from tradewind.network import Network

EXAMPLE = "tradewind network gscale --json > gscale.json"

_LINKS_SHOWN = 60


def run(
    network: NetworkArgument,
    seed: SeedOption = None,
    option: OptionOption = None,
    latency: LatencyOption = None,
    default_bandwidth: DefaultBandwidthOption = None,
    json: JsonOption = False,
) -> None:
    """Show a network: its sites, links, NIC caps and trunks.

    All latencies are one way, in files as well as here. A CSV file is a matrix of bandwidths, or a list of links with a
    header such as src,dst,mbps,ms. The JSON is the file format of docs/reference/networks.md: the output can be edited
    and read back.
    """
    from tradewind.cli.output import console, show
    from tradewind.cli.resolve import resolve_network

    found = resolve_network(network, seed, option, latency, default_bandwidth)
    if json:
        from tradewind.formats import network_to_json

        sys.stdout.write(network_to_json(found).decode())
        return
    out = console()
    out.print(_summary(found))
    show(out, _sites(found))
    show(out, _links(found))
    if found.trunks:
        show(out, _trunks(found))


def _summary(network: Network) -> str:
    from tradewind.units import format_count, format_duration, format_rate

    there = network.bandwidth_bps > 0
    text = f"{network.name}: {format_count(len(network), 'site')}, {format_count(network.link_count, 'directed link')}"
    if not there.any():
        return text
    rates, delays = network.bandwidth_bps[there], network.latency_s[there]
    return (
        f"{text}, {format_rate(float(rates.min()))} to {format_rate(float(rates.max()))}, "
        f"{format_duration(float(delays.min()))} to {format_duration(float(delays.max()))} one way"
    )


def _sites(network: Network) -> Table:
    import numpy as np

    from tradewind.cli.output import table
    from tradewind.units import format_rate

    has_zones = any(site.zone for site in network.sites)
    has_place = any(site.lat is not None for site in network.sites)
    has_caps = bool(np.isfinite(network.egress_bps).any() or np.isfinite(network.ingress_bps).any())
    made = table(
        "site",
        *(["zone"] if has_zones else []),
        *([">lat", ">lon"] if has_place else []),
        ">links out",
        ">sum out",
        ">sum in",
        *([">egress cap", ">ingress cap"] if has_caps else []),
        title="Sites",
    )
    out_bps, in_bps = network.bandwidth_bps.sum(axis=1), network.bandwidth_bps.sum(axis=0)
    for i, site in enumerate(network.sites):
        place = ["" if x is None else f"{x:.2f}" for x in (site.lat, site.lon)] if has_place else []
        caps = [format_rate(site.egress_bps), format_rate(site.ingress_bps)] if has_caps else []
        sums = [format_rate(float(out_bps[i])), format_rate(float(in_bps[i]))]
        zone = [site.zone or ""] if has_zones else []
        made.add_row(site.name, *zone, *place, str(len(network.neighbours(i))), *sums, *caps)
    return made


def _links(network: Network) -> Table:
    """The table of links; two directions with equal values share a row."""
    from tradewind.cli.output import table
    from tradewind.network import Link
    from tradewind.units import format_duration, format_rate

    by_ends = {(link.src, link.dst): link for link in network.links}
    rows: list[tuple[str, Link]] = []
    for (src, dst), link in by_ends.items():
        back = by_ends.get((dst, src))
        same = back is not None and (back.bandwidth_bps, back.latency_s, back.loss) == (
            link.bandwidth_bps,
            link.latency_s,
            link.loss,
        )
        if not same or network.index[src] < network.index[dst]:
            rows.append((f"{src} {'<->' if same else '->'} {dst}", link))
    made = table("link", ">bandwidth", ">latency", ">loss", title="Links")
    for text, link in rows[:_LINKS_SHOWN]:
        loss = f"{100 * link.loss:g}%" if link.loss else ""
        made.add_row(text, format_rate(link.bandwidth_bps), format_duration(link.latency_s), loss)
    if len(rows) > _LINKS_SHOWN:
        made.caption = f"{len(rows) - _LINKS_SHOWN} more; --json prints all"
    return made


def _trunks(network: Network) -> Table:
    from tradewind.cli.output import table
    from tradewind.units import format_rate

    made = table("trunk", "from", "to", ">capacity", title="Trunks")
    for trunk in network.trunks:
        made.add_row(trunk.name, trunk.src_zone, trunk.dst_zone, format_rate(trunk.capacity_bps))
    return made
