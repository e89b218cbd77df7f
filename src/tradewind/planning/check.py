"""Check whether a plan is valid on a network, and list every problem with its place.

A valid plan gives every member the sum of every element exactly once: each shard's reduce tree carries every member's
contribution to the root, its broadcast tree carries the root's result to every member, and the shards that reach a
member add up to the whole tensor. Every hop is a link that exists. Speed is not considered.

A plan of another collective (`collective`) serves its demands: the shards of each add up to its share, and each shard's
one tree or route joins the source with all its targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from tradewind.errors import BadPlan, UnknownName
from tradewind.network import Network
from tradewind.planning.collective import ALL_REDUCE, demand_key, demands_of
from tradewind.planning.hops import TreeEdges, flatten, tree_edges
from tradewind.planning.plan import Plan, Route, Shard

FRACTION_TOLERANCE = 1e-6
"""The largest error of the sum of fractions: well above the rounding error of thousands of shares."""

_SHOWN_AT_MOST = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a plan: its place and what is wrong."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def check(plan: Plan, network: Network) -> tuple[Problem, ...]:
    """All problems of the plan; empty if it is valid."""
    return tuple(_problems(plan, network))


def ensure_valid(plan: Plan, network: Network) -> Plan:
    """Return the plan if it is valid; raise `BadPlan` with the first problems otherwise."""
    problems = check(plan, network)
    if problems:
        more = f" (+{len(problems) - _SHOWN_AT_MOST} more)" if len(problems) > _SHOWN_AT_MOST else ""
        text = "; ".join(map(str, problems[:_SHOWN_AT_MOST]))
        raise BadPlan(f"plan {plan.planner!r} is not valid on network {network.name!r}: {text}{more}. Plan again.")
    return plan


def _problems(plan: Plan, network: Network) -> Iterator[Problem]:
    members = set(plan.members)
    if len(plan.members) < 2:
        yield Problem("members", f"a plan needs at least two members, this one has {len(plan.members)}")
    if len(members) != len(plan.members):
        yield Problem("members", "a member is named twice")
    for name in plan.members:
        if name not in network.index:
            yield Problem("members", f"{name!r} is not a site of {network.name!r}")
    if not plan.shards:
        yield Problem("shards", "a plan needs at least one shard")
    if plan.collective != ALL_REDUCE:
        yield from _demand_problems(plan, network)
        return
    trees_are_sound = _trees_are_sound(plan, members, network)
    for number, shard in enumerate(plan.shards):
        yield from _shard_problems(f"shard {number}", shard, members, network, trees_are_sound)
    yield from _coverage_problems(plan)


def _shard_problems(
    where: str, shard: Shard, members: set[str], network: Network, trees_are_sound: bool
) -> Iterator[Problem]:
    yield from _number_problems(where, shard)
    if shard.root not in network.index:
        yield Problem(where, f"root {shard.root!r} is not a site of {network.name!r}")
        return
    if not shard.broadcast and shard.root not in members:
        yield Problem(where, f"root {shard.root!r} is not a member and has no broadcast tree: its result is lost")
    if trees_are_sound:
        return
    yield from _tree_problems(f"{where} reduce", shard.reduce, shard.root, members, network)
    if shard.broadcast:
        towards_root = tuple(route[::-1] for route in shard.broadcast)
        yield from _tree_problems(f"{where} broadcast", towards_root, shard.root, members, network, reverse=True)


def _number_problems(where: str, shard: Shard) -> Iterator[Problem]:
    if not (math.isfinite(shard.fraction) and 0 < shard.fraction <= 1 + FRACTION_TOLERANCE):
        yield Problem(where, f"fraction {shard.fraction} is not in (0, 1]")
    if shard.chunk_bytes < 1:
        yield Problem(where, f"chunk_bytes {shard.chunk_bytes} is below 1")
    if shard.rate_bps is not None and not (math.isfinite(shard.rate_bps) and shard.rate_bps > 0):
        yield Problem(where, f"rate {shard.rate_bps} bit/s is not a finite number above zero")


def _demand_problems(plan: Plan, network: Network) -> Iterator[Problem]:
    """Problems of a plan of another collective than the all-reduce."""
    collective = plan.collective
    if collective.is_rooted and collective.root not in plan.members:
        yield Problem("collective", f"the root of {collective} is not a member")
        return
    wanted = {demand.key: demand for demand in demands_of(collective, plan.members)}
    served = dict.fromkeys(wanted, 0.0)
    for number, shard in enumerate(plan.shards):
        where = f"shard {number}"
        yield from _number_problems(where, shard)
        used, unused = ("reduce", "broadcast") if collective.is_mirrored else ("broadcast", "reduce")
        routes: tuple[Route, ...] = getattr(shard, used)
        if getattr(shard, unused) or not routes:
            yield Problem(where, f"a shard of {collective} has a {used} tree and no {unused} tree")
            continue
        demand = wanted.get(demand_key(collective, shard.root, routes[0][-1]))
        if demand is None:
            yield Problem(where, f"{shard.root!r} to {routes[0][-1]!r} serves no demand of {collective}")
            continue
        if collective.is_routed and len(routes) > 1:
            yield Problem(where, f"a shard of {collective} has one route, this one has {len(routes)}")
        served[demand.key] += shard.fraction
        upwards = routes if collective.is_mirrored else tuple(route[::-1] for route in routes)
        reverse = not collective.is_mirrored
        yield from _tree_problems(f"{where} {used}", upwards, shard.root, set(demand.targets), network, reverse)
    for key, demand in wanted.items():
        if abs(served[key] - demand.share) > FRACTION_TOLERANCE:
            whose = " to ".join(name for name in key if name)
            yield Problem("shards", f"the shards of {whose} add up to {served[key]:.9g}, not to {demand.share:.9g}")


def _tree_problems(
    where: str, routes: tuple[Route, ...], root: str, members: set[str], network: Network, reverse: bool = False
) -> Iterator[Problem]:
    """Problems of one tree, its routes written from child to parent."""
    parent: dict[str, str] = {}
    for route in routes:
        shown = "->".join(route[::-1] if reverse else route)
        if len(route) < 2:
            yield Problem(where, f"edge [{shown}] has fewer than two sites")
            continue
        yield from _route_problems(where, shown, route[::-1] if reverse else route, network)
        child = route[0]
        if child == root:
            yield Problem(where, f"edge {shown} gives the root {root!r} a parent")
        elif child in parent:
            yield Problem(where, f"{child!r} has two parents, {parent[child]!r} and {route[-1]!r}")
        else:
            parent[child] = route[-1]
    missing = sorted(members - parent.keys() - {root})
    if missing:
        yield Problem(where, "does not reach " + ", ".join(map(repr, missing)))
    reaches_root = {root}
    for start in parent:
        path: list[str] = []
        site = start
        while site not in reaches_root and site in parent and len(path) <= len(parent):
            path.append(site)
            site = parent[site]
        if site in reaches_root:
            reaches_root.update(path)
        elif site not in parent:
            yield Problem(where, f"{start!r} ends at {site!r}, which is not connected to the root {root!r}")
            return
        else:
            yield Problem(where, f"{start!r} runs in a cycle and never reaches the root {root!r}")
            return
    needed = set(parent.values())
    for helper in sorted(parent.keys() - members - needed):
        yield Problem(where, f"helper {helper!r} is a leaf: it carries nothing and must be removed")


def _trees_are_sound(plan: Plan, members: set[str], network: Network) -> bool:
    """Whether `_tree_problems` would find none in any tree: all of them at once, as arrays.

    A ring of 80 has 12,800 routes, and a controller plans while it serves every rank.
    """
    index = network.index
    routes = list(chain.from_iterable(tree for shard in plan.shards for tree in (shard.reduce, shard.broadcast)))
    if not routes or not index.keys() >= members.union(shard.root for shard in plan.shards):
        return False
    lengths = set(map(len, routes))
    if min(lengths) < 2 or (lengths != {2} and any(len(set(route)) < len(route) for route in set(routes))):
        return False  # a route of two sites that visits a site twice is not a link
    try:
        hops = flatten(plan, network)
    except UnknownName:
        return False
    if not network.bandwidth_bps[hops.src, hops.dst].all():
        return False
    root = np.array([index[shard.root] for shard in plan.shards])
    is_member = np.zeros(len(network), dtype=bool)
    is_member[[index[name] for name in members]] = True
    to_all = np.array([bool(shard.broadcast) for shard in plan.shards])
    return _is_forest(tree_edges(hops, False, len(root), len(network)), root, is_member, np.ones_like(to_all)) and (
        _is_forest(tree_edges(hops, True, len(root), len(network)), root, is_member, to_all)
    )


def _is_forest(
    edges: TreeEdges, root: npt.NDArray[np.int64], is_member: npt.NDArray[np.bool_], needed: npt.NDArray[np.bool_]
) -> bool:
    """Whether the edges of each shard form a tree that joins its root and all members, where one is needed."""
    sites, none = len(is_member), len(edges)
    has_parent = np.bincount(edges.shard * sites + edges.child, minlength=len(root) * sites)
    if has_parent.max() > 1:
        return False
    reached = np.bincount(edges.shard[is_member[edges.child]], minlength=len(root))
    if (reached != is_member.sum() - is_member[root])[needed].any():
        return False
    ends = edges.next[:-1] == none
    if (edges.parent[ends] != root[edges.shard[ends]]).any():
        return False
    is_leaf = np.ones(none + 1, dtype=bool)
    is_leaf[edges.next] = False
    if (is_leaf[:-1] & ~is_member[edges.child]).any():
        return False
    towards = edges.next
    for _ in range(
        sites.bit_length()
    ):  # pointer jumping: this many steps reach the root of any tree, but never leave a cycle
        towards = towards[towards]
    return bool((towards == none).all())


def _route_problems(where: str, shown: str, route: Route, network: Network) -> Iterator[Problem]:
    if len(set(route)) != len(route):
        yield Problem(where, f"edge {shown} visits a site twice")
        return
    for site in route:
        if site not in network.index:
            yield Problem(where, f"edge {shown} names {site!r}, which is not a site of {network.name!r}")
            return
    for src, dst in pairwise(route):
        if not network.bandwidth_bps[network.index[src], network.index[dst]]:
            yield Problem(where, f"edge {shown} needs a link {src}->{dst}, which {network.name!r} does not have")


def _coverage_problems(plan: Plan) -> Iterator[Problem]:
    """Every member must receive every element exactly once."""
    to_all = [shard.fraction for shard in plan.shards if shard.broadcast]
    to_root = [shard for shard in plan.shards if not shard.broadcast]
    if to_all and to_root:
        yield Problem("shards", "some shards broadcast and some do not: expected all or none")
        return
    if to_all and abs(sum(to_all) - 1) > FRACTION_TOLERANCE:
        yield Problem("shards", f"the fractions add up to {sum(to_all):.9g}, not to 1")
    if to_root:
        received = dict.fromkeys(plan.members, 0.0)
        for shard in to_root:
            received[shard.root] = received.get(shard.root, 0.0) + shard.fraction
        for member in plan.members:
            if abs(received[member] - 1) > FRACTION_TOLERANCE:
                yield Problem("shards", f"{member!r} receives {received[member]:.9g} of the tensor, not all of it")
