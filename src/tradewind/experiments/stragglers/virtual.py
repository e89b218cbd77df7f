"""The straggler experiments on virtual time: real gradient steps, with the clock and the links of the simulator.

The production controller decides in the simulator when which sites average, from sampled step times and simulated
transfers; every step and every average is computed for real, by the same learner, on the same data and batches as in
the lab. So the trajectory of every model is exact for these times, and neither other programs nor the number of
processors change a result. What it leaves out is what only real connections have: control messages and frames that take
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tradewind.experiments.papers.judged_code import judged_code
from tradewind.experiments.stragglers.live import (
    SLOW_SITE,
    SLOWER_SITE,
    SiteCurve,
    System,
    Turn,
    compute_times,
    kept_path,
    turn_network,
)
from tradewind.experiments.stragglers.site import Array, RoundTotals, make_learner, site_data
from tradewind.experiments.stragglers.tasks import TASKS
from tradewind.node.actions import Outcome
from tradewind.schemes import Scheme, make_scheme
from tradewind.sim import Setup, Simulation

DECAY = 0.99
"""Weight of the previous moving average at every step, as in `tradewind.torch.Ensemble`."""


@dataclass
class _Site:
    """One site: its learner, its data, and what is known of it."""

    learner: Any
    draw: Callable[[], tuple[Array, Any]]
    """Returns the samples and labels of its next batch."""
    given: Array
    """The model that it submitted last, or started from."""
    anchor: Array
    """The model that it received last."""
    momentum: Array
    moving: Array
    """The moving average of its models, with `ensemble`."""
    steps: int = 0
    since_round: int = 0
    judged_at: int = 0
    """Its number of steps at the last test of its model."""
    curve: list[tuple[float, float, float]] = field(default_factory=list)
    totals: RoundTotals = field(default_factory=RoundTotals)


class VirtualSites:
    """The learners of all sites, which take the simulator's steps and receive the averages of its rounds."""

    def __init__(self, turn: Turn, names: Sequence[str]) -> None:
        self.turn, self.task = turn, TASKS[turn.task]
        self.judged_every = 3 * self.task.judged_every
        self.is_served = turn.system.is_served
        self.sites = {name: self._site(rank) for rank, name in enumerate(names)}
        self._results: dict[int, tuple[Array, Array]] = {}
        self._judged: dict[int, tuple[float, float]] = {}
        self.served = self.sites[names[0]].anchor.copy()
        """The model of the parameter server, where the policy has one."""
        for name in names:
            self.judge(name, 0.0)

    def _site(self, rank: int) -> _Site:
        learner = make_learner(self.turn)
        data, hand, rng = site_data(self.turn, rank)

        def draw() -> tuple[Array, Any]:
            rows = rng.choice(hand, self.task.batch, replace=False)
            return data.train[rows], data.train_labels[rows]

        self.data = data
        first = learner.gather().copy()
        return _Site(learner, draw, first, first, np.zeros_like(first), first.copy())

    # --- the simulator's calls ----------------------------------------------------------------------------------

    def stepped(self, rank: str, now_s: float) -> bool:
        """Take one gradient step; returns whether a round is due."""
        site = self.sites[rank]
        site.learner.step(*site.draw())
        site.steps += 1
        site.since_round += 1
        due = site.since_round >= self.turn.system.every and self.turn.system.by != "none"
        if due:
            site.given = site.learner.gather().copy()
        elif site.steps - site.judged_at >= self.judged_every:
            self.judge(rank, now_s)
        return due

    def averaged(self, rank: str, outcome: Outcome, now_s: float) -> None:
        """Load the result of a round into a site's model."""
        site = self.sites[rank]
        if self.is_served:
            self.served += site.given - site.anchor
            result = self.served.copy()
        elif outcome.round is None:
            result = site.given
        else:
            result, site.momentum = self._result(outcome.round, outcome)
        if not outcome.alone:
            site.totals.rounds += 1
            site.totals.contributors += len(outcome.contributors)
        site.since_round, site.anchor = 0, result
        site.learner.flat[:] = result
        site.learner.scatter()
        if self.turn.system.ensemble:
            site.moving += np.float32(1 - DECAY) * (result - site.moving)
        if site.steps - site.judged_at >= self.judged_every:
            self.judge(rank, now_s, None if self.is_served else outcome.round)

    def _result(self, number: int, outcome: Outcome) -> tuple[Array, Array]:
        """The average of a round's contributors (with `outer`, after the outer step), and the outer momentum.

        The first member that receives it computes it, while all contributors still hold what they submitted.
        """
        if number not in self._results:
            members = [self.sites[name] for name in outcome.contributors]
            mean = _mean([site.given for site in members], outcome.weights)
            momentum = members[0].momentum
            if self.turn.system.outer:
                from tradewind.torch.outer import Outer

                options = Outer()
                anchor = _mean([site.anchor for site in members], outcome.weights)
                gradient = anchor - mean
                momentum = options.momentum * _mean([site.momentum for site in members], outcome.weights) + gradient
                mean = (anchor - options.lr * (gradient + options.momentum * momentum)).astype(np.float32)
            self._results[number] = mean, momentum
            self._results.pop(number - 16 * len(self.sites), None)
        return self._results[number]

    # --- judging ------------------------------------------------------------------------------------------------

    def judge(self, rank: str, now_s: float, round_number: int | None = None) -> None:
        """Test a site's model; all members of a round have the same one, which is tested once."""
        site = self.sites[rank]
        found = None if round_number is None else self._judged.get(round_number)
        if found is None:
            found = site.learner.judge(self.data.test, self.data.test_labels)
            if round_number is not None:
                self._judged[round_number] = found
                self._judged.pop(round_number - 16 * len(self.sites), None)
        site.judged_at = site.steps
        site.curve.append((now_s, *found))

    def final_accuracies(self) -> list[float]:
        """The accuracy of the mean of all models at each site; without synchronisation, of its own."""
        sites = list(self.sites.values())
        if self.turn.system.by != "none":
            ensemble = self.turn.system.ensemble
            mean = np.mean([site.moving if ensemble else site.learner.gather() for site in sites], axis=0)
            for site in sites:
                site.learner.flat[:] = mean
                site.learner.scatter()
            return [sites[0].learner.judge(self.data.test, self.data.test_labels)[1]] * len(sites)
        return [site.learner.judge(self.data.test, self.data.test_labels)[1] for site in sites]


def _mean(models: Sequence[Array], weights: Sequence[float]) -> Array:
    total = np.zeros_like(models[0])
    for model, weight in zip(models, weights, strict=True):
        total += np.float32(weight) * model
    return total


def scheme_of(system: System) -> Scheme:
    """The scheme that the simulator runs for a system: what it does live; Gloo is a ring in the order of names."""
    if system.by == "tradewind":
        return system.made
    order = "auto" if system.by == "gloo, best order" else "given"
    return make_scheme("bsp+ring", planner_options={"order": order})


def setup_of(turn: Turn, nbytes: int) -> Setup:
    """The simulation of a turn with a model of that size."""
    return Setup(
        turn_network(turn),
        scheme_of(turn.system),
        nbytes,
        compute_times(False).scaled(TASKS[turn.task].stretch),
        turn.seconds,
        turn.trial,
        slower={SLOW_SITE: SLOWER_SITE} if turn.slow_site else {},
    )


def play_virtual(turn: Turn, folder: str | None = None) -> tuple[SiteCurve, ...]:
    """Train one system from one seed on virtual time; or return what an earlier call has stored in the folder."""
    path: Path | None = None
    if folder is not None:
        path = kept_path((turn,), "virtual", judged_code(""), folder)
        if path.exists():
            return msgspec.json.decode(path.read_bytes(), type=tuple[SiteCurve, ...])
    played = train_on_virtual_time(turn)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(played))
    return played


def train_on_virtual_time(turn: Turn, setup: Setup | None = None) -> tuple[SiteCurve, ...]:
    """Train one system from one seed; returns the curve of each site. `setup`: another simulation than the turn's."""
    names = turn_network(turn).names if setup is None else setup.worker_names
    sites = VirtualSites(turn, names)
    result = Simulation(setup or setup_of(turn, sites.served.nbytes), sites).run()
    for name in names:
        sites.judge(name, turn.seconds)
    finals = dict(zip(names, sites.final_accuracies(), strict=True))
    played = []
    for worker in result.workers:
        site = sites.sites[worker.name]
        at_s, losses, accuracies = zip(*site.curve, strict=True)
        played.append(
            SiteCurve(
                0.0,
                at_s,
                losses,
                accuracies,
                turn.seconds,
                finals[worker.name],
                worker.wait_s,
                worker.sync_s,
                site.totals.rounds,
                site.totals.contributors,
                1.0,
                site.steps,
            )
        )
    return tuple(played)
