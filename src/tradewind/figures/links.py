"""Drawing of links and of a plan on them: trees in colours, or load where there are too many trees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from tradewind.figures import style
from tradewind.figures.canvas import MARKER, Canvas, plain
from tradewind.figures.curves import Pair, beside, curve
from tradewind.figures.layout import Points
from tradewind.figures.legend import LOAD_MAP
from tradewind.figures.regions import draw_regions
from tradewind.planning.cost import cost, link_seconds
from tradewind.planning.hops import bytes_per_link
from tradewind.units import format_rate

if TYPE_CHECKING:
    from tradewind.planning.plan import Plan, Route

_LANE = 2.6 / style.POINTS_PER_INCH
_BENT_AT_MOST = 80
_LINKS_AT_MOST = 4000
LINKS_SHOWN_AT_MOST = 120
"""A plan that uses more links than this is drawn by region."""


def draw_links(canvas: Canvas, faint: bool) -> None:
    both_ways = np.triu(np.maximum(canvas.network.bandwidth_bps, canvas.network.bandwidth_bps.T))
    pairs = np.argwhere(both_ways > 0)
    if not len(pairs):
        return
    rate = both_ways[pairs[:, 0], pairs[:, 1]]
    order = np.argsort(rate, kind="stable")[-_LINKS_AT_MOST:]  # the fastest last, so on top
    share = np.sqrt(rate[order] / rate.max())
    lines = [_line(canvas, (int(i), int(j)), len(pairs)) for i, j in pairs[order]]
    crowd = min(1.0, (60 / len(pairs)) ** 0.6)
    width = (0.6 + 1.6 * share) if faint else (0.5 + 3.2 * share)
    alpha = (0.9 if faint else 0.85) * crowd
    colour = style.FAINT if faint else style.BEST
    thinner = 0.4 + 0.6 * crowd
    canvas.axes.add_collection(
        LineCollection(lines, linewidths=width * thinner, colors=colour, alpha=max(alpha, 0.08), zorder=2)
    )
    if not faint and len(pairs) <= _BENT_AT_MOST:
        canvas.strong.extend(lines)
    for at in (rate.max(), rate.min()) if rate.min() < 0.999 * rate.max() else (rate.max(),):
        size = (0.6 + 1.6 * np.sqrt(at / rate.max())) if faint else (0.5 + 3.2 * np.sqrt(at / rate.max()))
        shade = style.OTHER if faint else style.BEST
        canvas.legend.append(Line2D([], [], color=shade, lw=float(size * thinner), label=f"link, {format_rate(at)}"))


def _line(canvas: Canvas, pair: Pair, pairs: int) -> Points:
    """The line of a link: bent around sites in a sparse network; straight, which is fast, in a dense one."""
    if pairs > _BENT_AT_MOST:
        return canvas.points[list(pair)]
    return curve(canvas.points, pair, 1.6 * MARKER)


def draw_trees(canvas: Canvas, plan: Plan, chosen: tuple[int, ...]) -> dict[int, list[int]]:
    """Draw each chosen tree in its colour; returns the trees (by colour) of each root."""
    index = canvas.network.index
    lanes: dict[Pair, list[tuple[int, bool]]] = {}
    roots: dict[int, list[int]] = {}
    for colour, number in enumerate(chosen):
        shard = plan.shards[number]
        reduce, broadcast = _pairs(shard.reduce, index), _pairs(shard.broadcast, index)
        for pair in sorted(reduce | broadcast):
            lanes.setdefault(pair, []).append((colour, pair not in reduce))
        roots.setdefault(index[shard.root], []).append(colour)
        share = f"{100 * shard.fraction:.1f}%" if shard.fraction < 0.9995 else "all"
        label = f"shard {number}: {share}, root {shard.root}"
        canvas.legend.append(Line2D([], [], color=style.TREE_COLOURS[colour], lw=2.4, label=plain(label, 48)))
    solid: dict[bool, list[tuple[Points, str]]] = {False: [], True: []}
    for pair, trees in sorted(lanes.items()):
        line = curve(canvas.points, pair, 2.2 * MARKER)
        for lane, (colour, dashed) in enumerate(trees):
            shifted = beside(line, (lane - (len(trees) - 1) / 2) * _LANE)
            solid[dashed].append((shifted, style.TREE_COLOURS[colour]))
            canvas.strong.append(shifted)
    for dashed, lines in solid.items():
        canvas.axes.add_collection(
            LineCollection(
                [line for line, _ in lines],
                colors=[colour for _, colour in lines],
                linewidths=2.0,
                linestyles=(0, (2.2, 1.2)) if dashed else "solid",
                capstyle="butt" if dashed else "round",
                zorder=4,
            )
        )
    if solid[True]:
        canvas.legend.append(Line2D([], [], color=style.INK, lw=1.8, ls=(0, (2.2, 1.2)), label="broadcast only"))
    return roots


def _pairs(routes: tuple[Route, ...], index: Mapping[str, int]) -> set[Pair]:
    found = set()
    for route in routes:
        for a, b in pairwise(route):
            i, j = index[a], index[b]
            found.add((min(i, j), max(i, j)))
    return found


def draw_load(canvas: Canvas, plan: Plan, chosen: tuple[int, ...]) -> None:
    """Draw how busy the chosen trees keep each link; by region where there are too many links to distinguish."""
    seconds = cost(plan, canvas.network).transfer_seconds
    link_bytes = bytes_per_link(replace(plan, shards=tuple(plan.shards[k] for k in chosen)), canvas.network)
    pairs = np.argwhere(np.triu(link_bytes + link_bytes.T) > 0)
    if len(pairs) > LINKS_SHOWN_AT_MOST:
        draw_regions(canvas, link_bytes, seconds)
        return
    draw_links(canvas, faint=True)
    busy_s = link_seconds(link_bytes, canvas.network.bandwidth_bps)
    busy = np.maximum(busy_s, busy_s.T) / seconds
    share = busy[pairs[:, 0], pairs[:, 1]]
    order = np.argsort(share, kind="stable")
    lines = [_line(canvas, (int(i), int(j)), len(pairs)) for i, j in pairs[order]]
    canvas.axes.add_collection(
        LineCollection(lines, colors=LOAD_MAP(share[order]), linewidths=0.8 + 2.6 * share[order], zorder=4)
    )
    if len(lines) <= _BENT_AT_MOST:
        canvas.strong.extend(lines)
    canvas.busy_shown = True
