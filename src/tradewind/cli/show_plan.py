"""Print a plan: its shards, its prediction and the limit, and on request an explanation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tradewind.cli.output import console, show, table
from tradewind.planning.collective import ALL_REDUCE
from tradewind.planning.connections import is_slow, link_connections
from tradewind.planning.control import control_seconds, live_seconds
from tradewind.planning.cost import Cost, cost, link_seconds
from tradewind.planning.host import MAX_CONNECTIONS, MEASURED_HOST, STREAM_BYTES, HostCost
from tradewind.planning.shape import shard_shape
from tradewind.planning.shortfall import explain_shortfall
from tradewind.units import format_count, format_duration, format_rate, format_size, format_usd

if TYPE_CHECKING:
    from rich.table import Table
    from rich.tree import Tree

    from tradewind.network import Network
    from tradewind.planning.bound import Bound
    from tradewind.planning.plan import Plan, Shard

_SHARDS_SHOWN = 40
_TREES_SHOWN = 4
_BUSIEST_SHOWN = 6


def show_plan(plan: Plan, network: Network, host: HostCost = MEASURED_HOST, codec: str = "") -> None:
    """Print the plan's shards and its prediction for such hosts on stdout, and what a codec changes."""
    out = console()
    members = f"{len(plan.members)} members" + (f" of {len(network)} sites" if len(plan.members) < len(network) else "")
    what = "" if plan.collective == ALL_REDUCE else f"{plan.collective} of "
    out.print(f"{plan.planner} on {network.name}: {what}{format_size(plan.nbytes)} among {members}")
    show(out, _shards(plan))
    out.print(_prediction(plan, network, host, codec))


def _shards(plan: Plan) -> Table:
    made = table(">shard", "root", ">share", ">height", ">fan-out", ">chunk")
    for number, shard in enumerate(plan.shards[:_SHARDS_SHOWN]):
        shape = shard_shape(shard)
        made.add_row(
            str(number),
            shard.root,
            f"{100 * shard.fraction:.2f}%",
            str(shape.height),
            str(shape.fan_out),
            format_size(shard.chunk_bytes),
        )
    if len(plan.shards) > _SHARDS_SHOWN:
        made.caption = f"{len(plan.shards) - _SHARDS_SHOWN} more; --json prints all"
    return made


def _prediction(plan: Plan, network: Network, host: HostCost, codec: str = "") -> Table:
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    predicted, spent = plan.predicted, cost(plan, network, host=host)
    assert predicted is not None
    made.add_row("predicted", f"{format_duration(predicted.seconds)}  ({format_rate(predicted.rate_bps)})")
    made.add_row("limit", limit_text(predicted.bound_seconds, predicted.bound_rate_bps, plan.nbytes, "  "))
    made.add_row("efficiency", f"{100 * predicted.efficiency:.1f}% of the limit")
    made.add_row("bottleneck", spent.bottleneck)
    made.add_row("why this limit", predicted.bound_argument)
    made.add_row("why no faster", explain_shortfall(plan, network, spent, predicted))
    egress = f"{format_size(float(spent.egress_bytes.sum()))} in all"
    if network.usd_per_gb.any():
        egress += f", {format_usd(network.egress_usd(spent.link_bytes))} a round"
    made.add_row("egress", egress)
    if codec:
        made.add_row("codec", codec)
    if plan.planning_seconds is not None:
        made.add_row("planned in", format_duration(plan.planning_seconds))
    return made


def limit_text(seconds: float, rate_bps: float, nbytes: int, space: str = " ") -> str:
    """The limit with its rate; where latency counts, also the time that this rate alone needs."""
    bytes_s = 8.0 * nbytes / rate_bps
    alone = f": {format_duration(bytes_s)}, the rest is latency" if seconds > 1.02 * bytes_s else ""
    return f"{format_duration(seconds)}{space}({format_rate(rate_bps)}{alone})"


def show_explanation(plan: Plan, network: Network, limit: Bound, host: HostCost = MEASURED_HOST) -> None:
    """Print why the plan takes as long as predicted, its busiest links and its trees."""
    out = console()
    spent = cost(plan, network, host=host)
    out.print()
    if plan.reason:
        out.print(f"The planner's reason: {plan.reason}")
    by_processor = spent.busy_seconds == spent.processor_seconds
    does = "handle frames and bytes on the" if by_processor else "move the bytes through"
    out.print(
        f"Of the {format_duration(spent.seconds)}, {format_duration(spent.busy_seconds)} {does} {spent.bottleneck}; "
        f"{format_duration(spent.fill_seconds)} fill the pipeline (latency and chunk size)."
    )
    if (control_s := min(control_seconds(network, plan.members, name) for name in plan.members)) > 0:
        waits_s = [live_seconds(spent.seconds, control_s, in_place) - spent.seconds for in_place in (False, True)]
        out.print(
            f"Control messages of a live run add {format_duration(control_s)} with the controller in the middle, "
            f"{format_duration(waits_s[0])} where operations repeat and ranks send before a round starts, "
            f"{format_duration(waits_s[1])} if results also replace their inputs, as DDP's do."
        )
    if not by_processor:
        out.print(f"Processors are busy for {format_duration(spent.processor_seconds)} at most, at the same time.")
    counts = link_connections(network, host)[spent.link_bytes > 0]
    opened = f"{counts.min():.0f}" + (f" to {counts.max():.0f}" if counts.max() > counts.min() else "")
    by_user = "as given" if host.connections else "as a run opens that knows this network"
    cores = "1 core" if host.rank_cores == 1 else f"{host.rank_cores:g} cores"
    served = "one thread of a rank serves all" if is_slow(network) else f"two threads each on {cores} (--rank-cores)"
    out.print(f"TCP connections to each peer: {opened}, {by_user}; {served}.")
    if not host.connections and math.isinf(host.stream_bytes) and (sentence := connections_sentence(spent, network)):
        out.print(sentence)
    if plan.predicted is not None and plan.predicted.bound_argument == limit.argument:
        parts = " | ".join(", ".join(part) if len(part) <= 6 else f"{len(part)} sites" for part in limit.parts[:12])
        more = f" | {format_count(len(limit.parts) - 12, 'more part')}" if len(limit.parts) > 12 else ""
        out.print(f"The limit's certificate: {parts}{more}")
    show(out, _busiest(spent, network))
    for number, shard in enumerate(plan.shards[:_TREES_SHOWN]):
        out.print(_tree(number, shard))
    if len(plan.shards) > _TREES_SHOWN:
        out.print(f"{format_count(len(plan.shards) - _TREES_SHOWN, 'more tree')}; --json prints all")


def connections_sentence(spent: Cost, network: Network) -> str:
    """How many TCP connections the longest and fastest link needs for its part; empty where one is enough."""
    in_flight_bytes = spent.link_bytes / spent.seconds * 2 * network.latency_s
    i, j = divmod(int(in_flight_bytes.argmax()), len(network))
    needed = math.ceil(in_flight_bytes[i, j] / STREAM_BYTES)
    if needed <= 1:
        return ""
    link = f"{network.names[i]} -> {network.names[j]}"
    sentence = f"Link {link} needs {needed} TCP connections for its part ({format_size(STREAM_BYTES)} in flight each)"
    if needed <= MAX_CONNECTIONS:
        return f"{sentence}; a run opens them by what it measures."
    most_s = spent.seconds * needed / MAX_CONNECTIONS
    return (
        f"{sentence}, but a run opens at most {MAX_CONNECTIONS}: expect about {format_duration(most_s)}, "
        "or allow larger send buffers (`tradewind doctor`)."
    )


def _busiest(spent: Cost, network: Network) -> Table:
    busy_s = link_seconds(spent.link_bytes, network.bandwidth_bps)
    order = np.argsort(-busy_s, axis=None, kind="stable")[:_BUSIEST_SHOWN]
    made = table("busiest links", ">carry", ">bandwidth", ">busy")
    for i, j in (divmod(int(flat), len(network)) for flat in order):
        if busy_s[i, j] > 0:
            made.add_row(
                f"{network.names[i]} -> {network.names[j]}",
                format_size(float(spent.link_bytes[i, j])),
                format_rate(float(network.bandwidth_bps[i, j])),
                f"{100 * float(busy_s[i, j]) / spent.seconds:.0f}%",
            )
    return made


def _tree(number: int, shard: Shard) -> Tree:
    """The reduce tree with the root on top, and a note where the broadcast tree is not its reverse.

    A shard with a broadcast tree only shows that.
    """
    from rich.text import Text
    from rich.tree import Tree

    upwards = shard.reduce or tuple(route[::-1] for route in shard.broadcast)
    same = {route[::-1] for route in shard.broadcast} == set(upwards)
    note = "" if same else " (reduce; " + ("broadcast differs)" if shard.broadcast else "no broadcast)")
    note = note if shard.reduce else " (broadcast)"
    top = Tree(Text(f"shard {number}: {shard.root}{note}"))
    branches = {shard.root: top}
    waiting = list(upwards)
    while waiting:
        later = []
        for route in waiting:
            above = branches.get(route[-1])
            if above is None:
                later.append(route)
                continue
            via = f" via {', '.join(route[1:-1])}" if len(route) > 2 else ""
            branches[route[0]] = above.add(Text(route[0] + via))
        waiting = later
    return top
