"""Hypothesis strategies for networks and planning problems, shared by all planner tests.

`networks()` makes strongly connected networks of every kind that Tradewind knows: sparse and dense, symmetric and not,
with one-way links, NIC caps, zones, trunks, and many equal values, because ties are where planners go wrong.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from tradewind.network import ANY_ZONE, Network, Site, Trunk

Problem = tuple[Network, tuple[str, ...], int]

_RATES_MBPS = (
    st.just(100),
    st.sampled_from((10, 100)),
    st.integers(1, 1000),
)
_LATENCIES_MS = (st.just(0), st.sampled_from((10, 50)), st.integers(0, 300))


@st.composite
def networks(draw: st.DrawFn, min_sites: int = 2, max_sites: int = 9) -> Network:
    """Any strongly connected network."""
    n = draw(st.integers(min_sites, max_sites))
    symmetric = draw(st.booleans())
    present = _links(draw, n, symmetric)
    bandwidth_mbps = np.where(present, _values(draw, n, _RATES_MBPS, symmetric), 0)
    latency_ms = np.where(present, _values(draw, n, _LATENCIES_MS, symmetric), 0)
    sites = _sites(draw, n)
    zones = sorted({site.zone for site in sites if site.zone is not None})
    return Network("drawn", sites, bandwidth_mbps * 1e6, latency_ms / 1e3, trunks=_trunks(draw, zones))


@st.composite
def problems(draw: st.DrawFn, min_sites: int = 2, max_sites: int = 9) -> Problem:
    """A network, some or all of its sites as members in its order, and a number of bytes, often a tiny one."""
    network = draw(networks(min_sites, max_sites))
    members = network.names
    if draw(st.booleans()):
        chosen = draw(st.sets(st.sampled_from(network.names), min_size=2))
        members = tuple(name for name in network.names if name in chosen)
    return network, members, draw(st.one_of(st.integers(1, 20), st.integers(1, 10**9)))


def _links(draw: st.DrawFn, n: int, symmetric: bool) -> npt.NDArray[np.bool_]:
    """A spanning tree both ways or a one-way cycle, and none, some or all of the other links."""
    present = np.zeros((n, n), dtype=bool)
    if symmetric:
        for i in range(1, n):
            present[i, draw(st.integers(0, i - 1))] = True
    else:
        cycle = draw(st.permutations(range(n)))
        present[cycle, [*cycle[1:], cycle[0]]] = True
    density = draw(st.sampled_from(("none", "some", "all")))
    if density == "all":
        present[:] = True
    elif density == "some":
        present |= np.array(draw(st.lists(st.booleans(), min_size=n * n, max_size=n * n))).reshape(n, n)
    if symmetric:
        present |= present.T
    np.fill_diagonal(present, False)
    return present


def _values(
    draw: st.DrawFn, n: int, kinds: tuple[st.SearchStrategy[int], ...], symmetric: bool
) -> npt.NDArray[np.int64]:
    kind = draw(st.sampled_from(kinds))
    values = np.array(draw(st.lists(kind, min_size=n * n, max_size=n * n)), dtype=np.int64).reshape(n, n)
    return np.maximum(values, values.T) if symmetric else values


def _sites(draw: st.DrawFn, n: int) -> list[Site]:
    zone = draw(st.sampled_from((st.none(), st.sampled_from((None, "x", "y", "z")))))
    nic = draw(st.sampled_from((st.just(math.inf), st.sampled_from((math.inf, 5e6, 2e8)))))
    return [Site(f"s{i}", zone=draw(zone), egress_bps=draw(nic), ingress_bps=draw(nic)) for i in range(n)]


def _trunks(draw: st.DrawFn, zones: list[str]) -> list[Trunk]:
    pairs = [(a, b) for a in (*zones, ANY_ZONE) for b in (*zones, ANY_ZONE) if a != b]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=3)) if pairs else []
    capacity = st.sampled_from((1e6, 5e7, 1e9))
    return [Trunk(f"{a}-{b}", a, b, draw(capacity)) for a, b in chosen]
