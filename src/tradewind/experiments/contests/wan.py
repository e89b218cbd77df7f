"""`bench wan` in a lab: the times of several systems on the same emulated links, and the limit that no plan can beat.

The limit is the plan's bound, divided by the share of a link's rate that TCP's headers leave: no all-reduce over TCP
that adds element by element can be faster on these links.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tradewind.control.plans.coding import coded_by, coded_host
from tradewind.errors import ImpossibleProblem, UnknownName
from tradewind.experiments.contests.contest import (
    GLOO,
    GLOO_BEST,
    HIVEMIND,
    HIVEMIND_8BIT,
    TURN_BEGINS,
    host_options,
    planner_and_codec,
    take_turns,
)
from tradewind.lab.processes import call_sites
from tradewind.lab.session import Lab
from tradewind.network import Network
from tradewind.planning import make_plan, predict
from tradewind.planning.baselines.ring import auto_order
from tradewind.planning.control import control_seconds, live_seconds
from tradewind.planning.host import HostCost
from tradewind.planning.plan import Plan
from tradewind.planning.routes import Routes
from tradewind.wire.codecs import AUTO, wire_bytes

PLANNERS = ("star", "ring", "mtree", "fapt", "optimal", "auto")
WARM_UP_BYTES = 400_000
DEADLINE_S = 900.0


@dataclass(frozen=True, slots=True)
class SystemTimes:
    """The times of all turns of one system."""

    system: str
    seconds: tuple[float, ...]
    predicted_s: float | None
    """Predicted time, with TCP's headers and the latency of control messages; None for foreign systems."""

    @property
    def median_s(self) -> float:
        """The median time of a turn."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class WanContest:
    """The results of all systems on one network, in one run."""

    network: str
    sites: int
    nbytes: int
    backend: str
    scale: float
    notes: tuple[str, ...]
    calibration: str
    congestion_control: str
    limit_s: float
    """Least time of any plan, in seconds, with TCP's headers."""
    times: tuple[SystemTimes, ...]
    skipped: tuple[str, ...]
    """Systems that did not take part, with the reason."""
    failed: dict[str, tuple[str, ...]]
    """Reasons of failed turns, by system; a system whose turn failed twice has no times."""

    def of(self, system: str) -> SystemTimes | None:
        """The times of one system; None if it has none."""
        return next((entry for entry in self.times if entry.system == system), None)


PEERS = {
    "gloo": ("torch", (GLOO, GLOO_BEST)),
    "hivemind": ("hivemind", (HIVEMIND,)),
    "hivemind-8bit": ("hivemind", (HIVEMIND_8BIT,)),
}
"""The module that each peer needs, and the systems that it brings."""
FOREIGN = tuple(name for _, brings in PEERS.values() for name in brings)
"""Systems that are not ours."""


def taking_part(peers: Sequence[str], planners: Sequence[str]) -> tuple[list[str], list[str]]:
    """The systems that can take part, and why other requested ones cannot. Raises `UnknownName` for unknown peers."""
    systems: list[str] = []
    skipped: list[str] = []
    for peer, (module, brings) in PEERS.items():
        if peer in peers and importlib.util.find_spec(module) is None:
            skipped.append(f"{peer}: {module} is not installed")
        elif peer in peers:
            systems += brings
    unknown = set(peers) - {*PEERS, "none"}
    if unknown:
        raise UnknownName("peer", min(unknown), (*PEERS, "none"))
    return [*systems, *planners], skipped


def gloo_order(network: Network) -> list[str]:
    """The order of sites by rank in which Gloo's ring, which sends to the next lower rank, is the widest cycle."""
    return auto_order(Routes(network), network.names)[::-1]


def plans_of(systems: Sequence[str], network: Network, nbytes: int) -> tuple[dict[str, Plan], list[str]]:
    """The plans of the systems that are our planners, and why some cannot plan this network.

    They are predicted for ranks that share the cores of this machine, as the sites of a lab do.
    """
    plans: dict[str, Plan] = {}
    refused: list[str] = []
    host = HostCost(cores=float(os.cpu_count() or 1))
    for system in systems:
        if system not in FOREIGN:
            name, codec = planner_and_codec(system)
            try:
                size = wire_bytes(codec, nbytes // 4, 4, len(network))
                plan = make_plan(name, network, size, coded=coded_by(codec, len(network)), **host_options(name))
                coded = host if codec == AUTO else coded_host(codec, host, contributions=len(network))
                predicted = predict(plan, network, host=coded)
                plans[system] = plan.with_prediction(predicted)
            except ImpossibleProblem as error:
                refused.append(f"{system}: {error}")
    return plans, refused


def failures(system: str, answers: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Why turns of a system failed; only sites at which a turn failed have its reason.

    >>> failures("them", [{"failed": {"them": ["", "too late"]}}, {"failed": {"them": ["lost", ""]}}])
    ('lost', 'too late')
    """
    return tuple(max(said, key=bool) for said in zip(*(answer["failed"][system] for answer in answers), strict=True))


def run_contest(
    lab: Lab,
    systems: Sequence[str],
    nbytes: int,
    rounds: int,
    skipped: Sequence[str],
    on_turn: Callable[[], object] = lambda: None,
) -> WanContest:
    """Run the systems in turn in a lab with namespaces, and return their times; `on_turn` is called before a turn."""

    def told(_: str, line: str) -> None:
        if line.strip() == TURN_BEGINS:
            on_turn()

    network, share = lab.network, lab.payload_share
    plans, refused = plans_of(systems, network, nbytes)
    systems = [name for name in systems if name in plans or name in FOREIGN]
    limit = next(iter(plans.values()), None) or make_plan("star", network, nbytes)
    assert limit.predicted is not None
    answers = call_sites(
        network,
        take_turns,
        {
            "systems": list(systems),
            "nbytes": nbytes,
            "rounds": rounds,
            "warm_up_bytes": min(nbytes, WARM_UP_BYTES),
            "best_order": gloo_order(network),
        },
        groups=len(systems) + 1,
        deadline_s=DEADLINE_S,
        on_line=told,
        inside=lab,
    )
    times, control_s = [], control_seconds(network, network.names, network.names[0])
    for name in answers[0]["times"]:
        turns = zip(*(answer["times"][name] for answer in answers), strict=True)
        seconds = tuple(max(end for _, end in turn) - max(start for start, _ in turn) for turn in turns)
        plan = plans.get(name)
        predicted_s = None
        if plan is not None and plan.predicted is not None:
            predicted_s = live_seconds(plan.predicted.seconds / share, control_s, in_place=True)
        times.append(SystemTimes(name, seconds, predicted_s))
    return WanContest(
        network=network.name,
        sites=len(network),
        nbytes=nbytes,
        backend=lab.backend,
        scale=lab.scale,
        notes=lab.notes,
        calibration=str(lab.calibration) if lab.calibration is not None else "not calibrated",
        congestion_control=lab.congestion_control,
        limit_s=limit.predicted.bound_seconds / share,
        times=tuple(times),
        skipped=(*skipped, *refused),
        failed={name: why for name in systems if (why := failures(name, answers))},
    )
