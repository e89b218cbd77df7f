"""Partial reduce at the limit: the links of all sites are used, and slow ones are bypassed.

CREW lets idle sites aggregate, but a block's rate is that of the slowest link between its aggregator and any member.
Here a member whose link to an aggregator is too slow sends part of its block through a helper, or through another
member that adds it to its own. The plan is the best mixture of those (`relay_flows`), decomposed into trees
(`relay_trees`). With all sites as members it is an all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tradewind.network import Network
from tradewind.planning.fill import with_best_chunks
from tradewind.planning.flows.relay_flows import Phase, best_flows, find_choices, phases, possible_roots
from tradewind.planning.flows.relay_trees import Trees, detour_share, thin, tree_routes, trees_from_flows
from tradewind.planning.host import FREE_HOST
from tradewind.planning.plan import Plan, Shard, default_chunk_bytes
from tradewind.planning.trees.tree_balance import Indices, with_confirmed_rates
from tradewind.units import format_count

_MANY_SHARDS = 500


@dataclass(frozen=True)
class RelayOptions:
    """The effort of the search, and the number of shards of the plan."""

    relays_per_pair: int = 4
    """The number of other sites that are considered as relays, for each member and root."""
    time_limit_s: float = 120.0
    """Time limit of the solver; without a solution by then, planning fails."""
    max_shards: int | None = None
    """The most shards; the smallest ones beyond it are dropped and the others take over their work. By default 500, or
    four for each site where that is more.
    """

    def __post_init__(self) -> None:
        if self.relays_per_pair < 0:
            raise ValueError(f"relays_per_pair must be >= 0, got {self.relays_per_pair}.")
        if not self.time_limit_s > 0:
            raise ValueError(f"time_limit_s must be > 0, got {self.time_limit_s}.")
        if self.max_shards is not None and self.max_shards < 1:
            raise ValueError(f"max_shards must be at least 1, got {self.max_shards}.")


def plan_relay(network: Network, members: tuple[str, ...], nbytes: int, options: RelayOptions) -> Plan:
    """Partial reduce at the limit: all sites aggregate, and slow links are bypassed through others."""
    rows = np.array([network.index[name] for name in members])
    both = phases(network)
    roots = possible_roots(both, rows)
    choices = find_choices(both, rows, roots, options.relays_per_pair)
    flows = best_flows(network, both, rows, roots, choices, options.time_limit_s)
    pieces = trees_from_flows(rows, roots, choices, flows)
    trees = thin(network, both, rows, pieces, options.max_shards or max(_MANY_SHARDS, 4 * len(network)))
    shards = _shards(network, both, rows, trees, nbytes)
    detours = detour_share(both, rows, trees)
    roots_used = len(set(trees.root.tolist()))
    placed = f"{format_count(len(shards), 'shard')} on {format_count(roots_used, 'root')}"
    reason = f"{placed}; {detours:.0%} of the traffic makes a detour"
    plan = Plan("relay", network.name, members, nbytes, shards, reason=reason)
    return with_confirmed_rates(with_best_chunks(plan, network, FREE_HOST), network)


def _shards(
    network: Network, both: tuple[Phase, Phase], members: Indices, trees: Trees, nbytes: int
) -> tuple[Shard, ...]:
    fractions = (trees.rate / trees.rate.sum()).tolist()
    names = network.names
    return tuple(
        Shard(
            fraction=fraction,
            root=names[root],
            reduce=tree_routes(both[0], members, root, hop[0], names),
            broadcast=tree_routes(both[1], members, root, hop[1], names),
            chunk_bytes=default_chunk_bytes(fraction * nbytes),
        )
        for root, hop, fraction in zip(trees.root.tolist(), trees.hop, fractions, strict=True)
    )
