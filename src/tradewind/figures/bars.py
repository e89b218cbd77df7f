"""All planners beside the limit, and the best plan on its network."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from tradewind.figures import style
from tradewind.figures.layout import lay_out
from tradewind.figures.legend import add_legend, add_load_scale, legend_columns
from tradewind.figures.network_map import body_height, draw_map
from tradewind.units import format_duration, format_rate, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tradewind.comparison import Comparison

_BAR = 0.32
_CHART_WIDTH, _MAP_WIDTH = 6.0, 9.0
_NAMES = 1.35


def comparison_figure(comparison: Comparison) -> Figure:
    """Bars on the left, the best plan's map on the right."""
    layout = lay_out(comparison.network)
    rows = len(comparison.contenders) + 1
    body = max(rows * _BAR + 0.3, body_height(layout, _MAP_WIDTH, 3.6, 6.0))
    head, foot = 0.95, 0.95
    width, total = _CHART_WIDTH + _MAP_WIDTH, body + head + foot
    figure = Figure(figsize=(width, total), facecolor=style.PAPER)
    figure.text(
        0.35 / width,
        1 - 0.4 / total,
        f"{format_size(comparison.nbytes)} among {len(comparison.members)} sites of {comparison.network.name}",
        size=style.TITLE_POINTS,
        weight="bold",
        color=style.INK,
        parse_math=False,
    )
    bars = figure.add_axes(
        (
            _NAMES / width,
            (foot + body - rows * _BAR) / total,
            (_CHART_WIDTH - _NAMES - 1.25) / width,
            rows * _BAR / total,
        )
    )
    _draw_bars(bars, comparison)
    if comparison.contenders:
        _draw_best(figure, comparison, (width, total), (body, foot))
    return figure


def _draw_bars(axes: Axes, comparison: Comparison) -> None:
    limit = comparison.limit
    limit_bps = 8 * comparison.nbytes / limit.seconds  # over the whole round, as the bars are
    rows = len(comparison.contenders)
    names = ["limit", *(contender.plan.planner for contender in comparison.contenders)]
    axes.barh(0, limit_bps / 1e6, height=0.62, facecolor="none", edgecolor=style.LIMIT, lw=1.4, ls=(0, (3, 2)))
    _at_end(axes, limit_bps, 0, format_duration(limit.seconds), style.LIMIT)
    for row, contender in enumerate(comparison.contenders, start=1):
        predicted = contender.predicted
        colour = style.BEST if row == 1 else style.OTHER
        axes.barh(row, predicted.rate_bps / 1e6, height=0.62, color=colour)
        text = f"{format_duration(predicted.seconds)}  ({100 * predicted.efficiency:.0f}%)"
        _at_end(axes, predicted.rate_bps, row, text, style.INK)
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
    axes.set(ylim=(rows + 0.5, -0.5), xlim=(0, limit_bps / 1e6 * 1.02), yticks=range(rows + 1), yticklabels=names)
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


def _at_end(axes: Axes, rate_bps: float, row: int, text: str, colour: str) -> None:
    axes.annotate(
        text,
        (rate_bps / 1e6, row),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        size=style.TEXT_POINTS,
        color=colour,
        annotation_clip=False,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": style.PAPER, "edgecolor": "none"},
    )


def _draw_best(figure: Figure, comparison: Comparison, size: tuple[float, float], heights: tuple[float, float]) -> None:
    (width, total), (body, foot) = size, heights
    best = comparison.contenders[0]
    axes = figure.add_axes((_CHART_WIDTH / width, foot / total, _MAP_WIDTH / width, body / total))
    layout = lay_out(comparison.network)
    legend, busy_shown = draw_map(axes, comparison.network, best.plan, (), layout, (_MAP_WIDTH, body))
    figure.text(
        (_CHART_WIDTH + 0.3) / width,
        1 - 0.78 / total,
        f"the fastest plan: {best.plan.planner}, limited by {best.cost.bottleneck}",
        size=style.TEXT_POINTS,
        color=style.QUIET,
        parse_math=False,
    )
    columns = legend_columns(legend, _MAP_WIDTH - (3.0 if busy_shown else 0.4))
    add_legend(figure, legend, columns, ((_CHART_WIDTH + 0.25) / width, (foot - 0.1) / total))
    if busy_shown:
        add_load_scale(figure, ((width - 2.9) / width, (foot - 0.22) / total, 2.4 / width, 0.09 / total))
