"""MTREE: a few spanning trees of bounded height, their rates, and a chunk size for each (Luo, Wang, Xing).

Three steps. GOST (`height_bounded`) generates trees; MILP (1) (`tree_rates`) chooses at most K of them and their rates;
each tree gets the chunk size that is best in the paper's message model (`chunking`). Links are taken as undirected with
the lower bandwidth of the two directions, and NIC caps and trunks are ignored, as in the paper; the rates are then
scaled to what they allow (`forest`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tradewind.errors import InfeasiblePlan
from tradewind.network import Network
from tradewind.planning.chunking import optimal_chunk_bytes
from tradewind.planning.plan import Plan, default_chunk_bytes
from tradewind.planning.trees.forest import forest_plan, small_chunks
from tradewind.planning.trees.height_bounded import Candidates, Growing, Reading, improve_heights, least_height
from tradewind.planning.trees.tree_rates import SearchLimits, TreeChoice, choose_trees
from tradewind.planning.trees.undirected import (
    Floats,
    RootedTree,
    UndirectedGraph,
    hang_from_centre,
    pruned,
    undirected_view,
)


@dataclass(frozen=True)
class MtreeOptions:
    """The paper's H, r-bar, rho and K, and choices that it leaves open."""

    max_trees: int = 10
    """K, the most trees to use. The paper needs no more than 10 for 70% to 85% of the bandwidth."""
    max_height: float | None = None
    """H, the most height of a tree; by default the least that costs no more than 1 - rho of the rate."""
    height_in: Literal["hops", "ms"] = "hops"
    """Whether heights count hops or milliseconds of latency."""
    min_rate_mbps: float = 10.0
    """r-bar, the least rate of a tree; links below it are not used."""
    rate_kept: float = 0.95
    """rho: a lower height is preferred as long as it keeps this share of the rate."""
    tree_rate: Literal["best", "global", "local"] = "best"
    """r* while generating: the smallest bandwidth left anywhere (global, as printed), the tree's own bottleneck
    (local), or the better of both results.
    """
    chunk_size: Literal["published", "small"] = "published"
    """Chunk sizes by the paper's message model (mu*, lambda* chunks), or small ones, which suit the runtime better."""
    seed: int = 0
    """Seed of the random start vertices."""
    search_nodes: int = 1
    """Branch-and-bound nodes that the choice of trees may take; more than the root rarely finds a better one."""
    time_limit_s: float = 10.0
    """Seconds that the choice of trees may take: a safety net, reached only on very large networks."""

    def __post_init__(self) -> None:
        if self.max_trees < 1:
            raise ValueError(f"max_trees must be at least 1, got {self.max_trees}")
        if self.max_height is not None and not self.max_height > 0:
            raise ValueError(f"max_height must be above 0, got {self.max_height}")
        if not 0 < self.min_rate_mbps < float("inf"):
            raise ValueError(f"min_rate_mbps must be finite and above 0, got {self.min_rate_mbps}")
        if not 0 < self.rate_kept <= 1:
            raise ValueError(f"rate_kept must be in (0, 1], got {self.rate_kept}")
        if self.search_nodes < 1 or not self.time_limit_s > 0:
            raise ValueError("search_nodes must be at least 1 and time_limit_s above 0")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The result of one interpretation of r*."""

    reading: Reading
    candidates: Candidates
    choice: TreeChoice


def plan_mtree(network: Network, members: tuple[str, ...], nbytes: int, options: MtreeOptions) -> Plan:
    """At most K spanning trees of bounded height, with rates by MILP and a chunk size per tree (MTREE).

    Mechanism: MTREE III-A line 22, r* the globally smallest bandwidth or the own bottleneck
    Mechanism: MTREE III-C, chunk size by the longest round trip of each tree (live: tradewind/stragglers)
    """
    graph = undirected_view(network, members, options.min_rate_mbps * 1e6)
    length = np.ones(len(graph.ends)) if options.height_in == "hops" else graph.latency_s * 1e3
    readings: tuple[Reading, ...] = ("global", "local") if options.tree_rate == "best" else (options.tree_rate,)
    attempts = [_attempt(graph, length, reading, network.name, options) for reading in readings]
    best = max(attempts, key=lambda a: (a.choice.total_bps, -len(a.choice.trees)))
    trees = [hang_from_centre(graph, tree, length) for tree in best.choice.trees]

    def published_chunk(shard_bytes: float, tree: RootedTree, rate_bps: float) -> int:
        one_way = graph.latency_s[tree.deepest_path(graph.latency_s)].tolist()
        best = optimal_chunk_bytes(shard_bytes, one_way + one_way[::-1], rate_bps)
        return max(best, default_chunk_bytes(shard_bytes))  # with little latency mu* tends to zero

    return forest_plan(
        "mtree",
        network,
        members,
        nbytes,
        graph,
        trees,
        best.choice.rates_bps,
        _reason(best, max(tree.height(length) for tree in trees), options),
        published_chunk if options.chunk_size == "published" else small_chunks,
    )


def _attempt(
    graph: UndirectedGraph, length: Floats, reading: Reading, network_name: str, options: MtreeOptions
) -> _Attempt:
    problem = Growing(graph, length, options.min_rate_mbps * 1e6, reading, options.seed)
    limit = float(length.sum()) if options.max_height is None else options.max_height
    candidates = improve_heights(problem, limit, options.rate_kept)
    if not candidates.trees:
        least = least_height(problem, graph.capacity_bps)
        raise InfeasiblePlan(
            f"no spanning tree of network {network_name!r} is at most {limit:g} {options.height_in} high; "
            f"the least possible is {least:.4g}. Raise --max-height."
        )
    distinct = tuple(dict.fromkeys(pruned(graph, tree) for tree in candidates.trees))
    limits = SearchLimits(options.search_nodes, options.time_limit_s)
    choice = choose_trees(distinct, graph.capacity_bps, options.max_trees, options.min_rate_mbps * 1e6, limits)
    return _Attempt(reading, candidates, choice)


def _reason(best: _Attempt, height: float, options: MtreeOptions) -> str:
    found, used = len(best.candidates.trees), len(best.choice.trees)
    return (
        f"{used} of {found} generated trees, at most {height:.4g} {options.height_in} high, "
        f"r* {best.reading}; {best.choice.quality}"
    )
