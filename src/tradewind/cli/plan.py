"""`tradewind plan NETWORK --planner NAME`: one plan, compared with the limit."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from tradewind.cli.progress import Report
    from tradewind.network import Network
    from tradewind.planning.plan import Plan

EXAMPLE = "tradewind plan gscale --planner ring --bytes 1GB --out plan.json"


def run(
    context: typer.Context,
    network: NetworkArgument,
    planner: Annotated[
        str, typer.Option("--planner", metavar="NAME", help="A name from `tradewind planners`, or FILE.py:FUNCTION.")
    ] = "auto",
    members: MembersOption = None,
    size: BytesOption = DEFAULT_BYTES,
    collective: CollectiveOption = "all-reduce",
    codec: CodecOption = "none",
    out: Annotated[Path | None, typer.Option("--out", metavar="F.json", help="Write the plan to this file.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the trees, and what limits the plan.")] = False,
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            metavar="WHAT",
            help="time: the fastest plan; cost: that of the least price of egress; mix: between (`tradewind pareto`).",
        ),
    ] = "time",
    seed: SeedOption = None,
    option: OptionOption = None,
    latency: LatencyOption = None,
    default_bandwidth: DefaultBandwidthOption = None,
    prices: PricesOption = None,
    ranks_per_site: RanksOption = None,
    json: JsonOption = False,
) -> None:
    """Plan a collective, by default an all-reduce with the planner of the shortest time, and compare it with the limit.

    The planner's own options are flags too: `tradewind planners NAME` lists them.
    """
    from tradewind.cli.encoded import encoded_plan
    from tradewind.cli.output import check_out, write_whole
    from tradewind.cli.planner_flags import FLAGS_KEY, options_from_flags
    from tradewind.cli.progress import progress
    from tradewind.cli.resolve import parse_names, resolve_network
    from tradewind.comparison import timed_plan
    from tradewind.errors import BadOption
    from tradewind.planning import host_of, resolve_members
    from tradewind.planning.bound import bound
    from tradewind.planning.collective import Collective
    from tradewind.planning.plan import plan_to_json
    from tradewind.units import parse_size

    check_out(out)
    options = options_from_flags(planner, context.meta[FLAGS_KEY])
    nbytes = parse_size(size)
    found = resolve_network(network, seed, option, latency, default_bandwidth, prices, ranks_per_site)
    chosen = resolve_members(found, parse_names(members, "--members"))
    doing = f"planning {planner} on {found.name}, s of at most"
    with progress(doing) as report:
        wanted = Collective.parse(collective, chosen[0])
        limit = bound(found, chosen, nbytes, wanted)
        if objective == "time":
            shown = partial(report, doing)
            plan = timed_plan(planner, found, nbytes, chosen, limit, options, shown, collective=wanted)
        elif wanted.kind != "all-reduce":
            raise BadOption(f"--objective {objective} plans an all-reduce, got --collective {collective}.")
        else:
            plan = _cheaper_plan(objective, planner, found, nbytes, chosen, options, report)
        host, saving = host_of(planner, options), ""
        if codec != "none":
            if wanted.kind != "all-reduce" or objective != "time":
                raise BadOption(f"--codec {codec} needs an all-reduce and --objective time. Leave one of them out.")
            plan, host, saving = encoded_plan(plan, found, codec, planner, options)
            limit = bound(found, chosen, plan.nbytes)
    text = plan_to_json(plan) + "\n"
    if out is not None:
        write_whole(out, text.encode())
    if json:
        sys.stdout.write(text)
        return
    from tradewind.cli.show_plan import show_explanation, show_plan

    show_plan(plan, found, host, saving)
    if explain:
        show_explanation(plan, found, limit, host)


def _cheaper_plan(
    objective: str,
    planner: str,
    network: Network,
    nbytes: int,
    members: tuple[str, ...],
    options: Mapping[str, object],
    report: Report,
) -> Plan:
    from time import perf_counter

    from tradewind.comparison import timed_offers
    from tradewind.errors import BadOption
    from tradewind.planning.pareto import choose

    if objective not in ("cost", "mix"):
        raise BadOption(f"unknown --objective {objective!r}; expected time, cost or mix.")
    if options:
        raise BadOption(
            f"--objective {objective} takes no options of a planner, got {', '.join(options)}. Leave them out."
        )
    began_s = perf_counter()
    made = timed_offers(network, nbytes, members, planner, report)
    plan = choose(made, "cost" if objective == "cost" else "mix").plan
    return plan.with_planning_seconds(perf_counter() - began_s)
