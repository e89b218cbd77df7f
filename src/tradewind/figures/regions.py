"""Drawing of a plan on more links than a figure can show: traffic between regions instead of sites.

Sites near each other form a region: those of a zone, those within a distance on the map, or those that latencies show
to be near. All links between two regions are one line, whose width is the bytes that they carry and whose colour is how
busy they are; only the widest lines are drawn. Where sites cannot be grouped, the busiest links are drawn. The caption
says what is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Polygon

from tradewind.figures import style
from tradewind.figures.canvas import MARKER, Canvas
from tradewind.figures.curves import curve
from tradewind.figures.layout import spread
from tradewind.figures.legend import LOAD_MAP
from tradewind.geography import great_circle_km
from tradewind.planning.zones import detect_zones
from tradewind.units import format_size

if TYPE_CHECKING:
    from tradewind.figures.layout import Points
    from tradewind.network import Matrix, Network

REGION_KM = 2500.0
"""Largest distance of two sites of a region on a map, in km."""
_REGIONS_AT_MOST = 16
_LINES, _LINKS = 30, 60
"""Largest numbers of lines between regions, and between sites, that are drawn."""
_HALO = 0.17
"""Margin of a region's area around its sites, in inches."""
_HUB = 0.1
"""Radius of the circle where a region's lines meet, in inches."""


def draw_regions(canvas: Canvas, link_bytes: Matrix, seconds: float) -> None:
    """Draw the traffic between regions in a round of `seconds` transfer time; or the busiest links.

    The latter where sites cannot be grouped.
    """
    network = canvas.network
    regions = group_sites(network)
    grouped = len(regions) < len(network)
    label = np.empty(len(network), dtype=np.intp)
    for number, sites in enumerate(regions):
        label[sites] = number
    sent, capacity_bps = (_between(matrix, label, len(regions)) for matrix in (link_bytes, network.bandwidth_bps))
    busy = np.divide(8.0 * sent, capacity_bps * seconds, out=np.zeros_like(sent), where=capacity_bps > 0)
    both, busy = np.triu(sent + sent.T, 1), np.maximum(busy, busy.T)
    pairs = np.argwhere(both > 0)
    carried, share = both[pairs[:, 0], pairs[:, 1]], busy[pairs[:, 0], pairs[:, 1]]
    shown = np.argsort(-(carried if grouped else share), kind="stable")[: _LINES if grouped else _LINKS][::-1]
    middles = _draw_areas(canvas, regions) if grouped else canvas.points
    lines = [curve(middles, (int(i), int(j)), 2 * _HUB if grouped else 1.6 * MARKER) for i, j in pairs[shown]]
    widths = 0.8 + (7.0 * carried / carried.max(initial=1e-9) if grouped else 2.6 * share)[shown]
    colours = LOAD_MAP(share[shown])
    canvas.axes.add_collection(LineCollection(lines, colors=colours, linewidths=widths, alpha=0.9, zorder=4))
    canvas.strong.extend(lines)
    canvas.busy_shown = True
    if grouped and len(shown):
        for k in (-1, 0) if len(shown) > 1 else (-1,):
            text = f"{format_size(carried[shown[k]])} a round"
            canvas.legend.append(Line2D([], [], color=style.QUIET, lw=float(widths[k]), label=text))
    total, left_out = float(sent.sum()), len(pairs) - len(shown)
    left_share, inside_share = (carried.sum() - carried[shown].sum()) / total, float(np.trace(sent)) / total
    said = []
    if grouped:
        said.append(f"{len(network)} sites in {len(regions)} regions; a line is all links between two of them")
    if left_out:
        what = "thinner lines" if grouped else f"links that are less busy than these {len(shown)},"
        said.append(f"left out: {left_out} {what} with {left_share:.0%} of the bytes")
    if grouped:
        said.append(f"{inside_share:.0%} of the bytes stay inside a region")
    canvas.caption = "; ".join(said)


def _between(matrix: Matrix, label: np.ndarray[tuple[int], np.dtype[np.intp]], count: int) -> Matrix:
    """The matrix summed over all links from each region to each other."""
    summed = np.zeros((count, count))
    np.add.at(summed, (label[:, None], label[None, :]), matrix)
    return summed


def group_sites(network: Network) -> list[list[int]]:
    """The rows of sites that are near each other, by region; one site each where they cannot be grouped."""
    keys: list[object]
    if any(site.zone for site in network.sites):
        keys = [site.zone or (site.name,) for site in network.sites]
    elif len(network) > 2 and all(site.lat is not None for site in network.sites):
        keys = list(_near_on_a_map(network))
    else:
        zone_of = detect_zones(network).zone_of
        keys = [zone_of.get(name, (name,)) for name in network.names]
    groups: dict[object, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _near_on_a_map(network: Network) -> list[int]:
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    lat = np.array([site.lat for site in network.sites], dtype=np.float64)
    lon = np.array([site.lon for site in network.sites], dtype=np.float64)
    km = great_circle_km(lat[:, None], lon[:, None], lat[None, :], lon[None, :])
    merges = linkage(squareform(km, checks=False), method="complete")
    labels = fcluster(merges, REGION_KM, criterion="distance")
    if labels.max() > _REGIONS_AT_MOST:
        labels = fcluster(merges, _REGIONS_AT_MOST, criterion="maxclust")
    return [int(label) for label in labels]


def _draw_areas(canvas: Canvas, regions: list[list[int]]) -> Points:
    """Draw the regions' areas; returns where the lines of each meet: at its site, or in a circle between its sites."""
    several = [sites for sites in regions if len(sites) > 1]
    middles = np.array([canvas.points[sites].mean(axis=0) for sites in several])
    apart = spread(np.concatenate([canvas.points, middles]), 2 * MARKER + _HUB)
    canvas.points, canvas.hubs = apart[: len(canvas.points)], apart[len(canvas.points) :]
    for sites, (x, y) in zip(several, canvas.hubs, strict=True):
        circle = Circle((x, y), _HUB, facecolor=style.PAPER, edgecolor=style.INK, lw=1.0, zorder=7)
        canvas.axes.add_patch(circle)
        count = str(len(sites))
        canvas.axes.text(x, y, count, size=style.SMALL_POINTS, ha="center", va="center_baseline", zorder=8)
    for sites in regions:
        _draw_area(canvas, canvas.points[sites])
    handle = Line2D([], [], ls="", marker="o", ms=9, markerfacecolor=style.PAPER, markeredgecolor=style.INK)
    handle.set_label("region, with its number of sites")
    canvas.legend.append(handle)
    hub = iter(canvas.hubs)
    return np.array([next(hub) if len(sites) > 1 else canvas.points[sites[0]] for sites in regions])


def _draw_area(canvas: Canvas, points: Points) -> None:
    from scipy.spatial import ConvexHull, QhullError

    look: dict[str, Any] = {"facecolor": style.REGION, "edgecolor": style.REGION, "zorder": 1.5}
    try:
        outline = points[ConvexHull(points).vertices] if len(points) > 2 else points
    except QhullError:  # all on one line
        order = np.argsort(points @ (points.max(axis=0) - points.min(axis=0)))
        outline = points[order[[0, -1]]]
    for x, y in outline:
        canvas.axes.add_patch(Circle((x, y), _HALO, lw=0, **look))
    if len(outline) > 1:
        canvas.axes.add_patch(Polygon(outline, lw=2 * _HALO * style.POINTS_PER_INCH, joinstyle="round", **look))
