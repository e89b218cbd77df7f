"""The figure of a contest: measured times of several systems on the same links, with the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from tradewind.figures import style
from tradewind.units import format_duration

_BAR, _NAMES, _WIDTH, _HEAD, _FOOT = 0.32, 1.7, 8.0, 1.0, 0.55


@dataclass(frozen=True, slots=True)
class Entry:
    """One system: its median, fastest and slowest turn."""

    name: str
    median_s: float
    least_s: float
    most_s: float
    ours: bool


def contest_figure(title: str, subtitle: str, entries: Sequence[Entry], limit_s: float) -> Figure:
    """Bars of time, the fastest on top; the line is the limit that no plan can beat."""
    rows = sorted(entries, key=lambda entry: entry.median_s)
    total = _HEAD + _FOOT + _BAR * len(rows)
    figure = Figure(figsize=(_WIDTH, total), facecolor=style.PAPER)
    for text, size, colour, top in (
        (title, style.TITLE_POINTS, style.INK, 0.4),
        (subtitle, style.TEXT_POINTS, style.QUIET, 0.65),
    ):
        figure.text(0.2 / _WIDTH, 1 - top / total, text, size=size, color=colour, parse_math=False)
    axes = figure.add_axes((_NAMES / _WIDTH, _FOOT / total, (_WIDTH - _NAMES - 1.5) / _WIDTH, _BAR * len(rows) / total))
    for row, entry in enumerate(rows):
        axes.barh(row, entry.median_s, height=0.62, color=style.BEST if entry.ours else style.OTHER)
        axes.plot([entry.least_s, entry.most_s], [row, row], color=style.INK, lw=1.0, solid_capstyle="butt")
        text = f"{format_duration(entry.median_s)}  ({limit_s / entry.median_s:.0%})"
        end = (max(entry.median_s, entry.most_s), row)
        axes.annotate(text, end, xytext=(5, 0), textcoords="offset points", va="center", size=style.TEXT_POINTS)
    axes.axvline(limit_s, color=style.LIMIT, lw=1.2, ls=(0, (3, 2)))
    axes.set(yticks=range(len(rows)), yticklabels=[entry.name for entry in rows], ylim=(len(rows) - 0.5, -0.5))
    axes.set_xlim(left=0)
    axes.tick_params(length=0, labelsize=style.TEXT_POINTS, labelcolor=style.INK)
    axes.set_xlabel("seconds", size=style.SMALL_POINTS, color=style.QUIET)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return figure
