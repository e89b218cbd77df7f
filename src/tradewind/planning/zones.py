"""Detect zones of sites near each other from the links between them (DS-Sync's topologyDetect).

Sites in one rack, data center or region reach each other sooner, or with more bandwidth, than sites elsewhere. Sites
are merged by how far apart they are, the closest first, groups by their average distance. Where the next merge is much
farther than the one before it, the groups so far may be zones; they are if any two sites of different groups are
clearly farther apart than any two of one group. Latency and bandwidth are examined separately, and the one that
separates more clearly decides; without a clear step there are no zones.

Pairs that are measured one at a time do not show a trunk that many pairs share: racks behind an uplink that is only
slow when it is full look alike. `detect_racks` finds these from rates that were measured while all sites were sending.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial.distance import squareform

from tradewind.network import Matrix, Network

CLEAR_STEP = 2.0
"""Sites of different zones must be this many times farther apart than sites of one zone."""
SHARED = 1.5
"""A pair that is slowed down by this factor shares a capacity: two flows in one uplink have half of it each."""
RACK_SHARE = 0.9
"""Share of the pairs that must look as racks predict; others may be noise, or have crossed an uplink alone."""
LATENCY_FLOOR_S = 50e-6
"""Latencies below this are those of processors and switches: differences among them do not indicate zones."""


@dataclass(frozen=True, slots=True)
class Zones:
    """Groups of sites that are near each other."""

    zones: tuple[tuple[str, ...], ...]
    """The zones, each in the network's order, ordered by their first sites; empty if none were found."""
    by: Literal["latency", "bandwidth", "contention", ""]
    step: float
    """The least distance between zones, divided by the largest distance inside a zone."""

    @property
    def are_groups(self) -> bool:
        """Whether there are at most half as many zones as sites: others may come from the noise of a few pairs."""
        return 0 < 2 * len(self.zones) <= sum(map(len, self.zones))

    @property
    def zone_of(self) -> dict[str, str]:
        """Each site's zone, which is named after its first site."""
        return {name: f"zone of {zone[0]}" for zone in self.zones for name in zone}


def detect_zones(network: Network, clear_step: float = CLEAR_STEP) -> Zones:
    """The zones of a network, from its links alone; the `zone` of its sites is ignored.

    >>> from tradewind.network import Site
    >>> ms = np.array([[0, 1, 40, 40], [1, 0, 40, 40], [40, 40, 0, 1], [40, 40, 1, 0]])
    >>> detect_zones(Network("two", [Site(n) for n in "abcd"], 1e8 * (ms > 0), ms / 1e3)).zones
    (('a', 'b'), ('c', 'd'))
    """
    if len(network) < 3:
        return Zones((), "", 1.0)
    found: list[tuple[float, Literal["latency", "bandwidth"], list[int]]] = []
    latency_s = _distance(network, np.maximum(network.latency_s, LATENCY_FLOOR_S))
    with np.errstate(divide="ignore"):
        slowness = _distance(network, 1.0 / network.bandwidth_bps)
    for by, distance in (("latency", latency_s), ("bandwidth", slowness)):
        step, labels = _clearest_step(distance)
        found.append((step, by, labels))  # type: ignore[arg-type]
    step, by, labels = max(found, key=lambda candidate: candidate[0])  # a tie goes to latency, which varies less
    if step < clear_step:
        return Zones((), "", step)
    groups: dict[int, list[str]] = {}
    for name, label in zip(network.names, labels, strict=True):
        groups.setdefault(label, []).append(name)
    return Zones(tuple(tuple(group) for group in groups.values()), by, step)


def detect_racks(names: Sequence[str], alone_bps: Matrix, together_bps: Matrix) -> Zones:
    """The racks of sites behind shared uplinks, from rates alone and rates while every site was sending to another one.

    Both matrices have a row per sender; 0 and infinity: not measured. A pair is slowed down by its rate together over
    what the NICs of its two ends carry, which is the most that any pair with that end reached. Sites of one rack do not
    slow each other down, whatever crosses its uplink; pairs that cross it together do. Racks are the groups of least
    slowdown, if `RACK_SHARE` of the pairs inside them are not slowed down by `SHARED`, and of those between them are. A
    rack has several sites: one that is alone shares no uplink, its own links are slow.

    Mechanism: DS-Sync III-A topologyDetect, racks behind uplinks that are slow when they are full (live: ds-sync/racks)
    """
    n = len(names)
    known = np.isfinite(together_bps) & (together_bps > 0)
    np.fill_diagonal(known, False)
    if n < 4 or not known.any():
        return Zones((), "", 1.0)
    best_bps = np.where(known, np.maximum(alone_bps, together_bps), 0.0)
    nics_bps = np.minimum.outer(best_bps.max(axis=1), best_bps.max(axis=0))
    slowdown = np.where(known, nics_bps / np.where(known, together_bps, 1.0), 1.0)
    slowdown = np.maximum(1.0, (slowdown + slowdown.T) / 2)
    np.fill_diagonal(slowdown, 0.0)
    step, labels = _clearest_step(slowdown)
    together = np.equal.outer(labels, labels)
    pairs = ~np.eye(n, dtype=bool)
    inside, between = slowdown[together & pairs] < SHARED, slowdown[~together] >= SHARED
    if not inside.size or not between.size or min(inside.mean(), between.mean()) < RACK_SHARE:
        return Zones((), "", step)
    groups: dict[int, list[str]] = {}
    for name, label in zip(names, labels, strict=True):
        groups.setdefault(label, []).append(name)
    if min(map(len, groups.values())) < 2:
        return Zones((), "", step)
    return Zones(tuple(tuple(group) for group in groups.values()), "contention", step)


def zone_labels(network: Network, clear_step: float = CLEAR_STEP) -> npt.NDArray[np.int64]:
    """A number for the zone of each site, for networks of any size; all zero where there are no zones.

    Zones are those of the sites, a site without one being a zone of its own; where no site has a zone, the sites that
    remain connected without the slow, or the far, links. Unlike `detect_zones` that needs no links between all pairs of
    a zone, and two zones may be connected by one fast link.
    """
    if any(site.zone is not None for site in network.sites):
        names = [site.zone if site.zone is not None else f"\n{site.name}" for site in network.sites]
        return np.unique(names, return_inverse=True)[1].astype(np.int64)
    linked = (network.bandwidth_bps > 0) & (network.bandwidth_bps.T > 0)
    src, dst = np.nonzero(np.triu(linked))
    there_bps, back_bps = network.bandwidth_bps[src, dst], network.bandwidth_bps[dst, src]
    far_s = np.maximum(network.latency_s[src, dst], network.latency_s[dst, src])
    best, labels = clear_step, np.zeros(len(network), dtype=np.int64)
    for distance in (np.maximum(far_s, LATENCY_FLOOR_S), 1 / np.minimum(there_bps, back_bps)):
        graph = csr_array((distance, (src, dst)), shape=(len(network), len(network)))
        tree = minimum_spanning_tree(graph).tocoo()
        merges = np.sort(tree.data)
        steps = merges[1:] / merges[:-1]
        if len(steps) and steps.max() > best:
            best = float(steps.max())
            near = tree.data <= merges[int(steps.argmax())]
            kept = csr_array((tree.data[near], (tree.row[near], tree.col[near])), shape=graph.shape)
            labels = connected_components(kept, directed=False)[1].astype(np.int64)
    return labels


def with_zones(network: Network, clear_step: float = CLEAR_STEP) -> Network:
    """The network with detected zones for sites that have none."""
    zone_of = detect_zones(network, clear_step).zone_of
    sites = [replace(site, zone=site.zone or zone_of.get(site.name)) for site in network.sites]
    rest = network.latency_s, network.loss, network.trunks, network.usd_per_gb
    return Network(network.name, sites, network.bandwidth_bps, *rest)


def _distance(network: Network, there: Matrix) -> Matrix:
    """The mean distance of both directions; sites without a link between them have the largest distance."""
    linked = network.bandwidth_bps > 0
    one_way = np.where(linked, there, np.nan)
    with np.errstate(invalid="ignore"):
        both = np.where(linked & linked.T, (one_way + one_way.T) / 2, np.where(linked, one_way, one_way.T))
    farthest = np.nanmax(both) if np.isfinite(both).any() else 1.0
    both = np.where(np.isfinite(both), both, farthest)
    np.fill_diagonal(both, 0.0)
    return both


def _clearest_step(distance: Matrix) -> tuple[float, list[int]]:
    """How clearly the groups before the largest step in merge distance are separated, and the group of each site."""
    merges = linkage(squareform(distance, checks=False), method="average")
    heights = merges[:, 2]
    steps = heights[1:] / np.maximum(heights[:-1], 1e-300)
    place = int(np.argmax(steps))
    cut = np.sqrt(heights[place] * heights[place + 1])
    labels = fcluster(merges, cut, criterion="distance")
    together = labels[:, None] == labels[None, :]
    pairs = ~np.eye(len(labels), dtype=bool)
    inside, between = distance[together & pairs], distance[~together]
    apart = between.min() / inside.max() if inside.size and between.size else 1.0
    return float(apart), [int(label) for label in labels]
