"""The linear program of the `relay` planner: how much each member sends to which next hop, for every root.

Sites share the roots' work, as in CREW, but a member need not send straight to a root. It may send

- to a **helper**, a site that is not a member: its links are idle, so it can relay what a slow link cannot carry;
- to another **member** that sends to the same root: it adds its own contribution and sends the sum, which it sends in
  any case, so the detour costs no capacity beyond the first link.

Both also apply to results, with every link reversed: a phase is "reduce" on the network or "broadcast" on its reverse,
and this module always describes sending towards the root.

A member's choice is only its next hop. A helper's is fixed: straight to the root where it has a link, else along the
fastest path. To rule out cycles, a member may hand over only to one that is nearer to the root (by fastest path), so
whatever combination of choices a solution mixes, each combination is a tree.

The program: x_j is the rate of root j, f the rate of each choice. For each phase, root and member the choices add up to
x_j; no link, NIC or trunk is overloaded; the sum of x is the largest. `relay_trees` turns every solution into trees of
the same total rate, or more where a helper can add up what it relays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array

from tradewind.errors import InfeasiblePlan
from tradewind.network import Matrix, Network
from tradewind.planning.hops import hop_rate_bps
from tradewind.planning.trees.fastest_paths import FastestPaths, transfer_delay
from tradewind.planning.trees.tree_balance import Indices, Usage, Vector, capacity_rows

Flags = npt.NDArray[np.bool_]

_DETOUR_COST = 0.003
"""The least gain of a choice other than the default one, per unit of its rate: it keeps the trees few and low."""

_TIE_SPREAD = 1e-9
"""Equal relays are preferred in a different order by each pair, so that they share the work; real differences win."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One direction of traffic, seen as towards the root; rows of matrices are the sending side."""

    rate_bps: Matrix
    nearness: Matrix
    """[site, root]: the delay of the fastest path between them, which every hop of a detour must reduce."""
    onward: Indices
    """[site, root]: the next hop of a helper, and the default one of a member."""
    reverse: bool
    """Whether the real traffic runs in the other direction."""


@dataclass(frozen=True, slots=True)
class Choices:
    """All next hops that members may choose, the default one first within each (phase, root, member)."""

    phase: Indices
    root: Indices
    member: Indices
    hop: Indices
    plain: Flags


def phases(network: Network) -> tuple[Phase, Phase]:
    """Reduce and broadcast."""
    paths = FastestPaths(transfer_delay(network))
    rate = hop_rate_bps(network)
    roots = range(len(network))
    up = np.stack([paths.next_hops(root) for root in roots], axis=1)
    down = np.stack([paths.last_hops(root) for root in roots], axis=1)
    sites = np.arange(len(network))[None, :]
    return (
        Phase(rate, paths.distance, np.where(rate > 0, sites, up), reverse=False),
        Phase(rate.T, paths.distance.T, np.where(rate.T > 0, sites, down), reverse=True),
    )


def possible_roots(both: tuple[Phase, Phase], members: Indices) -> Indices:
    """Sites that all members reach and that reach all members."""
    able = [np.isfinite(phase.nearness[members]).all(axis=0) for phase in both]
    return np.flatnonzero(able[0] & able[1])


def find_choices(both: tuple[Phase, Phase], members: Indices, roots: Indices, relays: int) -> Choices:
    """The default next hop of every member to every root, and the `relays` most promising alternatives."""
    found: list[tuple[npt.NDArray[np.int64 | np.bool_], ...]] = []
    for number, phase in enumerate(both):
        for root in roots.tolist():
            member, hop, plain = _choices_to(phase, members, root, relays)
            same = np.ones_like(member)
            found.append((number * same, root * same, member, hop, plain))
    return Choices(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _choices_to(phase: Phase, members: Indices, root: int, relays: int) -> tuple[Indices, Indices, Flags]:
    """Members, their hops towards this root, and which of these are the default."""
    n = len(phase.rate_bps)
    senders = members[members != root]
    is_end = np.isin(np.arange(n), np.append(members, root))
    end, chain_bps = _follow_helpers(phase, root, is_end)
    order = np.lexsort((np.arange(n), phase.nearness[:, root]))
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    rank[root] = -1
    rate = phase.rate_bps[senders]
    allowed = (rate > 0) & (rank[end][None, :] < rank[senders][:, None]) & np.isfinite(phase.nearness[:, root])[None, :]
    plain = phase.onward[senders, root]
    allowed[np.arange(len(senders)), plain] = False
    spread = 1 + _TIE_SPREAD * ((np.arange(n)[None, :] + senders[:, None] + root) % n)
    score = np.where(allowed, np.minimum(rate, chain_bps[None, :]) * spread, 0.0)
    sender, relay = _best_relays(score, ~is_end, relays)
    member = np.concatenate([senders, senders[sender]])
    is_plain = np.arange(len(member)) < len(senders)
    return member, np.concatenate([plain, relay]), is_plain


def _best_relays(score: Matrix, is_helper: Flags, count: int) -> tuple[Indices, Indices]:
    """(row, column) of the `count` best relays in each row: helpers and members in turn, while there are both."""
    ranked = []
    for kind in (is_helper, ~is_helper):
        of_kind = np.where(kind[None, :], score, 0.0)
        column = np.argsort(-of_kind, axis=1, kind="stable")[:, :count]
        ranked.append((column, np.take_along_axis(of_kind, column, axis=1)))
    columns, scores = (np.stack(pair, axis=2).reshape(len(score), -1) for pair in zip(*ranked, strict=True))
    usable_first = np.argsort(scores <= 0, axis=1, kind="stable")[:, :count]
    row, place = np.nonzero(np.take_along_axis(scores, usable_first, axis=1) > 0)
    return row, columns[row, usable_first[row, place]]


def _follow_helpers(phase: Phase, root: int, is_end: Flags) -> tuple[Indices, Vector]:
    """The member or root that data sent to each site reaches, and the rate of the slowest link on that path."""
    n = len(is_end)
    end = np.arange(n)
    chain_bps = np.full(n, np.inf)
    while True:
        moving = np.flatnonzero(~is_end[end] & (phase.onward[end, root] >= 0))
        if not len(moving):
            return end, chain_bps
        here, there = end[moving], phase.onward[end[moving], root]
        chain_bps[moving] = np.minimum(chain_bps[moving], phase.rate_bps[here, there])
        end[moving] = there


def links_of(both: tuple[Phase, Phase], is_member: Flags, choices: Choices, columns: Indices, count: int) -> Usage:
    """The links that each choice uses, its helpers' included, in the direction of the real traffic."""
    src_parts, dst_parts, column_parts = [], [], []
    phase, root, here, there, column = choices.phase, choices.root, choices.member, choices.hop, columns
    onward = np.stack([one.onward for one in both])
    while len(here):
        reverse = phase == 1
        src_parts.append(np.where(reverse, there, here))
        dst_parts.append(np.where(reverse, here, there))
        column_parts.append(column)
        passing = ~is_member[there] & (there != root)
        phase, root, here, column = phase[passing], root[passing], there[passing], column[passing]
        there = onward[phase, here, root]
    return Usage(np.concatenate(column_parts), np.concatenate(src_parts), np.concatenate(dst_parts), count)


@dataclass(frozen=True, slots=True)
class Flows:
    """A solution: the rate of every root and of every choice."""

    root_bps: Vector
    choice_bps: Vector


def best_flows(
    network: Network,
    both: tuple[Phase, Phase],
    members: Indices,
    roots: Indices,
    choices: Choices,
    time_limit_s: float,
) -> Flows:
    """Solve the program of this module. Its variables are the roots' rates, then the choices'."""
    is_member = np.isin(np.arange(len(network)), members)
    column = len(roots) + np.arange(len(choices.hop))
    columns = len(roots) + len(choices.hop)
    capacity = capacity_rows(network, links_of(both, is_member, choices, column, columns))
    sums = _choices_add_up(choices, roots, column)
    unit_bps = _weakest_member_rate_bps(network, members)
    gain = np.r_[np.ones(len(roots)), np.where(choices.plain, 0.0, -_DETOUR_COST)]
    result = linprog(
        -gain,
        A_ub=capacity * unit_bps,
        b_ub=np.ones(capacity.shape[0]),
        A_eq=sums,
        b_eq=np.zeros(sums.shape[0]),
        method="highs-ipm",
        options={"time_limit": time_limit_s},
    )
    if result.status != 0:
        raise InfeasiblePlan(
            f"no relay plan was found for {len(members)} members on {len(network)} sites within {time_limit_s:g} s "
            f"({result.message}). Raise time_limit_s, or lower relays_per_pair."
        )
    rates_bps = np.maximum(result.x, 0.0) * unit_bps
    return Flows(rates_bps[: len(roots)], rates_bps[len(roots) :])


def _choices_add_up(choices: Choices, roots: Indices, column: Indices) -> csr_array:
    """One row per phase, root and member: the rates of its choices less the root's rate, which must be zero."""
    n = 1 + int(max(choices.root.max(), choices.member.max()))
    key = (choices.phase * n + choices.root) * n + choices.member
    _, first, row = np.unique(key, return_index=True, return_inverse=True)
    entries = (
        np.r_[np.ones(len(row)), -np.ones(len(first))],
        (np.r_[row, np.arange(len(first))], np.r_[column, np.searchsorted(roots, choices.root[first])]),
    )
    return coo_array(entries, shape=(len(first), len(roots) + len(column))).tocsr()


def _weakest_member_rate_bps(network: Network, members: Indices) -> float:
    """The rate at which the weakest member can send or receive, which bounds all rates: the unit of the program."""
    out_bps = np.minimum(network.bandwidth_bps.sum(axis=1), network.egress_bps)[members]
    in_bps = np.minimum(network.bandwidth_bps.sum(axis=0), network.ingress_bps)[members]
    return float(min(out_bps.min(), in_bps.min()))
