"""Makes a plan from rooted trees with rates that the network can carry.

The tree planners reserve a rate for each tree on the undirected view. That view has no NIC caps and trunks, so these
rates can be too high. The trees and their shares stay as they are; all rates are scaled down together to what `cost`
confirms, and the plan's reason states it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tradewind.network import Network
from tradewind.planning.cost import cost
from tradewind.planning.plan import Plan, Shard, default_chunk_bytes
from tradewind.planning.trees.undirected import RootedTree, UndirectedGraph

ChunkRule = Callable[[float, RootedTree, float], int]
"""Chunk size in bytes from the shard's bytes, its tree and its rate."""


def small_chunks(shard_bytes: float, tree: RootedTree, rate_bps: float) -> int:
    """The runtime's default chunk size, independent of the tree."""
    del tree, rate_bps
    return default_chunk_bytes(shard_bytes)


def forest_plan(
    planner: str,
    network: Network,
    members: tuple[str, ...],
    nbytes: int,
    graph: UndirectedGraph,
    trees: Sequence[RootedTree],
    rates_bps: Sequence[float],
    reason: str,
    chunk_rule: ChunkRule = small_chunks,
) -> Plan:
    """One shard per tree, in proportion to its rate, up the tree and down again."""
    total_bps = sum(rates_bps)
    shards = tuple(
        _shard(graph, tree, rate / total_bps, default_chunk_bytes(nbytes * rate / total_bps))
        for tree, rate in zip(trees, rates_bps, strict=True)
    )
    plan = Plan(planner, network.name, members, nbytes, shards, reason=reason)
    confirmed = min(1.0, cost(plan, network).steady_rate_bps / total_bps)
    if confirmed < 1 - 1e-6:
        plan = replace(plan, reason=f"{reason}; all rates times {confirmed:.3g} because of NICs and trunks")
    finished = tuple(
        replace(
            shard,
            rate_bps=rate * confirmed,
            chunk_bytes=chunk_rule(shard.fraction * nbytes, tree, rate * confirmed),
        )
        for shard, tree, rate in zip(shards, trees, rates_bps, strict=True)
    )
    return replace(plan, shards=finished)


def _shard(graph: UndirectedGraph, tree: RootedTree, fraction: float, chunk_bytes: int) -> Shard:
    names = graph.names
    down = tuple((names[parent], names[child]) for parent, child, _ in tree.links)
    return Shard(
        fraction=fraction,
        root=names[tree.root],
        reduce=tuple(route[::-1] for route in down),
        broadcast=down,
        chunk_bytes=chunk_bytes,
    )
