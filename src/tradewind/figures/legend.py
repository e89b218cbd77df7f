"""Legend of a map: its colours, lines and markers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from tradewind.figures import style
from tradewind.figures.labels import text_size

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

LOAD_MAP = LinearSegmentedColormap.from_list("load", style.LOAD_COLOURS)
_LEGEND_POINTS = 8.5
_ROW = 0.22


def legend_columns(legend: list[Artist], width: float) -> int:
    """The number of entries that fit side by side in `width` inches; at least one."""
    widest = max((text_size(str(handle.get_label()), _LEGEND_POINTS)[0] for handle in legend), default=1.0)
    return max(1, min(len(legend), int(width / (widest + 0.62))))


def legend_height(legend: list[Artist], columns: int) -> float:
    """The height of the legend below the map, in inches, including margins."""
    return 0.3 + _ROW * math.ceil(len(legend) / max(1, columns))


def add_legend(figure: Figure, legend: list[Artist], columns: int, corner: tuple[float, float]) -> None:
    """Add the legend, with its upper left corner at a point of the figure."""
    if legend:
        made = figure.legend(
            handles=legend,
            loc="upper left",
            bbox_to_anchor=corner,
            ncols=columns,
            frameon=False,
            fontsize=_LEGEND_POINTS,
            labelcolor=style.INK,
            handlelength=1.6,
            columnspacing=1.6,
            borderaxespad=0.0,
        )
        for text in made.get_texts():
            text.set_parse_math(False)  # dollar signs in names are not math


def add_load_scale(figure: Figure, where: tuple[float, float, float, float]) -> None:
    """Add the scale of the load colours."""
    scale = figure.add_axes(where)
    scale.imshow(np.linspace(0, 1, 200)[None], aspect="auto", cmap=LOAD_MAP, extent=(0, 100, 0, 1))
    scale.set(yticks=[], xticks=[0, 50, 100], xticklabels=["idle", "50%", "busy all the time"])
    scale.tick_params(length=0, labelsize=style.SMALL_POINTS, labelcolor=style.QUIET, pad=2)
    for spine in scale.spines.values():
        spine.set_visible(False)
