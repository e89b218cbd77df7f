"""Curves side by side, as papers show their results: one colour per competitor, in every panel the same."""

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
_HEAD, _LEGEND_ROW = 0.55, 0.24
_MARKERS = "os^Dv<>P"


def panels_figure(title: str, panels: Sequence[Panel]) -> Figure:
    """All panels, up to three in a row, with one legend below."""
    columns = min(_PER_ROW, len(panels))
    rows = math.ceil(len(panels) / columns)
    labels = list(dict.fromkeys(series.label for panel in panels for series in panel.series if not series.reference))
    entries = len({series.label for panel in panels for series in panel.series})
    per_row = 2 * columns + 1
    foot = 0.2 + _LEGEND_ROW * math.ceil(entries / per_row)
    title_width = text_size(title, style.TITLE_POINTS, bold=True)[0] + 0.4
    width, height = max(_PANEL[0] * columns, title_width), _PANEL[1] * rows + _HEAD + foot
    inside = ConstrainedLayoutEngine(rect=(0, foot / height, 1, 1 - (_HEAD + foot) / height))
    figure = Figure(figsize=(width, height), facecolor=style.PAPER, layout=inside)
    at, size = (0.15 / width, 1 - 0.35 / height), style.TITLE_POINTS
    figure.text(*at, title, size=size, weight="bold", color=style.INK, parse_math=False)
    handles: dict[str, object] = {}
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        for series in panel.series:
            handles.setdefault(series.label, _draw(axes, series, labels))
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


def _dress(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, size=style.TEXT_POINTS, color=style.INK, parse_math=False)
    axes.set_xlabel(panel.x_label, size=style.TEXT_POINTS, color=style.QUIET, parse_math=False)
    axes.set_ylabel(panel.y_label, size=style.TEXT_POINTS, color=style.QUIET, parse_math=False)
    axes.tick_params(labelsize=style.SMALL_POINTS, labelcolor=style.QUIET, color=style.FAINT)
    axes.grid(color=style.FAINT, lw=0.6)
    axes.set_axisbelow(True)
    if panel.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
