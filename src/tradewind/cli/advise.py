"""`tradewind advise NETWORK`: how to synchronise a model on a network, with what settings, at what cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tradewind.cli.arguments import (
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
    from tradewind.advice import Advice, Offer, Problem, Way

EXAMPLE = "tradewind advise skyplane --option count=8 --parameters 1.3B --step 2s --slowdown 1.05"
DEFAULT_UTILISATION = 0.95


def run(
    network: NetworkArgument,
    step: Annotated[str, typer.Option("--step", metavar="TIME", help="Computing time of a local step: 500ms.")],
    parameters: Annotated[
        str | None, typer.Option("--parameters", metavar="N", help="Parameters of the model: 125M, 1.3B.")
    ] = None,
    size: Annotated[
        str | None, typer.Option("--bytes", metavar="SIZE", help="Size of the gradients in float32 instead: 5GB.")
    ] = None,
    slowdown: Annotated[
        float | None,
        typer.Option("--slowdown", metavar="X", help="Longest time per step, relative to its computing time: 1.05."),
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option("--utilisation", metavar="X", help="Least fraction of the time that ranks compute instead: 0.95."),
    ] = None,
    members: MembersOption = None,
    planner: Annotated[str, typer.Option("--planner", metavar="NAME", help="Planner of the rounds.")] = "auto",
    no_simulate: Annotated[
        bool, typer.Option("--no-simulate", help="Do not run the recommendation in the simulator.")
    ] = False,
    seed: SeedOption = None,
    option: OptionOption = None,
    latency: LatencyOption = None,
    default_bandwidth: DefaultBandwidthOption = None,
    prices: PricesOption = None,
    json: JsonOption = False,
) -> None:
    """Recommend how to synchronise a model: at every step, compressed, or after many local steps (DiLoCo).

    Of the ways that meet the target, that with the most bytes is recommended, because sending fewer changes the
    training more. Exits with 3 if none meets it.
    """
    from tradewind.advice import ITEM_BYTES, Problem, advise
    from tradewind.cli.output import console, print_json
    from tradewind.cli.resolve import parse_names, resolve_network
    from tradewind.errors import BadOption
    from tradewind.units import parse_count, parse_duration, parse_size

    if (parameters is None) == (size is None):
        raise BadOption("give the size of the model once: --parameters 1.3B, or --bytes 5GB.")
    if slowdown is not None and utilisation is not None:
        raise BadOption("--slowdown and --utilisation are the same wish; leave one out.")
    if slowdown is not None and not slowdown > 1:
        raise BadOption(f"--slowdown must be above 1, got {slowdown:g}; 1.05 is 5% more time per step.")
    target = utilisation if utilisation is not None else (1 / slowdown if slowdown else DEFAULT_UTILISATION)
    count = parse_count(parameters) if parameters is not None else max(1, parse_size(size or "") // ITEM_BYTES)
    found = resolve_network(network, seed, option, latency, default_bandwidth, prices)
    problem = Problem(found, count, parse_duration(step), target, parse_names(members, "--members"), planner)
    with console(stderr=True).status("planning") as status:
        advice = advise(problem, not no_simulate, status.update)
    if json:
        print_json(as_json(problem, advice))
    else:
        show(problem, advice)


def as_json(problem: Problem, advice: Advice) -> dict[str, Any]:
    """The advice with plain values."""
    return {
        "network": problem.network.name,
        "parameters": problem.parameters,
        "step_s": problem.step_s,
        "target_utilisation": problem.utilisation,
        "recommended": _offer_json(problem, advice.recommended),
        "simulated_utilisation": advice.simulated_utilisation,
        "offers": [_offer_json(problem, offer) for offer in advice.offers],
    }


def _offer_json(problem: Problem, offer: Offer) -> dict[str, Any]:
    way = offer.way
    return {
        "method": way.method,
        "codec": way.codec,
        "every": way.every,
        "fragments": way.fragments,
        "overlap": way.overlap,
        "meets": offer.meets(problem),
        "utilisation": offer.utilisation,
        "round_s": offer.round_s,
        "blocked_s": offer.blocked_s,
        "peak_bps": offer.peak_bps,
        "mean_bps": offer.mean_bps,
        "step_bytes": offer.step_bytes,
        "egress_bytes_per_hour": offer.egress_bytes_per_hour,
        "egress_usd_per_hour": offer.egress_usd_per_hour,
        "bottleneck": offer.bottleneck,
        "arguments": way.arguments,
        "evidence": way.evidence,
        "measured": [{"model": m.model, "percent": m.percent, "error": m.error} for m in way.measured],
        "caution": way.caution,
    }


def show(problem: Problem, advice: Advice) -> None:
    """Print a table with one row for each method, and the recommendation with its evidence."""
    from tradewind.cli.output import console, table
    from tradewind.cli.output import show as show_table
    from tradewind.units import format_duration, format_rate, format_size, format_usd

    best, network = advice.recommended, problem.network
    out = console()
    out.print(
        f"{network.name}: {problem.parameters:,} parameters, steps of {format_duration(problem.step_s)}, "
        f"utilisation of at least {problem.utilisation:.1%}"
    )
    priced = best.egress_usd_per_hour is not None
    columns = ["", "method", "codec", ">H", ">parts", ">tau", ">round", ">utilisation", ">peak", ">mean", ">egress/h"]
    made = table(*columns, ">loss", *([">price/h"] if priced else []))
    for offer in advice.offers:
        way, usd = offer.way, offer.egress_usd_per_hour
        made.add_row(
            "->" if offer == best else ("" if offer.meets(problem) else "no"),
            way.method,
            way.codec,
            str(way.every),
            str(way.fragments),
            str(way.overlap),
            format_duration(offer.round_s),
            f"{offer.utilisation:.1%}",
            format_rate(offer.peak_bps),
            format_rate(offer.mean_bps),
            format_size(offer.egress_bytes_per_hour),
            _losses(way),
            *([] if usd is None else [format_usd(usd)]),
        )
    show_table(out, made)
    out.print("parts: fragments; peak, mean: of the site that sends most; egress: of all sites; no: misses the target")
    out.print("loss: least to most beside DDP, as measured on small models")
    out.print(f"use             {best.way.arguments}", soft_wrap=True)
    out.print(f"limited by      {best.bottleneck}", soft_wrap=True)
    if advice.simulated_utilisation is not None:
        out.print(f"in simulation   utilisation {advice.simulated_utilisation:.1%}, with the production controller")
    out.print(f"accuracy        {best.way.evidence}", soft_wrap=True)
    if best.way.measured:
        found = ", ".join(f"{each.percent:+.2f}% ({each.model})" for each in best.way.measured)
        out.print(f"loss            beside DDP: {found}", soft_wrap=True)
    if best.way.caution:
        out.print(f"caution         {best.way.caution}", soft_wrap=True)


def _losses(way: Way) -> str:
    """The least and the largest measured loss beside DDP."""
    found = sorted(each.percent for each in way.measured)
    return f"{found[0]:+.1f} to {found[-1]:+.1f}%" if found else "-"
