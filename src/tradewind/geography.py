"""Distances on Earth, and the propagation delay of light in fibre over them.

Many published topologies give coordinates and no latency. The great-circle distance at the speed of light in fibre is
a lower bound on the latency of a link (real paths are longer). It can be computed for every link in the same way, and
is closer to the truth than zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tradewind.network import Site

EARTH_RADIUS_KM = 6371.0
FIBRE_KM_PER_MS = 200.0

Vector = npt.NDArray[np.float64]


def great_circle_km(
    lat_a: npt.ArrayLike, lon_a: npt.ArrayLike, lat_b: npt.ArrayLike, lon_b: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """Return the great-circle distances in km between points given in degrees (haversine formula).

    >>> float(great_circle_km(40.71, -74.01, 51.51, -0.13).round())
    5570.0
    """
    phi_a, phi_b = np.radians(lat_a), np.radians(lat_b)
    half_dlambda = np.radians(np.subtract(lon_b, lon_a)) / 2
    half_chord = np.sin((phi_b - phi_a) / 2) ** 2 + np.cos(phi_a) * np.cos(phi_b) * np.sin(half_dlambda) ** 2
    distance: Vector = 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.clip(half_chord, 0.0, 1.0)))
    return distance


def fibre_latency_ms(
    sites: Sequence[Site], pairs: Sequence[tuple[int, int]], known_ms: Sequence[float | None]
) -> list[float]:
    """Return one latency in ms for each pair of sites (rows in `sites`): the known one, or else a derived one.

    Unknown latencies follow from the coordinates of both ends. Where those are missing too, the link gets the median of
    all others (zero if there are none), so that a site without coordinates is neither adjacent to all other sites nor
    out of reach. Derived values are rounded to a microsecond, so that every machine derives the same.

    >>> fibre_latency_ms([Site("a", lat=0, lon=0), Site("b", lat=0, lon=10), Site("c")], [(0, 1), (1, 2)], [None, None])
    [5.56, 5.56]
    """
    if not pairs:
        return []
    latency = np.array([np.nan if ms is None else ms for ms in known_ms], dtype=np.float64)
    lat = np.array([np.nan if site.lat is None else site.lat for site in sites])
    lon = np.array([np.nan if site.lon is None else site.lon for site in sites])
    src, dst = np.array(pairs, dtype=np.intp).T
    derived = np.round(great_circle_km(lat[src], lon[src], lat[dst], lon[dst]) / FIBRE_KM_PER_MS, 3)
    latency = np.where(np.isnan(latency), derived, latency)
    unknown = np.isnan(latency)
    if unknown.any():
        latency[unknown] = 0.0 if unknown.all() else np.round(np.median(latency[~unknown]), 3)
    return [float(ms) for ms in latency]
