"""One map under construction: what its parts draw on, and what they leave behind for those that follow."""

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
"""Radii of sites, in inches."""


@dataclass(slots=True)
class Canvas:
    """One map: axes in inches, and where the sites are on it."""

    axes: Axes
    network: Network
    points: Points
    box: tuple[float, float]
    strong: list[Points] = field(default_factory=list)
    """Lines that names should not cover."""
    legend: list[Artist] = field(default_factory=list)
    busy_shown: bool = False
    """Whether colours mean load, which the legend must then explain."""
    hubs: Points = field(default_factory=lambda: np.zeros((0, 2)))
    """Where the lines of regions meet, which names should not cover."""
    caption: str = ""
    """What the map leaves out."""


def plain(text: str, longest: int = 28) -> str:
    """A name on one line and of bearable length."""
    shown = " ".join(text.split())
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
