"""Patch a plan after sites or links are lost: same shards, fractions and chunks, other trees.

A round may be almost complete when a site or link is lost. A new plan would discard that work, because other shards
mean other chunks. A patched plan cuts the tensor as before, so that final chunks stay final, and changes only the trees
that the loss affects:

- a lost rank of a site that has others is replaced by one of them;
- lost sites are removed, with those that members cannot reach or be reached by, and helpers without work;
- a site that lost its parent is attached, with its subtree, to the best remaining parent: the one that would need the
  least time for its children, this one included;
- a removed root is replaced by CREW's rule (Eq. (3), with the candidate's load), which requires live links to and from
  all members; where no site has those, by the site whose slowest route to a member is fastest;
- an edge whose link is lost is routed over other sites where that is the best route left.

That is `reroute`, the default. By `replace`, as CREW IV-B answers a lost link, an aggregator that has lost its link to
or from a member is replaced like a lost one, for its block: by the site that Eq. (3) chooses among those with live
links to and from all members. Nothing is relayed, and where no site qualifies there is no plan.

All choices follow the network's order of sites, so that the same loss gives the same plan.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from tradewind.errors import InfeasiblePlan
from tradewind.network import Matrix, Network
from tradewind.planning.collective import ALL_REDUCE
from tradewind.planning.flows.splitting import replacement
from tradewind.planning.plan import Plan, Route, Shard
from tradewind.planning.routes import Routes

Failover = Literal["reroute", "replace"]
"""After a lost link: send over other links to the same root, or replace the root (CREW IV-B)."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A patched plan, and for each of its shards the index of that shard in the old plan.

    All shards remain, in order, except in plans in which each member sums for itself: the shards of lost members go.
    """

    plan: Plan
    shards: tuple[int, ...]


def patch_plan(plan: Plan, network: Network, failover: Failover = "reroute") -> Patch:
    """Patch the plan for `network`, which has only the sites and links that work; raises `InfeasiblePlan`.

    `failover` concerns stars, each block of which goes directly to its root; other trees are always rerouted.

    Mechanism: CREW IV-B, a round goes on with the replacement of a lost aggregator
    """
    members = tuple(name for name in plan.members if name in network.index)
    for name in plan.members:
        if name not in network.index and plan.collective.needs(name):
            raise InfeasiblePlan(f"{plan.collective.kind} cannot go on without {name!r}, which is lost.")
    if len(members) < 2:
        left = f"only {members[0]!r} is left" if members else "none is left"
        raise InfeasiblePlan(f"plan {plan.planner!r} cannot be patched: of its members {left}.")
    network = _connected_part(network, members)
    routes = Routes(network)
    plan = _with_stand_ins(plan, network)
    work = _Patching(network, routes, routes.bandwidth_bps(), members, _loads(plan, network))
    kept = tuple(n for n, shard in enumerate(plan.shards) if shard.broadcast or shard.root in network.index)
    if plan.collective != ALL_REDUCE:
        failover = "reroute"  # its roots are the owners of parts
    if plan.collective.is_routed:
        shards = tuple(_with_route(plan.shards[n], work) for n in kept)
    else:
        shards = tuple(
            work.replace_root(shard) if failover == "replace" and _is_star(shard) else work.patch(shard)
            for shard in map(plan.shards.__getitem__, kept)
        )
    patched = replace(
        plan, members=members, shards=shards, predicted=None, proven_rate_bps=None, reason="patched after a loss"
    )
    return Patch(patched, kept)


def _with_stand_ins(plan: Plan, network: Network) -> Plan:
    """The plan with another rank of the same site in the place of each lost rank, where the site has one left.

    So the trees between sites stay as they are, and with them what crosses between sites. A rank of the same machine is
    preferred, so that no more crosses between machines either.
    """
    if not any(site.place for site in network.sites):
        return plan
    here: dict[str, list[str]] = {}
    for name, place in zip(network.names, network.places, strict=True):
        here.setdefault(place, []).append(name)

    def left(name: str) -> list[str]:
        ranks = here[str(network.site_of(name))]
        machine = network.machine_named(name)
        return [rank for rank in ranks if network.machines[network.index[rank]] == machine] or ranks

    lost = {name: left(name) for name in plan.sites if network.site_of(name) and name not in network.index}
    shards = tuple(
        _renamed(shard, {name: ranks[number % len(ranks)] for name, ranks in lost.items()})
        if shard.broadcast
        else shard
        for number, shard in enumerate(plan.shards)
    )
    return replace(plan, shards=shards) if lost else plan


def _renamed(shard: Shard, stand_in: dict[str, str]) -> Shard:
    """The shard with lost ranks replaced; a stand-in takes the edge of the lost rank instead of its own."""

    def renamed(tree: tuple[Route, ...], child: int) -> tuple[Route, ...]:
        by_child: dict[str, Route] = {}
        for route in sorted(tree, key=lambda route: route[child] not in stand_in):
            new = tuple(stand_in.get(name, name) for name in route)
            if len(set(new)) == len(new):
                by_child.setdefault(new[child], new)
        return tuple(by_child.values())

    root = stand_in.get(shard.root, shard.root)
    return replace(shard, root=root, reduce=renamed(shard.reduce, 0), broadcast=renamed(shard.broadcast, -1))


def _connected_part(network: Network, members: tuple[str, ...]) -> Network:
    """The sites that the members reach and that reach them; raises `InfeasiblePlan` if that excludes a member."""
    label = network.strong_component
    connected = [name for name in network.names if label[network.index[name]] == label[network.index[members[0]]]]
    for name in members:
        if name not in connected:
            raise InfeasiblePlan(f"{name!r} has no route left to or from {members[0]!r} in {network.name!r}.")
    return network if len(connected) == len(network) else network.subnetwork(connected)


def _loads(plan: Plan, network: Network) -> dict[str, float]:
    """The share of the tensor that each remaining site sums as a root (l_k)."""
    loads = dict.fromkeys(network.names, 0.0)
    for shard in plan.shards:
        if shard.root in loads:
            loads[shard.root] += shard.fraction
    return loads


@dataclass(frozen=True, slots=True)
class _Patching:
    network: Network
    routes: Routes
    rate_bps: Matrix
    """The rate between each pair of sites, on the route that a transfer would take."""
    members: tuple[str, ...]
    loads: dict[str, float]

    def patch(self, shard: Shard) -> Shard:
        root = shard.root if shard.root in self.network.index else self._new_root(shard.fraction)
        reduce = self._patch_tree(root, shard.reduce, self.rate_bps) if shard.reduce else ()
        broadcast: tuple[Route, ...] = ()
        if shard.broadcast:
            upwards = tuple(route[::-1] for route in shard.broadcast)
            broadcast = tuple(route[::-1] for route in self._patch_tree(root, upwards, self.rate_bps.T))
        return replace(shard, root=root, reduce=reduce, broadcast=broadcast, rate_bps=None)

    def replace_root(self, shard: Shard) -> Shard:
        """Keep the star, or move it to the root that Eq. (3) chooses; raises `InfeasiblePlan` if there is none.

        Mechanism: CREW IV-B Eq. (3), a lost link moves a block to another aggregator
        """
        members, root = self.members, shard.root
        if root not in self.network.index or not self._is_linked(root):
            self.loads[root] = self.loads.get(root, 0.0) - shard.fraction
            chosen = replacement(self.network, members, (), shard.fraction, self.loads)
            if chosen is None:
                raise InfeasiblePlan(
                    f"no site has live links to and from all {len(members)} members, which a replacement of {root!r} "
                    "needs (CREW's Eq. 3): the round is abandoned."
                )
            self.loads[chosen] += shard.fraction
            root = chosen
        others = [name for name in members if name != root]
        broadcast = tuple((root, name) for name in others) if shard.broadcast else ()
        reduce = tuple((name, root) for name in others)
        return replace(shard, root=root, reduce=reduce, broadcast=broadcast, rate_bps=None)

    def _is_linked(self, root: str) -> bool:
        """Whether a site has working links to and from all members."""
        index, bandwidth_bps = self.network.index, self.network.bandwidth_bps
        here = index[root]
        rows = [index[name] for name in self.members if name != root]
        return bool((bandwidth_bps[rows, here] > 0).all() and (bandwidth_bps[here, rows] > 0).all())

    def _new_root(self, fraction: float) -> str:
        chosen = replacement(self.network, self.members, (), fraction, self.loads)
        if chosen is None:
            rows = np.array([self.network.index[name] for name in self.members])
            both_ways = np.minimum(self.rate_bps[rows], self.rate_bps.T[rows])
            both_ways[np.arange(len(rows)), rows] = np.inf
            chosen = self.network.names[int(both_ways.min(axis=0).argmax())]
        self.loads[chosen] += fraction
        return chosen

    def _patch_tree(self, root: str, upwards: tuple[Route, ...], rate_bps: Matrix) -> tuple[Route, ...]:
        """Patch a tree whose routes lead from child to parent; `rate_bps` is the rate from child (row) to parent
        (column).
        """
        reverse = rate_bps is not self.rate_bps
        edges = {r[0]: r for r in upwards if r[0] != root and self.is_whole(r, reverse)}
        for name in self.members:
            if name != root and name not in edges:
                edges[name] = ()
        self._prune(edges, upwards, root)
        attached = _below(root, edges)
        busy = Counter(route[-1] for route in edges.values() if route)
        order = {name: place for place, name in enumerate(self.network.names)}
        tops = [name for name in edges if not edges[name]]
        tops += [r[-1] for r in edges.values() if r and r[-1] not in edges and r[-1] != root]
        for top in sorted(set(tops), key=order.__getitem__):
            parent = self._best_parent(top, attached, busy, rate_bps)
            edges[top] = self.routes.route(parent, top)[::-1] if reverse else self.routes.route(top, parent)
            busy[parent] += 1
            attached |= _below(top, edges)
        return tuple(edges.values())

    def is_whole(self, route: Route, reverse: bool) -> bool:
        """Whether all sites and links of a route work; `reverse`: it is written from its end."""
        index, bandwidth_bps = self.network.index, self.network.bandwidth_bps
        if any(site not in index for site in route):
            return False
        hops = pairwise(route[::-1] if reverse else route)
        return all(bandwidth_bps[index[src], index[dst]] > 0 for src, dst in hops)

    def _prune(self, edges: dict[str, Route], upwards: tuple[Route, ...], root: str) -> None:
        """Remove helpers below which no member is left."""
        needed = {root, *self.members}
        for name in self.members:
            seen = {name}
            while edges.get(name) and (name := edges[name][-1]) not in seen:
                seen.add(name)
                needed.add(name)
        for route in upwards:
            if route[0] not in needed:
                edges.pop(route[0], None)

    def _best_parent(self, top: str, attached: set[str], busy: Counter[str], rate_bps: Matrix) -> str:
        row, index = self.network.index[top], self.network.index
        candidates = [n for n in self.network.names if n in attached and rate_bps[row, index[n]] > 0]
        return min(candidates, key=lambda name: (busy[name] + 1) / rate_bps[row, index[name]])


def _with_route(shard: Shard, work: _Patching) -> Shard:
    """The shard with its one route, or another one where a site or link of that is lost."""
    (route,) = shard.broadcast
    if work.is_whole(route, reverse=False):
        return shard
    return replace(shard, broadcast=(work.routes.route(route[0], route[-1]),), rate_bps=None)


def _is_star(shard: Shard) -> bool:
    return all(len(route) == 2 and shard.root in route for route in (*shard.reduce, *shard.broadcast))


def _below(root: str, edges: dict[str, Route]) -> set[str]:
    """A site and all sites below it."""
    children: dict[str, list[str]] = {}
    for child, route in edges.items():
        if route:
            children.setdefault(route[-1], []).append(child)
    found, queue = {root}, [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found
