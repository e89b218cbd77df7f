"""Lines of longitude and latitude behind a map, so that readers recognise where the continents are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tradewind.figures import style
from tradewind.figures.labels import text_size
from tradewind.figures.layout import Layout, Points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STEPS = (0.5, 1, 2, 5, 10, 15, 30, 45, 60)
_LINES_AT_MOST = 9


def draw_graticule(
    axes: Axes, layout: Layout, points: Points, scales: tuple[float, float], box: tuple[float, float]
) -> None:
    """Draw lines of longitude and latitude; `points` is the layout's points in inches, scaled by `scales`."""
    assert layout.longitude_scale is not None
    x_per_degree, y_per_degree = scales[0] * layout.longitude_scale, scales[1]
    lon_0 = layout.points[0, 0] / layout.longitude_scale - points[0, 0] / x_per_degree
    lat_0 = layout.points[0, 1] - points[0, 1] / y_per_degree
    lon_1, lat_1 = lon_0 + box[0] / x_per_degree, lat_0 + box[1] / y_per_degree
    step = next((s for s in _STEPS if (lon_1 - lon_0) / s <= _LINES_AT_MOST), _STEPS[-1])
    text: dict[str, Any] = {"size": style.SMALL_POINTS - 1.0, "color": style.OTHER, "zorder": 1}
    for degrees in _multiples(step, lon_0, lon_1):
        x = (degrees - lon_0) * x_per_degree
        axes.axvline(x, color=style.FAINT, lw=0.5, alpha=0.6, zorder=0)
        if x + 0.04 + text_size(_longitude(degrees), text["size"])[0] < box[0]:
            axes.text(x + 0.04, 0.06, _longitude(degrees), **text)
    for degrees in _multiples(step, max(lat_0, -90), min(lat_1, 90)):
        y = (degrees - lat_0) * y_per_degree
        axes.axhline(y, color=style.FAINT, lw=1.0 if degrees == 0 else 0.5, alpha=0.6, zorder=0)
        if y + 0.03 + text_size(_latitude(degrees), text["size"])[1] < box[1]:
            axes.text(0.06, y + 0.03, _latitude(degrees), **text)


def _multiples(step: float, low: float, high: float) -> list[float]:
    return [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _longitude(degrees: float) -> str:
    """
    >>> _longitude(190), _longitude(-30), _longitude(0)
    ('170°W', '30°W', '0°')
    """
    wrapped = (degrees + 180) % 360 - 180
    return f"{abs(wrapped):g}°{'' if wrapped in (0, -180) else 'E' if wrapped > 0 else 'W'}"


def _latitude(degrees: float) -> str:
    return f"{abs(degrees):g}°{'' if degrees == 0 else 'N' if degrees > 0 else 'S'}"
