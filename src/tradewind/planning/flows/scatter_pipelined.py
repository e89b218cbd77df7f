"""CREW's stars, planned for overlapping phases: scatter and multicast at the same time.

CREW divides the tensor for one phase after the other. When the phases overlap, as they do once the tensor is cut into
chunks, a link from member i to member j carries the blocks that j aggregates (scatter) and the sums that i returns
(multicast), so it needs x_j + x_i; CREW's program counts them separately, and pipelining its weights gains almost
nothing. Here the shares are those that make the overlapping stars fastest, with NICs and trunks counted too.
"""

from __future__ import annotations

import numpy as np

from tradewind.network import Network
from tradewind.planning import NoOptions
from tradewind.planning.flows.scatter import aggregators, star_shards
from tradewind.planning.plan import Plan
from tradewind.planning.trees.tree_balance import Indices, Usage, best_rates_bps, with_confirmed_rates
from tradewind.units import format_count

_NOTHING = 1e-9
"""Aggregators with a smaller share of the tensor are dropped as rounding errors of the solver."""


def plan_scatter_pipelined(network: Network, members: tuple[str, ...], nbytes: int, options: NoOptions) -> Plan:
    """CREW's stars with the shares that are best when scatter and multicast overlap."""
    del options
    able = aggregators(network, members, np.arange(len(network)))
    rates_bps = best_rates_bps(network, _star_usage(network, members, able))
    used = rates_bps > _NOTHING * rates_bps.sum()
    shares = rates_bps[used] / rates_bps[used].sum()
    shards = star_shards(network, members, nbytes, able[used], shares)
    reason = f"{len(shards)} of {format_count(len(able), 'possible aggregator')}, shares for overlapping phases"
    plan = Plan("scatter-pipelined", network.name, members, nbytes, shards, reason=reason)
    return with_confirmed_rates(plan, network)


def _star_usage(network: Network, members: tuple[str, ...], roots: Indices) -> Usage:
    """Column k is the star of `roots[k]`: a hop from each other member, and a hop back."""
    rows = np.array([network.index[name] for name in members])
    column, leaf = (grid.ravel() for grid in np.meshgrid(np.arange(len(roots)), rows, indexing="ij"))
    apart = roots[column] != leaf
    column, leaf = column[apart], leaf[apart]
    root = roots[column]
    return Usage(np.r_[column, column], np.r_[leaf, root], np.r_[root, leaf], len(roots))
