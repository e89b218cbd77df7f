"""The canvas of one map: its axes, the positions of sites, and notes of drawn parts for legend and labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tradewind.figures.layout import Points

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from tradewind.network import Network

MARKER = 0.055
ROOT_MARKER = 0.1
"""Radii of the markers of sites and of roots, in inches."""


@dataclass(slots=True)
class Canvas:
    """One map: axes in inches, and the positions of the sites."""

    axes: Axes
    network: Network
    points: Points
    box: tuple[float, float]
    strong: list[Points] = field(default_factory=list)
    """Lines that labels should not cover."""
    legend: list[Artist] = field(default_factory=list)
    busy_shown: bool = False
    """Whether colours mean load, so that the legend needs its scale."""
    hubs: Points = field(default_factory=lambda: np.zeros((0, 2)))
    """Points at which the lines of regions meet, which labels should not cover."""
    caption: str = ""
    """Text about what the map leaves out."""


def plain(text: str, longest: int = 28) -> str:
    """The text on one line, shortened to `longest` characters."""
    shown = " ".join(text.split())
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
