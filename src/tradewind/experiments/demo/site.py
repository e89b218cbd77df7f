"""What one site of the demo does: train the same model with the same seeds once per scheme, and tell how it goes.

What trains is a `Learner`, which hides whether numpy or PyTorch computes. Everything a site reports is measured
there: when each step was over, its loss, and the processor time that computing took (the rest is waiting for others).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from tradewind.experiments.demo.model import Labels, Perceptron, Vector
from tradewind.lab.site import Place
from tradewind.runtime.group import Group

WARM_UP_ITEMS = 2**14
"""Enough that every tree of a plan carries some, and every connection is made before a step is timed."""


class Task(msgspec.Struct, frozen=True):
    """What all sites have to do, as they are told."""

    plans: list[str]
    """Files, one per scheme."""
    data: str
    """A file of arrays: images, labels, test_images, test_labels."""
    widths: list[int]
    steps: int
    batch: int
    """Samples per site and step."""
    seed: int


class Event(msgspec.Struct, frozen=True, tag=True):
    """A site's line on stdout: it is through with a step of a scheme; step 0 is that everybody is connected."""

    scheme: int
    step: int
    loss: float = 0.0


class Training(msgspec.Struct, frozen=True):
    """A scheme as one site saw it."""

    step_ends_s: list[float]
    """Since all were ready."""
    losses: list[float]
    """Of this site's batches."""
    compute_s: float
    """Processor time of the training thread, over all steps."""
    process_s: float
    """Processor time of the whole process, with what moves and sums bytes."""
    digest: str
    """Of the parameters in the end."""
    final_loss: float
    """Over all training data."""
    accuracy: float
    """On data that was not trained on."""


class Learner(Protocol):
    """A model that learns together with those of the other sites."""

    def warm_up(self, items: int) -> None:
        """Make all connections, by summing so many zeros."""

    def step(self, images: Vector, labels: Labels) -> float:
        """Learn from this batch and everybody's; the loss on this one before."""

    def barrier(self) -> None:
        """Wait until everybody is here."""

    def loss(self, images: Vector, labels: Labels) -> float:
        """The cross-entropy."""

    def accuracy(self, images: Vector, labels: Labels) -> float:
        """The share of images that are read right."""

    def digest(self) -> str:
        """Of all bits of all parameters."""


Joining = Callable[[Place, int, Task], AbstractContextManager[Learner]]
"""Makes the learner for the scheme of that number, in a run of its own."""


@dataclass(frozen=True, eq=False, slots=True)
class Data:
    """What is learnt from, and what is held back."""

    images: Vector
    labels: Labels
    test_images: Vector
    test_labels: Labels

    @classmethod
    def read(cls, path: Path) -> Data:
        """From a file that `write` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(*(arrays[name] for name in ("images", "labels", "test_images", "test_labels")))

    def write(self, path: Path) -> None:
        """For the sites to read."""
        arrays = {name: getattr(self, name) for name in ("images", "labels", "test_images", "test_labels")}
        np.savez(path, **arrays)

    def batch(self, task: Task, step: int, rank: int) -> tuple[Vector, Labels]:
        """A site's samples of a step: no two sites have the same, and no scheme has others."""
        order = np.random.default_rng([task.seed, step]).permutation(len(self.labels))
        chosen = order[rank * task.batch : (rank + 1) * task.batch]
        return self.images[chosen], self.labels[chosen]


def train_all(place: Place, task: Task, joining: Joining) -> list[Training]:
    """One scheme after the other, each in a run of its own."""
    data = Data.read(Path(task.data))
    trained = []
    for scheme in range(len(task.plans)):
        with joining(place, scheme, task) as learner:
            trained.append(_train(place, task, scheme, learner, data))
            learner.barrier()
    return trained


def _train(place: Place, task: Task, scheme: int, learner: Learner, data: Data) -> Training:
    learner.warm_up(WARM_UP_ITEMS)
    learner.barrier()
    _tell(Event(scheme, 0))
    start_s, compute_s, process_s = time.monotonic(), time.thread_time(), time.process_time()
    ends_s, losses = [], []
    for step in range(1, task.steps + 1):
        losses.append(learner.step(*data.batch(task, step, place.rank)))
        ends_s.append(time.monotonic() - start_s)
        _tell(Event(scheme, step, losses[-1]))
    compute_s, process_s = time.thread_time() - compute_s, time.process_time() - process_s
    final_loss = learner.loss(data.images, data.labels)
    accuracy = learner.accuracy(data.test_images, data.test_labels)
    return Training(ends_s, losses, compute_s, process_s, learner.digest(), final_loss, accuracy)


def _tell(event: Event) -> None:
    sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    sys.stdout.flush()


# --- numpy -----------------------------------------------------------------------------------------------------------


def train_with_numpy(place: Place, task: dict[str, object]) -> list[Training]:
    """Called at every site, where PyTorch is not installed."""
    return train_all(place, msgspec.convert(task, Task), _with_numpy)


class _NumpyLearner:
    """The gradient is one vector, averaged by our own all-reduce."""

    def __init__(self, model: Perceptron, group: Group) -> None:
        self._model, self._group = model, group
        self.loss, self.accuracy, self.digest, self.barrier = model.loss, model.accuracy, model.digest, group.barrier

    def warm_up(self, items: int) -> None:
        self._group.all_reduce(np.zeros(items, np.float32))

    def step(self, images: Vector, labels: Labels) -> float:
        loss, gradient = self._model.gradient(images, labels)
        self._model.learn(self._group.all_reduce(gradient, "mean"))
        return loss


@contextmanager
def _with_numpy(place: Place, scheme: int, task: Task) -> Iterator[Learner]:
    with place.connect(scheme, plan=task.plans[scheme]) as group:
        yield _NumpyLearner(Perceptron(tuple(task.widths), task.seed), group)
