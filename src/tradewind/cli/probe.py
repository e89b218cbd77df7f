"""`tradewind probe`: measure the links between machines, and write a network file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tradewind.cli.arguments import JsonOption

if TYPE_CHECKING:
    from tradewind.runtime.probe import SeenNetwork

EXAMPLE = "TRADEWIND_SECRET=... tradewind probe --controller 10.0.0.1:4000 --rank 0 --world 4 --out network.json"

NOT_MEASURED = "not measured"


def run(
    rank: Annotated[int, typer.Option("--rank", metavar="R", envvar="RANK", help="Rank of this process, from 0.")],
    world: Annotated[int, typer.Option("--world", metavar="N", envvar="WORLD_SIZE", help="Number of ranks.")],
    controller: Annotated[
        str | None,
        typer.Option("--controller", metavar="HOST:PORT", help="Where rank 0 listens; by default as for torchrun."),
    ] = None,
    site: Annotated[str | None, typer.Option("--site", metavar="NAME", help="Name of this site.")] = None,
    bind: Annotated[
        str | None,
        typer.Option("--bind", metavar="ADDRESS", help="Where to listen; by default the address that reaches rank 0."),
    ] = None,
    interface: Annotated[
        str | None, typer.Option("--interface", metavar="NAME", help="Listen on this interface.")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="ADDRESS", help="Address that other ranks connect to, if not --bind."),
    ] = None,
    ports: Annotated[
        str | None, typer.Option("--ports", metavar="A-B", help="Listen on ports of this range, for a firewall.")
    ] = None,
    probe_s: Annotated[
        str | None, typer.Option("--probe-s", metavar="TIME", help="Limit for each pair of sites; by default 2s.")
    ] = None,
    patience_s: Annotated[
        str | None,
        typer.Option("--patience-s", metavar="TIME", help="Silence after which a rank is lost; by default 30s."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="F.json", help="Write the network there.")] = None,
    json: JsonOption = False,
) -> None:
    """Measure bandwidth and latency of every link between machines; run this once on each of them.

    Sites measure in disjoint pairs, both directions of a link, so that measurements do not disturb each other; that
    takes at most --probe-s for each of N - 1 turns (N if N is odd). Where pairs alone show no zones, four times as many
    short turns with all sites sending at once find racks that share an uplink (4 to 48 sites). Every process receives
    the result; rank 0 shows it.
    Links that could not be measured are marked and left out of the file; if none could, the command fails. The secret
    is read from TRADEWIND_SECRET. Options that are not given have the values that `tradewind config` shows.
    """
    from tradewind.cli.output import check_out, print_json, write_whole
    from tradewind.cli.progress import progress
    from tradewind.errors import BadOption
    from tradewind.formats import network_to_json
    from tradewind.runtime.options import options_by_field
    from tradewind.runtime.probe import probe_network

    check_out(out, (".json",))
    if controller is None:
        host, port = (os.environ.get(variable) for variable in ("MASTER_ADDR", "MASTER_PORT"))
        if not (host and port):
            raise BadOption("the address of rank 0 is not set. Give --controller, or set MASTER_ADDR and MASTER_PORT.")
        controller = f"{host}:{port}"
    flags = {
        "site": site,
        "bind": bind,
        "interface": interface,
        "advertise": advertise,
        "ports": ports,
        "probe_s": probe_s,
        "patience_s": patience_s,
    }
    options = options_by_field(flags)
    with progress(f"rank {rank} of {world}"):
        seen = probe_network(controller, rank, world, options)
    if out is not None:
        write_whole(out, network_to_json(seen.measured_network))
    if seen.unmeasured and rank == 0:
        names = ", ".join(f"{link.src}->{link.dst}" for link in seen.unmeasured)
        typer.echo(f"{len(seen.unmeasured)} of {len(seen.links)} links could not be measured: {names}", err=True)
    if json:
        print_json(_as_json(seen))
    elif rank == 0:
        _show(seen)


def _as_json(seen: SeenNetwork) -> dict[str, object]:
    unmeasured = seen.unmeasured
    return {
        "sites": [{"site": site.name, "zone": site.zone} for site in seen.measured_network.sites],
        "measured": seen.measured,
        "links": [
            {
                "src": link.src,
                "dst": link.dst,
                "bandwidth_bps": link.bandwidth_bps if link not in unmeasured else None,
                "latency_seconds": link.latency_s if link not in unmeasured else None,
                "origin": link.origin if link not in unmeasured else NOT_MEASURED,
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
        known = (format_rate(link.bandwidth_bps), format_duration(link.latency_s), link.origin)
        made.add_row(f"{link.src}->{link.dst}", *(known if link not in seen.unmeasured else ("-", "-", NOT_MEASURED)))
    show(console(), made)
    zones: dict[str, list[str]] = {}
    for site in seen.measured_network.sites:
        if site.zone:
            zones.setdefault(site.zone, []).append(site.name)
    for zone in zones.values():
        typer.echo(f"near each other: {', '.join(zone)}")
