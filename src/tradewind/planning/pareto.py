"""Plans between the fastest and the cheapest: time against the price of egress.

A spanning tree that is used up and down carries the array once each way over each of its links; the cheapest such tree,
by the sum of the prices both ways, is the cheap end. The fast end is the plan of a planner for time. Between them are
packings of spanning trees with equal parts of the array, laid one after the other: each is the cheapest where a link
costs its price and, times a weight, the time that it and the processors at its ends need for what is laid on them
already. A small weight spreads the load over links of equal price at no cost at all; a large one pays for speed. With
mixtures of neighbouring plans (each reduces a part of the array), what no other plan beats in both is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree, shortest_path

from tradewind.errors import ImpossibleProblem
from tradewind.network import Network
from tradewind.planning import make_plan, predict, resolve_members
from tradewind.planning.bound import Bound, bound
from tradewind.planning.cost import cost
from tradewind.planning.fill import with_fitted_chunks
from tradewind.planning.host import MEASURED_HOST
from tradewind.planning.plan import Plan, Shard, default_chunk_bytes

Mask = npt.NDArray[np.bool_]
Objective = Literal["time", "cost", "mix"]

TREES = (4, 12)
WEIGHTS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Numbers of trees, and weights of the limit's time against the mean price, that are tried."""
NO_WEIGHT = 1e-6
"""Of equally cheap trees, the fastest."""
LEAST_SAVING = 0.005
"""A slower plan is kept if it is cheaper than the next faster one by this part."""
MIXED_SHARES = (1 / 3, 2 / 3)
"""Parts of the array that the faster of two neighbouring plans reduces."""


class Offer(NamedTuple):
    """A plan, its predicted time, and the price of one round."""

    plan: Plan
    seconds: float
    usd: float


def check_priced(network: Network) -> None:
    """Raise `ImpossibleProblem` if the network has no prices."""
    if not network.usd_per_gb.any():
        raise ImpossibleProblem(
            f"network {network.name!r} has no prices of egress. Give usd_per_gb in its file, or --prices FILE."
        )


def offers(
    network: Network,
    nbytes: int,
    members: Sequence[str] | None = None,
    planner: str = "auto",
    fast: Plan | None = None,
    progress: Callable[[str, int, int], object] | None = None,
) -> list[Offer]:
    """The plans that no other one beats in both time and price, from the fastest to the cheapest.

    The fast end is the plan of `planner`, or `fast`. `progress` is called with what is planned, how many of these plans
    are made, and of how many. Raises `ImpossibleProblem` if the network has no prices.
    """
    check_priced(network)
    ordered = resolve_members(network, members)
    limit = bound(network, ordered, nbytes)
    report = progress or (lambda *_: None)
    if fast is None:
        fast = make_plan(planner, network, nbytes, ordered, limit=limit)
    found = [_offer(fast, network, limit)]
    laid = [(1, NO_WEIGHT), *product(TREES, WEIGHTS)]
    for done, (count, weight) in enumerate(laid):
        report("cheap trees", done, len(laid))
        plan = _laid(network, ordered, nbytes, count, weight, limit.seconds)
        found.append(_offer(with_fitted_chunks(plan, network, MEASURED_HOST), network, limit))
    kept = frontier(found)
    mixtures, mixed = list(product(pairwise(kept), MIXED_SHARES)), []
    for done, ((quick, cheap), share) in enumerate(mixtures):
        report("mixtures", done, len(mixtures))
        mixed.append(_offer(_mixture(quick.plan, cheap.plan, share), network, limit))
    return frontier([*kept, *mixed])


def choose(found: Sequence[Offer], objective: Objective) -> Offer:
    """The plan for an objective: the fastest, the cheapest, or `mix`, the least product of time and price."""
    if objective == "time":
        return found[0]
    if objective == "cost":
        return found[-1]
    return min(found, key=lambda offer: offer.seconds * offer.usd)


def frontier(found: Sequence[Offer]) -> list[Offer]:
    """Those that no other one beats in both, from the fastest to the cheapest."""
    kept: list[Offer] = []
    for offer in sorted(found, key=lambda one: (one.seconds, one.usd)):
        if not kept or offer.usd < kept[-1].usd * (1 - LEAST_SAVING):
            kept.append(offer)
    return kept


def _offer(plan: Plan, network: Network, limit: Bound) -> Offer:
    plan = plan.with_prediction(predict(plan, network, limit))
    assert plan.predicted is not None
    return Offer(plan, plan.predicted.seconds, network.egress_usd(cost(plan, network).link_bytes))


def _laid(network: Network, members: tuple[str, ...], nbytes: int, count: int, weight: float, limit_s: float) -> Plan:
    """A plan of `count` trees with equal parts of the array."""
    n, part = len(network), nbytes / count
    needed = np.array([name in members for name in network.names])
    both = (network.bandwidth_bps > 0) & (network.bandwidth_bps.T > 0)
    inside = both & np.outer(needed, needed)
    if _is_connected(inside, needed):
        both = inside
    price = network.usd_per_gb + network.usd_per_gb.T
    link_s = 8 * part / np.where(both, network.bandwidth_bps, 1.0)
    host_s = 2 * part * MEASURED_HOST.byte_s
    unit = weight * price[both].mean() / limit_s
    laid, handled = np.zeros((n, n)), np.zeros(n)
    shards = []
    for _ in range(count):
        seconds = (laid + 1) * link_s
        busy = (handled + 1) * host_s
        costs = price + unit * (seconds + seconds.T + busy[:, None] + busy)
        tree = minimum_spanning_tree(np.where(both, np.maximum(costs, 1e-12), 0.0)).toarray() > 0
        tree = _pruned(tree | tree.T, needed)
        laid += tree
        handled += tree.sum(axis=1)
        shards.append(_shard(network, tree, 1 / count, default_chunk_bytes(part)))
    reason = f"{len({shard.reduce for shard in shards})} different trees, time weighs {weight:g} times the mean price"
    return Plan("pareto", network.name, members, nbytes, tuple(shards), reason=reason)


def _is_connected(links: Mask, needed: Mask) -> bool:
    first = int(np.argmax(needed))
    return len(breadth_first_order(links, first, directed=False, return_predecessors=False)) == int(needed.sum())


def _pruned(tree: Mask, needed: Mask) -> Mask:
    """The tree without branches that lead to no member."""
    while (useless := (tree.sum(axis=1) == 1) & ~needed).any():
        tree = tree & ~useless[:, None] & ~useless
    return tree


def _shard(network: Network, tree: Mask, fraction: float, chunk_bytes: int) -> Shard:
    """A shard whose root is the site of the tree that is nearest to all others."""
    away_s = shortest_path(np.where(tree, network.latency_s + 1e-6, 0.0))
    away_s = np.where(np.isfinite(away_s), away_s, 0.0).max(axis=1)
    root = int(np.argmin(np.where(tree.any(axis=1), away_s, np.inf)))
    order, parent = breadth_first_order(tree, root, directed=False)
    names = network.names
    edges = [(names[int(site)], names[int(parent[site])]) for site in order[1:]]
    return Shard(fraction, names[root], tuple(edges), tuple(edge[::-1] for edge in edges), chunk_bytes)


def _mixture(fast: Plan, cheap: Plan, share: float) -> Plan:
    """A plan whose first `share` of the array goes as in `fast`, and the rest as in `cheap`."""
    parts = ((fast, share), (cheap, 1.0 - share))
    shards = [replace(s, fraction=s.fraction * part, rate_bps=None) for plan, part in parts for s in plan.shards]
    reason = f"{share:.0%} of the array as in the next faster plan, the rest as in the next cheaper one"
    return replace(fast, planner="pareto", shards=tuple(shards), reason=reason, proven_rate_bps=None)
