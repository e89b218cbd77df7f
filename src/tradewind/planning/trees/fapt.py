"""NetStorm's multi-root fastest aggregation path trees (FAPT).

A site that aggregates waits for its slowest child, so a tree's delay is that of its slowest path to the root
(Theorem 1), and the tree of shortest paths has the least. Sites are scored by the delay of their own tree; the best N
are roots, and each handles a share of the tensor in proportion to its score.

Built as published, with these corrections: every tree spans all members, also the other roots (Algorithm 2 line 7
leaves them out); links are directed, so the reduce tree follows paths towards the root and the broadcast tree paths
away from it, and the score counts both; ties are broken in one way everywhere (see `fastest_paths`). In contrast to the
paper's assumption, trees share links and slow each other down: `cost` shows by how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tradewind.errors import BadOption, InfeasiblePlan
from tradewind.network import Network
from tradewind.planning.plan import Plan, Shard, default_chunk_bytes
from tradewind.planning.trees.fastest_paths import FastestPaths, Indices, transfer_delay


@dataclass(frozen=True)
class FaptOptions:
    """Which sites are roots."""

    roots: int | None = None
    """The number of roots (N, NUM_ROOT_SERVERS), the best by score. Default: every member, the paper's best."""
    fixed_roots: tuple[str, ...] = ()
    """The names of the roots, for replanning: moving a root means moving its part of the model."""
    keep_roots: bool = False
    """Whether a run keeps the roots of its first plan, as published (Algorithm 1); without a run it has no effect."""

    def __post_init__(self) -> None:
        if self.roots is not None and self.roots < 1:
            raise ValueError(f"roots must be at least 1, got {self.roots}.")
        if self.roots is not None and self.fixed_roots:
            raise ValueError("roots (a number) and fixed_roots (names) exclude each other; give one of them.")


def plan_fapt(network: Network, members: tuple[str, ...], nbytes: int, options: FaptOptions) -> Plan:
    """NetStorm: one tree of fastest paths per root, the better the root the larger its share.

    Mechanism: NetStorm IV-B, shares in proportion to the scores (live: netstorm/fig15)
    Mechanism: NetStorm IV-C, roots stay when the network changes (live: netstorm/fig15)
    """
    paths = FastestPaths(transfer_delay(network))
    rows = np.array([network.index[name] for name in members])
    roots = _fixed(network, options.fixed_roots) if options.fixed_roots else _best(paths, rows, options.roots)
    scores = quality_scores(paths, rows)[roots]
    _require_reachable(network, roots, scores)
    fractions = scores / scores.sum()
    shards = tuple(
        _shard(network, paths, rows, int(root), float(fraction), nbytes)
        for root, fraction in zip(roots, fractions, strict=True)
    )
    return Plan("fapt", network.name, members, nbytes, shards, reason=_reason(network, roots, options))


def quality_scores(paths: FastestPaths, members: Indices) -> npt.NDArray[np.float64]:
    """The paper's q of every site: the inverse of the delay of its two trees; 0 where it cannot be a root.

    Mechanism: NetStorm IV-B Algorithm 1, roots by quality score (live: netstorm/fig15)
    """
    reduce_delay = paths.distance[members].max(axis=0)
    broadcast_delay = paths.distance[:, members].max(axis=1)
    score: npt.NDArray[np.float64] = 1.0 / (reduce_delay + broadcast_delay)
    return score


def _best(paths: FastestPaths, members: Indices, count: int | None) -> Indices:
    """The members with the highest scores; the first in the network's order among equals."""
    if count is not None and count > len(members):
        raise BadOption(f"roots must be at most {len(members)}, the number of members, got {count}.")
    scores = quality_scores(paths, members)[members]
    order: Indices = np.argsort(-np.round(scores / scores.max(), 12), kind="stable")
    return members[order[:count]]


def _fixed(network: Network, names: Sequence[str]) -> Indices:
    if len(set(names)) < len(names):
        raise BadOption(f"fixed_roots must name each site once, got {', '.join(names)}.")
    return np.array([network.index[network.site(name).name] for name in names])


def _require_reachable(network: Network, roots: Indices, scores: npt.NDArray[np.float64]) -> None:
    for root in roots[scores == 0]:
        raise InfeasiblePlan(
            f"{network.names[root]!r} cannot be a root: not every member can reach it and be reached from it in "
            f"network {network.name!r}. Choose another root."
        )


def _shard(network: Network, paths: FastestPaths, members: Indices, root: int, fraction: float, nbytes: int) -> Shard:
    names = network.names
    up = tree_edges(paths.next_hops(root), members, root)
    down = tree_edges(paths.last_hops(root), members, root)
    return Shard(
        fraction=fraction,
        root=names[root],
        reduce=tuple((names[child], names[parent]) for child, parent in up),
        broadcast=tuple((names[parent], names[child]) for child, parent in down),
        chunk_bytes=default_chunk_bytes(fraction * nbytes),
    )


def tree_edges(parent: Indices, members: Indices, root: int) -> list[tuple[int, int]]:
    """The (child, parent) edges on the members' paths to the root; other sites only where a path needs them.

    Mechanism: NetStorm IV-B Algorithm 2, a reduce tree towards and a broadcast tree away from the root
    """
    parents = parent.tolist()
    edges: dict[int, int] = {}
    for site in members.tolist():
        while site != root and site not in edges:
            edges[site] = parents[site]
            site = parents[site]
    return sorted(edges.items())


def _reason(network: Network, roots: Indices, options: FaptOptions) -> str:
    if options.fixed_roots:
        return f"{len(roots)} roots were given"
    return f"{len(roots)} roots, the best of them {network.names[roots[0]]}"
