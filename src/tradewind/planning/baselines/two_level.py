"""Two-level trees: within a group to its leader, between the leaders, and back.

Where groups are well connected inside and poorly between each other, only one copy of the tensor a group crosses
the slow part. `hierarchical` and `plink` differ in how they find the groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tradewind.planning.baselines.ring import auto_order, ring_trees
from tradewind.planning.baselines.star import best_connected_first, star_parents
from tradewind.planning.plan import Plan
from tradewind.planning.routes import Routes, tree_shard
from tradewind.units import format_count

Inter = Literal["ring", "star"]
"""How the leaders all-reduce: a ring with one shard a leader, or a star on the best connected of them."""

_LEADERS_SHOWN = 10


def plan_two_level(
    planner: str,
    routes: Routes,
    members: tuple[str, ...],
    nbytes: int,
    groups: Sequence[Sequence[str]],
    inter: Inter,
) -> Plan:
    """Members reduce to their group's leader, leaders all-reduce among themselves, leaders broadcast.

    A leader is the member of its group with the largest average bandwidth to all members: members of a group differ
    mostly in their bandwidth to the other groups, where the tensor has to go. One group is a star, and groups of one
    member each are a flat ring or star.
    """
    ranked = best_connected_first(routes, members)
    leaders = [min(group, key=ranked.index) for group in groups]
    inside: dict[str, str] = {}
    for leader, group in zip(leaders, groups, strict=True):
        inside |= star_parents(leader, group)
    if inter == "ring" and len(leaders) > 1:
        trees = list(ring_trees(auto_order(routes, leaders)))
    else:
        root = min(leaders, key=ranked.index)
        trees = [(root, star_parents(root, leaders), star_parents(root, leaders))]
    shards = tuple(
        tree_shard(routes, nbytes, 1 / len(trees), root, inside | up, inside | down) for root, up, down in trees
    )
    shown = ", ".join(leaders[:_LEADERS_SHOWN]) + (", ..." if len(leaders) > _LEADERS_SHOWN else "")
    reason = f"{len(groups)} groups, led by {shown}" if len(groups) > 1 else f"one group, led by {shown}"
    return Plan(planner, routes.network.name, members, nbytes, shards, reason=reason)


def plan_sliced(
    planner: str, routes: Routes, members: tuple[str, ...], nbytes: int, groups: Sequence[Sequence[str]]
) -> Plan:
    """As `plan_two_level`, with each member of a group leading a slice, so that no leader's NIC is the bottleneck.

    Slice k is summed along the ring of each group up to its k-th member; those members all-reduce it on a ring of their
    own, and the result runs around the groups again (BlueConnect). In groups of fewer members some lead several slices.
    """
    slices = max(len(group) for group in groups)
    shards = []
    for k in range(slices):
        leaders = [group[k % len(group)] for group in groups]
        up: dict[str, str] = {}
        down: dict[str, str] = {}
        for leader, group in zip(leaders, groups, strict=True):
            turn = k % len(group)
            after = [*group[turn + 1 :], *group[:turn]]
            for place, name in enumerate(after):
                up[name] = after[place + 1] if place + 1 < len(after) else leader
                down[name] = after[place - 1] if place else leader
        trees = list(ring_trees(leaders)) if len(leaders) > 1 else [(leaders[0], {}, {})]
        shards += [
            tree_shard(routes, nbytes, 1 / (slices * len(trees)), root, up | between, down | back)
            for root, between, back in trees
        ]
    reason = f"{format_count(len(groups), 'group')}, {format_count(slices, 'slice')}, each with a leader in every group"
    return Plan(planner, routes.network.name, members, nbytes, tuple(shards), reason=reason)
