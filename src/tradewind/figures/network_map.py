"""The map of a network, and of a plan on it.

The width of a link is its bandwidth (of the faster direction). Up to eight trees have a colour each and are parallel
where they share a link; a plan with more trees is drawn by how busy it keeps each link, and one on too many links for
that by the traffic between regions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from tradewind.figures import style
from tradewind.figures.canvas import MARKER, Canvas, plain
from tradewind.figures.graticule import draw_graticule
from tradewind.figures.labels import wrap_text
from tradewind.figures.layout import Layout, fit, lay_out, spread
from tradewind.figures.legend import add_legend, add_load_scale, legend_columns, legend_height
from tradewind.figures.links import draw_links, draw_load, draw_trees
from tradewind.figures.sites import draw_labels, draw_sites
from tradewind.units import format_count, format_duration, format_rate, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tradewind.network import Network
    from tradewind.planning.plan import Plan

_SIDE, _TOP, _BOTTOM = 0.9, 0.45, 0.4
"""Room around the sites for their names, in inches."""
_SCALE, _CAPTION = 2.4, 0.2
"""Width of the scale of load, and height of a line of text, in inches."""


def network_figure(network: Network, plan: Plan | None, shards: tuple[int, ...]) -> Figure:
    """The figure of a network or plan, with title and legend."""
    layout = lay_out(network)
    width, height = 11.0, body_height(layout, 11.0, 4.0, 7.5)
    figure = Figure(figsize=(width, height), facecolor=style.PAPER)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    drawn = draw_map(axes, network, plan, shards, layout, (width, height))
    head, foot = 0.8, foot_height(drawn, width)
    total = head + height + foot
    figure.set_size_inches(width, total)
    axes.set_position((0.0, foot / total, 1.0, height / total))
    title, subtitle = (plain(text, 150) for text in _titles(network, plan, shards))
    x, y = 0.35 / width, 1 - 0.36 / total
    figure.text(x, y, title, size=style.TITLE_POINTS, weight="bold", color=style.INK, parse_math=False)
    figure.text(x, y - 0.26 / total, subtitle, size=style.TEXT_POINTS, color=style.QUIET, parse_math=False)
    add_foot(figure, drawn, 0.0, width, foot)
    return figure


def foot_height(drawn: Canvas, width: float) -> float:
    """The height of legend and caption below a map of that width, in inches."""
    lines = _wrapped_caption(drawn, width).count("\n") + 1 if drawn.caption else 0
    return legend_height(drawn.legend, _columns(drawn, width)) + lines * _CAPTION


def add_foot(figure: Figure, drawn: Canvas, left: float, width: float, foot: float) -> None:
    """Add legend, scale and caption below a map that is `foot` inches above the figure's lower edge."""
    whole, total = figure.get_size_inches()
    add_legend(figure, drawn.legend, _columns(drawn, width), ((left + 0.3) / whole, (foot - 0.08) / total))
    if drawn.busy_shown:
        where = (left + width - _SCALE - 0.6) / whole, (foot - 0.2) / total, _SCALE / whole, 0.1 / total
        add_load_scale(figure, where)
    if drawn.caption:
        at, said = ((left + 0.35) / whole, 0.14 / total), _wrapped_caption(drawn, width)
        figure.text(*at, said, size=style.TEXT_POINTS, color=style.QUIET, parse_math=False)


def _wrapped_caption(drawn: Canvas, width: float) -> str:
    return wrap_text(drawn.caption, style.TEXT_POINTS, width - 0.7)


def _columns(drawn: Canvas, width: float) -> int:
    return legend_columns(drawn.legend, width - (_SCALE + 1.2 if drawn.busy_shown else 0.6))


def body_height(layout: Layout, width: float, least: float, most: float) -> float:
    """The height of a map of that width, in inches."""
    extent = np.maximum(np.ptp(layout.points, axis=0), 1e-9)
    if layout.longitude_scale is None:
        return float(np.clip(width * min(0.62, extent[1] / extent[0] * 1.6), least, most))
    return float(np.clip((width - 2 * _SIDE) * extent[1] / extent[0] + _TOP + _BOTTOM, least, most))


def draw_map(
    axes: Axes,
    network: Network,
    plan: Plan | None,
    shards: tuple[int, ...],
    layout: Layout,
    box: tuple[float, float],
    by_load: bool = False,
) -> Canvas:
    """Draw a map on axes of `box` inches; returns its canvas, with the entries of legend and caption.

    Colours mean load in a plan of many trees, and with `by_load` (to compare plans).
    """
    axes.set(xlim=(0, box[0]), ylim=(0, box[1]), aspect="equal")
    axes.axis("off")
    inner = (max(1.0, box[0] - 2 * _SIDE), max(1.0, box[1] - _TOP - _BOTTOM))
    points, x_scale, y_scale = fit(layout.points, *inner, stretch=1.0 if layout.longitude_scale else 1.8)
    points = points + np.array([(box[0] - inner[0]) / 2, _BOTTOM])
    if layout.longitude_scale is not None:
        draw_graticule(axes, layout, points, (x_scale, y_scale), box)
    canvas = Canvas(axes, network, spread(points, 3.2 * MARKER), box)
    roots: dict[int, list[int]] = {}
    if plan is None:
        draw_links(canvas, faint=False)
    else:
        chosen = shards or tuple(range(len(plan.shards)))
        if len(chosen) <= len(style.TREE_COLOURS) and not by_load:
            draw_links(canvas, faint=True)
            roots = draw_trees(canvas, plan, chosen)
        else:
            draw_load(canvas, plan, chosen)
    draw_sites(canvas, plan, roots)
    draw_labels(canvas, plan)
    return canvas


def _titles(network: Network, plan: Plan | None, shards: tuple[int, ...]) -> tuple[str, str]:
    if plan is None:
        rates = network.bandwidth_bps[network.bandwidth_bps > 0]
        span = f" · {format_rate(float(rates.min()))} to {format_rate(float(rates.max()))}" if len(rates) else ""
        return (
            network.name,
            f"{format_count(len(network), 'site')} · {format_count(network.link_count, 'directed link')}{span}",
        )
    trees = format_count(len(plan.shards), "tree")
    parts = [f"{format_size(plan.nbytes)} among {len(plan.members)} members", trees]
    if shards:
        parts[-1] += ", shown: " + ", ".join(map(str, shards))
    if plan.predicted is not None:
        predicted = plan.predicted
        parts.append(
            f"predicted {format_duration(predicted.seconds)}, limit {format_duration(predicted.bound_seconds)} "
            f"({100 * predicted.efficiency:.0f}%)"
        )
    return f"{plan.planner} on {network.name}", " · ".join(parts)
