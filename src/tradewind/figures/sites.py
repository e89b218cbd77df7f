"""Drawing of sites and their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Wedge

from tradewind.figures import style
from tradewind.figures.canvas import MARKER, ROOT_MARKER, Canvas, plain
from tradewind.figures.labels import place_labels

if TYPE_CHECKING:
    from tradewind.planning.plan import Plan

_LABELS_AT_MOST = 120


def draw_sites(canvas: Canvas, plan: Plan | None, roots: dict[int, list[int]]) -> None:
    members = set(canvas.network.names if plan is None else plan.members)
    used = members if plan is None else set(plan.sites)
    many = len(canvas.network) > 150
    radius = MARKER * (0.6 if many else 1.0)
    kinds = set()
    for i, name in enumerate(canvas.network.names):
        x, y = canvas.points[i]
        if i in roots:
            _draw_root(canvas, i, roots[i])
            continue
        kind = "member" if name in members else "helper" if name in used else "not in the plan"
        kinds.add(kind)
        face = style.INK if kind == "member" else style.PAPER
        edge = {"member": style.PAPER, "helper": style.INK, "not in the plan": style.QUIET}[kind]
        canvas.axes.add_patch(Circle((x, y), radius, facecolor=face, edgecolor=edge, lw=1.0, zorder=6))
    if plan is None:
        return
    for kind, face, edge in (
        ("member", style.INK, style.PAPER),
        ("helper", style.PAPER, style.INK),
        ("not in the plan", style.PAPER, style.QUIET),
    ):
        if kind in kinds:
            canvas.legend.append(
                Line2D([], [], ls="", marker="o", ms=7, markerfacecolor=face, markeredgecolor=edge, label=kind)
            )
    if roots:
        handle = Line2D([], [], ls="", marker="o", ms=10, markerfacecolor=style.QUIET, markeredgecolor=style.INK)
        handle.set_label("root")
        canvas.legend.append(handle)


def _draw_root(canvas: Canvas, site: int, trees: list[int]) -> None:
    """Draw a root as a disc in the colour of its tree, or in sectors of several colours."""
    x, y = canvas.points[site]
    for k, tree in enumerate(trees):
        start, end = 90 - 360 * (k + 1) / len(trees), 90 - 360 * k / len(trees)
        colour = style.TREE_COLOURS[tree]
        canvas.axes.add_patch(Wedge((x, y), ROOT_MARKER, start, end, facecolor=colour, edgecolor="none", zorder=7))
    canvas.axes.add_patch(Circle((x, y), ROOT_MARKER, facecolor="none", edgecolor=style.INK, lw=1.3, zorder=8))


def draw_labels(canvas: Canvas, plan: Plan | None) -> None:
    network = canvas.network
    wanted = {i: plain(name) for i, name in enumerate(network.names)}
    if len(network) > _LABELS_AT_MOST:
        shown = set() if plan is None else {shard.root for shard in plan.shards[:_LABELS_AT_MOST]}
        wanted = {i: text for i, text in wanted.items() if network.names[i] in shown}
    size = style.TEXT_POINTS if len(network) <= 25 else style.SMALL_POINTS
    lines = np.concatenate(canvas.strong) if canvas.strong else np.zeros((0, 2))
    marker = ROOT_MARKER if plan is not None else MARKER
    for label in place_labels(wanted, np.concatenate([canvas.points, canvas.hubs]), marker, lines, canvas.box, size):
        if label.needs_leader:
            x, y = canvas.points[label.site]
            canvas.axes.plot([x, label.x], [y, label.y], color=style.QUIET, lw=0.5, zorder=5)
        canvas.axes.text(
            label.x,
            label.y,
            label.text,
            size=size,
            color=style.INK,
            ha="center",
            va="center",
            zorder=9,
            parse_math=False,
            bbox={"boxstyle": "round,pad=0.08", "facecolor": style.PAPER, "edgecolor": "none", "alpha": 0.75},
        )
