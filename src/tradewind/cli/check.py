"""`tradewind check NETWORK PLAN.json`: is this plan valid on this network?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tradewind.cli.arguments import (
    DefaultBandwidthOption,
    JsonOption,
    LatencyOption,
    NetworkArgument,
    OptionOption,
    SeedOption,
)

if TYPE_CHECKING:
    from tradewind.planning.plan import Plan

EXAMPLE = "tradewind check gscale plan.json"

MAX_PLAN_BYTES = 256 * 2**20


def run(
    network: NetworkArgument,
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan that `tradewind plan --out` wrote.")],
    seed: SeedOption = None,
    option: OptionOption = None,
    latency: LatencyOption = None,
    default_bandwidth: DefaultBandwidthOption = None,
    json: JsonOption = False,
) -> None:
    """Check that a plan is valid on a network, and predict its time there.

    Exits with 2 and names every problem if it is not. The prediction is for NETWORK as it is now, which need not be
    the network that the plan was made for.
    """
    from tradewind.cli.output import console, print_json
    from tradewind.cli.resolve import resolve_network
    from tradewind.errors import BadPlan
    from tradewind.planning import predict
    from tradewind.planning.check import check
    from tradewind.units import format_count

    found = resolve_network(network, seed, option, latency, default_bandwidth)
    read = read_plan(plan)
    if not set(read.sites) <= found.index.keys() and all(found.site_of(name) is not None for name in read.sites):
        found = found.with_ranks(read.sites)
    problems = check(read, found)
    if problems:
        if json:
            print_json({"valid": False, "problems": [{"where": p.where, "what": p.what} for p in problems]})
        else:
            console().print("\n".join(map(str, problems)), soft_wrap=True)
        raise BadPlan(
            f"{plan} is not valid on network {found.name!r}: {format_count(len(problems), 'problem')}. Plan again."
        )
    checked = read.with_prediction(predict(read, found))
    if json:
        predicted = checked.predicted
        assert predicted is not None
        numbers = {
            "seconds": predicted.seconds,
            "rate_mbps": predicted.rate_bps / 1e6,
            "bound_seconds": predicted.bound_seconds,
            "bound_rate_mbps": predicted.bound_rate_bps / 1e6,
            "efficiency": predicted.efficiency,
            "bound_argument": predicted.bound_argument,
        }
        print_json({"valid": True, "problems": [], "predicted": numbers})
        return
    from tradewind.cli.show_plan import show_plan

    show_plan(checked, found)
    console().print(f"\n{plan} is valid on {found.name}.", soft_wrap=True)


def read_plan(path: Path) -> Plan:
    """The plan in a file; raises `BadPlan` if it cannot be read or is not a plan."""
    from tradewind.errors import BadPlan
    from tradewind.planning.plan import plan_from_json

    try:
        if path.stat().st_size > MAX_PLAN_BYTES:
            raise BadPlan(f"{path}: larger than {MAX_PLAN_BYTES >> 20} MiB, the limit for a plan. Check the path.")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadPlan(f"{path}: cannot be read ({reason}). Check the path.") from error
    return plan_from_json(data, str(path))
