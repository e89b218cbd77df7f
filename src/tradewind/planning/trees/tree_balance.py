"""The rates of given trees with the largest total: one linear program over links, NICs and trunks.

The load of a plan's trees is linear in their rates: each directed link, NIC and trunk carries the rates of the trees
that use it, once for every hop. So the best division of the tensor among given trees is the solution of

    maximise sum(rate)   subject to   sum(rate of the trees that use it) <= capacity, for every capacity

and its value is exactly what `cost` finds for the pipelined plan, because both count the same things. The trees of a
collective other than the all-reduce serve several demands, whose rates must be in proportion to their shares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, vstack

from tradewind.errors import InternalError
from tradewind.network import Network
from tradewind.planning.cost import cost
from tradewind.planning.host import OWN_CORES
from tradewind.planning.plan import Plan

Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Usage:
    """Which columns (trees, flows) of a program send over which links: one entry for each time they do."""

    column: Indices
    src: Indices
    dst: Indices
    columns: int


@dataclass(frozen=True, slots=True)
class Demands:
    """Which demand of a collective each tree serves, and the share of the tensor that each demand has."""

    of_tree: Indices
    share: Vector

    def strongest(self, which: Indices, rates: Vector) -> Indices:
        """Positions in `which` of the strongest tree of each demand."""
        order = np.argsort(-rates, kind="stable")
        _, first = np.unique(self.of_tree[which[order]], return_index=True)
        return order[first]


def capacity_rows(network: Network, usage: Usage) -> csr_array:
    """The rows of a program that keep every used link, NIC and trunk within its capacity: rows @ rates_bps <= 1.

    Each row is divided by its capacity, so that a solver's tolerance means the same on slow links as on fast ones.
    """
    n = len(network)
    links, row = np.unique(usage.src * n + usage.dst, return_inverse=True)
    blocks = [_rows(row, usage.column, network.bandwidth_bps.ravel()[links], usage.columns)]
    for site, cap_bps in ((usage.src, network.egress_bps), (usage.dst, network.ingress_bps)):
        capped = np.flatnonzero(np.isfinite(cap_bps))
        position = np.full(n, -1)
        position[capped] = np.arange(len(capped))
        here = position[site] >= 0
        blocks.append(_rows(position[site[here]], usage.column[here], cap_bps[capped], usage.columns))
    for trunk, mask in zip(network.trunks, network.trunk_members, strict=True):
        column = usage.column[mask[usage.src, usage.dst]]
        blocks.append(_rows(np.zeros_like(column), column, np.array([trunk.capacity_bps]), usage.columns))
    return vstack(blocks, format="csr")


def _rows(row: Indices, column: Indices, capacity_bps: Vector, columns: int) -> csr_array:
    return coo_array((1.0 / capacity_bps[row], (row, column)), shape=(len(capacity_bps), columns)).tocsr()


def best_rates_bps(
    network: Network,
    trees: Usage,
    handling_s: Vector | None = None,
    cores: float = OWN_CORES,
    demands: Demands | None = None,
) -> Vector:
    """The rate of each tree, so that their sum is the largest; trees that do not help get zero.

    With `demands`, the trees of each demand together have its share of the sum. With `handling_s`, the processor time
    in s for each bit of a tree at each end of a hop, every site's processor is a capacity as well, and so are the cores
    that all sites share.
    """
    rows = capacity_rows(network, trees)
    if handling_s is not None and handling_s.any():
        ends, both = np.concatenate([trees.src, trees.dst]), np.concatenate([trees.column, trees.column])
        processors = coo_array((handling_s[both], (ends, both)), shape=(len(network), trees.columns))
        shared = processors.sum(axis=0).reshape(1, -1) / cores
        rows = vstack([rows, processors, coo_array(shared)], format="csr")
    best_alone_bps = 1.0 / float(rows.max(axis=0).toarray().min())  # the unit, so that rates are around 1
    each, equal = np.ones(trees.columns), None
    if demands is not None and len(demands.share) > 1:
        count = len(demands.share)
        served = coo_array((each, (demands.of_tree, np.arange(trees.columns))), shape=(count, trees.columns))
        equal = served.toarray() - np.outer(demands.share / demands.share.sum(), each)
    b_eq = None if equal is None else np.zeros(len(equal))
    result = linprog(
        -each, A_ub=rows * best_alone_bps, b_ub=np.ones(rows.shape[0]), A_eq=equal, b_eq=b_eq, method="highs-ipm"
    )
    if result.status != 0:
        raise InternalError(f"the rates of {trees.columns} trees could not be computed: {result.message}")
    rates_bps: Vector = np.maximum(result.x, 0.0) * best_alone_bps
    return rates_bps


def with_confirmed_rates(plan: Plan, network: Network) -> Plan:
    """The plan with each shard's rate: its share of the rate that `cost` confirms for the whole plan."""
    rate_bps = cost(plan, network).steady_rate_bps
    return replace(plan, shards=tuple(replace(shard, rate_bps=shard.fraction * rate_bps) for shard in plan.shards))
