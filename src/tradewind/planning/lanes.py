"""Plans for ranks that share sites: a plan between sites, whose shards are cut into lanes that the ranks of a site own.

Planners see sites. What they plan between sites is then spread over ranks. Every shard is cut into up to as many parts,
its lanes, as the largest site has ranks. At each site one rank owns a lane: it adds up what the other ranks of its site
contribute, takes the site's place in the shard's trees, and passes the result on to the other ranks. So a site's ranks
send at the same time, each a part of what the site sends, and every byte crosses between two sites as often as the plan
between sites says. Within a site that is a reduce-scatter before and an all-gather after the exchange, chunk by chunk.

The number of lanes is the same at every site. A site with fewer ranks owns several lanes a rank, so that sites of 8, 4
and 1 ranks need nothing else. Owners change from shard to shard, which balances shards that are too small to be cut.

Where a site has machines with NICs of their own, the ranks of each machine add up first, so that a lane crosses between
two machines once each way. Machines own lanes in proportion to what their NICs carry.

Two ranks may have lost their link while other ranks of the same sites still reach each other. A lane that would need it
gets other owners. If there are none, the planner plans among the ranks themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tradewind.network import Network
from tradewind.planning.plan import Plan, Route, Shard

LEAST_LANE_BYTES = 256 * 1024
"""A lane has at least this many bytes: smaller ones cost frames and gain nothing."""

_CLOSE = 1e-9
"""Two machines whose NICs end within this share of each other count as equal: the first one is taken."""

Floats = npt.NDArray[np.float64]
PlanSites = Callable[[Network, tuple[str, ...], dict[str, object]], Plan]
"""Plans between these members of a network, with these options."""


def plan_lanes(plan: PlanSites, network: Network, members: tuple[str, ...], options: Mapping[str, object]) -> Plan:
    """The plan of a planner among ranks: made between their sites, and spread over them.

    Options may name ranks, such as `root`; the planner gets the names of their sites. Ranks of a single site, and plans
    in which every member sums for itself, are planned as they are.
    """
    sites = network.sites_of(members)
    if len(sites) < 2 or not any(site.place for site in network.sites):
        return plan(network, members, dict(options))
    made = plan(network.sites_only(), sites, {name: _as_sites(value, network) for name, value in options.items()})
    if len(sites) < len(members) and not made.is_summed_at_roots:
        return plan(network, members, dict(options))
    found = spread(made, network, members)
    return found if all(_is_linked(shard, network) for shard in found.shards) else plan(network, members, dict(options))


def _as_sites(value: object, network: Network) -> object:
    """An option's value with the sites of the ranks that it names."""
    if isinstance(value, str) and value in network.index:
        return network.places[network.index[value]]
    if isinstance(value, tuple | list):
        return type(value)(dict.fromkeys(_as_sites(item, network) for item in value))
    return value


def spread(plan: Plan, network: Network, members: Sequence[str]) -> Plan:
    """A plan between sites as a plan among their ranks; `network` has a row for each rank.

    Where ranks have lost links, lanes get owners that reach each other. A lane that finds none needs links that are
    lost.

    >>> from tradewind.network import Site
    >>> two = Network("two", [Site("a", ranks=2), Site("b")], [[0, 1e8], [1e8, 0]]).with_ranks()
    >>> star = Plan("star", "two", ("a", "b"), 2**20, (Shard(1.0, "a", (("b", "a"),), (("a", "b"),), 65536),))
    >>> [(shard.root, shard.reduce) for shard in spread(star, two, two.names).shards]
    [('a/0', (('b', 'a/0'), ('a/1', 'a/0'))), ('a/1', (('b', 'a/1'), ('a/0', 'a/1')))]
    """
    here: dict[str, list[str]] = {}
    for name in members:
        here.setdefault(network.places[network.index[name]], []).append(name)
    for name, place in zip(network.names, network.places, strict=True):
        if place not in plan.members:
            here.setdefault(place, []).append(name)
    most = max(len(here[site]) for site in plan.members)
    counts = [max(1, min(most, int(shard.fraction * plan.nbytes) // LEAST_LANE_BYTES)) for shard in plan.shards]
    lanes = [_Lane(number, part, parts) for number, parts in enumerate(counts) for part in range(parts)]
    owners: dict[str, list[str]] = {}
    for site, ranks in here.items():
        rows = [network.index[name] for name in ranks]
        is_capped = np.isfinite(network.machine_egress_bps[rows]) | np.isfinite(network.machine_ingress_bps[rows])
        if is_capped.any():
            owners[site] = _owners_by_nic(plan, network, site, ranks, lanes)
        else:
            owners[site] = [ranks[(lane.shard + lane.part) % len(ranks)] for lane in lanes]
    sites, shards = _Sites(plan, network, here), []
    for position, lane in enumerate(lanes):
        owner = {site: owned[position] for site, owned in owners.items()}
        cut = _cut(sites, lane, owner)
        if not _is_linked(cut, network):
            cut = _cut(sites, lane, _linked_owners(sites, lane, owner) or owner)
        shards.append(cut)
    return replace(plan, members=tuple(members), shards=tuple(shards))


class _Sites(NamedTuple):
    """A plan between sites, the network of their ranks, and the ranks of each site that may own a lane."""

    plan: Plan
    network: Network
    ranks: Mapping[str, Sequence[str]]

    def within(self, site: str, own: str, lane: _Lane) -> list[tuple[str, str]]:
        """The edges of a lane within a site, from parent to child."""
        return _within(self.network, self.ranks[site], own, lane) if site in self.plan.members else []


class _Lane(NamedTuple):
    """One of `parts` equal parts of a shard."""

    shard: int
    part: int
    parts: int


def _by_machine(network: Network, ranks: Sequence[str]) -> dict[int, list[str]]:
    """These ranks of a site by their machines; all of them together where it has none."""
    found: dict[int, list[str]] = {}
    for name in ranks:
        found.setdefault(int(network.machine_row[network.index[name]]), []).append(name)
    return found


def _within(network: Network, ranks: Sequence[str], own: str, lane: _Lane) -> list[tuple[str, str]]:
    """The edges of a lane within a site, from parent to child: machine by machine, and then to its owner."""
    edges = []
    for names in _by_machine(network, ranks).values():
        head = own if own in names else names[(lane.shard + lane.part) % len(names)]
        edges += [(head, name) for name in names if name != head]
        edges += [(own, head)] if head != own else []
    return edges


def _owners_by_nic(plan: Plan, network: Network, site: str, ranks: Sequence[str], lanes: Sequence[_Lane]) -> list[str]:
    """For each lane the rank of a site that owns it, so that the NICs of its machines end at the same time.

    Lanes are given away one by one, the largest first, each to the machine with which the busiest NIC of the site ends
    soonest, and there to the rank that owns least. A lane costs its owner's machine what its tree sends and receives at
    this site, and a copy each way for every other machine.
    """
    machines = _by_machine(network, ranks)
    rows = list(machines)
    caps_bps = np.stack([network.machine_egress_bps[rows], network.machine_ingress_bps[rows]])
    own, other = _copies(plan, site, len(rows) if site in plan.members else 1)
    sizes = np.array([plan.shards[lane.shard].fraction / lane.parts for lane in lanes])
    load = np.zeros_like(caps_bps)
    owned = dict.fromkeys(ranks, 0.0)
    found = [""] * len(lanes)
    for position in np.argsort(-sizes, kind="stable").tolist():
        size, number = float(sizes[position]), lanes[position].shard
        chosen, least, after = 0, np.inf, load
        for k in range(len(rows)):
            more = np.full_like(load, other[number] * size)
            more[:, k] = own[number] * size
            busiest = float(((load + more) / caps_bps).max())
            if busiest < least * (1 - _CLOSE):
                chosen, least, after = k, busiest, load + more
        load = after
        name = min(machines[rows[chosen]], key=lambda rank: (owned[rank], ranks.index(rank)))
        owned[name] += size
        found[position] = name
    return found


def _copies(plan: Plan, site: str, machines: int) -> tuple[list[Floats], list[float]]:
    """For each shard, how often its lanes cross the NIC, out and in, of the owner's machine; and of other machines."""
    own: list[Floats] = []
    other: list[float] = []
    for shard in plan.shards:
        hops = [hop for route in (*shard.reduce, *shard.broadcast) for hop in pairwise(route)]
        ways = [float(bool(tree)) * (machines - 1) for tree in (shard.broadcast, shard.reduce)]
        out_in = [sum(hop[end] == site for hop in hops) + ways[end] for end in (0, 1)]
        own.append(np.array(out_in, dtype=np.float64))
        other.append(1.0 if machines > 1 else 0.0)
    return own, other


def _cut(sites: _Sites, lane: _Lane, owner: Mapping[str, str]) -> Shard:
    """A lane: a part of a shard, on the ranks that own it, with the edges within sites."""
    shard = sites.plan.shards[lane.shard]
    local = [edge for site in sites.plan.members for edge in sites.within(site, owner[site], lane)]

    def between(tree: tuple[Route, ...]) -> tuple[Route, ...]:
        return tuple(tuple(owner[site] for site in route) for route in tree)

    return replace(
        shard,
        fraction=shard.fraction / lane.parts,
        root=owner[shard.root],
        reduce=(*between(shard.reduce), *((child, parent) for parent, child in local)),
        broadcast=(*between(shard.broadcast), *local) if shard.broadcast else (),
        rate_bps=None if shard.rate_bps is None else shard.rate_bps / lane.parts,
    )


def _is_linked(shard: Shard, network: Network) -> bool:
    """Whether there is a link for every hop."""
    return all(_has_link(network, *hop) for route in (*shard.reduce, *shard.broadcast) for hop in pairwise(route))


def _has_link(network: Network, src: str, dst: str) -> bool:
    return bool(network.bandwidth_bps[network.index[src], network.index[dst]] > 0)


def _linked_owners(sites: _Sites, lane: _Lane, owner: Mapping[str, str]) -> dict[str, str] | None:
    """Owners of a lane that reach each other and the ranks of their sites, as far as possible those given; or None.

    Sites choose in the order in which a search from the root reaches them, each the next of its ranks that reaches the
    owners before it. No choice is taken back: links are lost one by one, and what is then missing is planned anew.
    """
    shard = sites.plan.shards[lane.shard]
    hops = {hop for route in (*shard.reduce, *shard.broadcast) for hop in pairwise(route)}
    chosen: dict[str, str] = {}

    def suits(site: str, name: str) -> bool:
        local = sites.within(site, name, lane)
        to = [chosen[b] for a, b in hops if a == site and b in chosen]
        by = [chosen[a] for a, b in hops if b == site and a in chosen]
        needed = [*local, *(edge[::-1] for edge in local), *((name, b) for b in to), *((a, name) for a in by)]
        return all(_has_link(sites.network, *hop) for hop in needed)

    queue = [shard.root]
    for site in queue:  # grows as sites are reached
        ranks = sites.ranks[site]
        first = ranks.index(owner[site])
        found = next((name for name in (*ranks[first:], *ranks[:first]) if suits(site, name)), None)
        if found is None:
            return None
        chosen[site] = found
        near = {b if a == site else a for a, b in hops if site in (a, b)}
        queue += sorted(near - set(queue))
    return chosen
