"""Sources of trees for `optimal`: the cheapest ones under given prices, on symmetric or on directed networks.

Both kinds number their links, give the load of every tree on links, NICs and trunks (`capacities`), and turn a column
back into the parents of its two trees. Only the strongly connected part of the network with the members is used;
branches without a member are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array, csr_array, eye_array, vstack
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

from tradewind.network import Matrix, Network
from tradewind.planning.plan import Shard, default_chunk_bytes
from tradewind.planning.trees.arborescence import Parents, cheapest_arborescence, grown_tree, shortest_path_tree
from tradewind.planning.trees.packing import Capacities, Column, Floats, Indices

_ROOTS_TRIED = 3
"""Roots tried for each tree of limited height that is laid: more find cheaper trees, and cost time."""

_IMPROVES = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class TreePair:
    """A root and two trees as parents by site; -1 for sites that are not in the tree."""

    root: int
    up: Parents
    down: Parents


class TreeSource:
    """The common part of both kinds. Sites are numbered within the part of the network that is used."""

    def __init__(
        self, network: Network, members: tuple[str, ...], max_height: float | None, in_hops: bool, links: Indices
    ) -> None:
        self.rows = participating(network, members)
        self.names = tuple(network.names[i] for i in self.rows)
        self.is_member = np.isin(self.rows, [network.index[name] for name in members])
        self.max_height, self.in_hops = max_height, in_hops
        self.links = links
        grid = np.ix_(self.rows, self.rows)
        present = network.bandwidth_bps[grid] > 0
        self.length: Matrix = np.where(present, 1.0 if in_hops else network.latency_s[grid], np.inf)
        self.roots = tuple(range(len(self.rows))) if max_height is None else self._near_enough(max_height)

    @property
    def sites(self) -> int:
        """The number of sites that are used."""
        return len(self.rows)

    @property
    def exact(self) -> bool:
        """Whether the cheapest tree is really found, so that prices prove a bound."""
        return self.max_height is None and bool(self.is_member.all())

    def _near_enough(self, max_height: float) -> tuple[int, ...]:
        """Sites from and to which every member is within `max_height`."""
        return tuple(
            root
            for root in range(len(self.rows))
            if all(self._farthest(length, root) <= max_height for length in (self.length, self.length.T))
        )

    def _farthest(self, length: Matrix, root: int) -> float:
        parent = shortest_path_tree(length, root)
        if (parent[self.is_member] < 0).any():
            return float("inf")
        return float(depths(parent, length)[self.is_member].max())

    def _needed(self, parent: Parents) -> npt.NDArray[np.bool_]:
        """Sites with a member at or below them."""
        if self.is_member.all():
            return self.is_member
        needed = self.is_member.copy()
        for site in np.flatnonzero(self.is_member).tolist():
            above = int(parent[site])
            while not needed[above]:
                needed[above] = True
                above = int(parent[above])
        return needed


class SymmetricTrees(TreeSource):
    """Trees that are used both ways; a link stands for both directions."""

    def __init__(self, network: Network, members: tuple[str, ...], max_height: float | None, in_hops: bool) -> None:
        rows = participating(network, members)
        grid = np.ix_(rows, rows)
        links = np.argwhere(np.triu(network.bandwidth_bps[grid]))
        super().__init__(network, members, max_height, in_hops, links)
        self.number = np.zeros((len(rows), len(rows)), dtype=np.int64)
        self.number[links[:, 0], links[:, 1]] = self.number[links[:, 1], links[:, 0]] = np.arange(len(links))
        self.capacities = link_capacities(network, rows, links, both_ways=True)
        self._ends: list[list[int]] = links.tolist()

    def cheapest(self, link_prices: Floats, number: int) -> Column | None:
        """A cheap tree; the cheapest if the height is not limited."""
        if self.max_height is None:
            return self._column(self._minimum_spanning_tree(link_prices))
        turns = [self.roots[(number * _ROOTS_TRIED + k) % len(self.roots)] for k in range(_ROOTS_TRIED)]
        columns = self._grown(link_prices, turns)
        return min(columns, key=lambda column: link_prices[column.links].sum(), default=None)

    def least_cost(self, link_prices: Floats) -> float:
        """The exact cost of the cheapest tree."""
        return float(link_prices[self._minimum_spanning_tree(link_prices)].sum())

    def cheaper_than_one(self, link_prices: Floats) -> Iterator[Column]:
        """Trees that would improve the packing."""
        if self.max_height is None:
            columns = iter([self._column(self._minimum_spanning_tree(link_prices))])
        else:
            columns = self._grown(link_prices, self.roots)
        return (column for column in columns if link_prices[column.links].sum() < _IMPROVES)

    def pair(self, column: Column) -> TreePair:
        """The column's tree, rooted at its centre if it has no root yet."""
        parent = self._hung(column.links, max(column.root, int(self.links[column.links[0], 0])))
        if column.root < 0:
            parent = self._hung(column.links, self._centre(column.links, parent))
        root = int(np.flatnonzero(parent == np.arange(len(parent)))[0])
        return TreePair(root, parent, parent)

    def replacements(self, column: Column, position: int) -> Indices:
        """The links that may replace one link of the tree: those across the gap that it leaves."""
        rest = np.delete(column.links, position)
        inside = np.zeros(self.sites, dtype=bool)
        inside[self.links[column.links]] = True
        one_side = self._side(rest.tolist(), self._ends[column.links[position]][0])
        other_side = inside & ~one_side
        a, b = self.links.T
        across = np.flatnonzero((one_side[a] & other_side[b]) | (one_side[b] & other_side[a]))
        candidates: Indices = across[across != column.links[position]]
        if self.max_height is None:
            return candidates
        return np.array([c for c in candidates.tolist() if self._low_enough(np.append(rest, c), column.root)], int)

    def _side(self, forest: list[int], start: int) -> npt.NDArray[np.bool_]:
        """The sites that these links connect with `start`. (Plain Python: for small trees the fastest way.)"""
        near: dict[int, list[int]] = {}
        for link in forest:
            a, b = self._ends[link]
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
        seen, queue = {start}, [start]
        while queue:
            new = [site for site in near.get(queue.pop(), ()) if site not in seen]
            seen.update(new)
            queue.extend(new)
        side = np.zeros(self.sites, dtype=bool)
        side[list(seen)] = True
        return side

    def exchanged(self, column: Column, position: int, link: int) -> Column:
        """The tree with one link exchanged for one of its replacements."""
        return Column(np.sort(np.append(np.delete(column.links, position), link)), 0, column.root)

    def _low_enough(self, tree: Indices, root: int) -> bool:
        assert self.max_height is not None
        return bool(depths(self._hung(tree, root), self.length).max() <= self.max_height)

    def _minimum_spanning_tree(self, link_prices: Floats) -> Indices:
        # scipy takes a zero for a missing link, so a tiny value is added, which also breaks ties by the links' order
        trifle = float(link_prices.max()) * 1e-12 + 1e-300
        ends = self.links.T
        graph = csr_array((link_prices + trifle, (ends[0], ends[1])), shape=(self.sites, self.sites))
        tree = minimum_spanning_tree(graph).tocoo()
        return np.sort(self.number[tree.row, tree.col])

    def _grown(self, link_prices: Floats, roots: Iterator[int] | list[int] | tuple[int, ...]) -> Iterator[Column]:
        assert self.max_height is not None
        cost = np.where(np.isfinite(self.length), link_prices[self.number], np.inf)
        for root in roots:
            parent = grown_tree(cost, self.length, root, self.max_height)
            if parent is not None:
                child = np.flatnonzero(self._needed(parent) & (parent != np.arange(len(parent))))
                child = child[child != root]
                yield Column(np.sort(self.number[parent[child], child]), 0, root)

    def _column(self, tree: Indices) -> Column:
        if self.is_member.all():
            return Column(tree, 0, -1)
        root = int(np.flatnonzero(self.is_member)[0])
        parent = self._hung(tree, root)
        child = np.flatnonzero(self._needed(parent) & (np.arange(len(parent)) != root))
        return Column(np.sort(self.number[parent[child], child]), 0, -1)

    def _hung(self, tree: Indices, root: int) -> Parents:
        ends = self.links[tree]
        graph = csr_array((np.ones(len(tree)), (ends[:, 0], ends[:, 1])), shape=(self.sites, self.sites))
        _, parent = breadth_first_order(graph, root, directed=False)
        parent = np.where(parent < 0, -1, parent).astype(np.int64)
        parent[root] = root
        return parent

    def _centre(self, tree: Indices, parent: Parents) -> int:
        """The site that minimises the tree's height as its root: halfway on its longest path, which two sweeps find."""
        one_end = int(np.where(parent >= 0, depths(parent, self.length), -1.0).argmax())
        swept = self._hung(tree, one_end)
        depth = np.where(swept >= 0, depths(swept, self.length), -1.0)
        path = [int(depth.argmax())]
        while path[-1] != one_end:
            path.append(int(swept[path[-1]]))
        farthest = depth[path[0]]
        return min(path, key=lambda site: (max(depth[site], farthest - depth[site]), site))


class DirectedPairs(TreeSource):
    """A root, a tree towards it and a tree away from it, on directed links."""

    def __init__(self, network: Network, members: tuple[str, ...], max_height: float | None, in_hops: bool) -> None:
        rows = participating(network, members)
        links = np.argwhere(network.bandwidth_bps[np.ix_(rows, rows)] > 0)
        super().__init__(network, members, max_height, in_hops, links)
        self.number = np.full((len(rows), len(rows)), -1, dtype=np.int64)
        self.number[links[:, 0], links[:, 1]] = np.arange(len(links))
        self.capacities = link_capacities(network, rows, links, both_ways=False)

    def cheapest(self, link_prices: Floats, number: int) -> Column | None:
        """A cheap pair of trees, for the root that saves most by not sending up and not receiving down."""
        cost = self._cost(link_prices)
        saved = cost.min(axis=1) + cost.min(axis=0)
        if self.max_height is None:
            return self._pair_column(cost, int(saved.argmax()))
        ranked = sorted(self.roots, key=lambda root: -saved[root])
        turns = [ranked[0], self.roots[number % len(self.roots)]]
        columns = [column for root in turns if (column := self._pair_column(cost, root)) is not None]
        return min(columns, key=lambda column: link_prices[column.links].sum(), default=None)

    def least_cost(self, link_prices: Floats) -> float:
        """The exact cost of the cheapest pair."""
        return min(float(link_prices[column.links].sum()) for column in self._all_roots(link_prices))

    def cheaper_than_one(self, link_prices: Floats) -> Iterator[Column]:
        """Pairs that would improve the packing, the cheapest of every root."""
        return (c for c in self._all_roots(link_prices) if link_prices[c.links].sum() < _IMPROVES)

    def pair(self, column: Column) -> TreePair:
        """The column's two trees."""
        up, down = (np.full(self.sites, -1, dtype=np.int64) for _ in range(2))
        child, parent = self.links[column.links[: column.ups]].T
        up[child] = parent
        parent, child = self.links[column.links[column.ups :]].T
        down[child] = parent
        up[column.root] = down[column.root] = column.root
        return TreePair(column.root, up, down)

    def replacements(self, column: Column, position: int) -> Indices:
        """The links that may replace one link: the same site with another parent that is not below it."""
        pair = self.pair(column)
        upwards = position < column.ups
        parent, length = (pair.up, self.length.T) if upwards else (pair.down, self.length)
        src, dst = self.links[column.links[position]].tolist()
        child, old = (src, dst) if upwards else (dst, src)
        below = _below(parent, child)
        usable = (parent >= 0) & ~below
        usable[old] = False
        candidates = np.flatnonzero(usable & np.isfinite(length[:, child]))
        if self.max_height is not None:
            depth = depths(parent, length)
            hanging = depth[below].max() - depth[child]
            candidates = candidates[depth[candidates] + length[candidates, child] + hanging <= self.max_height]
        links: Indices = self.number[child, candidates] if upwards else self.number[candidates, child]
        return links

    def exchanged(self, column: Column, position: int, link: int) -> Column:
        """The pair with one link exchanged for one of its replacements."""
        links = column.links.copy()
        links[position] = link
        return Column(links, column.ups, column.root)

    def _all_roots(self, link_prices: Floats) -> Iterator[Column]:
        cost = self._cost(link_prices)
        for root in self.roots:
            column = self._pair_column(cost, root)
            if column is not None:
                yield column

    def _cost(self, link_prices: Floats) -> Matrix:
        cost = np.full(self.number.shape, np.inf)
        cost[self.links[:, 0], self.links[:, 1]] = link_prices
        return cost

    def _pair_column(self, cost: Matrix, root: int) -> Column | None:
        up, down = self._tree(cost.T, self.length.T, root), self._tree(cost, self.length, root)
        if up is None or down is None:
            return None
        sites = np.arange(self.sites)
        sends = np.flatnonzero(self._needed(up) & (sites != root))
        receives = np.flatnonzero(self._needed(down) & (sites != root))
        links = np.concatenate([self.number[sends, up[sends]], self.number[down[receives], receives]])
        return Column(links, len(sends), root)

    def _tree(self, cost: Matrix, length: Matrix, root: int) -> Parents | None:
        if self.max_height is None:
            return cheapest_arborescence(cost, root)
        return grown_tree(cost, length, root, self.max_height)


def tree_shard(names: tuple[str, ...], pair: TreePair, rate_bps: float) -> Shard:
    """A pair of trees as a shard of a rate; `with_shares` sets its fraction and chunk size."""
    up, down = (
        tuple((names[child], names[above]) for child, above in enumerate(parent.tolist()) if above not in (-1, child))
        for parent in (pair.up, pair.down)
    )
    return Shard(1.0, names[pair.root], up, tuple(route[::-1] for route in down), 1, rate_bps)


def with_shares(shards: Sequence[Shard], nbytes: int) -> Iterator[Shard]:
    """The shards with fractions in proportion to their rates, and the chunk sizes of these."""
    total_bps = sum(shard.rate_bps or 0.0 for shard in shards)
    for shard in shards:
        fraction = (shard.rate_bps or 0.0) / total_bps
        yield replace(shard, fraction=fraction, chunk_bytes=default_chunk_bytes(fraction * nbytes))


def participating(network: Network, members: tuple[str, ...]) -> Indices:
    """Rows of the sites that can reach the members and be reached by them."""
    label = network.strong_component
    return np.flatnonzero(label == label[network.index[members[0]]]).astype(np.int64)


def depths(parent: Parents, length: Matrix) -> Floats:
    """The distance of each site from the root of its tree; 0 for sites that are not in it."""
    sites = np.arange(len(parent))
    towards = np.where(parent < 0, sites, parent)
    depth = np.where(towards == sites, 0.0, length[towards, sites])
    for _ in range(len(parent).bit_length()):  # pointer jumping: 1, 2, 4, ... ancestors further
        depth, towards = depth + depth[towards], towards[towards]
    return depth


def _below(parent: Parents, top: int) -> npt.NDArray[np.bool_]:
    """The site and all sites below it."""
    found = np.zeros(len(parent), dtype=bool)
    found[top] = True
    while True:
        children = (parent >= 0) & found[parent] & ~found
        if not children.any():
            return found
        found |= children


def link_capacities(network: Network, rows: Indices, links: Indices, both_ways: bool) -> Capacities:
    """Rows for the links themselves, for NICs with a cap, and for trunks."""
    src, dst = links.T
    n, count = len(rows), len(links)
    grid = np.ix_(rows, rows)
    blocks = [eye_array(count)]
    capacity = [network.bandwidth_bps[grid][src, dst]]
    sends = csr_array((np.ones(count), (src, np.arange(count))), shape=(n, count))
    receives = csr_array((np.ones(count), (dst, np.arange(count))), shape=(n, count))
    if both_ways:  # over a link that stands for both directions, either end sends once and receives once
        sends = receives = sends + receives
    for draws, cap in ((sends, network.egress_bps[rows]), (receives, network.ingress_bps[rows])):
        capped = np.flatnonzero(np.isfinite(cap))
        blocks.append(draws[capped])
        capacity.append(cap[capped])
    for trunk, mask in zip(network.trunks, network.trunk_members, strict=True):
        crossing = mask[grid][src, dst].astype(np.float64)
        if both_ways:
            crossing += mask[grid][dst, src]
        if crossing.any():
            blocks.append(csr_array(crossing[None, :]))
            capacity.append(np.array([trunk.capacity_bps]))
    return Capacities(np.concatenate(capacity), csc_array(vstack(blocks)))
