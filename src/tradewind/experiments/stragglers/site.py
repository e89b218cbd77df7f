"""One site of the straggler experiments: trains in every turn, and averages its model as the turn's system does."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import msgspec
import numpy as np

from tradewind.errors import InputError
from tradewind.experiments.contests.contest import GlooSystem, make_store
from tradewind.experiments.contests.wan import gloo_order
from tradewind.experiments.papers.digits import Rows, deal
from tradewind.experiments.papers.netstorm.live import Idle
from tradewind.experiments.stragglers.live import SLOW_SITE, SiteCurve, System, Turn, compute_times
from tradewind.experiments.stragglers.tasks import TASKS, Samples, load_samples
from tradewind.lab.site import Place
from tradewind.runtime.group import Group
from tradewind.runtime.options import RunOptions, options_by_field

Array = np.ndarray[Any, np.dtype[np.float32]]
MOST_STEPS = 5000


class Averaging(Protocol):
    """The synchronisation of a system at one site."""

    def after_step(self, is_late: bool) -> bool:
        """Average after a local step, if a round is due; `is_late`: time is up here. Returns whether to stop."""

    def finish(self) -> None:
        """Average the final models of all sites."""


@dataclass
class RoundTotals:
    """Totals over the rounds of one site."""

    waited_s: float = 0.0
    averaged_s: float = 0.0
    rounds: int = 0
    contributors: int = 0


@dataclass
class WithGloo:
    """Averages all sites' models after every step with PyTorch's Gloo. All stop when the first site does."""

    learner: Any
    gloo: GlooSystem
    place: Place
    totals: RoundTotals
    message: Array = field(init=False)

    def __post_init__(self) -> None:
        self.message = np.zeros(len(self.learner.flat) + 1, np.float32)
        self.gloo.all_reduce(self.message)  # connections

    def after_step(self, is_late: bool) -> bool:
        """All-reduce the model, and the first site's flag to stop."""
        started_s = time.monotonic()
        self.message[:-1] = self.learner.gather()
        self.message[-1] = float(is_late and self.place.rank == 0)
        self.gloo.all_reduce(self.message)
        np.multiply(self.message[:-1], 1.0 / self.place.world, out=self.learner.flat)
        self.learner.scatter()
        # This includes waiting for other sites, which Gloo does not report.
        self.totals.averaged_s += time.monotonic() - started_s
        self.totals.rounds += 1
        self.totals.contributors += self.place.world
        return bool(self.message[-1])

    def finish(self) -> None:
        """Does nothing: all models are equal."""


@dataclass
class WithUs:
    """Averages by a policy and a planner of Tradewind, with a Synchronizer."""

    synchronizer: Any
    totals: RoundTotals

    def after_step(self, is_late: bool) -> bool:
        """Take one step of the Synchronizer."""
        outcome = self.synchronizer.step()
        if outcome is not None and not outcome.alone:
            self.totals.waited_s += outcome.waited_s
            self.totals.averaged_s += outcome.seconds
            self.totals.rounds += 1
            self.totals.contributors += len(outcome.contributors)
        return is_late

    def finish(self) -> None:
        """Average the final models of all sites."""
        self.synchronizer.finish()


class WithoutSync:
    """No synchronisation: the baseline that every system has to beat."""

    def after_step(self, is_late: bool) -> bool:
        """Return whether to stop, without averaging."""
        return is_late

    def finish(self) -> None:
        """Does nothing."""


def take_part(place: Place, turns: list[dict[str, Any]]) -> list[Any]:
    """Run all turns at one site; returns their curves."""
    chosen = [msgspec.convert(turn, Turn) for turn in turns]
    needs_gloo = any(turn.system.by.startswith("gloo") for turn in chosen)
    store = make_store(place) if needs_gloo else None
    _train_once(place, chosen[0])
    with contextlib.closing(place.connect(0, planner="star")) as waiting:
        played = [_play(place, number + 1, turn, store, waiting) for number, turn in enumerate(chosen)]
        waiting.barrier()
    return list(map(msgspec.to_builtins, played))


def _train_once(place: Place, turn: Turn) -> None:
    """Train one step, so that imports on first use do not count in any system's time."""
    _train(place, turn, make_learner(turn), WithoutSync(), until_s=0.0)
    importlib.import_module("tradewind.torch")


def make_learner(turn: Turn) -> Any:
    """A site's learner: the same first model at all sites, live and on virtual time."""
    task = TASKS[turn.task]
    return importlib.import_module("tradewind.torch.learner").Learner(
        task.kind, turn.trial, task.learning_rate * turn.learning_rate / turn.system.slower(turn.sites)
    )


def _play(place: Place, number: int, turn: Turn, store: Any, waiting: Group) -> SiteCurve:
    learner, totals = make_learner(turn), RoundTotals()
    with _averaging(place, number, turn.system, learner, store, totals) as averaging:
        waiting.barrier()
        with Idle() as idle:
            began_s = time.monotonic()
            curve, ended_s, steps = _train(place, turn, learner, averaging, began_s + turn.seconds)
        averaging.finish()
        samples = load_samples(TASKS[turn.task].data)
        _, final_accuracy = learner.judge(samples.test, samples.test_labels)
        waiting.barrier()
    at_s, losses, accuracies = zip(*curve, strict=True)
    return SiteCurve(
        began_s,
        at_s,
        losses,
        accuracies,
        ended_s,
        final_accuracy,
        totals.waited_s,
        totals.averaged_s,
        totals.rounds,
        totals.contributors,
        idle.share,
        steps,
    )


def _train(
    place: Place, turn: Turn, learner: Any, averaging: Averaging, until_s: float
) -> tuple[list[tuple[float, float, float]], float, int]:
    """Train and average until time is up; returns the curve, the end and the number of steps.

    A step's time includes testing the model.
    """
    task = TASKS[turn.task]
    data, hand, rng = site_data(turn, place.rank)
    step_times = compute_times(turn.slow_site and place.site == SLOW_SITE)
    curve: list[tuple[float, float, float]] = []
    step = 0
    for step in range(MOST_STEPS):
        began_s = time.monotonic()
        takes_s = task.stretch * float(step_times.sample(rng, 1)[0])
        if step % task.judged_every == 0:
            curve.append((began_s, *learner.judge(data.test, data.test_labels)))
        rows = rng.choice(hand, task.batch, replace=False)
        learner.step(data.train[rows], data.train_labels[rows])
        time.sleep(max(0.0, began_s + takes_s - time.monotonic()))
        if averaging.after_step(time.monotonic() >= until_s):
            break
    ended_s = time.monotonic()
    curve.append((ended_s, *learner.judge(data.test, data.test_labels)))
    return curve, ended_s, step + 1


def run_options(system: System) -> RunOptions:
    """The options of a system's group in the lab."""
    options = {"policy_options": dict(system.policy_options), "planner_options": dict(system.planner_options)}
    return options_by_field({"scheme": system.scheme, "policy": system.policy, **options, **dict(system.run_options)})


@contextlib.contextmanager
def _averaging(
    place: Place, number: int, system: System, learner: Any, store: Any, totals: RoundTotals
) -> Iterator[Averaging]:
    if system.by == "none":
        yield WithoutSync()
    elif system.by != "tradewind":
        order = gloo_order(place.network) if system.by == "gloo, best order" else list(place.network.names)
        yield WithGloo(learner, GlooSystem(place, order, store, f"turn-{number}"), place, totals)
    else:
        group = place.connect(number, run_options(system))
        make = importlib.import_module("tradewind.torch").Synchronizer
        with contextlib.closing(group):
            synchronizer = make(learner.model, group=group, every=system.every, outer=system.outer)
            group.all_reduce(learner.gather().copy())  # opens connections and warms TCP up
            yield WithUs(synchronizer, totals)


def site_data(turn: Turn, rank: int) -> tuple[Samples, Rows, np.random.Generator]:
    """All samples, the rows of this site's, and the generator of its batches and step times."""
    task, samples = TASKS[turn.task], load_samples(TASKS[turn.task].data)
    hand = _hands(task.data, turn.trial, turn.sites, turn.concentration)[rank]
    if len(hand) < task.batch:
        raise InputError(f"a site has {len(hand)} samples, fewer than a batch of {task.batch}: use fewer sites.")
    return samples, hand, np.random.default_rng([turn.trial, turn.sites, rank])


@cache
def _hands(data: str, trial: int, sites: int, concentration: float | None) -> list[Rows]:
    """The rows of each site's samples."""
    return deal(load_samples(data).classes, sites, np.random.default_rng([trial, sites]), concentration)
