"""The demo: trains one model at the sites of a real network, emulated here, over star, ring and Tradewind's plan.

Sites are processes of this machine that emulate the network's links. All schemes train the same model from the same
seeds for the same number of steps, so only the plan differs: losses must agree, times differ. A machine with few cores
cannot carry gigabits, so rates are scaled down and latencies kept; a model of P parameters then takes as long as one
of P / scale parameters on the real links, and stands for it.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from tradewind.errors import BadOption, InternalError
from tradewind.experiments.demo.model import parameter_count
from tradewind.experiments.demo.site import Data, Event, Task, Training
from tradewind.lab.processes import call_sites
from tradewind.network import Network
from tradewind.planning import make_plan, planner_names, predict
from tradewind.planning.bound import bound
from tradewind.planning.check import ensure_valid
from tradewind.planning.plan import Plan, Prediction, plan_from_json, plan_to_json
from tradewind.plugins import is_file_reference

WIDTHS = (64, 670, 670, 10)
FLOAT_BYTES = 4
GRADIENT_BYTES = FLOAT_BYTES * parameter_count(WIDTHS)
BATCH = 64
MOST_SITES, MOST_STEPS = 16, 1000

LIMIT_S = 0.3
"""Target time of a step with an optimal plan, in seconds, to which rates are scaled: longer than the latencies."""
CARRIED_BPS = 750e6
"""Total rate that two cores carry over all links in a third of their time (measured, with chunks of `CHUNK_BYTES`)."""
CHUNK_BYTES = 16 * 1024
"""Smallest chunk: a frame costs about 0.3 ms of processor time, and plans of many trees would use smaller chunks."""
LONGEST_S = 1800.0
START_S = 90.0
"""Time for processes to start and import on a busy machine, in seconds."""
SAME_LOSS = 1e-4
"""Largest relative difference of equal losses: sums in another order differ in the last bits of float32."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A plan to train over, with its prediction."""

    name: str
    plan: Plan
    prediction: Prediction


@dataclass(frozen=True)
class SchemeRun:
    """The measurements of one scheme at all sites."""

    scheme: Scheme
    sites: tuple[Training, ...]

    @cached_property
    def step_ends_s(self) -> tuple[float, ...]:
        """When the last site ended each step, in seconds from the start."""
        return tuple(max(ends) for ends in zip(*(site.step_ends_s for site in self.sites), strict=True))

    @cached_property
    def step_s(self) -> float:
        """The median time of a step, in seconds."""
        ends = (0.0, *self.step_ends_s)
        return statistics.median(after - before for before, after in itertools.pairwise(ends))

    @cached_property
    def compute_s(self) -> float:
        """The compute time of a step at the median site, in seconds; the rest is synchronisation."""
        return statistics.median(site.compute_s for site in self.sites) / len(self.step_ends_s)

    @cached_property
    def losses(self) -> tuple[float, ...]:
        """The loss of each step, averaged over all sites' batches."""
        return tuple(statistics.fmean(losses) for losses in zip(*(site.losses for site in self.sites), strict=True))

    @property
    def busy_cores(self) -> float:
        """The average number of cores that all sites together kept busy."""
        return sum(site.process_s for site in self.sites) / self.step_ends_s[-1]

    @property
    def ranks_equal(self) -> bool:
        """Whether all sites end with bit-identical parameters."""
        return len({site.digest for site in self.sites}) == 1

    @property
    def final_loss(self) -> float:
        """The final loss over all training data."""
        return self.sites[0].final_loss

    @property
    def limit_share(self) -> float:
        """The least time of a step with any plan, divided by the measured time."""
        return self.scheme.prediction.bound_seconds / self.step_s


@dataclass(frozen=True)
class DemoResult:
    """The results of the demo."""

    network: Network
    """The emulated network, with scaled rates."""
    scale: float
    framework: str
    steps: int
    seed: int
    runs: tuple[SchemeRun, ...]
    seconds: float
    """Duration of the whole demo, including process starts."""

    @property
    def ours(self) -> SchemeRun:
        """The run of Tradewind's plan, which is the last one."""
        return self.runs[-1]

    @property
    def loss_difference(self) -> float:
        """The largest relative difference of a step's loss between schemes."""
        at_steps = zip(*(run.losses for run in self.runs), strict=True)
        return float(max((max(losses) - min(losses)) / max(losses) for losses in at_steps))

    @property
    def same_losses(self) -> bool:
        """Whether all schemes had the same losses, up to the order of sums."""
        return self.loss_difference <= SAME_LOSS


def choose_scale(network: Network, nbytes: int = GRADIENT_BYTES) -> float:
    """The scale, at most 1, at which this machine carries the network, and an optimal step takes `LIMIT_S` or more."""
    all_bytes = 2 * (len(network) - 1) * nbytes
    target_s = max(LIMIT_S, 8.0 * all_bytes / CARRIED_BPS)
    exact = 8.0 * nbytes / target_s / bound(network, network.names, nbytes).rate_bps
    return 1.0 if exact >= 1.0 else 1.0 / float(f"{1.0 / exact:.2g}")


def plan_schemes(network: Network, ours: str = "auto", nbytes: int = GRADIENT_BYTES) -> tuple[Scheme, ...]:
    """The schemes of the demo: star, ring in rank order, and `ours`, a planner's name or the file of a plan.

    Raises `BadOption` if `ours` is neither, or its plan is for other sites.
    """
    limit = bound(network, network.names, nbytes)
    if ours in planner_names() or is_file_reference(ours):
        plan = make_plan(ours, network, nbytes, limit=limit, clock=time.monotonic)
    else:
        path = Path(ours)
        if not path.is_file():
            raise BadOption(f"--plan must be a planner ({', '.join(planner_names())}) or a file, got {ours!r}.")
        plan = replace(plan_from_json(path.read_bytes(), ours), nbytes=nbytes, predicted=None)
        ensure_valid(plan, network)
        if set(plan.members) != set(network.names):
            raise BadOption(
                f"--plan {ours}: the plan is for {', '.join(plan.members)}, expected {', '.join(network.names)}."
            )
    coarse = replace(
        plan, shards=tuple(replace(shard, chunk_bytes=max(shard.chunk_bytes, CHUNK_BYTES)) for shard in plan.shards)
    )
    star = make_plan("star", network, nbytes, limit=limit)
    ring = make_plan("ring", network, nbytes, limit=limit, order="given")
    named = (("star", star), ("ring", ring), ("tradewind", coarse))
    predictions = [predict(plan, network, limit) for _, plan in named]
    # A bound that one planner proved holds for all plans: all schemes are compared with the tightest one.
    tightest = max(predictions, key=lambda prediction: prediction.bound_seconds)
    return tuple(
        Scheme(name, plan, _against(prediction, tightest))
        for (name, plan), prediction in zip(named, predictions, strict=True)
    )


def _against(prediction: Prediction, limit: Prediction) -> Prediction:
    return replace(
        prediction,
        bound_seconds=limit.bound_seconds,
        bound_rate_bps=limit.bound_rate_bps,
        bound_argument=limit.bound_argument,
    )


def bearable_seconds(schemes: tuple[Scheme, ...], steps: int) -> float:
    """The predicted time of all steps, in seconds; raises `BadOption` if it exceeds `LONGEST_S`."""
    expected_s = steps * sum(scheme.prediction.seconds for scheme in schemes)
    if expected_s > LONGEST_S:
        raise BadOption(
            f"this would take about {expected_s:.0f} s, more than {LONGEST_S:.0f} s. Use fewer --steps, or a larger "
            "--scale."
        )
    return expected_s


def run_demo(
    network: Network,
    scale: float,
    schemes: tuple[Scheme, ...],
    data: Data,
    train: Callable[..., Any],
    framework: str,
    *,
    steps: int,
    seed: int,
    on_event: Callable[[str, Event], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> DemoResult:
    """Start the sites, train over every scheme, and return the measurements.

    `train(place, task)` is called at every site; `on_event` in this process, with a site and its event.
    """
    start_s = time.monotonic()
    expected_s = bearable_seconds(schemes, steps)
    batch = min(BATCH, len(data.labels) // len(network))

    def heard(site: str, line: str) -> None:
        if on_event is not None and (event := read_event(line)) is not None:
            on_event(site, event)

    with tempfile.TemporaryDirectory(prefix="tradewind-demo-") as name:
        folder = Path(name)
        data.write(folder / "data.npz")
        files = [folder / f"{scheme.name}.json" for scheme in schemes]
        for file, scheme in zip(files, schemes, strict=True):
            file.write_text(plan_to_json(scheme.plan))
        task = Task([str(file) for file in files], str(folder / "data.npz"), list(WIDTHS), steps, batch, seed)
        answers = call_sites(
            network,
            train,
            {"task": msgspec.to_builtins(task)},
            environment=environment,
            groups=len(schemes),
            deadline_s=START_S + 4 * expected_s,
            on_line=heard,
        )
    sites = msgspec.convert(answers, list[list[Training]])
    runs = tuple(
        SchemeRun(scheme, tuple(trained)) for scheme, trained in zip(schemes, zip(*sites, strict=True), strict=True)
    )
    for run in runs:
        if not run.ranks_equal:
            raise InternalError(f"after {steps} steps over {run.scheme.name} not all sites have the same parameters.")
    return DemoResult(network, scale, framework, steps, seed, runs, time.monotonic() - start_s)


def read_event(line: str) -> Event | None:
    """The event of a site's output line; None for other lines, such as a library's."""
    try:
        return msgspec.json.decode(line, type=Event)
    except msgspec.DecodeError:
        return None


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
