"""Figures of networks, plans and comparisons. Only this package imports matplotlib, and only when it draws.

Figures are built with matplotlib's objects, never with `pyplot`: no global state, no window, and the same figure from
the same input everywhere. Everything inside a map is laid out in inches, so that parallel lines, markers and labels
keep their distances for networks of any extent.
"""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tradewind.errors import BadOption

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tradewind.comparison import Comparison
    from tradewind.network import Network
    from tradewind.planning.plan import Plan

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


def ensure_can_draw() -> None:
    """Raise if matplotlib is not installed; call this before long work that ends in a figure."""
    if find_spec("matplotlib") is None:
        raise BadOption(
            "drawing a figure needs matplotlib, which is not installed. Install it with: pip install 'tradewind[plot]'"
        )


def network_figure(network: Network, plan: Plan | None = None, shards: tuple[int, ...] = ()) -> Figure:
    """A figure of a network, and of the trees of a plan (of all shards, or only those in `shards`)."""
    ensure_can_draw()
    from tradewind.figures.network_map import network_figure as draw

    return draw(network, plan, shards)


def comparison_figure(comparison: Comparison) -> Figure:
    """A figure of all planners' rates and the limit, and of the best plan on the network."""
    ensure_can_draw()
    from tradewind.figures.bars import comparison_figure as draw

    return draw(comparison)


def render(figure: Figure, suffix: str) -> bytes:
    """The figure as the content of a file with this suffix; equal figures give equal bytes."""
    import matplotlib

    from tradewind.figures.style import glyphs_may_be_missing

    buffer = io.BytesIO()
    kind = suffix.removeprefix(".").lower()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "tradewind"}), glyphs_may_be_missing():
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()
