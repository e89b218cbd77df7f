"""`tradewind draw NETWORK [PLAN.json] --out F.png`: the network, and the plan on it, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tradewind.cli.arguments import (
    DefaultBandwidthOption,
    JsonOption,
    LatencyOption,
    NetworkArgument,
    OptionOption,
    SeedOption,
)

EXAMPLE = "tradewind draw gscale plan.json --out plan.png"


def run(
    network: NetworkArgument,
    out: Annotated[Path, typer.Option("--out", metavar="F.png", help="The picture: .png, .svg or .pdf.")],
    plan: Annotated[Path | None, typer.Argument(metavar="PLAN.json", help="A plan to draw on the network.")] = None,
    shard: Annotated[
        list[int] | None, typer.Option("--shard", metavar="N", help="Draw only this shard's tree; may be repeated.")
    ] = None,
    seed: SeedOption = None,
    option: OptionOption = None,
    latency: LatencyOption = None,
    default_bandwidth: DefaultBandwidthOption = None,
    json: JsonOption = False,
) -> None:
    """Draw a network: a map where all sites have coordinates, a layout by latency and links otherwise.

    Up to eight trees are drawn in one colour each; more are drawn together, with links coloured by how busy they are.
    """
    from tradewind.cli.check import read_plan
    from tradewind.cli.output import check_picture, print_json, write_whole
    from tradewind.cli.progress import progress
    from tradewind.cli.resolve import resolve_network
    from tradewind.errors import BadOption
    from tradewind.figures import network_figure, render
    from tradewind.planning.check import ensure_valid

    check_picture(out)
    found = resolve_network(network, seed, option, latency, default_bandwidth)
    read = None if plan is None else ensure_valid(read_plan(plan), found)
    shards = tuple(dict.fromkeys(shard or ()))
    if shards and read is None:
        raise BadOption("--shard chooses among a plan's trees. Give a PLAN.json too.")
    for number in shards:
        if read is not None and not 0 <= number < len(read.shards):
            raise BadOption(f"--shard {number}: {plan} has the shards 0 to {len(read.shards) - 1}.")
    with progress("drawing"):
        picture = render(network_figure(found, read, shards), out.suffix)
        write_whole(out, picture)
    if json:
        print_json({"out": str(out), "network": found.name, "plan": plan and str(plan), "file_bytes": len(picture)})
    else:
        typer.echo(f"wrote {out}", err=True)
