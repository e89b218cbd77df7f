"""Broadcast plans: one member's array is sent to all others, on the trees of an all-reduce plan.

Each shard's two trees are merged into one that starts at the source. The source's items go up the reduce tree to the
root as a sum would; sites on that path have them and need no result from above, so the routes of the broadcast tree to
those sites are left out. Every other site keeps its one route of the broadcast tree, and following routes back from any
site leads to a site on the path, and so to the source: a tree on the links that the planner chose, in which every site
receives every item once.
"""

from __future__ import annotations

from dataclasses import replace

from tradewind.errors import BadPlan
from tradewind.planning.plan import Plan, Route, Shard


def plan_broadcast(plan: Plan, source: str) -> Plan:
    """The plan that broadcasts the source's array to every member; `plan` is valid and has broadcast trees.

    >>> shard = Shard(1.0, "a", (("b", "a"), ("c", "a")), (("a", "b"), ("a", "c")), 65536)
    >>> plan_broadcast(Plan("star", "mesh", ("a", "b", "c"), 100, (shard,)), "b").shards[0].broadcast
    (('b', 'a'), ('a', 'c'))
    """
    if source not in plan.members:
        raise BadPlan(f"cannot broadcast from {source!r}, expected a member of the plan {plan.planner!r}.")
    shards = tuple(_from_source(shard, source, frozenset(plan.members)) for shard in plan.shards)
    return replace(plan, shards=shards, predicted=None)


def _from_source(shard: Shard, source: str, members: frozenset[str]) -> Shard:
    if not shard.broadcast:
        raise BadPlan(f"a shard of {shard.root!r} has no broadcast tree. Use a planner whose plans broadcast.")
    parent = {route[0]: route for route in shard.reduce}
    climbing: list[Route] = []
    while (at := climbing[-1][-1] if climbing else source) != shard.root:
        climbing.append(parent[at])
    has_it = {source, *(route[-1] for route in climbing)}
    routes = [*climbing, *(route for route in shard.broadcast if route[-1] not in has_it)]
    while idle := {route[-1] for route in routes} - {route[0] for route in routes} - members:
        routes = [route for route in routes if route[-1] not in idle]  # helpers that forward to no site any more
    return replace(shard, root=source, reduce=(), broadcast=tuple(routes))
