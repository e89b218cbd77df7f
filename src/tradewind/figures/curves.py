"""Lines between sites: straight where possible, bent around other sites, and parallel where links are shared."""

from __future__ import annotations

import numpy as np

from tradewind.figures.layout import Points

Pair = tuple[int, int]

_SAMPLES = 49
_BENDS = (0.0, 0.08, -0.08, 0.16, -0.16, 0.26, -0.26, 0.4, -0.4)
"""Bends of a line, in inches from the straight line, in the order tried; at most a quarter of the line's length."""


def curve(points: Points, pair: Pair, clearance: float) -> Points:
    """A line from the pair's first to its second site, bent to keep `clearance` from other sites where possible."""
    start, end = points[pair[0]], points[pair[1]]
    along = end - start
    length = max(float(np.hypot(*along)), 1e-9)
    across = np.array([-along[1], along[0]]) / length
    t = np.linspace(0, 1, _SAMPLES)[:, None]
    straight = start + t * along
    others = np.delete(points, pair, axis=0)
    near = others[_distance_to_segment(others, start, end) < clearance + max(_BENDS)]
    best: Points = straight
    best_room = -1.0
    for bend in _BENDS:
        bulge = float(np.clip(bend, -length / 4, length / 4))
        line: Points = straight + 4 * t * (1 - t) * bulge * across
        room = clearance if not len(near) else float(np.sqrt(((line[:, None] - near[None]) ** 2).sum(axis=2)).min())
        if room >= clearance:
            return line
        if room > best_room:
            best, best_room = line, room
    return best


def _distance_to_segment(points: Points, start: Points, end: Points) -> Points:
    along = end - start
    share = np.clip(((points - start) @ along) / max(float(along @ along), 1e-12), 0, 1)
    distance: Points = np.sqrt(((points - start - share[:, None] * along) ** 2).sum(axis=1))
    return distance


def beside(line: Points, offset: float) -> Points:
    """The line shifted to its left by `offset`, with its ends still at the sites."""
    direction = np.gradient(line, axis=0)
    length = np.sqrt((direction**2).sum(axis=1, keepdims=True))
    normal = np.column_stack([-direction[:, 1], direction[:, 0]]) / np.maximum(length, 1e-12)
    t = np.linspace(0, 1, len(line))
    taper = (0.4 + 0.6 * np.sin(np.pi / 2 * np.clip(np.minimum(t, 1 - t) / 0.15, 0, 1)) ** 2)[:, None]
    shifted: Points = line + normal * offset * taper
    return shifted
