"""Plans of other collectives from all-reduce plans: halves of their shards.

**Broadcast.** Each shard's two trees are merged into one that starts at the source. The source's items go up the reduce
tree to the root as a sum would; sites on that path have them and need no result from above, so the routes of the
broadcast tree to those sites are left out. Every other site keeps its one route of the broadcast tree, and following
routes back from any site leads to a site on the path, and so to the source: a tree on the links that the planner chose,
in which every site receives every item once.

**All-gather.** Where every member is the root of an equal share, as in a ring or with a star for each member, the
broadcast trees are those of an all-gather. Elsewhere each member's part is broadcast by all trees, in proportion.

**Reduce** and **reduce-scatter** are the same on the plan with all trees turned around, and turned back.

**Gather**, **scatter** and **all-to-all** have no trees: each part takes the direct link, or the route of least
latency. So do all collectives of plans without broadcast trees, in which every member sums for itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tradewind.errors import BadPlan
from tradewind.network import Network
from tradewind.planning.collective import Collective, demands_of
from tradewind.planning.plan import Plan, Route, Shard, default_chunk_bytes
from tradewind.planning.routes import Routes

_EQUAL = 1e-9


def derive_plan(plan: Plan, collective: Collective, network: Network) -> Plan:
    """The plan of a collective on the trees of a valid all-reduce plan, or on direct routes where these do not fit."""
    if collective.is_routed or not plan.is_summed_at_roots:
        return direct_plan(plan, collective, network)
    if collective.is_mirrored:
        turned = replace(plan, shards=tuple(_turned(shard) for shard in plan.shards))
        return mirror_plan(derive_plan(turned, collective.mirror, network.reversed()), collective)
    if collective.kind == "broadcast":
        return plan_broadcast(plan, collective.root)
    return _all_gather(plan)


def direct_plan(plan: Plan, collective: Collective, network: Network) -> Plan:
    """The plan in which every source sends its share to each target on its own route."""
    if collective.is_mirrored:
        return mirror_plan(direct_plan(plan, collective.mirror, network.reversed()), collective)
    routes = Routes(network)
    shards = tuple(
        Shard(
            demand.share,
            demand.source,
            (),
            tuple(routes.route(demand.source, target) for target in demand.targets),
            default_chunk_bytes(demand.share * plan.nbytes),
        )
        for demand in demands_of(collective, plan.members)
    )
    return _derived(plan, collective, shards)


def plan_broadcast(plan: Plan, source: str) -> Plan:
    """The plan that broadcasts the source's array to every member; `plan` is valid and has broadcast trees.

    >>> shard = Shard(1.0, "a", (("b", "a"), ("c", "a")), (("a", "b"), ("a", "c")), 65536)
    >>> plan_broadcast(Plan("star", "mesh", ("a", "b", "c"), 100, (shard,)), "b").shards[0].broadcast
    (('b', 'a'), ('a', 'c'))
    """
    if source not in plan.members:
        raise BadPlan(f"cannot broadcast from {source!r}, expected a member of the plan {plan.planner!r}.")
    members = frozenset(plan.members)
    shards = tuple(_from_source(shard, source, members) for shard in plan.shards)
    return _derived(plan, Collective("broadcast", source), shards)


def mirror_plan(plan: Plan, collective: Collective) -> Plan:
    """The plan of a `reduce` or `reduce-scatter` from that of its mirror: every broadcast tree turned around."""
    return replace(plan, shards=tuple(_turned(shard) for shard in plan.shards), collective=collective)


def _turned(shard: Shard) -> Shard:
    reduce, broadcast = (tuple(route[::-1] for route in tree) for tree in (shard.broadcast, shard.reduce))
    return replace(shard, reduce=reduce, broadcast=broadcast)


def _derived(plan: Plan, collective: Collective, shards: tuple[Shard, ...]) -> Plan:
    unrated = tuple(replace(shard, rate_bps=None) for shard in shards)
    return replace(plan, shards=unrated, predicted=None, proven_rate_bps=None, reason="", collective=collective)


def _all_gather(plan: Plan) -> Plan:
    owned = dict.fromkeys(plan.members, 0.0)
    for shard in plan.shards:
        owned[shard.root] = owned.get(shard.root, 0.0) + shard.fraction
    part = 1.0 / len(plan.members)
    if len(owned) == len(plan.members) and all(abs(share - part) < _EQUAL for share in owned.values()):
        shards = [replace(shard, reduce=()) for name in plan.members for shard in plan.shards if shard.root == name]
    else:
        shards = list(_by_all_trees(plan))
    return _derived(plan, Collective("all-gather"), tuple(shards))


def _by_all_trees(plan: Plan) -> Iterator[Shard]:
    """For each member the plan's trees from it; equal ones are one shard."""
    members = frozenset(plan.members)
    for name in plan.members:
        merged: dict[tuple[Route, ...], Shard] = {}
        for shard in plan.shards:
            found = _from_source(shard, name, members)
            tree = tuple(sorted(found.broadcast))
            fraction = found.fraction / len(members) + (merged[tree].fraction if tree in merged else 0.0)
            merged[tree] = replace(found, fraction=fraction, chunk_bytes=default_chunk_bytes(fraction * plan.nbytes))
        yield from merged.values()


def _from_source(shard: Shard, source: str, members: frozenset[str]) -> Shard:
    parent = {route[0]: route for route in shard.reduce}
    climbing: list[Route] = []
    while (at := climbing[-1][-1] if climbing else source) != shard.root:
        climbing.append(parent[at])
    has_it = {source, *(route[-1] for route in climbing)}
    routes = [*climbing, *(route for route in shard.broadcast if route[-1] not in has_it)]
    while idle := {route[-1] for route in routes} - {route[0] for route in routes} - members:
        routes = [route for route in routes if route[-1] not in idle]  # helpers that forward to no site any more
    return replace(shard, root=source, reduce=(), broadcast=tuple(routes))
