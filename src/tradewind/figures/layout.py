"""Layout of the sites in a figure.

With coordinates for all sites: a plain map, longitude to the right and latitude up, cut in the widest gap of longitude
without a site, so that Tokyo and Oregon are neighbours if no site is in Europe. Without coordinates: distances in the
figure follow distances in the network (stress majorisation), from several starts, and the layout with the fewest
crossing links is used. Nothing is random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tradewind.network import Matrix, Network

Points = npt.NDArray[np.float64]

_STRESS_STEPS = 150
_STRESS_AT_MOST = 400
_FLAT_MESH_DENSITY = 0.6


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions in any unit, y up; `longitude_scale` is set on maps: x = longitude * scale, y = latitude."""

    points: Points
    longitude_scale: float | None = None


def lay_out(network: Network) -> Layout:
    """The positions of all sites, in the network's order."""
    if len(network) > 1 and all(site.lat is not None for site in network.sites):
        lat = np.array([site.lat for site in network.sites], dtype=np.float64)
        lon = unwrap_longitudes(np.array([site.lon for site in network.sites], dtype=np.float64))
        if np.ptp(lat) > 0 or np.ptp(lon) > 0:
            scale = max(0.5, math.cos(math.radians(float(np.abs(lat).mean()))))
            return Layout(np.column_stack([lon * scale, lat]), scale)
    return Layout(_abstract(network))


def unwrap_longitudes(lon: Points) -> Points:
    """Longitudes without a jump: the map is cut in the middle of the widest gap between sites.

    >>> unwrap_longitudes(np.array([140.0, -120.0])).tolist()
    [140.0, 240.0]
    """
    around = np.sort(lon % 360)
    gaps = np.diff(np.append(around, around[0] + 360))
    widest = int(gaps.argmax())
    cut = around[widest] + gaps[widest] / 2
    cut = cut - 360 if cut >= 180 else cut
    unwrapped: Points = (lon - cut) % 360 + cut
    return unwrapped


def _abstract(network: Network) -> Points:
    n = len(network)
    circle = _circle(n)
    if n <= 3 or n > _STRESS_AT_MOST:
        return circle
    linked = (network.bandwidth_bps > 0) | (network.bandwidth_bps.T > 0)
    latency = np.maximum(network.latency_s, network.latency_s.T)
    known = latency[linked]
    uneven = bool(len(known)) and float(known.max()) > 1.5 * max(float(known.min()), 1e-9)
    if not uneven and linked.sum() >= _FLAT_MESH_DENSITY * n * (n - 1):
        return circle  # nearly all sites are neighbours of each other, which a circle shows best
    distance = _paper_distance(linked, latency if uneven else None)
    edges = np.argwhere(np.triu(linked))
    starts = [_classical_scaling(distance), circle, circle[np.argsort(_bit_reversed(n), kind="stable")]]
    layouts = [_majorise_stress(distance, start) for start in starts]
    if len(edges) <= 400:
        best = min(layouts, key=lambda points: (_crossings(points, edges), _stress(distance, points)))
    else:
        best = layouts[0]
    return _turned_flat(best)


def _circle(n: int) -> Points:
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / max(1, n)
    return (
        np.column_stack([1.6 * np.cos(angle), np.sin(angle)]) if n > 2 else np.column_stack([angle * -1.0, 0 * angle])
    )


def _bit_reversed(n: int) -> list[int]:
    width = n.bit_length()
    return [int(f"{i:0{width}b}"[::-1], 2) for i in range(n)]


def _paper_distance(linked: npt.NDArray[np.bool_], latency_s: Matrix | None) -> Matrix:
    """Distances for the layout: a link has length 1, or 0.5 to 2 by its latency relative to the median."""
    from scipy.sparse.csgraph import shortest_path

    length = np.where(linked, 1.0, 0.0)
    if latency_s is not None:
        typical = float(np.median(latency_s[linked]))
        length = np.where(linked, np.clip(latency_s / max(typical, 1e-9), 0.5, 2.0), 0.0)
    distance: Matrix = shortest_path(length, directed=False)
    finite = distance[np.isfinite(distance)]
    return np.where(np.isfinite(distance), distance, finite.max() * 1.5 + 1.0)


def _classical_scaling(distance: Matrix) -> Points:
    """Positions in the plane by classical scaling of the distances (Torgerson)."""
    n = len(distance)
    centre = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-0.5 * centre @ distance**2 @ centre)
    points: Points = vectors[:, -2:][:, ::-1] * np.sqrt(np.maximum(values[-2:][::-1], 0))
    return points + 1e-3 * _circle(n)  # equal sites must not start at the same point


def _majorise_stress(distance: Matrix, start: Points) -> Points:
    """Move all sites until their distances are close to the wanted ones, with the largest weights on near pairs."""
    n = len(distance)
    weight = np.where(np.eye(n, dtype=bool), 0.0, 1 / np.maximum(distance, 1e-9) ** 2)
    laplacian = np.diag(weight.sum(axis=1)) - weight
    inverse = np.linalg.pinv(laplacian)
    points = start
    for _ in range(_STRESS_STEPS):
        apart = _distances(points)
        ratio = np.divide(weight * distance, apart, out=np.zeros_like(apart), where=apart > 1e-12)
        pull = np.diag(ratio.sum(axis=1)) - ratio
        points = inverse @ (pull @ points)
    return points


def _distances(points: Points) -> Matrix:
    difference = points[:, None, :] - points[None, :, :]
    distance: Matrix = np.sqrt((difference**2).sum(axis=2))
    return distance


def _stress(distance: Matrix, points: Points) -> float:
    wanted = np.maximum(distance, 1e-9)
    return float((((_distances(points) - distance) / wanted) ** 2).sum())


def _crossings(points: Points, edges: npt.NDArray[np.intp]) -> int:
    """The number of pairs of links that cross."""
    a, b = points[edges[:, 0]], points[edges[:, 1]]

    def side(p: Points, q: Points, r: Points) -> npt.NDArray[np.bool_]:
        left: npt.NDArray[np.bool_] = (q[..., 0] - p[..., 0]) * (r[..., 1] - p[..., 1]) > (q[..., 1] - p[..., 1]) * (
            r[..., 0] - p[..., 0]
        )
        return left

    p, q, r, s = a[:, None], b[:, None], a[None], b[None]
    shared = (edges[:, None, :, None] == edges[None, :, None, :]).any(axis=(2, 3))
    crossing = (side(p, q, r) != side(p, q, s)) & (side(r, s, p) != side(r, s, q)) & ~shared
    return int(np.triu(crossing, 1).sum())


def _turned_flat(points: Points) -> Points:
    """The points rotated so that the long axis is horizontal, with the first site in the upper left half."""
    centred = points - points.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    turned: Points = centred @ axes.T
    turned[:, 0] *= -1.0 if turned[0, 0] > 0 else 1.0
    turned[:, 1] *= -1.0 if turned[0, 1] < 0 else 1.0
    return turned


def fit(points: Points, width: float, height: float, stretch: float = 1.0) -> tuple[Points, float, float]:
    """Fit points into a box, centred; returns them and the scales of x and y, whose ratio is at most `stretch`."""
    low, extent = points.min(axis=0), np.maximum(np.ptp(points, axis=0), 1e-9)
    x_scale, y_scale = width / extent[0], height / extent[1]
    x_scale, y_scale = min(x_scale, y_scale * stretch), min(y_scale, x_scale * stretch)
    scaled = (points - low) * [x_scale, y_scale]
    margin = (np.array([width, height]) - extent * [x_scale, y_scale]) / 2
    return scaled + margin, x_scale, y_scale


def spread(points: Points, least: float) -> Points:
    """Move sites apart that are closer than `least`, such as regions of several clouds in one city."""
    from scipy.spatial import cKDTree

    moved = points.copy()
    for _ in range(80):
        pairs = cKDTree(moved).query_pairs(least * 0.999, output_type="ndarray")
        if not len(pairs):
            break
        pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
        i, j = pairs[:, 0], pairs[:, 1]
        apart = moved[i] - moved[j]
        length = np.sqrt((apart**2).sum(axis=1, keepdims=True))
        angle = 2.4 * (i + j)  # a fixed direction for sites that coincide
        away = np.where(
            length > 1e-9, apart / np.maximum(length, 1e-9), np.column_stack([np.cos(angle), np.sin(angle)])
        )
        push = away * (least - length) * 0.5
        np.add.at(moved, i, push)
        np.add.at(moved, j, -push)
    return moved
