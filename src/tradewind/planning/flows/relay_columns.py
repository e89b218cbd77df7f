"""The trees of `relay`'s program as columns of a packing: one solution that is near the limit on dense networks."""

from __future__ import annotations

import numpy as np

from tradewind.network import Network
from tradewind.planning.flows.relay_flows import best_flows, find_choices, phases, possible_roots
from tradewind.planning.flows.relay_trees import trees_from_flows
from tradewind.planning.trees.packing import Column, Floats
from tradewind.planning.trees.tree_sources import DirectedPairs

_RELAYS_PER_PAIR = 4
_TIME_LIMIT_S = 120.0


def relay_columns(network: Network, source: DirectedPairs) -> tuple[list[Column], Floats]:
    """Pairs of trees and their rates, which the network carries together; every site must be a member."""
    rows = np.arange(len(network))
    both = phases(network)
    roots = possible_roots(both, rows)
    choices = find_choices(both, rows, roots, _RELAYS_PER_PAIR)
    flows = best_flows(network, both, rows, roots, choices, _TIME_LIMIT_S)
    trees = trees_from_flows(rows, roots, choices, flows)
    columns = []
    for root, (up, down) in zip(trees.root.tolist(), trees.hop, strict=True):
        sites = rows[rows != root]
        links = np.concatenate([source.number[sites, up[sites]], source.number[down[sites], sites]])
        columns.append(Column(links, len(sites), root))
    program_load = sum(
        (source.capacities.load(column.links) * rate for column, rate in zip(columns, trees.rate, strict=True)),
        start=np.zeros(len(source.capacities.capacity_bps)),
    )
    excess = float((program_load / source.capacities.capacity_bps).max())
    return columns, trees.rate / max(1.0, excess)
