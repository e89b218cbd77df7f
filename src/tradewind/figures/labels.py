"""Placement of site names, such that no two overlap and few cover a line.

Each name has candidate positions around its site, nearest first. Names are placed in turn, the most crowded first, and
moved again in a few more passes; a name far from its site gets a thin leader. A name without any room is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tradewind.figures.layout import Points
from tradewind.figures.style import POINTS_PER_INCH, glyphs_may_be_missing

_ANGLES = np.radians([0, 180, 90, 270, 30, 330, 150, 210, 60, 120, 240, 300])
_RADII = (0.0, 0.06, 0.14, 0.26, 0.42, 0.62, 0.85)
_TURNS = 4
_LEADER_FROM = 0.14

_OVERLAP, _MARKER, _LINE, _OUTSIDE, _FAR = 200.0, 80.0, 1.0, 200.0, 5.0
_LEFT_OUT_FROM = 40.0
_EDGE = 0.05


@dataclass(frozen=True, slots=True)
class Label:
    """A placed name: the middle of its text, in inches."""

    site: int
    text: str
    x: float
    y: float
    needs_leader: bool


def text_size(text: str, points: float, bold: bool = False) -> tuple[float, float]:
    """The width and height of a text in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font = FontProperties(size=points, weight="bold" if bold else "normal")
    with glyphs_may_be_missing():
        width, height, _ = TextToPath().get_text_width_height_descent(text, font, ismath=False)
    return float(width) / POINTS_PER_INCH, max(float(height), points * 0.72) / POINTS_PER_INCH


def wrap_text(text: str, points: float, width: float) -> str:
    """The text in lines of at most `width` inches, broken between words.

    >>> wrap_text("in lines of one inch", 9.0, 1.0).splitlines()
    ['in lines of one', 'inch']
    """
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_size(longer, points)[0] > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def place_labels(
    names: dict[int, str], points: Points, marker: float, lines: Points, box: tuple[float, float], size: float
) -> list[Label]:
    """Positions of the names of sites (by row) that avoid sites, markers of radius `marker` and points on lines."""
    sizes = {site: np.array(text_size(name, size)) + 0.03 for site, name in names.items()}
    rectangles = {site: _candidates(points[site], sizes[site], marker) for site in names}
    fixed = {site: _fixed_cost(candidates, points, site, marker, lines, box) for site, candidates in rectangles.items()}
    crowding = {site: float(np.sort(np.hypot(*(points - points[site]).T))[:4].sum()) for site in names}
    order = sorted(names, key=lambda site: (crowding[site], site))
    chosen: dict[int, int] = {}
    cost: dict[int, float] = {}
    for _ in range(_TURNS):
        for site in order:
            others = [rectangles[other][at] for other, at in chosen.items() if other != site]
            total = fixed[site] + _OVERLAP * _overlap(rectangles[site], np.array(others).reshape(-1, 4))
            chosen[site] = int(total.argmin())
            cost[site] = float(total[chosen[site]])
    labels = []
    for site in sorted(names):
        if cost[site] >= _LEFT_OUT_FROM:
            continue
        left, bottom, right, top = rectangles[site][chosen[site]]
        far = _RADII[chosen[site] // len(_ANGLES)] >= _LEADER_FROM
        labels.append(Label(site, names[site], (left + right) / 2, (bottom + top) / 2, far))
    return labels


def _candidates(point: Points, size: Points, marker: float) -> Points:
    """Candidate rectangles (left, bottom, right, top) around a site, nearest first."""
    half = size / 2
    made = []
    for radius in _RADII:
        for angle in _ANGLES:
            direction = np.array([np.cos(angle), np.sin(angle)])
            reach = min(
                (half[k] / abs(direction[k]) for k in (0, 1) if abs(direction[k]) > 1e-9), default=0.0
            )  # from the rectangle's middle to its edge
            middle = point + direction * (marker + 0.02 + radius + reach)
            made.append([*(middle - half), *(middle + half)])
    return np.array(made)


def _fixed_cost(
    candidates: Points, points: Points, own: int, marker: float, lines: Points, box: tuple[float, float]
) -> npt.NDArray[np.float64]:
    rank = np.repeat(np.arange(len(_RADII)), len(_ANGLES)) * _FAR + np.tile(np.arange(len(_ANGLES)) * 0.15, len(_RADII))
    others = np.delete(points, own, axis=0)
    near_marker = _inside(candidates, others, marker)
    on_line = np.minimum(_inside(candidates, lines, 0.0), 12)
    low, high = candidates[:, :2], candidates[:, 2:]
    outside = (low < _EDGE).any(axis=1) | (high > np.array(box) - _EDGE).any(axis=1)
    cost: npt.NDArray[np.float64] = rank + _MARKER * near_marker + _LINE * on_line + _OUTSIDE * outside
    return cost


def _inside(rectangles: Points, points: Points, margin: float) -> npt.NDArray[np.int64]:
    """The number of points in each rectangle, enlarged by a margin."""
    if not len(points):
        return np.zeros(len(rectangles), dtype=np.int64)
    x, y = points[None, :, 0], points[None, :, 1]
    within = (
        (x > rectangles[:, 0, None] - margin)
        & (x < rectangles[:, 2, None] + margin)
        & (y > rectangles[:, 1, None] - margin)
        & (y < rectangles[:, 3, None] + margin)
    )
    count: npt.NDArray[np.int64] = within.sum(axis=1)
    return count


def _overlap(rectangles: Points, others: Points) -> npt.NDArray[np.float64]:
    """The fraction of each rectangle that the others cover, summed, plus 0.2 for each that overlaps."""
    if not len(others):
        return np.zeros(len(rectangles))
    width = np.minimum(rectangles[:, None, 2], others[None, :, 2]) - np.maximum(
        rectangles[:, None, 0], others[None, :, 0]
    )
    height = np.minimum(rectangles[:, None, 3], others[None, :, 3]) - np.maximum(
        rectangles[:, None, 1], others[None, :, 1]
    )
    both = (width > 0) & (height > 0)
    area = (rectangles[:, 2] - rectangles[:, 0]) * (rectangles[:, 3] - rectangles[:, 1])
    covered = np.where(both, width * height, 0.0) / area[:, None] + np.where(both, 0.2, 0.0)
    total: npt.NDArray[np.float64] = covered.sum(axis=1)
    return total
