"""From flows to trees: every solution of `relay_flows` as a list of trees with the same total rate.

A root's share is an interval of the tensor. For each phase, every member divides that interval among its next hops in
proportion to their flows. Where the divisions of all members, in both phases, are laid over each other, the
interval falls into pieces in which each member has one next hop up and one down: each piece is a shard with two trees.
Members lay out their largest flow first, so that the small ones overlap at the far end and the pieces stay few.

In general this leaves too many pieces for a runtime. Most are tiny, and dropping them costs almost nothing if the
others then take over their work (`tree_balance`): this is repeated until the trees are few enough and dropping more
would cost too much of the rate.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from tradewind.network import Network
from tradewind.planning.flows.relay_flows import Choices, Flows, Phase, links_of
from tradewind.planning.plan import Route
from tradewind.planning.trees.tree_balance import Indices, Usage, Vector, best_rates_bps

_SLIVER = 1e-6
"""Parts of a root's share below this are rounding errors of the solver."""

_DROPPED_AT_ONCE = 0.25
_WORTH = 0.99
"""More trees than necessary are dropped as long as the rest keeps this share of the rate."""


@dataclass(frozen=True, slots=True)
class Trees:
    """One entry per tree pair; `hop[t, phase, m]` is the site that member m sends to (or receives from), or -1."""

    root: Indices
    hop: Indices
    rate: Vector

    def __len__(self) -> int:
        return len(self.root)

    def only(self, which: Indices, rate: Vector) -> Trees:
        """These trees, with these rates."""
        return Trees(self.root[which], self.hop[which], rate)


def trees_from_flows(members: Indices, roots: Indices, choices: Choices, flows: Flows) -> Trees:
    """The common refinement of all members' divisions, root by root."""
    position = {int(site): m for m, site in enumerate(members)}
    total = flows.root_bps.sum()
    order = np.argsort(choices.root, kind="stable")
    starts = np.searchsorted(choices.root[order], roots)
    stops = np.searchsorted(choices.root[order], roots, side="right")
    parts: list[tuple[Indices, Vector]] = []
    kept: list[int] = []
    for root, rate, start, stop in zip(roots.tolist(), flows.root_bps.tolist(), starts, stops, strict=True):
        if rate > _SLIVER * total:
            mine = order[start:stop]
            sent = [(int(choices.phase[c]), position[int(choices.member[c])], int(choices.hop[c])) for c in mine]
            parts.append(_refine(len(members), rate, sent, flows.choice_bps[mine]))
            kept.append(root)
    root_of = np.repeat(np.array(kept, dtype=np.int64), [len(rates) for _, rates in parts])
    return Trees(root_of, np.concatenate([hop for hop, _ in parts]), np.concatenate([rates for _, rates in parts]))


def _refine(members: int, rate: float, sent: list[tuple[int, int, int]], flow: Vector) -> tuple[Indices, Vector]:
    """One root: the next hops in every piece of its share, and the pieces' rates."""
    divisions: dict[tuple[int, int], list[tuple[float, int]]] = {}
    for (phase, member, hop), amount in zip(sent, (flow / rate).tolist(), strict=True):
        divisions.setdefault((phase, member), []).append((amount, hop))
    laid_out = {key: _lay_out(parts) for key, parts in divisions.items()}
    cuts = np.unique(np.concatenate([ends for ends, _ in laid_out.values()]).round(6))
    widths = np.diff(cuts, prepend=0.0)
    middles = cuts - widths / 2
    hops = np.full((len(cuts), 2, members), -1, dtype=np.int64)
    for (phase, member), (ends, to) in laid_out.items():
        hops[:, phase, member] = to[np.searchsorted(ends, middles)]
    return hops, widths * rate


def _lay_out(parts: list[tuple[float, int]]) -> tuple[Vector, Indices]:
    """A member's hops, largest part first, and where each part ends; together they fill the interval up to 1."""
    largest_first = sorted(parts, key=lambda part: -part[0])
    kept = [largest_first[0], *(part for part in largest_first[1:] if part[0] > _SLIVER)]
    ends = np.cumsum([amount for amount, _ in kept])
    ends[-1] = max(1.0, ends[-1])
    return ends / ends[-1], np.array([hop for _, hop in kept])


def thin(network: Network, both: tuple[Phase, Phase], members: Indices, trees: Trees, max_trees: int) -> Trees:
    """Fewer trees, at most `max_trees`, at the best rates for those that remain."""
    enough = _WORTH * trees.rate.sum()
    while len(trees) > 1:
        too_many = len(trees) > max_trees
        keep = max(1, int(len(trees) * (1 - _DROPPED_AT_ONCE)), max_trees if too_many else 0)
        largest = np.sort(np.argsort(-trees.rate, kind="stable")[:keep])
        fewer = _balanced(network, both, members, trees.only(largest, trees.rate[largest]))
        if not too_many and fewer.rate.sum() < enough:
            break
        trees = fewer
    return trees


def _balanced(network: Network, both: tuple[Phase, Phase], members: Indices, trees: Trees) -> Trees:
    """The same trees at the best rates, without those that get none."""
    rates = best_rates_bps(network, tree_usage(both, members, trees, len(network)))
    used = np.flatnonzero(rates > _SLIVER * rates.sum())
    return trees.only(used, rates[used])


def tree_usage(both: tuple[Phase, Phase], members: Indices, trees: Trees, n: int) -> Usage:
    """The links that each tree uses; a helper sends once, however many members it adds up for."""
    tree, phase, m = np.nonzero(trees.hop >= 0)
    choices = Choices(phase, trees.root[tree], members[m], trees.hop[tree, phase, m], np.zeros(len(m), dtype=bool))
    usage = links_of(both, np.isin(np.arange(n), members), choices, tree * 2 + phase, 2 * len(trees))
    once = np.unique((usage.column * n + usage.src) * n + usage.dst)
    return Usage(once // (2 * n * n), once // n % n, once % n, len(trees))


def detour_share(both: tuple[Phase, Phase], members: Indices, trees: Trees) -> float:
    """The share of the traffic of members that does not take the default route."""
    plain = np.stack([phase.onward[members[None, :], trees.root[:, None]] for phase in both], axis=1)
    moved = trees.rate[:, None, None] * (trees.hop >= 0)
    return float(moved[trees.hop != plain].sum() / moved.sum())


def tree_routes(phase: Phase, members: Indices, root: int, hop: Indices, names: tuple[str, ...]) -> tuple[Route, ...]:
    """The edges of one tree. A helper that adds up is a site of the tree; one that only forwards is inside a route."""
    parent = {int(site): int(to) for site, to in zip(members, hop, strict=True) if to >= 0}
    stops = set(members.tolist()) | {root}
    for site in list(parent.values()):
        while site not in stops and site not in parent:
            parent[site] = int(phase.onward[site, root])
            site = parent[site]
    children = Counter(parent.values())
    adds_up = stops | {site for site, count in children.items() if count > 1}
    routes = []
    for start in sorted(site for site in parent if site in adds_up):
        route = [start, parent[start]]
        while route[-1] not in adds_up:
            route.append(parent[route[-1]])
        routes.append(tuple(names[site] for site in (route[::-1] if phase.reverse else route)))
    return tuple(routes)
