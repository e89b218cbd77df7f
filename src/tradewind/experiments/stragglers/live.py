"""Training with stragglers on real connections: time to accuracy of several systems, with a slow site and a slow link.

Eight sites in a lab train one model on handwritten digits, each on its own eighth of them: without synchronisation no
site exceeds 93%. A step is a real gradient step, extended to a time drawn from a measured distribution (the catalog's
LSTM, which varies most); at one site it takes five times as long, and one link has a tenth of its rate. Time is
compressed by `COMPRESSION` and rates are a quarter: steps of 1.2 s take 49 ms, and a model of 104 kB stands for one of
10 MB.

Systems take turns in the same processes, on the same links, with the same data, batches, first models and step times.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tradewind.catalog import load_compute_times, load_network
from tradewind.catalog.compute_times import ComputeTimes
from tradewind.errors import CannotEmulate
from tradewind.experiments.papers import LIVE
from tradewind.experiments.papers.judged_code import judged_code
from tradewind.experiments.stragglers.tasks import TASKS
from tradewind.lab.processes import call_sites
from tradewind.lab.session import Lab
from tradewind.network import Network, Site
from tradewind.schemes import Scheme, make_scheme

COMPRESSION = 25.0
RATE_SCALE = 0.25
SITES = 8
SLOW_SITE, SLOW_LINK = "w8", "w3-w4"
SLOWER_SITE, SLOWER_LINK = 5.0, 10.0
WIDTHS = (64, 128, 128, 10)
PARAMETERS = sum((into + 1) * out for into, out in pairwise(WIDTHS))
MODEL_BYTES = 4 * PARAMETERS
DEADLINE_S = 1800.0
SERVED = ("asp", "ssp")
"""Policies whose sites exchange with a server."""

Vector = npt.NDArray[np.float64]
By = Literal["gloo", "gloo, best order", "tradewind", "none"]


@dataclass(frozen=True, slots=True)
class System:
    """A way to synchronise: a library; or a scheme of Tradewind, with the options that differ from its own."""

    by: By = "tradewind"
    scheme: str = "tradewind"
    """A published system by its name, which then runs as published; or POLICY+PLANNER, with all that Tradewind does."""
    policy: str | None = None
    """Another policy than the scheme's."""
    policy_options: tuple[tuple[str, Any], ...] = ()
    planner_options: tuple[tuple[str, Any], ...] = ()
    run_options: tuple[tuple[str, Any], ...] = ()
    """Options of a live run by name, without their group."""
    every: int = 1
    """Local steps per round."""
    outer: bool = False
    """Whether to use DiLoCo's outer optimizer."""
    seconds: float = 6.0
    """Duration of a turn: long enough for the accuracy to level off."""
    divided: bool = True
    """Whether the learning rate is divided by the number of sites where they exchange with a server."""
    ensemble: bool = False
    """Whether the final model is the mean of all sites' moving averages (DS-Sync's SWA), on virtual time only."""

    @property
    def made(self) -> Scheme:
        """The scheme with its options."""
        policy_options, planner_options = dict(self.policy_options), dict(self.planner_options)
        return make_scheme(
            self.scheme, policy=self.policy, policy_options=policy_options, planner_options=planner_options
        )

    @property
    def is_served(self) -> bool:
        """Whether sites exchange with a server. It adds the changes of all, where others average them."""
        return self.by == "tradewind" and self.made.policy in SERVED

    def slower(self, sites: int) -> int:
        """What the learning rate is divided by: a server adds the steps of all sites."""
        return sites if self.divided and self.is_served else 1


@dataclass(frozen=True, slots=True)
class Turn:
    """The training of one system from one seed for a given time."""

    system: System
    trial: int
    seconds: float
    concentration: float | None = None
    """Dirichlet concentration of a site's classes, as in `digits.deal`; None: the same classes everywhere (IID)."""
    slow_site: bool = True
    """Whether one site is slow."""
    nics: bool = False
    """Whether the sites' NICs differ, as in Selective Reduce's evaluation, instead of single links."""
    sites: int = SITES
    task: str = "digits"
    """What is trained, a name in `tasks.TASKS`."""
    learning_rate: float = 1.0
    """Learning rate, times the task's."""


class SiteCurve(msgspec.Struct, frozen=True):
    """The measurements of one site in one turn."""

    began_s: float
    """Start of the turn; all times are on the machine's clock."""
    at_s: tuple[float, ...]
    """Times at which the model was tested: at the start, and after every step and its round."""
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    """Accuracies on test digits, as are the losses."""
    ended_s: float
    final_accuracy: float
    """Accuracy of the mean of all sites' final models; without synchronisation, of this site's own."""
    waited_s: float
    averaged_s: float
    rounds: int
    contributors: int
    """Number of contributors, summed over all rounds."""
    idle: float
    """Fraction of the machine's processor time that was idle during the turn."""
    steps: int = 0
    """Number of local steps; 0: one before each test of the model but the first."""


class Session(msgspec.Struct, frozen=True):
    """The turns of one lab, each with one curve per site, and a note about the lab."""

    curves: tuple[tuple[SiteCurve, ...], ...]
    note: str


@cache
def sites_network(sites: int = SITES) -> Network:
    """A mesh of links at a quarter of 20 to 155 Mbps; the slow one has a tenth of that in both directions."""
    mesh = load_network("mesh", n=sites)
    rates_bps = RATE_SCALE * mesh.bandwidth_bps
    ends = [mesh.index[name] for name in SLOW_LINK.split("-")]
    rates_bps[np.ix_(ends, ends)] /= SLOWER_LINK
    return Network(f"{mesh.name}, {SLOW_LINK} slow", mesh.sites, rates_bps)


@cache
def compute_times(is_slow: bool) -> ComputeTimes:
    """The distribution of step times at a site."""
    return load_compute_times("lstm").scaled((SLOWER_SITE if is_slow else 1.0) / COMPRESSION)


@cache
def nics_network(sites: int = SITES) -> Network:
    """Selective Reduce's workers, the fastest NIC at a quarter of 100 Mbps: a link has the rate of its slower end."""
    given = load_network("selective-nics", n=sites)
    rates_bps = given.bandwidth_bps * (RATE_SCALE * 100e6 / given.bandwidth_bps.max())
    return Network(given.name, [Site(name) for name in given.names], rates_bps)


def play_kept(turns: tuple[Turn, ...], backend: str, folder: str | None) -> Session:
    """`play_turns`, or what an earlier call with the same turns and the same code has stored in the folder."""
    if folder is None:
        return play_turns(turns, backend)
    path = kept_path(turns, backend, judged_code(LIVE), folder)
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Session)
    played = play_turns(turns, backend)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(played))
    return played


def kept_path(turns: tuple[Turn, ...], backend: str, code: str, folder: str) -> Path:
    """The file of turns that were played on a backend with this code."""
    known = hashlib.sha256(repr((turns, backend, code)).encode()).hexdigest()[:16]
    return Path(folder) / f"{turns[0].task}-{turns[0].trial}-{known}.json"


def turn_network(turn: Turn) -> Network:
    """The sites and links of a turn."""
    network = nics_network(turn.sites) if turn.nics else sites_network(turn.sites)
    return network.scaled(1 / TASKS[turn.task].stretch)


def play_turns(turns: Sequence[Turn], backend: str = "auto") -> Session:
    """Run all turns in one lab, in the same processes. Raises `CannotEmulate` without namespaces."""
    from tradewind.experiments.stragglers.site import take_part

    network = turn_network(turns[0])
    loads = [os.getloadavg()[0]]
    with Lab(network, backend, calibrate=False) as lab:
        if lab.backend == "inproc":
            raise CannotEmulate(
                "this experiment measures Gloo on the same links, which needs namespaces: run as root, or enable user "
                f"namespaces. Here: {lab.why}"
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
