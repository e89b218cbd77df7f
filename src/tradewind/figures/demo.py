"""The demo's figures: step times of each scheme, loss over time, and how busy each scheme keeps the links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from matplotlib.figure import Figure

from tradewind.figures import style
from tradewind.figures.layout import lay_out
from tradewind.figures.legend import add_load_scale
from tradewind.figures.network_map import body_height, draw_map
from tradewind.units import format_count, format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tradewind.network import Network
    from tradewind.planning.plan import Plan

_WIDTH = 11.0
_BAR = 0.5
COLOURS = ("#e07b00", "#7a5195", style.BEST)
"""Colours of star, ring and ours, in every figure."""


@dataclass(frozen=True, slots=True)
class SchemeView:
    """The data of a scheme that the figures show."""

    name: str
    plan: Plan
    step_s: float
    compute_s: float
    step_ends_s: tuple[float, ...]
    losses: tuple[float, ...]
    busy_share: float
    """Mean fraction of the transfer time in which a link is busy, as planned."""


def maps_figure(network: Network, schemes: Sequence[SchemeView]) -> Figure:
    """One map per scheme, below each other: the colour of a link is how busy the scheme keeps it."""
    layout = lay_out(network)
    height = body_height(layout, _WIDTH, 2.4, 3.4)
    head, foot = 0.45, 0.45
    total = len(schemes) * (head + height) + foot
    figure = Figure(figsize=(_WIDTH, total), facecolor=style.PAPER)
    for place, scheme in enumerate(schemes):
        top = total - place * (head + height)
        axes = figure.add_axes((0.0, (top - head - height) / total, 1.0, height / total))
        draw_map(axes, network, scheme.plan, (), layout, (_WIDTH, height), by_load=True)
        trees = format_count(len(scheme.plan.shards), "tree")
        x, y = 0.2 / _WIDTH, (top - 0.3) / total
        figure.text(x, y, scheme.name, size=style.TITLE_POINTS, weight="bold", color=COLOURS[place % len(COLOURS)])
        said = f"{trees} · a link is busy {scheme.busy_share:.0%} of the time on average"
        figure.text(x + 1.2 / _WIDTH, y, said, size=style.TEXT_POINTS, color=style.QUIET)
    add_load_scale(figure, ((_WIDTH - 3.4) / _WIDTH, 0.26 / total, 2.8 / _WIDTH, 0.1 / total))
    return figure


def steps_figure(schemes: Sequence[SchemeView], limit_s: float) -> Figure:
    """Bars of the time of a step, with the compute time darker, and the limit."""
    height = _BAR * (len(schemes) + 1) + 0.75
    figure = Figure(figsize=(_WIDTH, height), facecolor=style.PAPER)
    axes = figure.add_axes((1.1 / _WIDTH, 0.35 / height, (_WIDTH - 3.3) / _WIDTH, (height - 0.75) / height))
    slowest = max(schemes, key=lambda scheme: scheme.step_s)
    for row, scheme in enumerate(schemes):
        axes.barh(row, scheme.step_s, height=0.62, color=COLOURS[row % len(COLOURS)])
        axes.barh(row, scheme.compute_s, height=0.62, color=style.INK)
        faster = f"  ({slowest.step_s / scheme.step_s:.1f} times as fast as {slowest.name})"
        said = format_duration(scheme.step_s) + ("" if scheme is slowest else faster)
        _beside(axes, scheme.step_s, row, said, style.INK)
    limit_row = len(schemes)
    axes.barh(limit_row, limit_s, height=0.62, facecolor="none", edgecolor=style.LIMIT, lw=1.4, ls=(0, (3, 2)))
    _beside(axes, limit_s, limit_row, f"{format_duration(limit_s)}: no plan can be faster", style.LIMIT)
    axes.axvline(limit_s, color=style.LIMIT, lw=1.0, ls=(0, (3, 2)), zorder=0)
    axes.set(ylim=(limit_row + 0.5, -0.5), xlim=(0, slowest.step_s), yticks=range(limit_row + 1))
    axes.set_yticklabels([*(scheme.name for scheme in schemes), "limit"])
    axes.set_title("seconds a step (black: computing)", size=style.TEXT_POINTS, color=style.QUIET, loc="left")
    _dress(axes, "x")
    axes.tick_params(axis="y", length=0, labelsize=style.TEXT_POINTS, labelcolor=style.INK)
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_visible(False)
    return figure


def losses_figure(schemes: Sequence[SchemeView]) -> Figure:
    """Curves of the loss of each step over the time of its end."""
    height = 3.6
    figure = Figure(figsize=(_WIDTH, height), facecolor=style.PAPER)
    axes = figure.add_axes((0.7 / _WIDTH, 0.55 / height, (_WIDTH - 1.8) / _WIDTH, (height - 0.8) / height))
    for place, scheme in enumerate(schemes):
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(scheme.step_ends_s, scheme.losses, color=colour, marker="o", ms=4, lw=1.6)
        axes.annotate(
            scheme.name,
            (scheme.step_ends_s[-1], scheme.losses[-1]),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            size=style.TEXT_POINTS,
            color=colour,
            weight="bold",
            annotation_clip=False,
        )
    axes.set(xlim=(0, None), ylim=(0, None))
    axes.set_xlabel("seconds since training began", size=style.TEXT_POINTS, color=style.QUIET)
    axes.set_ylabel("loss of the step's batches", size=style.TEXT_POINTS, color=style.QUIET)
    _dress(axes, "both")
    return figure


def _beside(axes: Axes, x: float, row: int, text: str, colour: str) -> None:
    axes.annotate(
        text,
        (x, row),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        size=style.TEXT_POINTS,
        color=colour,
        annotation_clip=False,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": style.PAPER, "edgecolor": "none"},
    )


def _dress(axes: Axes, grid: Literal["both", "x", "y"]) -> None:
    axes.tick_params(length=0, labelsize=style.SMALL_POINTS, labelcolor=style.QUIET)
    axes.grid(color=style.FAINT, lw=0.6, axis=grid)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(style.FAINT)
