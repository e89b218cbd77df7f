"""`tradewind pareto NETWORK`: plans between the fastest and the cheapest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tradewind.cli.arguments import (
    DEFAULT_BYTES,
    BytesOption,
    DefaultBandwidthOption,
    JsonOption,
    LatencyOption,
    MembersOption,
    NetworkArgument,
    OptionOption,
    PricesOption,
    SeedOption,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tradewind.network import Network
    from tradewind.planning.pareto import Offer

EXAMPLE = "tradewind pareto skyplane --option count=9 --bytes 1GB --out pareto.png"


def run(
    network: NetworkArgument,
    planner: Annotated[str, typer.Option("--planner", metavar="NAME", help="Planner of the fast end.")] = "auto",
    members: MembersOption = None,
    size: BytesOption = DEFAULT_BYTES,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="F.png", help="Draw a picture: .png, .svg, .pdf.")
    ] = None,
    seed: SeedOption = None,
    option: OptionOption = None,
    latency: LatencyOption = None,
    default_bandwidth: DefaultBandwidthOption = None,
    prices: PricesOption = None,
    json: JsonOption = False,
) -> None:
    """Show the predicted time of a round against the price of its egress, for the plans that no other one beats.

    `tradewind plan --objective cost` and `mix` make the cheapest of them, and the one with the least product of both.
    """
    from tradewind.cli.output import check_picture, print_json, write_whole
    from tradewind.cli.progress import progress
    from tradewind.cli.resolve import parse_names, resolve_network
    from tradewind.comparison import timed_offers
    from tradewind.figures import render
    from tradewind.planning.pareto import choose
    from tradewind.units import parse_size

    check_picture(out)
    nbytes = parse_size(size)
    found = resolve_network(network, seed, option, latency, default_bandwidth, prices)
    with progress("planning") as report:
        made = timed_offers(found, nbytes, parse_names(members, "--members"), planner, report)
    if out is not None:
        write_whole(out, render(_figure(found, nbytes, made), out.suffix))
    mix = choose(made, "mix")
    if json:
        print_json({"network": found.name, "bytes": nbytes, "plans": [_as_json(one, one is mix) for one in made]})
        return
    _show(made, mix)
    if out is not None:
        typer.echo(f"wrote {out}", err=True)


def _as_json(offer: Offer, is_mix: bool) -> dict[str, Any]:
    return {
        "seconds": offer.seconds,
        "egress_usd": offer.usd,
        "trees": len(offer.plan.shards),
        "mix": is_mix,
        "reason": offer.plan.reason,
    }


def _show(made: Sequence[Offer], mix: Offer) -> None:
    from tradewind.cli.output import console, show, table
    from tradewind.units import format_duration, format_usd

    shown = table(">predicted", ">longer", ">price", ">cheaper", ">trees", "objective")
    for offer in made:
        names = [name for name, one in (("time", made[0]), ("mix", mix), ("cost", made[-1])) if one is offer]
        shown.add_row(
            format_duration(offer.seconds),
            f"{offer.seconds / made[0].seconds - 1:.0%}",
            format_usd(offer.usd),
            f"{1 - offer.usd / made[0].usd:.0%}",
            str(len(offer.plan.shards)),
            ", ".join(names),
        )
    show(console(), shown)


def _figure(network: Network, nbytes: int, made: Sequence[Offer]) -> Figure:
    from tradewind.figures.chart import Panel, Series
    from tradewind.figures.panels import panels_figure
    from tradewind.units import format_size

    curve = Series("plans", tuple(one.seconds for one in made), tuple(one.usd for one in made))
    panel = Panel("time against price", "seconds of a round, predicted", "USD of egress a round", (curve,))
    return panels_figure(f"{network.name}: {format_size(nbytes)}", [panel])
