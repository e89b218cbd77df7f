"""CREW's scatter and multicast: the initiators scatter blocks to aggregators, which send the sums back.

The members are the initiators (P). Every site may aggregate, member or not: CREW uses the links of idle sites. `opr` is
the same with aggregators among the members only, the original partial reduce. Aggregator j handles a share x_j of the
tensor; the plan is one star per aggregator, whose leaves are the members.

**Weights.** CREW minimises T_scatter + T_multicast by the linear program (2). With a_j the slowest link from a member
to j, c_j the slowest one back, an aggregator that has T_s and then T_m to work can handle min(a_j T_s, c_j T_m), so

    minimise T_s + T_m   subject to   sum_j min(a_j T_s, c_j T_m) >= 1

With T_m = r T_s this is (1 + r) / sum_j min(a_j, c_j r), a line over a concave function that is linear between the
ratios a_j / c_j. Its minimum is at one of those ratios: sort them, and n candidates remain. No solver is needed.

As in CREW, the program ignores NICs and trunks, and links inside P that carry both phases when these overlap; `cost`
counts them. `scatter-pipelined` plans for the overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tradewind.errors import InfeasiblePlan
from tradewind.network import Network
from tradewind.planning.plan import Plan, Shard, default_chunk_bytes
from tradewind.units import format_count, format_duration

Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ScatterOptions:
    """How the tensor is divided among the aggregators."""

    weights: Literal["network-aware", "even"] = "network-aware"
    """even: the same share for every aggregator, the paper's E-D."""


def plan_scatter(network: Network, members: tuple[str, ...], nbytes: int, options: ScatterOptions) -> Plan:
    """CREW: every site aggregates a block for the members, sized by its slowest links to and from them.

    Mechanism: CREW III, idle sites aggregate (live: tradewind/stragglers)
    Mechanism: CREW IV-A, even blocks (E-D) for comparison
    """
    return _plan("scatter", network, members, nbytes, options, np.arange(len(network)))


def plan_opr(network: Network, members: tuple[str, ...], nbytes: int, options: ScatterOptions) -> Plan:
    """Original partial reduce: as CREW's scatter, but only members aggregate.

    Mechanism: CREW II-B, original partial reduce (OPR): only initiators aggregate (live: tradewind/stragglers)
    """
    return _plan("opr", network, members, nbytes, options, _rows(network, members))


def _plan(
    planner: str, network: Network, members: tuple[str, ...], nbytes: int, options: ScatterOptions, sites: Indices
) -> Plan:
    able = aggregators(network, members, sites)
    if options.weights == "even":
        shares, reason = np.full(len(able), 1.0 / len(able)), f"{format_count(len(able), 'aggregator')}, even shares"
    else:
        to_bps, from_bps = slowest_member_links(network, members)
        found = scatter_weights(to_bps[able], from_bps[able])
        shares, seconds = found.shares, 8.0 * nbytes * (found.scatter_s_per_bit + found.multicast_s_per_bit)
        reason = f"{format_count(len(able), 'aggregator')}, {format_duration(seconds)} for one phase after the other"
    shards = star_shards(network, members, nbytes, able, shares)
    return Plan(planner, network.name, members, nbytes, shards, reason=reason)


def slowest_member_links(network: Network, members: tuple[str, ...]) -> tuple[Vector, Vector]:
    """The paper's a_j and c_j for every site j: its slowest link from a member, and to one; 0 where one is missing.

    A member needs no link to itself.
    """
    rows = _rows(network, members)
    here = (np.arange(len(rows)), rows)
    to_sites = network.bandwidth_bps[rows]
    from_sites = network.bandwidth_bps.T[rows]
    to_sites[here] = from_sites[here] = np.inf
    return to_sites.min(axis=0), from_sites.min(axis=0)


def aggregators(network: Network, members: tuple[str, ...], sites: Indices) -> Indices:
    """The sites among `sites` that have links from and to all members; raises an error if there are none."""
    to_bps, from_bps = slowest_member_links(network, members)
    able = sites[((to_bps > 0) & (from_bps > 0))[sites]]
    if not len(able):
        raise InfeasiblePlan(
            f"no site that may aggregate has links to and from all {len(members)} members in network "
            f"{network.name!r}. Use a planner that relays, such as relay or fapt."
        )
    return able


@dataclass(frozen=True, slots=True)
class ScatterWeights:
    """The optimum of CREW's program (2) for a tensor of one bit."""

    shares: Vector
    """x_j, in the order of the aggregators; they add up to 1."""
    scatter_s_per_bit: float
    multicast_s_per_bit: float


def scatter_weights(to_bps: Vector, from_bps: Vector) -> ScatterWeights:
    """CREW's weights from a_j (`to_bps`) and c_j (`from_bps`) of the aggregators, in O(n log n).

    >>> scatter_weights(np.array([4.0, 4.0]), np.array([4.0, 4.0])).shares.tolist()
    [0.5, 0.5]
    >>> found = scatter_weights(np.array([4.0, 1.0]), np.array([2.0, 9.0]))
    >>> found.shares.tolist(), found.scatter_s_per_bit, found.multicast_s_per_bit
    ([0.8, 0.2], 0.2, 0.4)

    Mechanism: CREW IV-A LP (2), weights of the aggregators (live: tradewind/stragglers)
    """
    ratio = to_bps / from_bps
    order = np.argsort(ratio, kind="stable")
    r = ratio[order]
    limited_by_scatter = np.cumsum(to_bps[order])
    limited_by_multicast = np.append(np.cumsum(from_bps[order][:0:-1])[::-1], 0.0)
    handled = limited_by_scatter + r * limited_by_multicast
    best = int(np.argmin((1.0 + r) / handled))
    capacity = np.minimum(to_bps, r[best] * from_bps)
    scatter_s = 1.0 / float(capacity.sum())
    return ScatterWeights(capacity * scatter_s, scatter_s, float(r[best]) * scatter_s)


def star_shards(
    network: Network,
    members: tuple[str, ...],
    nbytes: int,
    aggregators: Indices,
    shares: Vector,
) -> tuple[Shard, ...]:
    """One star per aggregator, with the members as leaves."""
    names = [network.names[j] for j in aggregators]
    return tuple(
        Shard(
            fraction=share,
            root=root,
            reduce=tuple([(member, root) for member in members if member != root]),
            broadcast=tuple([(root, member) for member in members if member != root]),
            chunk_bytes=default_chunk_bytes(share * nbytes),
        )
        for root, share in zip(names, shares.tolist(), strict=True)
    )


def _rows(network: Network, members: tuple[str, ...]) -> Indices:
    return np.array([network.index[name] for name in members])
