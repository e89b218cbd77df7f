"""The timeline of a trace: when every rank computed, waited, synchronised or was down; plan changes; link use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tradewind.figures import style
from tradewind.trace.records import Record, Trace
from tradewind.units import format_duration, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMPUTE, WAIT, FAILURE = "#e4e9ee", "#f2c14e", style.LIMIT
ROUNDS = tuple(style.TREE_COLOURS[k] for k in (0, 1, 2, 3, 4, 6))
"""Colours of rounds, without those that resemble waiting or failing."""

_ROW = 0.24
_WIDTH, _LETTER = 13.0, 0.075
_HEAD, _FOOT = 0.8, 0.45
_MOST_LINKS = 64
PLAN_DECISIONS = ("adopt plan", "roll back plan", "plan again", "reroute")
"""Where rounds begin or go on by another plan."""


def timeline_figure(trace: Trace, workers: Sequence[str], begin_s: float, end_s: float, links: bool = False) -> Figure:
    """The figure of the ranks' activities between two times; `links` adds a row for each link that carried chunks."""
    cut_links = [r for r in trace.kind("failure") if r.peer and r.end_s > begin_s and r.start_s < end_s]
    flows = [r for r in trace.kind("flow") if links and r.end_s > begin_s and r.start_s < end_s]
    pairs = sorted({(r.site, r.peer) for r in flows})[:_MOST_LINKS]
    labels = [*workers, *(["links down"] if cut_links else []), *(f"{a} > {b}" for a, b in pairs)]
    names = 0.35 + _LETTER * max(map(len, labels))
    height = max(len(labels) * _ROW, 1.2) + _HEAD + _FOOT
    figure = Figure(figsize=(_WIDTH, height), facecolor=style.PAPER)
    figure.text(
        0.25 / _WIDTH,
        1 - 0.36 / height,
        _title(trace),
        size=style.TITLE_POINTS,
        weight="bold",
        color=style.INK,
        parse_math=False,
    )
    axes = figure.add_axes((names / _WIDTH, _FOOT / height, 1 - (names + 0.3) / _WIDTH, 1 - (_HEAD + _FOOT) / height))
    _draw(axes, trace, workers, cut_links, begin_s, end_s)
    _draw_links(axes, [r for r in flows if (r.site, r.peer) in pairs], pairs, len(labels) - len(pairs))
    _mark_plans(axes, trace, begin_s, end_s)
    axes.set(ylim=(len(labels) - 0.5, -0.5), yticks=range(len(labels)))
    axes.set_yticklabels(labels, parse_math=False)
    handles: list[Artist] = [
        Patch(color=COMPUTE, label="compute"),
        Patch(color=WAIT, label="wait for a round"),
        Patch(color=ROUNDS[0], label="synchronise (a colour a round)"),
    ]
    if any(trace.kind("total")):
        handles.append(Line2D([], [], color=style.QUIET, lw=1.5, label="some rounds only summed up"))
    if any(trace.kind("failure")):
        handles.append(Patch(color=FAILURE, label="down"))
    if any(r.phase in PLAN_DECISIONS for r in trace.kind("decision")):
        handles.append(Line2D([], [], color=style.INK, lw=0.8, ls=(0, (4, 2)), label="another plan"))
    figure.legend(
        handles=handles,
        loc="upper right",
        bbox_to_anchor=(1 - 0.25 / _WIDTH, 1 - 0.2 / height),
        ncols=6,
        frameon=False,
        fontsize=style.TEXT_POINTS,
        labelcolor=style.INK,
        handlelength=1.2,
        handleheight=0.9,
        columnspacing=1.4,
    )
    return figure


def _title(trace: Trace) -> str:
    run = trace.run
    if run is None:
        return "Timeline"
    size = f": {format_size(run.nbytes)} a round" if run.nbytes else ""
    return f"{run.peer} on {run.site}{size}"


def _draw_links(axes: Axes, flows: Sequence[Record], pairs: Sequence[tuple[str, str]], first: int) -> None:
    """A row a link: when something of a round was on it."""
    row = {pair: first + k for k, pair in enumerate(pairs)}
    bars: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for flow in flows:
        colour = WAIT if flow.round is None else ROUNDS[flow.round % len(ROUNDS)]
        begin_s = flow.start_s if flow.service_s is None else flow.service_s
        bars[row[flow.site, flow.peer], colour].append((begin_s, flow.end_s - begin_s))
    for (k, colour), spans in bars.items():
        axes.broken_barh(spans, (k - 0.2, 0.4), facecolors=colour, alpha=0.7, linewidth=0)


def _mark_plans(axes: Axes, trace: Trace, begin_s: float, end_s: float) -> None:
    """A line where rounds got another plan, or went on by a patched one."""
    marks = [r.start_s for r in trace.kind("decision") if r.phase in PLAN_DECISIONS and begin_s <= r.start_s <= end_s]
    for at_s in marks:
        axes.axvline(at_s, color=style.INK, lw=0.8, ls=(0, (4, 2)), alpha=0.7)


def _draw(
    axes: Axes, trace: Trace, workers: Sequence[str], cut_links: list[Record], begin_s: float, end_s: float
) -> None:
    row = {name: k for k, name in enumerate(workers)}
    bars: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for record in trace.records:
        if record.site not in row or record.end_s <= begin_s or record.start_s >= end_s:
            continue
        colour = _colour(record)
        if colour is not None:
            start_s = max(record.start_s, begin_s)
            bars[row[record.site], colour].append((start_s, min(record.end_s, end_s) - start_s))
    for (k, colour), spans in bars.items():
        tall = 0.92 if colour == FAILURE else 0.78
        axes.broken_barh(spans, (k - tall / 2, tall), facecolors=colour, linewidth=0)
    _draw_sums(axes, trace, row, begin_s, end_s)
    if cut_links:
        spans = [(max(r.start_s, begin_s), min(r.end_s, end_s) - max(r.start_s, begin_s)) for r in cut_links]
        axes.broken_barh(spans, (len(workers) - 0.39, 0.78), facecolors=FAILURE, alpha=0.5, linewidth=0)
    axes.set(xlim=(begin_s, end_s))
    axes.tick_params(axis="y", length=0, labelsize=style.SMALL_POINTS, labelcolor=style.INK)
    axes.tick_params(axis="x", length=3, color=style.FAINT, labelsize=style.SMALL_POINTS, labelcolor=style.QUIET)
    axes.xaxis.set_major_formatter(lambda seconds, _: format_duration(seconds) if seconds else "0")
    axes.grid(axis="x", color=style.FAINT, lw=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _draw_sums(axes: Axes, trace: Trace, row: dict[str, int], begin_s: float, end_s: float) -> None:
    """A thin line where the trace holds only sums of a rank's rounds."""
    for record in trace.kind("total"):
        if record.phase == "sync" and record.site in row and record.end_s > begin_s and record.start_s < end_s:
            start_s = max(record.start_s, begin_s)
            span = (start_s, min(record.end_s, end_s) - start_s)
            axes.broken_barh([span], (row[record.site] - 0.48, 0.06), facecolors=style.QUIET, linewidth=0)


def _colour(record: Record) -> str | None:
    match record.kind:
        case "compute":
            return COMPUTE
        case "wait":
            return WAIT
        case "sync":
            return ROUNDS[(record.round or 0) % len(ROUNDS)]
        case "failure":
            return None if record.peer else FAILURE
    return None
