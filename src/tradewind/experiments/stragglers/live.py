"""Training with stragglers on real connections: who reaches an accuracy first, with a slow site and a slow link.

Eight sites in a lab train one model on handwritten digits, each on its own eighth of them: alone nobody gets beyond
93%. A step is a real gradient step, stretched to a time drawn from a measured distribution (the catalog's LSTM, which
varies most); at one site it takes five times as long, and one link has a tenth of its rate. Time is compressed by
`COMPRESSION` and rates are a quarter: steps of 1.2 s take 49 ms, and a model of 104 kB stands for one of 10 MB.

Systems take turns in the same processes, on the same links, with the same data, batches, first models and step times.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tradewind.catalog import load_compute_times, load_network
from tradewind.catalog.compute_times import ComputeTimes
from tradewind.control.options import Scatter
from tradewind.errors import CannotEmulate
from tradewind.lab.processes import call_sites
from tradewind.lab.session import Lab
from tradewind.network import Network, Site

COMPRESSION = 25.0
RATE_SCALE = 0.25
SITES = 8
SLOW_SITE, SLOW_LINK = "w8", "w3-w4"
SLOWER_SITE, SLOWER_LINK = 5.0, 10.0
WIDTHS = (64, 128, 128, 10)
PARAMETERS = sum((into + 1) * out for into, out in pairwise(WIDTHS))
MODEL_BYTES = 4 * PARAMETERS
BATCH = 32
LEARNING_RATE = 0.3
TARGET_ACCURACY = 0.94
DEADLINE_S = 400.0

Vector = npt.NDArray[np.float64]
By = Literal["gloo", "gloo, best order", "tradewind", "nobody"]


@dataclass(frozen=True, slots=True)
class System:
    """Who averages with whom, and how the bytes travel."""

    by: By = "tradewind"
    policy: str = "bsp"
    planner: str = "optimal"
    policy_options: tuple[tuple[str, Any], ...] = ()
    planner_options: tuple[tuple[str, Any], ...] = ()
    every: int = 1
    """Local steps between rounds."""
    outer: bool = False
    """DiLoCo's outer optimizer."""
    seconds: float = 6.0
    """Enough for its accuracy to level off."""
    scatter: Scatter = "blocking"


@dataclass(frozen=True, slots=True)
class Turn:
    """One system, trained from one seed for a while."""

    system: System
    trial: int
    seconds: float
    concentration: float | None = None
    """Of the classes that a site sees, as in `digits.deal`; None: all see the same (IID)."""
    slow_site: bool = True
    """Whether there is one."""
    nics: bool = False
    """What differs is the sites' NICs, as in Selective Reduce's evaluation, and no link by itself."""
    sites: int = SITES


class SiteCurve(msgspec.Struct, frozen=True):
    """How one site's model did."""

    began_s: float
    """On the machine's clock, as are all times."""
    at_s: tuple[float, ...]
    """When it had a model to judge: at the start, and after every step and its average."""
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    """Both on digits that nobody trains on."""
    ended_s: float
    final_accuracy: float
    """Of everybody's average, in the end; without synchronisation, of its own."""
    waited_s: float
    averaged_s: float
    rounds: int
    contributors: int
    """Over all rounds."""
    idle: float
    """The share of the machine's processor time that nobody used meanwhile."""


class Session(msgspec.Struct, frozen=True):
    """Turns that were played in one lab: for each of them a curve a site; and what the lab was like."""

    curves: tuple[tuple[SiteCurve, ...], ...]
    note: str


@cache
def sites_network(sites: int = SITES) -> Network:
    """A mesh of links at a quarter of 20 to 155 Mbps, one of them at a tenth of that both ways."""
    mesh = load_network("mesh", n=sites)
    rates_bps = RATE_SCALE * mesh.bandwidth_bps
    ends = [mesh.index[name] for name in SLOW_LINK.split("-")]
    rates_bps[np.ix_(ends, ends)] /= SLOWER_LINK
    return Network(f"{mesh.name}, {SLOW_LINK} slow", mesh.sites, rates_bps)


@cache
def compute_times(is_slow: bool) -> ComputeTimes:
    """How long steps take at a site."""
    return load_compute_times("lstm").scaled((SLOWER_SITE if is_slow else 1.0) / COMPRESSION)


@cache
def nics_network(sites: int = SITES) -> Network:
    """Selective Reduce's workers, the widest NIC at a quarter of 100 Mbps: a link carries what its slower end does."""
    given = load_network("selective-nics", n=sites)
    rates_bps = given.bandwidth_bps * (RATE_SCALE * 100e6 / given.bandwidth_bps.max())
    return Network(given.name, [Site(name) for name in given.names], rates_bps)


def play_turns(turns: Sequence[Turn], backend: str = "auto") -> Session:
    """Play all turns in one lab, in processes that are started once."""
    from tradewind.experiments.stragglers.site import take_part

    network = nics_network(turns[0].sites) if turns[0].nics else sites_network(turns[0].sites)
    loads = [os.getloadavg()[0]]
    with Lab(network, backend, calibrate=False) as lab:
        if lab.backend == "inproc":
            raise CannotEmulate(
                "Gloo is to be measured on the same links, which needs namespaces: root, or a kernel that lets users "
                f"have them. Here: {lab.why}"
            )
        answers = call_sites(
            lab.network,
            take_part,
            {"turns": [msgspec.to_builtins(turn) for turn in turns]},
            groups=len(turns) + 1,
            deadline_s=DEADLINE_S,
            inside=lab,
        )
        loads.append(os.getloadavg()[0])
        note = (
            f"{len(network)} sites as processes on {lab.backend}, TCP with {lab.congestion_control}. Load of the "
            f"machine {loads[0]:.1f} before and {loads[1]:.1f} after, on {os.cpu_count()} processors."
        )
    by_site = msgspec.convert(answers, list[list[SiteCurve]])
    return Session(tuple(zip(*by_site, strict=True)), note)
