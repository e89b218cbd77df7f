"""A custom planner: one tree, a line of all members, summed towards the member in its middle.

tradewind plan gscale --planner examples/plugin_planner.py:plan_line --order bandwidth --explain
tradewind compare gscale --planners ring,star,examples/plugin_planner.py:plan_line
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tradewind import Network, Plan
from tradewind.planning.routes import Routes, tree_shard


@dataclass(frozen=True)
class LineOptions:
    """The order of the line."""

    order: Literal["given", "bandwidth"] = "given"
    """given: the members' order; bandwidth: each member next to the one with the fastest link to it."""


def plan_line(network: Network, members: tuple[str, ...], nbytes: int, options: LineOptions) -> Plan:
    """One line of all members, summed towards its middle.

    The tensor crosses between neighbours once in each direction, and a chunk crosses at most half of it each way.
    """
    line = list(members) if options.order == "given" else widest_line(network, members)
    middle = len(line) // 2
    parent = {line[k]: line[k + 1] if k < middle else line[k - 1] for k in range(len(line)) if k != middle}
    shard = tree_shard(Routes(network), nbytes, 1.0, line[middle], parent, parent)
    return Plan("line", network.name, members, nbytes, (shard,), reason=f"a line of {len(line)} members")


def widest_line(network: Network, members: tuple[str, ...]) -> list[str]:
    """The members, each followed by the remaining member that its fastest link leads to."""
    line, left = [members[0]], list(members[1:])
    while left:
        row = network.bandwidth_bps[network.index[line[-1]]]
        line.append(max(left, key=lambda name: row[network.index[name]]))
        left.remove(line[-1])
    return line
