"""Stars: one parameter server, one on every member, or all-to-all.

A star is shallow, and its centre is its bottleneck: all members' links to it, or its NIC, carry the whole share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tradewind.network import Matrix, Network
from tradewind.planning import NoOptions
from tradewind.planning.plan import Plan
from tradewind.planning.routes import Routes, tree_shard
from tradewind.units import format_rate


@dataclass(frozen=True)
class StarOptions:
    """Where the parameter server runs."""

    root: str | None = None
    """Any site, also one that is not a member; by default the best connected member."""


@dataclass(frozen=True)
class MultiStarOptions:
    """How much each star carries."""

    weights: Literal["even", "bandwidth"] = "even"
    """bandwidth: in proportion to the slowest route between a star's root and its leaves, either way."""


def plan_star(network: Network, members: tuple[str, ...], nbytes: int, options: StarOptions) -> Plan:
    """Parameter server: all members send to one root, which sends the sum back.

    As in CREW's baseline, the root is the member with the largest average bandwidth to the others, then the smallest
    average latency to them.
    """
    routes = Routes(network)
    if options.root is not None:
        root, reason = network.site(options.root).name, f"{options.root} was given as the root"
    else:
        root = best_connected_first(routes, members)[0]
        mean = format_rate(_mean_to_others(routes.bandwidth_bps(), network, root, members))
        reason = f"{root} has the largest average bandwidth to the other members, {mean}"
    leaves = star_parents(root, members)
    shard = tree_shard(routes, nbytes, 1.0, root, leaves, leaves)
    return Plan("star", network.name, members, nbytes, (shard,), reason=reason)


def plan_multi_star(network: Network, members: tuple[str, ...], nbytes: int, options: MultiStarOptions) -> Plan:
    """Sharded parameter server: every member is the root of a star for its share of the tensor."""
    routes = Routes(network)
    if options.weights == "even":
        weight = [1.0] * len(members)
    else:
        rows = [network.index[name] for name in members]
        pair = routes.bandwidth_bps()[np.ix_(rows, rows)]
        np.fill_diagonal(pair, np.inf)
        weight = [float(w) for w in np.minimum(pair, pair.T).min(axis=1)]
    reason = f"{options.weights} shares on {len(members)} roots"
    return plan_weighted_stars("multi-star", routes, members, nbytes, members, weight, reason)


def plan_all_to_all(
    network: Network,
    members: tuple[str, ...],
    nbytes: int,
    options: NoOptions,  # noqa: ARG001 - all planners take options
) -> Plan:
    """All-to-all: every member sends everything to every other, and each sums for itself."""
    routes = Routes(network)
    shards = tuple(tree_shard(routes, nbytes, 1.0, root, star_parents(root, members), {}) for root in members)
    return Plan("all-to-all", network.name, members, nbytes, shards)


def plan_weighted_stars(
    planner: str,
    routes: Routes,
    members: tuple[str, ...],
    nbytes: int,
    roots: Sequence[str],
    weights: Sequence[float],
    reason: str,
) -> Plan:
    """One star a root, each with a share of the tensor in proportion to its weight."""
    total = math.fsum(weights)
    shards = []
    for root, weight in zip(roots, weights, strict=True):
        leaves = star_parents(root, members)
        shards.append(tree_shard(routes, nbytes, weight / total, root, leaves, leaves))
    return Plan(planner, routes.network.name, members, nbytes, tuple(shards), reason=reason)


def star_parents(root: str, members: Iterable[str]) -> dict[str, str]:
    """Every member but the root below the root."""
    return {member: root for member in members if member != root}


def best_connected_first(routes: Routes, members: Sequence[str]) -> list[str]:
    """Members by average bandwidth to the others, largest first; equals by average latency, then by order."""
    network, bandwidth = routes.network, routes.bandwidth_bps()
    return sorted(
        members,
        key=lambda name: (
            -_mean_to_others(bandwidth, network, name, members),
            _mean_to_others(routes.distance_s, network, name, members),
        ),
    )


def _mean_to_others(matrix: Matrix, network: Network, name: str, members: Sequence[str]) -> float:
    """The mean, with an exact sum, so that two sites with the same links in another order are equal."""
    others = [network.index[other] for other in members if other != name]
    return math.fsum(matrix[network.index[name], others]) / len(others)
