"""The simulator: the production controller and protocol on virtual time and virtual links.

    result = simulate(network, "crew", seconds=50, seed=1, nbytes=180_000_000, compute="lstm", policy_options={"p": 5})
    result.rounds_per_worker, result.average_sync_s

The result of a run depends only on its arguments. Arguments and results can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tradewind.catalog import BandwidthTrace, load_compute_times
from tradewind.network import Network
from tradewind.schemes import ExecutionModel, Scheme, make_scheme
from tradewind.sim.faults import (
    Background,
    BusyProcessor,
    Fault,
    LinkOutage,
    LossyLink,
    SlowLink,
    SlowRank,
    WorkerOutage,
    random_link_outages,
    random_outages,
)
from tradewind.sim.recorder import Detail
from tradewind.sim.result import RoundSummary, SimulationResult, WorkerSummary
from tradewind.sim.setup import ConstantSteps, Setup, StepTimes
from tradewind.sim.simulation import Simulation

__all__ = [
    "Background",
    "BusyProcessor",
    "ConstantSteps",
    "LinkOutage",
    "LossyLink",
    "RoundSummary",
    "Setup",
    "Simulation",
    "SimulationResult",
    "SlowLink",
    "SlowRank",
    "WorkerOutage",
    "WorkerSummary",
    "random_link_outages",
    "random_outages",
    "simulate",
]


def simulate(
    network: Network,
    scheme: Scheme | str,
    seconds: float = 50.0,
    seed: int = 0,
    *,
    compute: StepTimes | str | float = "transformer",
    nbytes: int = 180_000_000,
    faults: Iterable[Fault] = (),
    noise: float = 0.0,
    rates: BandwidthTrace | None = None,
    discipline: str | None = None,
    execution: ExecutionModel | None = None,
    policy_options: Mapping[str, object] | None = None,
    planner_options: Mapping[str, object] | None = None,
    workers: Iterable[str] = (),
    record: Detail = "nothing",
    progress: Callable[[float], object] | None = None,
    **more: Any,
) -> SimulationResult:
    """Simulate a scheme on a network for `seconds` of simulated time.

    `compute` is the name of a compute-time trace in the catalog, a constant in seconds, or an object with `sample`
    (`StepTimes`); `more` are other fields of `Setup`. Sites with several ranks have as many workers.

    >>> from tradewind.catalog import load_network
    >>> result = simulate(load_network("mesh", n=6), "crew", 10, compute=0.1, nbytes=10**6, policy_options={"p": 2})
    >>> result.average_scale
    2.0
    """
    network = network.with_ranks()
    chosen = make_scheme(
        scheme,
        execution=execution,
        discipline=discipline,
        policy_options=policy_options,
        planner_options=planner_options,
    )
    if isinstance(compute, str):
        steps: StepTimes = load_compute_times(compute)
    else:
        steps = ConstantSteps(float(compute)) if isinstance(compute, int | float) else compute
    setup = Setup(
        network,
        chosen,
        nbytes,
        steps,
        seconds,
        seed,
        workers=tuple(workers),
        faults=tuple(faults),
        noise=noise,
        rates=rates,
        record=record,
        **more,
    )
    return Simulation(setup).run(progress)
