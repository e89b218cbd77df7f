"""`tradewind probe`: measure the links between machines, and write down the network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tradewind.cli.arguments import JsonOption

if TYPE_CHECKING:
    from tradewind.runtime.probe import SeenNetwork

EXAMPLE = "TRADEWIND_SECRET=... tradewind probe --controller 10.0.0.1:4000 --rank 0 --world 4 --out network.json"


def run(
    rank: Annotated[int, typer.Option("--rank", metavar="R", envvar="RANK", help="Of this process, from 0.")],
    world: Annotated[int, typer.Option("--world", metavar="N", envvar="WORLD_SIZE", help="How many take part.")],
    controller: Annotated[
        str | None,
        typer.Option("--controller", metavar="HOST:PORT", help="Where rank 0 listens; by default as for torchrun."),
    ] = None,
    site: Annotated[
        str | None, typer.Option("--site", metavar="NAME", envvar="TRADEWIND_SITE", help="What this site is called.")
    ] = None,
    bind: Annotated[
        str | None,
        typer.Option("--bind", metavar="ADDRESS", envvar="TRADEWIND_BIND", help="The address to listen on."),
    ] = None,
    interface: Annotated[str | None, typer.Option("--interface", metavar="NAME", help="Or its interface.")] = None,
    advertise: Annotated[
        str | None, typer.Option("--advertise", metavar="ADDRESS", help="What others call, if it is another.")
    ] = None,
    pair_time: Annotated[str, typer.Option("--pair-time", metavar="TIME", help="For two sites, at most.")] = "2s",
    patience: Annotated[str, typer.Option("--patience", metavar="TIME", help="How long a silence may be.")] = "30s",
    out: Annotated[Path | None, typer.Option("--out", metavar="F.json", help="Write the network there.")] = None,
    json: JsonOption = False,
) -> None:
    """Measure bandwidth and latency of every link between processes that all run this, one on each machine.

    Two sites at a time measure their link both ways, so that nobody gets in anybody's way; that takes at most the pair
    time for each of N - 1 turns (N if N is odd). Every process learns the result; rank 0 shows it. The secret is read
    from TRADEWIND_SECRET.
    """
    from tradewind.cli.output import check_out, print_json, progress, write_whole
    from tradewind.errors import BadOption
    from tradewind.formats import network_to_json
    from tradewind.runtime.probe import probe_network
    from tradewind.units import parse_duration

    probe_s = parse_duration(pair_time)
    check_out(out, (".json",))
    if controller is None:
        host, port = (os.environ.get(variable) for variable in ("MASTER_ADDR", "MASTER_PORT"))
        if not (host and port):
            raise BadOption("nobody said where rank 0 listens. Give --controller, or MASTER_ADDR and MASTER_PORT.")
        controller = f"{host}:{port}"
    with progress(f"rank {rank} of {world}"):
        seen = probe_network(
            controller,
            rank,
            world,
            probe_s,
            name=site,
            bind=bind,
            interface=interface,
            advertise=advertise,
            patience_s=parse_duration(patience),
        )
    if out is not None:
        write_whole(out, network_to_json(seen.network))
    if json:
        print_json(_as_json(seen))
    elif rank == 0:
        _show(seen)


def _as_json(seen: SeenNetwork) -> dict[str, object]:
    return {
        "sites": [{"site": site.name, "zone": site.zone} for site in seen.network.sites],
        "measured": seen.measured,
        "links": [
            {
                "src": link.src,
                "dst": link.dst,
                "bandwidth_bps": link.bandwidth_bps,
                "latency_seconds": link.latency_s,
                "origin": link.origin,
                "measurements": link.count,
            }
            for link in seen.links
        ],
    }


def _show(seen: SeenNetwork) -> None:
    from tradewind.cli.output import console, show, table
    from tradewind.units import format_duration, format_rate

    made = table("link", ">bandwidth", ">latency", "origin")
    for link in seen.links:
        rate, latency = format_rate(link.bandwidth_bps), format_duration(link.latency_s)
        made.add_row(f"{link.src}->{link.dst}", rate, latency, link.origin)
    show(console(), made)
    zones: dict[str, list[str]] = {}
    for site in seen.network.sites:
        if site.zone:
            zones.setdefault(site.zone, []).append(site.name)
    for zone in zones.values():
        typer.echo(f"near each other: {', '.join(zone)}")
