"""The figure of a comparison: bars of all planners with the limit, and a map of the best plan."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from tradewind.figures import style
from tradewind.figures.canvas import plain
from tradewind.figures.labels import text_size
from tradewind.figures.layout import lay_out
from tradewind.figures.network_map import add_foot, body_height, draw_map, foot_height
from tradewind.units import format_duration, format_rate, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tradewind.comparison import Comparison

_BAR = 0.32
_CHART_WIDTH, _MAP_WIDTH = 6.0, 9.0
_NAMES = 1.35
_BARS_WIDTH = _CHART_WIDTH - _NAMES - 1.25
_BEYOND = 1.02
"""End of the axis, divided by the limit."""
_GAP = 0.07
_FOOT = 0.95


def comparison_figure(comparison: Comparison) -> Figure:
    """The figure of a comparison, with bars on the left and the best plan's map on the right."""
    layout = lay_out(comparison.network)
    rows = len(comparison.contenders) + 1
    body = max(rows * _BAR + 0.3, body_height(layout, _MAP_WIDTH, 3.6, 6.0))
    width = _CHART_WIDTH + _MAP_WIDTH
    figure = Figure(figsize=(width, body), facecolor=style.PAPER)
    head, foot, drawn = 0.95, _FOOT, None
    if comparison.contenders:
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        plan = comparison.contenders[0].plan
        drawn = draw_map(axes, comparison.network, plan, (), layout, (_MAP_WIDTH, body))
        foot = max(foot, foot_height(drawn, _MAP_WIDTH))
    total = body + head + foot
    figure.set_size_inches(width, total)
    title = f"{format_size(comparison.nbytes)} among {len(comparison.members)} sites of {comparison.network.name}"
    at, size = (0.35 / width, 1 - 0.4 / total), style.TITLE_POINTS
    figure.text(*at, plain(title, 100), size=size, weight="bold", color=style.INK, parse_math=False)
    bottom = (foot + body - rows * _BAR) / total
    bars = figure.add_axes((_NAMES / width, bottom, _BARS_WIDTH / width, rows * _BAR / total))
    _draw_bars(bars, comparison)
    if drawn is not None:
        axes.set_position((_CHART_WIDTH / width, foot / total, _MAP_WIDTH / width, body / total))
        best = comparison.contenders[0]
        said = f"the fastest plan: {best.plan.planner}; what it keeps busiest: {best.cost.bottleneck}"
        at, size = ((_CHART_WIDTH + 0.3) / width, 1 - 0.78 / total), style.TEXT_POINTS
        figure.text(*at, plain(said, 120), size=size, color=style.QUIET, parse_math=False)
        add_foot(figure, drawn, _CHART_WIDTH, _MAP_WIDTH, foot)
    return figure


def _draw_bars(axes: Axes, comparison: Comparison) -> None:
    limit = comparison.limit
    limit_bps = 8 * comparison.nbytes / limit.seconds  # over the whole round, as the bars are
    rows = len(comparison.contenders)
    names = ["limit", *(contender.plan.planner for contender in comparison.contenders)]
    axes.barh(0, limit_bps / 1e6, height=0.62, facecolor="none", edgecolor=style.LIMIT, lw=1.4, ls=(0, (3, 2)))
    _label(axes, limit_bps, limit_bps, 0, format_duration(limit.seconds), (style.LIMIT, style.LIMIT))
    for row, contender in enumerate(comparison.contenders, start=1):
        predicted = contender.predicted
        colour = style.BEST if row == 1 else style.OTHER
        axes.barh(row, predicted.rate_bps / 1e6, height=0.62, color=colour)
        text = f"{format_duration(predicted.seconds)}  ({100 * predicted.efficiency:.0f}%)"
        inside = style.PAPER if row == 1 else style.INK
        _label(axes, predicted.rate_bps, limit_bps, row, text, (style.INK, inside))
    if comparison.failures:
        failed = "no plan here: " + ", ".join(failure.planner for failure in comparison.failures)
        text = "\n".join(textwrap.wrap(failed, 70))
        axes.annotate(
            text,
            (0, 0),
            xycoords="axes fraction",
            xytext=(0, -22),
            textcoords="offset points",
            va="top",
            size=style.SMALL_POINTS,
            color=style.QUIET,
        )
    axes.axvline(limit_bps / 1e6, color=style.LIMIT, lw=1.0, ls=(0, (3, 2)), zorder=0)
    axes.set(ylim=(rows + 0.5, -0.5), xlim=(0, limit_bps / 1e6 * _BEYOND), yticks=range(rows + 1), yticklabels=names)
    axes.tick_params(axis="y", length=0, labelsize=style.TEXT_POINTS, labelcolor=style.INK)
    axes.tick_params(axis="x", length=0, labelsize=style.SMALL_POINTS, labelcolor=style.QUIET)
    axes.xaxis.set_major_formatter(lambda mbps, _: format_rate(mbps * 1e6) if mbps else "0")
    axes.locator_params(axis="x", nbins=5)
    axes.grid(axis="x", color=style.FAINT, lw=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title(
        "tensor rate; labels: predicted time of one round, share of the limit",
        size=style.TEXT_POINTS,
        color=style.QUIET,
        loc="left",
        pad=8,
    )


def _label(axes: Axes, rate_bps: float, limit_bps: float, row: int, text: str, colours: tuple[str, str]) -> None:
    """Label a bar beside its end, or inside it in the other colour where the label would cross the limit's line."""
    line = _BARS_WIDTH / _BEYOND
    end = line * rate_bps / limit_bps
    inside = row > 0 and end + text_size(text, style.TEXT_POINTS)[0] + 2 * _GAP > line
    gap = _GAP * style.POINTS_PER_INCH
    box = {"boxstyle": "square,pad=0.1", "facecolor": style.PAPER, "edgecolor": "none"}
    axes.annotate(
        text,
        (rate_bps / 1e6, row),
        xytext=(-gap if inside else gap, 0),
        textcoords="offset points",
        va="center",
        ha="right" if inside else "left",
        size=style.TEXT_POINTS,
        color=colours[inside],
        annotation_clip=False,
        bbox=None if inside else box,
    )
