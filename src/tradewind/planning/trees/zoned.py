"""`zoned`: trees for hundreds to thousands of sites, laid in milliseconds each.

The packing program of `optimal` has a row for every link, and its cheapest trees take a dense matrix: beyond a hundred
sites that takes minutes. This planner lays a fixed number of trees of equal rate one after another, each cheap where a
capacity costs exponentially more the more it is filled (multiplicative weights). Three orders are tried, and the plan
with the shortest predicted time counts:

- **Zones first.** Inside a zone links are fast, between zones slow or far. First a low tree of the zones is planned
  over the links between them that are cheapest now; their ends are the gateways, which differ from tree to tree. Then
  the sites of each zone are connected with its gateways by shortest paths inside it. So a tree crosses between z
  zones only z - 1 times. Where zones are fast inside that costs no rate: the links between zones are then the limit
  of any plan. Zones are those of the sites, or found by a clear step in the speed or latency of links (`zones`).
- **All links at once**: a minimum spanning tree, which reaches the highest rate and is the highest tree, too.
- **Low trees**: shortest paths to a root, where a full link is as long as many hops. They lose some rate on networks
  without spare capacity, and fill ten times as fast.

Spanning trees start from the sum of the prices both ways. Where these differ, each site then takes the cheapest parent
that is not below it, separately for the tree towards the root and the one away from it. That need not be the cheapest
arborescence, which takes longer on 60 sites than this on 1,000.

Trees on a capacity that is overloaded in the end are reduced until they fit. Where that loses rate, a linear program
over these trees, which has one column a tree, finds their best rates. If these are more than `gap` below the limit,
more trees are laid. For small tensors there is also the one tree of least latency.
The limit is proven by the prices, or by single sites and zones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, dijkstra, minimum_spanning_tree

from tradewind.network import Network
from tradewind.planning import Clock, no_clock
from tradewind.planning.cost import cost
from tradewind.planning.fill import LEAST_CHUNK_BYTES
from tradewind.planning.host import FREE_HOST
from tradewind.planning.plan import Plan, default_chunk_bytes
from tradewind.planning.quick_bound import quick_bound_bps
from tradewind.planning.trees.arborescence import grown_tree
from tradewind.planning.trees.packing import Floats, Indices, dual_bound_bps
from tradewind.planning.trees.tree_sources import TreePair, link_capacities, participating, tree_shard, with_shares
from tradewind.planning.zones import zone_labels
from tradewind.units import format_count, format_rate

Order = Literal["quickest", "zones first", "all links", "low"]
Labels = npt.NDArray[np.int64]
Parents = npt.NDArray[np.int64]

_PRICE_RANGE = 600.0
"""The largest exponent between two prices; beyond, the cheaper one counts as free."""
_ZONE_HEIGHTS = (3.0, 6.0, np.inf)
"""The most hops from the zone of the root to any other, in trees that are laid zones first; the first that works."""
_ROOTS = 16
"""Sites that are roots of low trees in turn."""
_FULL_HOPS, _LOW_STEEPNESS, _LONGEST = 30.0, 32.0, 50.0
"""How many hops a full link is worth in low trees, and how steeply that grows."""
_SCARCE_HOPS = 10.0
"""How many hops a link of the site with the least capacity is longer."""
_WORTHWHILE = 1.0
"""The least gain, as the logarithm of a ratio of prices, for which a site changes its parent: less makes trees high."""
_HOPEFUL = 1.1
"""An order of laying trees that takes this many times as long as the best one is not tried with more trees."""
_FAR = 0.8
"""Below this share of the limit, four times as many trees are laid next instead of twice as many."""
_FITS = 0.98
"""Trees of equal rates that reach this share of the limit keep these rates; otherwise a program improves them."""
_CRUMB = 1e-4
"""Trees with less than this share of the rate are left out."""
_SMOOTHER = (1, 4, 16, 64)
"""Parts of the steepness of prices at which a bound is tried: steep prices see the fullest capacities only."""


@dataclass(frozen=True)
class ZonedOptions:
    """How many trees are laid, and when to stop."""

    trees: int = 64
    """Trees that are laid first; twice as many where these do not reach the limit."""
    max_trees: int = 512
    """The most trees; each has at least 16 KiB of the tensor."""
    gap: float = 0.04
    """Stop within this share of the limit."""
    time_limit_s: float = 10.0
    """Lay no more trees after this many seconds, where the caller has a clock."""

    def __post_init__(self) -> None:
        if not 1 <= self.trees <= self.max_trees:
            raise ValueError(f"trees must be in [1, max_trees], got trees {self.trees}, max_trees {self.max_trees}")
        if not 0 <= self.gap < 1:
            raise ValueError(f"gap must be in [0, 1), got {self.gap}")
        if not self.time_limit_s > 0:
            raise ValueError(f"time_limit_s must be > 0, got {self.time_limit_s}")


def plan_zoned(
    network: Network, members: tuple[str, ...], nbytes: int, options: ZonedOptions, clock: Clock = no_clock
) -> Plan:
    """Trees laid zone by zone, for hundreds to thousands of sites."""
    deadline_s = clock() + options.time_limit_s
    forest = _Forest(network, members)
    zones = zone_labels(network)
    limit_bps = quick_bound_bps(network, members, zones)
    orders: list[Order] = ["zones first", "all links", "low"] if zones.max() > 0 else ["all links", "low"]
    best: dict[Order, tuple[float, _Laid, Plan]] = {}

    def consider(laid: _Laid) -> bool:
        """Keep a plan of these trees if it is the quickest of its order."""
        plan = _plan(network, members, nbytes, forest, laid)
        seconds = cost(plan, network, host=FREE_HOST).seconds  # chunk sizes are chosen later
        is_quicker = laid.order not in best or seconds < best[laid.order][0]
        if is_quicker:
            best[laid.order] = (seconds, laid, plan)
        return is_quicker

    consider(forest.quickest(default_chunk_bytes(nbytes)))
    most = max(1, min(options.max_trees, nbytes // LEAST_CHUNK_BYTES))
    count = min(options.trees, most)
    while len(best) == 1 or (orders and count <= most and clock() <= deadline_s):
        for order in tuple(orders):
            laid = forest.lay(order, count, limit_bps, zones[forest.rows])
            limit_bps = min(limit_bps, laid.limit_bps)
            if not consider(laid):
                orders.remove(order)  # more trees of this kind do not help
        seconds, laid, plan = min(best.values(), key=lambda found: found[0])
        orders = [order for order in orders if best[order][0] <= _HOPEFUL * seconds]
        if laid.rate_bps >= limit_bps * (1 - options.gap):
            break
        count *= 4 if laid.rate_bps < _FAR * limit_bps else 2
    how = {"zones first": f"zones first ({zones.max() + 1} zones)", "all links": "across all links", "low": "low"}
    how["quickest"] = "for the least latency"
    reason = (
        f"{format_count(len(plan.shards), 'tree')}, laid {how[laid.order]}, carry {format_rate(laid.rate_bps)}, "
        f"{laid.rate_bps / limit_bps:.1%} of the limit of {format_rate(limit_bps)}"
    )
    return replace(plan, reason=reason, proven_rate_bps=limit_bps)


def _plan(network: Network, members: tuple[str, ...], nbytes: int, forest: _Forest, laid: _Laid) -> Plan:
    rates_bps: dict[bytes, float] = {}
    pairs: dict[bytes, TreePair] = {}
    for pair, rate_bps in zip(laid.pairs, laid.rates_bps.tolist(), strict=True):  # the same trees may be laid twice
        if not rate_bps:
            continue
        key = pair.up.tobytes() + pair.down.tobytes()
        pairs[key] = pair
        rates_bps[key] = rates_bps.get(key, 0.0) + rate_bps
    keys = sorted(pairs, key=lambda key: -rates_bps[key])
    shards = [tree_shard(forest.names, pairs[key], rates_bps[key]) for key in keys]
    return Plan("zoned", network.name, members, nbytes, tuple(with_shares(shards, nbytes)))


@dataclass(frozen=True)
class _Laid:
    """Pairs of trees, the rate of each, and the limit that the prices prove."""

    pairs: list[TreePair]
    rates_bps: Floats
    limit_bps: float
    order: Order

    @cached_property
    def rate_bps(self) -> float:
        return float(self.rates_bps.sum())


@dataclass(frozen=True)
class _Choices:
    """The links from which a site takes its parent, grouped by site: for trees towards a root, or away from it."""

    above: Indices
    below: Indices
    link: Indices
    first: Indices
    """Where the links of each site begin."""

    @classmethod
    def of(cls, above: Indices, below: Indices, sites: int) -> _Choices:
        order = np.lexsort((above, below))
        return cls(above[order], below[order], order, np.searchsorted(below[order], np.arange(sites)))


class _Forest:
    """The part of a network that trees may use, and the trees laid on it."""

    def __init__(self, network: Network, members: tuple[str, ...]) -> None:
        self.rows = participating(network, members)
        self.names = tuple(network.names[i] for i in self.rows)
        self.sites = len(self.rows)
        self.is_member = np.isin(self.rows, [network.index[name] for name in members])
        self.links = np.argwhere(network.bandwidth_bps[np.ix_(self.rows, self.rows)] > 0)
        self.capacities = link_capacities(network, self.rows, self.links, both_ways=False)
        src, dst = self.links.T
        self.number = np.full((self.sites, self.sites), -1, dtype=np.int64)
        self.number[src, dst] = np.arange(len(src))
        self.towards, self.away = _Choices.of(dst, src, self.sites), _Choices.of(src, dst, self.sites)
        both_ways = (src < dst) & (self.number[dst, src] >= 0)
        self.pair_links, self.back_links = np.flatnonzero(both_ways), self.number[dst, src][both_ways]
        self.is_symmetric = network.is_symmetric
        self.latency_s = network.latency_s[np.ix_(self.rows, self.rows)][src, dst]
        self.hops = 1.0 + self.latency_s / max(float(self.latency_s.mean()), 1e-9)
        """The length of each link when it is empty: a hop, its latency in units of the mean, and the scarcity of its
        ends: a site with little capacity needs all of it for its own data, so paths of others should avoid it."""
        capacity_bps = self.capacities.capacity_bps[: len(src)]
        out_bps, in_bps = (np.bincount(ends, weights=capacity_bps, minlength=self.sites) for ends in (src, dst))
        scarce = min(out_bps.min(), in_bps.min()) / np.minimum(out_bps, in_bps)
        self.hops += _SCARCE_HOPS * np.maximum(scarce[src], scarce[dst]) ** 4
        self.best_connected = np.lexsort((-np.bincount(src, minlength=self.sites), ~self.is_member))
        self.roots = self.best_connected[:_ROOTS]

    def lay(self, order: Order, count: int, limit_bps: float, zones: Labels) -> _Laid:
        """Trees of equal rates that add up to the limit, reduced to what fits, or to the best rates for these trees."""
        capacity_bps = self.capacities.capacity_bps
        part_bps = limit_bps / count
        load_bps = np.zeros(len(capacity_bps))
        everywhere = np.ones(len(self.links), dtype=bool)
        pairs, loads = [], []
        for number in range(count):
            filled = (load_bps + part_bps) / capacity_bps
            length = self.hops + self.capacities.link_prices(_full_hops(filled))
            price = self.capacities.link_prices(self._prices(filled, count))
            pair: TreePair | None = None
            if order == "low":
                root = int(self.roots[number % len(self.roots)])
                pair = self._shortest_paths(root, length, everywhere, everywhere)
            elif order == "zones first":
                pair = self._zones_first(zones, price, length, number)
            if pair is None:
                pair = self._cheap_pair(np.log(price))
            pairs.append(pair)
            loads.append(self.capacities.load(self._used(pair)))
            load_bps += part_bps * loads[-1]
        fits = capacity_bps / np.maximum(load_bps, capacity_bps)
        rates_bps = part_bps * np.array([fits[load > 0].min() for load in loads])
        filled = load_bps / capacity_bps
        proven_bps = min(self._proven_bps(self._prices(filled, count / smoother)) for smoother in _SMOOTHER)
        if rates_bps.sum() < _FITS * min(limit_bps, proven_bps):
            rates_bps = self._best_rates_bps(np.array(loads), rates_bps)
        return _Laid(pairs, rates_bps, proven_bps, order)

    def _best_rates_bps(self, loads: Floats, fitting_bps: Floats) -> Floats:
        """The rates of trees with the largest sum, by a linear program; `fitting_bps`, should it not be solved."""
        rate_bps = float(fitting_bps.sum())  # the unit, so that shares are around 1
        filled = csr_array(loads / self.capacities.capacity_bps * rate_bps)
        solved = linprog(-np.ones(len(loads)), filled.T.tocsr(), np.ones(filled.shape[1]), method="highs-ipm")
        if solved.status != 0:
            return fitting_bps
        shares = np.where(solved.x > _CRUMB, solved.x, 0.0)
        best_bps: Floats = rate_bps * shares / max(1.0, float((shares @ filled).max()))
        return best_bps if best_bps.sum() > rate_bps else fitting_bps

    def quickest(self, chunk_bytes: int) -> _Laid:
        """One tree over which a chunk that is alone reaches all sites soonest, among those from the likely roots."""
        src, dst = self.links.T
        seconds = self.latency_s + 8.0 * chunk_bytes / self.capacities.capacity_bps[: len(src)]
        there, back = (csr_array((seconds, ends), shape=(self.sites, self.sites)) for ends in ((src, dst), (dst, src)))
        far = sum(dijkstra(graph, indices=self.roots)[:, self.is_member].max(axis=1) for graph in (there, back))
        everywhere = np.ones(len(self.links), dtype=bool)
        pair = self._shortest_paths(int(self.roots[np.argmin(far)]), seconds, everywhere, everywhere)
        assert pair is not None, "all of its sites reach each other"
        load = self.capacities.load(self._used(pair))
        used = load > 0
        rate_bps = float((self.capacities.capacity_bps[used] / load[used]).min())
        return _Laid([pair], np.array([rate_bps]), np.inf, "quickest")

    def _prices(self, filled: Floats, steepness: float) -> Floats:
        """The price of each capacity, exponential in how far it is filled."""
        exponent = np.maximum(steepness * (filled - filled.max()), -_PRICE_RANGE)
        prices: Floats = np.exp(exponent) * (1e6 / self.capacities.capacity_bps)
        return prices

    def _proven_bps(self, prices: Floats) -> float:
        """An upper bound on the rate of any packing: value of all capacities / the least cost of a pair of trees.

        Each site but the root sends once upwards and receives once; on symmetric networks a minimum spanning tree is
        exact. With sites that are not members nothing is proven.
        """
        if not self.is_member.all():
            return float("inf")
        cost = self.capacities.link_prices(prices)
        sent = np.minimum.reduceat(cost[self.towards.link], self.towards.first)
        received = np.minimum.reduceat(cost[self.away.link], self.away.first)
        least = float(np.sort(sent + received)[:-1].sum())
        if self.is_symmetric:
            there, back = cost[self.pair_links], cost[self.back_links]
            tree = self._spanning_tree(np.log(there + back))
            least = max(least, 2 * float(np.minimum(there, back)[tree].sum()))
        return dual_bound_bps(self.capacities, prices, least)

    def _spanning_tree(self, weight: Floats) -> Indices:
        """The minimum spanning tree (or forest) of the links that exist both ways, by their places in `pair_links`."""
        ends = self.links[self.pair_links].T
        positive = weight - weight.min(initial=0.0) + 1.0
        graph = csr_array((positive, (ends[0], ends[1])), shape=(self.sites, self.sites))
        tree = minimum_spanning_tree(graph).tocoo()
        places: Indices = np.searchsorted(self.pair_links, self.number[tree.row, tree.col])
        return places

    def _cheap_pair(self, weight: Floats) -> TreePair:
        """A pair of trees at these logarithms of prices."""
        tree = self._spanning_tree(np.logaddexp(weight[self.pair_links], weight[self.back_links]))
        if len(tree) == self.sites - 1:
            ends = self.links[self.pair_links[tree]]
            graph = csr_array((np.ones(len(tree)), (ends[:, 0], ends[:, 1])), shape=(self.sites, self.sites))
            root = self._centre(graph)
            up = down = _hung(graph, root, directed=False)
        else:  # not all sites are connected by links that exist both ways
            root = int(np.flatnonzero(self.is_member)[0])
            graph = csr_array((np.ones(len(self.links)), tuple(self.links.T)), shape=(self.sites, self.sites))
            up, down = _hung(csr_array(graph.T), root, directed=True), _hung(graph, root, directed=True)
        if not self.is_symmetric or len(tree) < self.sites - 1:
            up = _with_cheaper_parents(up, root, self.towards, weight)
            down = _with_cheaper_parents(down, root, self.away, weight)
        return TreePair(root, self._needed(up, root), self._needed(down, root))

    def _zones_first(self, zones: Labels, price: Floats, length: Floats, number: int) -> TreePair | None:
        """Trees between zones over their cheapest links, and shortest paths inside; None if zones are not connected."""
        src, dst = self.links.T
        crossing = np.flatnonzero(zones[src] != zones[dst])
        by_price = crossing[np.argsort(price[crossing], kind="stable")]
        count = int(zones.max()) + 1
        pairs, first = np.unique(zones[src[by_price]] * count + zones[dst[by_price]], return_index=True)
        gateways = np.full(count * count, -1, dtype=np.int64)
        gateways[pairs] = by_price[first]
        links = gateways.reshape(count, count)
        cost = np.where(links >= 0, price[links], np.inf)
        hops = np.where(links >= 0, 1.0, np.inf)
        top = number % count
        usable = []
        for up in (True, False):
            to_child, far = (cost.T, hops.T) if up else (cost, hops)
            grown = (grown_tree(to_child, far, top, height) for height in _ZONE_HEIGHTS)
            above = next((tree for tree in grown if tree is not None), None)
            if above is None:
                return None
            below = np.flatnonzero(np.arange(count) != top)
            used = links[below, above[below]] if up else links[above[below], below]
            usable.append(zones[src] == zones[dst])
            usable[-1][used] = True
        root = int(self.best_connected[zones[self.best_connected] == top][0])
        return self._shortest_paths(root, length, *usable)

    def _shortest_paths(
        self, root: int, length: Floats, usable_up: npt.NDArray[np.bool_], usable_down: npt.NDArray[np.bool_]
    ) -> TreePair | None:
        """Shortest paths to and from a root over these links; None where they do not reach all members."""
        src, dst = self.links.T
        parents = []
        for usable, tail, head in ((usable_up, dst, src), (usable_down, src, dst)):
            graph = csr_array((length[usable], (tail[usable], head[usable])), shape=(self.sites, self.sites))
            parent = dijkstra(graph, indices=root, return_predecessors=True)[1].astype(np.int64)
            parent[root] = root
            if (parent[self.is_member] < 0).any():
                return None
            parents.append(self._needed(np.maximum(parent, -1), root))
        return TreePair(root, *parents)

    def _centre(self, tree: csr_array) -> int:
        """A member near the middle of the tree's longest path."""
        one_end = int(breadth_first_order(tree, 0, directed=False, return_predecessors=False)[-1])
        order, above = breadth_first_order(tree, one_end, directed=False)
        path = [int(order[-1])]
        while path[-1] != one_end:
            path.append(int(above[path[-1]]))
        middle = len(path) // 2
        return min(path, key=lambda site: (not self.is_member[site], abs(path.index(site) - middle)))

    def _needed(self, parent: Parents, root: int) -> Parents:
        """The tree without branches that contain no member."""
        if self.is_member.all():
            return parent
        needed = np.zeros(self.sites, dtype=bool)
        needed[root] = True
        for site in np.flatnonzero(self.is_member).tolist():
            while not needed[site]:
                needed[site] = True
                site = int(parent[site])
        return np.where(needed, parent, -1)

    def _used(self, pair: TreePair) -> Indices:
        """The numbers of the links that a pair of trees uses."""
        sites = np.arange(self.sites)
        sends, receives = (sites[(parent >= 0) & (sites != pair.root)] for parent in (pair.up, pair.down))
        return np.concatenate([self.number[sends, pair.up[sends]], self.number[pair.down[receives], receives]])


def _full_hops(filled: Floats) -> Floats:
    """By how many hops a capacity makes a link longer, the more the more it is filled."""
    longer: Floats = _FULL_HOPS * np.exp(np.minimum(_LOW_STEEPNESS * (filled - 1), _LONGEST))
    return longer


def _hung(graph: csr_array, root: int, directed: bool) -> Parents:
    _, above = breadth_first_order(graph, root, directed=directed)
    parent: Parents = above.astype(np.int64)
    parent[root] = root
    return parent


def _with_cheaper_parents(parent: Parents, root: int, choices: _Choices, weight: Floats) -> Parents:
    """The tree after each site, those that gain most first, has taken the cheapest parent that is not below it."""
    above, below = choices.above, choices.below
    begins, ends = _intervals(parent, root)
    is_below = (begins[above] >= begins[below]) & (begins[above] < ends[below])
    weights = np.where(is_below, np.inf, weight[choices.link])
    least = np.minimum.reduceat(weights, choices.first)
    sites, place = np.unique(below[weights == least[below]], return_index=True)
    best = above[weights == least[below]][place]
    now = np.zeros(len(parent))
    taken = parent[below] == above
    now[below[taken]] = weights[taken]
    gain = np.where(sites == root, 0.0, now[sites] - least[sites])
    changed = parent.tolist()
    for k in np.argsort(-gain, kind="stable")[: int((gain > _WORTHWHILE).sum())].tolist():
        site, to = int(sites[k]), int(best[k])
        up = to
        while up not in (root, site):
            up = changed[up]
        if up != site:
            changed[site] = to
    return np.array(changed)


def _intervals(parent: Parents, root: int) -> tuple[Indices, Indices]:
    """The places of each site and its last descendant, plus one, in an order where descendants follow their site."""
    above = parent.tolist()
    children: list[list[int]] = [[] for _ in above]
    for site, up in enumerate(above):
        if site != root:
            children[up].append(site)
    order, waiting = [], [root]
    while waiting:
        order.append(waiting.pop())
        waiting += children[order[-1]]
    size = [1] * len(above)
    for site in reversed(order[1:]):
        size[above[site]] += size[site]
    begins = np.empty(len(above), dtype=np.int64)
    begins[order] = np.arange(len(order))
    return begins, begins + np.array(size)
