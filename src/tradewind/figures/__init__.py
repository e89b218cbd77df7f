"""Pictures of networks, plans and comparisons. Only this folder imports matplotlib, and only when asked to draw.

Figures are built through matplotlib's objects, never through `pyplot`: no global state, no window, and the same
picture from the same input everywhere. Everything inside a map is laid out in inches, so that lines side by side,
markers and labels keep their distances whatever the network's extent.
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
    """Refuse to draw where matplotlib is missing; ask before long work that ends in a picture."""
    if find_spec("matplotlib") is None:
        raise BadOption(
            "drawing a picture needs matplotlib, which is not installed. Install it with: pip install 'tradewind[plot]'"
        )


def network_figure(network: Network, plan: Plan | None = None, shards: tuple[int, ...] = ()) -> Figure:
    """A network, with a plan's trees on it if one is given; `shards` limits which of them."""
    ensure_can_draw()
    from tradewind.figures.network_map import network_figure as draw

    return draw(network, plan, shards)


def comparison_figure(comparison: Comparison) -> Figure:
    """All planners beside the limit, and the best plan on the network."""
    ensure_can_draw()
    from tradewind.figures.bars import comparison_figure as draw

    return draw(comparison)


def render(figure: Figure, suffix: str) -> bytes:
    """The figure as a file's bytes, the same bytes every time."""
    import matplotlib

    from tradewind.figures.style import glyphs_may_be_missing

    buffer = io.BytesIO()
    kind = suffix.removeprefix(".").lower()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "tradewind"}), glyphs_may_be_missing():
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()
