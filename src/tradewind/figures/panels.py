"""Figures of panels with curves or bars, as in papers; a competitor has the same colour in every panel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullFormatter

from tradewind.figures import style
from tradewind.figures.labels import text_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tradewind.figures.chart import Panel, Series

_PANEL = (4.2, 3.1)
_PER_ROW = 3
_BARS_WIDE = 0.8
"""Fraction of a category's width that its bars take."""
_OVER_BARS, _OVER_CURVES = 1.15, 1.05
"""End of an axis, divided by its highest value; bars have a number on top."""
_HEAD, _LEGEND_ROW, _LEGEND_LINE = 0.55, 0.24, 0.6
_MARKERS = "os^Dv<>P"


def panels_figure(title: str, panels: Sequence[Panel]) -> Figure:
    """The figure of all panels, up to three in a row (four form a square), with one legend below."""
    columns = 2 if len(panels) == 4 else min(_PER_ROW, len(panels))
    rows = math.ceil(len(panels) / columns)
    labels = list(dict.fromkeys(series.label for panel in panels for series in panel.series if not series.reference))
    entries = {series.label for panel in panels for series in panel.series}
    width = max(_PANEL[0] * columns, text_size(title, style.TITLE_POINTS, bold=True)[0] + 0.4)
    widest = max(text_size(entry, style.TEXT_POINTS)[0] for entry in entries) + _LEGEND_LINE
    per_row = max(1, min(2 * columns + 1, int(width / widest)))
    foot = 0.2 + _LEGEND_ROW * math.ceil(len(entries) / per_row)
    height = _PANEL[1] * rows + _HEAD + foot
    inside = ConstrainedLayoutEngine(rect=(0, foot / height, 1, 1 - (_HEAD + foot) / height))
    figure = Figure(figsize=(width, height), facecolor=style.PAPER, layout=inside)
    at, size = (0.15 / width, 1 - 0.35 / height), style.TITLE_POINTS
    figure.text(*at, title, size=size, weight="bold", color=style.INK, parse_math=False)
    handles: dict[str, object] = {}
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        for series in panel.series:
            drawn = _draw_bars(axes, series, panel, labels) if panel.categories else _draw(axes, series, labels)
            handles.setdefault(series.label, drawn)
        _dress(axes, panel)
    figure.legend(
        handles=list(handles.values()),
        labels=list(handles),
        loc="lower center",
        ncols=per_row,
        frameon=False,
        fontsize=style.TEXT_POINTS,
        labelcolor=style.INK,
    )
    return figure


def _draw(axes: Axes, series: Series, labels: list[str]) -> object:
    if series.reference:
        return axes.plot(series.x, series.y, color=style.LIMIT, lw=1.2, ls=(0, (3, 2)))[0]
    place = labels.index(series.label)
    return axes.plot(
        series.x,
        series.y,
        color=style.TREE_COLOURS[place % len(style.TREE_COLOURS)],
        marker=_MARKERS[place % len(_MARKERS)] if len(series.x) <= 12 else "",
        ls="-" if place < len(style.TREE_COLOURS) else ":",
        ms=4,
        lw=1.4,
    )[0]


def _draw_bars(axes: Axes, series: Series, panel: Panel, labels: list[str]) -> object:
    """Draw one bar in each category, beside those of the other series; a reference is a dashed line."""
    if series.reference:
        half = _BARS_WIDE / 2
        ends = [x - half for x in series.x], [x + half for x in series.x]
        return axes.hlines(series.y, *ends, color=style.LIMIT, lw=1.2, ls=(0, (3, 2)))
    competitors = [other.label for other in panel.series if not other.reference]
    width = _BARS_WIDE / len(competitors)
    offset = (competitors.index(series.label) - (len(competitors) - 1) / 2) * width
    colour = style.TREE_COLOURS[labels.index(series.label) % len(style.TREE_COLOURS)]
    bars = axes.bar([x + offset for x in series.x], series.y, width=width, color=colour)
    axes.bar_label(bars, fmt="{:.3g}", size=0.8 * style.SMALL_POINTS, color=style.QUIET, rotation=90, padding=2)
    return bars


def _dress(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, size=style.TEXT_POINTS, color=style.INK, parse_math=False)
    axes.set_xlabel(panel.x_label, size=style.TEXT_POINTS, color=style.QUIET, parse_math=False)
    axes.set_ylabel(panel.y_label, size=style.TEXT_POINTS, color=style.QUIET, parse_math=False)
    axes.tick_params(labelsize=style.SMALL_POINTS, labelcolor=style.QUIET, color=style.FAINT)
    axes.grid(color=style.FAINT, lw=0.6, axis="y" if panel.categories else "both")
    axes.set_axisbelow(True)
    if panel.categories:
        axes.set_xticks(range(len(panel.categories)), panel.categories, rotation=40, ha="right", rotation_mode="anchor")
    if panel.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, axes.dataLim.y1 * (_OVER_BARS if panel.categories else _OVER_CURVES) or 1)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
