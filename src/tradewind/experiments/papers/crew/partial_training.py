"""Simulated workers that train one model with partial reduce, by the production policy.

The duration of a reduce is a parameter, as in CREW's Fig. 3, so the network plays no part. The policy `partial` forms
the groups, from the times at which workers are ready.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tradewind.catalog import load_compute_times
from tradewind.experiments.papers.digits import Digits, Rows, Vector, accuracy, deal, fresh_model, gradient, load_digits
from tradewind.network import Network, Site
from tradewind.policy import make_policy
from tradewind.policy.actions import StartRound
from tradewind.policy.events import Event, RoundFinished, WorkerReady
from tradewind.sim.clock import Clock, Priority

WORKERS = 8
TARGET_ACCURACY = 0.95
BATCH = 32
LEARNING_RATE = 0.2
MOST_ROUNDS = 1500
"""Number of rounds after which a worker counts as not reaching the target."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The workers' data, and the times of their steps."""

    concentration: float | None
    """Dirichlet concentration of a worker's classes (see `deal`); None: the same classes everywhere (IID)."""
    compute_times: str


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of one training to the target accuracy."""

    rounds: tuple[int, ...]
    """Rounds of each worker until a model that it received reached the target; the most allowed if none did."""
    reached: bool
    """Whether all workers reached the target."""
    repeated: float
    """Fraction of rounds whose members were also together in their previous round: 1 where groups never mix."""


@dataclass(slots=True)
class _Worker:
    samples: Rows
    model: Vector
    rng: np.random.Generator
    steps: int = 0
    rounds: int = 0
    rounds_to_target: int | None = None
    last_group: tuple[str, ...] = ()


def train(
    p: int,
    reduce_s: float,
    conditions: Conditions,
    trial: int,
    workers: int = WORKERS,
    most_rounds: int = MOST_ROUNDS,
) -> TrainingResult:
    """Train to the target; each reduce takes a random time within 20% of `reduce_s` (the paper's x)."""
    return _Training(p, reduce_s, conditions, trial, workers, most_rounds).run()


class _Training:
    def __init__(
        self, p: int, reduce_s: float, conditions: Conditions, trial: int, workers: int, most_rounds: int
    ) -> None:
        self.data: Digits = load_digits()
        self.reduce_s, self.most_rounds = reduce_s, most_rounds
        seeds = np.random.SeedSequence(trial).spawn(2 + workers)
        self.rng = np.random.default_rng(seeds[0])
        dealer = np.random.default_rng(seeds[1])
        hands = deal(self.data.train_labels, workers, dealer, conditions.concentration)
        first = fresh_model(dealer)
        names = [f"w{i}" for i in range(workers)]
        self.workers = {
            name: _Worker(hand, first.copy(), np.random.default_rng(seed))
            for name, hand, seed in zip(names, hands, seeds[2:], strict=True)
        }
        self.step_times = load_compute_times(conditions.compute_times)
        self.clock = Clock()
        mesh = np.ones((workers, workers)) - np.eye(workers)
        self.policy = make_policy("partial", Network("mesh", [Site(n) for n in names], mesh), names, seed=trial, p=p)
        self.all_rounds = self.repeated = 0

    def run(self) -> TrainingResult:
        for name in self.workers:
            self._compute(name)
        self.clock.run(until_s=float("inf"))
        reached = [worker.rounds_to_target for worker in self.workers.values()]
        return TrainingResult(
            tuple(self.most_rounds if rounds is None else rounds for rounds in reached),
            None not in reached,
            self.repeated / self.all_rounds,
        )

    def _compute(self, name: str) -> None:
        worker = self.workers[name]
        step_s = float(self.step_times.sample(worker.rng, 1)[0])
        self.clock.at(self.clock.now_s + step_s, Priority.READY, self._computed, name)

    def _computed(self, name: str) -> None:
        """Take a worker's local step, on one batch of its own samples."""
        worker, data = self.workers[name], self.data
        batch = worker.rng.choice(worker.samples, size=BATCH, replace=False)
        worker.model = worker.model - LEARNING_RATE * gradient(
            worker.model, data.train_images[batch], data.train_labels[batch]
        )
        worker.steps += 1
        self._tell(WorkerReady(name, worker.steps))

    def _tell(self, event: Event) -> None:
        for action in self.policy.handle(event, self.clock.now_s):
            assert isinstance(action, StartRound), "no worker is lost here, and `partial` sets no timers"
            seconds = self.reduce_s * float(self.rng.uniform(0.8, 1.2))
            self.clock.at(self.clock.now_s + seconds, Priority.ARRIVAL, self._averaged, (action, seconds))

    def _averaged(self, ended: tuple[StartRound, float]) -> None:
        """Give all members of a round the average, and continue their training."""
        asked, seconds = ended
        members = [self.workers[name] for name in asked.members]
        model: Vector = np.array(asked.weights) @ np.array([member.model for member in members])
        there = accuracy(model, self.data.test_images, self.data.test_labels) >= TARGET_ACCURACY
        self.all_rounds += 1
        self.repeated += all(member.last_group == asked.members for member in members)
        for member in members:
            member.model, member.last_group = model, asked.members
            member.rounds += 1
            if there and member.rounds_to_target is None:
                member.rounds_to_target = member.rounds
        if all(w.rounds_to_target or w.rounds >= self.most_rounds for w in self.workers.values()):
            self.clock.stop()
            return
        self._tell(RoundFinished(asked.round, asked.members, seconds))
        for name in asked.members:
            self._compute(name)
