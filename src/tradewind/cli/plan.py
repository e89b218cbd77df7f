"""`tradewind plan NETWORK --planner NAME`: one plan, compared with the limit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

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
    SeedOption,
)

EXAMPLE = "tradewind plan gscale --planner ring --bytes 1GB --out plan.json"


def run(
    context: typer.Context,
    network: NetworkArgument,
    planner: Annotated[
        str, typer.Option("--planner", metavar="NAME", help="A name from `tradewind planners`, or FILE.py:FUNCTION.")
    ] = "auto",
    members: MembersOption = None,
    size: BytesOption = DEFAULT_BYTES,
    out: Annotated[Path | None, typer.Option("--out", metavar="F.json", help="Write the plan to this file.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the trees, and what limits the plan.")] = False,
    seed: SeedOption = None,
    option: OptionOption = None,
    latency: LatencyOption = None,
    default_bandwidth: DefaultBandwidthOption = None,
    json: JsonOption = False,
) -> None:
    """Plan an all-reduce, by default with the planner that predicts the shortest time, and compare it with the limit.

    The planner's own options are flags too: `tradewind planners NAME` lists them.
    """
    from tradewind.cli.output import check_out, progress, write_whole
    from tradewind.cli.planner_flags import FLAGS_KEY, options_from_flags
    from tradewind.cli.resolve import parse_names, resolve_network
    from tradewind.comparison import timed_plan
    from tradewind.planning import host_of, resolve_members
    from tradewind.planning.bound import bound
    from tradewind.planning.plan import plan_to_json
    from tradewind.units import parse_size

    check_out(out)
    options = options_from_flags(planner, context.meta[FLAGS_KEY])
    nbytes = parse_size(size)
    found = resolve_network(network, seed, option, latency, default_bandwidth)
    chosen = resolve_members(found, parse_names(members, "--members"))
    with progress(f"planning {planner} on {found.name}"):
        limit = bound(found, chosen, nbytes)
        plan = timed_plan(planner, found, nbytes, chosen, limit, options)
    text = plan_to_json(plan) + "\n"
    if out is not None:
        write_whole(out, text.encode())
    if json:
        sys.stdout.write(text)
        return
    from tradewind.cli.show_plan import show_explanation, show_plan

    host = host_of(planner, options)
    show_plan(plan, found, host)
    if explain:
        show_explanation(plan, found, limit, host)
