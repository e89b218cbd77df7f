"""Plans for ranks that share sites: a plan between sites, whose shards are cut into lanes that the ranks of a site own.

Planners see sites. What they plan between sites is then spread over ranks. Every shard is cut into up to as many parts,
its lanes, as the largest site has ranks. At each site one rank owns a lane: it adds up what the other ranks of its site
contribute, takes the site's place in the shard's trees, and passes the result on to the other ranks. So a site's ranks
send at the same time, each a part of what the site sends, and every byte crosses between two sites as often as the plan
between sites says. Within a site that is a reduce-scatter before and an all-gather after the exchange, chunk by chunk.

The number of lanes is the same at every site. A site with fewer ranks owns several lanes a rank, so that sites of 8, 4
and 1 ranks need nothing else. Owners change from shard to shard, which balances shards that are too small to be cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tradewind.network import Network
from tradewind.planning.plan import Plan, Route, Shard

LEAST_LANE_BYTES = 256 * 1024
"""A lane has at least this many bytes: smaller ones cost frames and gain nothing."""

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
    if len(sites) < len(members) and not all(shard.broadcast for shard in made.shards):
        return plan(network, members, dict(options))
    return spread(made, network, members)


def _as_sites(value: object, network: Network) -> object:
    """An option's value with the sites of the ranks that it names."""
    if isinstance(value, str) and value in network.index:
        return network.places[network.index[value]]
    if isinstance(value, tuple | list):
        return type(value)(dict.fromkeys(_as_sites(item, network) for item in value))
    return value


def spread(plan: Plan, network: Network, members: Sequence[str]) -> Plan:
    """A plan between sites as a plan among their ranks; `network` has a row for each rank.

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
    lanes = max(len(here[site]) for site in plan.members)
    shards: list[Shard] = []
    for number, shard in enumerate(plan.shards):
        parts = max(1, min(lanes, int(shard.fraction * plan.nbytes) // LEAST_LANE_BYTES))
        for part in range(parts):
            owner = {site: ranks[(number + part) % len(ranks)] for site, ranks in here.items()}
            shards.append(_lane(shard, parts, owner, [(owner[site], here[site]) for site in plan.members]))
    return replace(plan, members=tuple(members), shards=tuple(shards))


def _lane(shard: Shard, parts: int, owner: Mapping[str, str], groups: Sequence[tuple[str, Sequence[str]]]) -> Shard:
    """One of `parts` equal parts of a shard, on the ranks that own it, each with the other ranks of its site."""
    others = [(own, name) for own, names in groups for name in names if name != own]

    def between(tree: tuple[Route, ...]) -> tuple[Route, ...]:
        return tuple(tuple(owner[site] for site in route) for route in tree)

    return replace(
        shard,
        fraction=shard.fraction / parts,
        root=owner[shard.root],
        reduce=(*between(shard.reduce), *((name, own) for own, name in others)),
        broadcast=(*between(shard.broadcast), *others) if shard.broadcast else (),
        rate_bps=None if shard.rate_bps is None else shard.rate_bps / parts,
    )
