"""`tradewind compare NETWORK`: all planners on one problem, compared with the limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tradewind.cli.arguments import (
    DEFAULT_BYTES,
    BytesOption,
    CodecOption,
    CollectiveOption,
    DefaultBandwidthOption,
    JsonOption,
    LatencyOption,
    MembersOption,
    NetworkArgument,
    OptionOption,
    PricesOption,
    RanksOption,
    SeedOption,
)

if TYPE_CHECKING:
    from rich.table import Table

    from tradewind.comparison import Comparison, Contender
    from tradewind.network import Network

EXAMPLE = "tradewind compare gscale --bytes 1GB --out gscale.png"


def run(
    network: NetworkArgument,
    planners: Annotated[
        str | None,
        typer.Option(
            "--planners", metavar="A,B,...", help="Planners to compare, by name or FILE.py:FUNCTION; all by default."
        ),
    ] = None,
    members: MembersOption = None,
    size: BytesOption = DEFAULT_BYTES,
    collective: CollectiveOption = "all-reduce",
    codec: CodecOption = "none",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="F.png", help="Draw a picture: .png, .svg, .pdf.")
    ] = None,
    egress: Annotated[bool, typer.Option("--egress", help="Show what every site sends.")] = False,
    seed: SeedOption = None,
    option: OptionOption = None,
    latency: LatencyOption = None,
    default_bandwidth: DefaultBandwidthOption = None,
    prices: PricesOption = None,
    ranks_per_site: RanksOption = None,
    json: JsonOption = False,
) -> None:
    """Compare planners by predicted time, share of the limit, egress and planning time.

    A planner that cannot plan on this network is listed with the reason.
    """
    from tradewind.cli.encoded import encoded_bytes
    from tradewind.cli.output import check_picture, print_json, write_whole
    from tradewind.cli.progress import progress
    from tradewind.cli.resolve import parse_names, resolve_network
    from tradewind.comparison import compare_planners
    from tradewind.control.plans.coding import coded_by, coded_host
    from tradewind.planning import resolve_members
    from tradewind.units import parse_size

    check_picture(out)
    wanted, chosen = parse_names(planners, "--planners"), parse_names(members, "--members")
    found = resolve_network(network, seed, option, latency, default_bandwidth, prices, ranks_per_site)
    summed = len(resolve_members(found, chosen))
    nbytes = encoded_bytes(parse_size(size), codec, summed)
    with progress("planning") as report:
        comparison = compare_planners(
            found,
            nbytes,
            chosen,
            wanted,
            lambda name, done, total: report("planning", done, total, name),
            collective,
            None if codec == "none" else coded_host(codec, contributions=summed),
            coded_by(codec, summed),
        )
        if out is not None:
            report("drawing")
            write_whole(out, _picture(comparison, out.suffix))
    if json:
        print_json(as_json(comparison))
    else:
        _show(comparison, egress)
        if out is not None:
            typer.echo(f"wrote {out}", err=True)
    _exit_if_failed(comparison, named=wanted is not None)


def _picture(comparison: Comparison, suffix: str) -> bytes:
    from tradewind.figures import comparison_figure, render

    return render(comparison_figure(comparison), suffix)


def _exit_if_failed(comparison: Comparison, named: bool) -> None:
    """Exit with an error if a planner has a bug, a plug-in given by name fails, or there is no plan at all."""
    from tradewind.cli.guard import describe
    from tradewind.errors import BadPlugin

    bugs = [failure for failure in comparison.failures if failure.is_bug]
    for failure in bugs:
        typer.echo(f"planner {failure.planner!r}: {describe(failure.error)}", err=True)
    if bugs:
        raise typer.Exit(1)
    for failure in comparison.failures:
        if named and isinstance(failure.error, BadPlugin):
            raise failure.error
    if not comparison.contenders:
        raise comparison.failures[0].error


def _show(comparison: Comparison, egress: bool) -> None:
    from tradewind.cli.output import console, show
    from tradewind.cli.show_plan import limit_text
    from tradewind.planning.collective import ALL_REDUCE
    from tradewind.units import format_size

    out, limit = console(), comparison.limit
    members = f"{len(comparison.members)} of {len(comparison.network)} sites"
    what = "" if comparison.collective == ALL_REDUCE else f"{comparison.collective} of "
    out.print(f"{comparison.network.name}: {what}{format_size(comparison.nbytes)} among {members}")
    show(out, _table(comparison))
    out.print(f"limit: {limit_text(limit.seconds, limit.rate_bps, comparison.nbytes)}: {limit.argument}")
    if comparison.contenders:
        best = comparison.contenders[0]
        out.print(f"{best.plan.planner}, the fastest plan: {best.why_slower(comparison.network)}")
    reasons: dict[str, list[str]] = {}
    for failure in comparison.failures:
        if not failure.is_bug:
            reasons.setdefault(f"{type(failure.error).__name__}: {failure.error}", []).append(failure.planner)
    for reason, planners in reasons.items():
        out.print(f"{', '.join(planners)}: {reason}")
    if egress and comparison.contenders:
        show(out, _egress_table(comparison))


def _table(comparison: Comparison) -> Table:
    from tradewind.cli.output import table
    from tradewind.units import format_duration, format_rate, format_size, format_usd

    made = table(
        "planner",
        ">predicted",
        ">rate",
        ">of limit",
        ">trees",
        ">height",
        ">fan-out",
        ">egress",
        ">most by one",
        *([">price"] if comparison.network.usd_per_gb.any() else []),
        ">planned in",
    )
    columns = len(made.columns)
    for contender in comparison.contenders:
        predicted, plan, sent = contender.predicted, contender.plan, contender.cost.egress_bytes
        made.add_row(
            plan.planner,
            format_duration(predicted.seconds),
            format_rate(predicted.rate_bps),
            f"{100 * predicted.efficiency:.1f}%",
            str(len(plan.shards)),
            str(contender.shape.height),
            str(contender.shape.fan_out),
            format_size(float(sent.sum())),
            format_size(float(sent.max())),
            *([format_usd(contender.egress_usd(comparison.network))] if comparison.network.usd_per_gb.any() else []),
            format_duration(plan.planning_seconds or 0.0),
        )
    for failure in comparison.failures:
        made.add_row(failure.planner, "bug" if failure.is_bug else "no plan", *["-"] * (columns - 2), style="dim")
    return made


def _egress_table(comparison: Comparison) -> Table:
    from tradewind.cli.output import table
    from tradewind.units import format_size

    best = comparison.contenders
    made = table("site", *(f">{contender.plan.planner}" for contender in best), title="Egress of each site")
    for i, name in enumerate(comparison.network.names):
        made.add_row(name, *(format_size(float(contender.cost.egress_bytes[i])) for contender in best))
    return made


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison with the keys of docs/reference/cli.md."""
    limit = comparison.limit
    return {
        "network": comparison.network.name,
        "members": list(comparison.members),
        "bytes": comparison.nbytes,
        "collective": str(comparison.collective),
        "limit": {
            "seconds": limit.seconds,
            "rate_mbps": limit.rate_bps / 1e6,
            "exact": limit.exact,
            "argument": limit.argument,
            "parts": [list(part) for part in limit.parts],
        },
        "planners": [_contender_json(contender, comparison.network) for contender in comparison.contenders],
        "failed": [
            {
                "planner": failure.planner,
                "error": "InternalError" if failure.is_bug else type(failure.error).__name__,
                "message": str(failure.error),
            }
            for failure in comparison.failures
        ],
    }


def _contender_json(contender: Contender, network: Network) -> dict[str, Any]:
    predicted, sent = contender.predicted, contender.cost.egress_bytes
    return {
        "planner": contender.plan.planner,
        "seconds": predicted.seconds,
        "rate_mbps": predicted.rate_bps / 1e6,
        "efficiency": predicted.efficiency,
        "trees": len(contender.plan.shards),
        "height": contender.shape.height,
        "fan_out": contender.shape.fan_out,
        "bottleneck": contender.cost.bottleneck,
        "why_slower": contender.why_slower(network),
        "egress_bytes": {site: float(nbytes) for site, nbytes in zip(network.names, sent, strict=True)},
        "egress_total_bytes": float(sent.sum()),
        "egress_most_bytes": float(sent.max()),
        "egress_usd": contender.egress_usd(network) if network.usd_per_gb.any() else None,
        "planning_seconds": contender.plan.planning_seconds,
        "reason": contender.plan.reason,
    }
