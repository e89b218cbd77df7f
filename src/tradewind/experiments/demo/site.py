"""One site of the demo: trains the same model with the same seeds once per scheme, and reports its progress.

The model is a `Learner`, which hides whether numpy or PyTorch computes. A site measures when each step ended, its loss,
and the processor time of the computation (the rest of a step is waiting for other sites).
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
"""Items of the warm-up all-reduce: every tree of a plan carries some, so all connections exist before step 1."""


class Task(msgspec.Struct, frozen=True):
    """The task of all sites."""

    plans: list[str]
    """Plan files, one per scheme."""
    data: str
    """File of the arrays images, labels, test_images, test_labels."""
    widths: list[int]
    steps: int
    batch: int
    """Samples per site and step."""
    seed: int


class Event(msgspec.Struct, frozen=True, tag=True):
    """A line of a site's stdout: it has ended a step of a scheme; step 0 means that all sites are connected."""

    scheme: int
    step: int
    loss: float = 0.0


class Training(msgspec.Struct, frozen=True):
    """The measurements of one scheme at one site."""

    step_ends_s: list[float]
    """Ends of the steps, in seconds since all sites were ready."""
    losses: list[float]
    """Losses of this site's batches."""
    compute_s: float
    """Processor time of the training thread over all steps, in seconds."""
    process_s: float
    """Processor time of the whole process, including communication, in seconds."""
    digest: str
    """Digest of the final parameters."""
    final_loss: float
    """Final loss over all training data."""
    accuracy: float
    """Final accuracy on test data."""


class Learner(Protocol):
    """A model that is trained together with those of the other sites."""

    def warm_up(self, items: int) -> None:
        """Establish all connections by all-reducing `items` zeros."""

    def step(self, images: Vector, labels: Labels) -> float:
        """Take one step with the mean gradient of all sites; returns this batch's loss before it."""

    def barrier(self) -> None:
        """Wait until all sites have called this."""

    def loss(self, images: Vector, labels: Labels) -> float:
        """The model's cross-entropy on these images."""

    def accuracy(self, images: Vector, labels: Labels) -> float:
        """The fraction of these images that the model classifies correctly."""

    def digest(self) -> str:
        """A digest of all parameters."""


Joining = Callable[[Place, int, Task], AbstractContextManager[Learner]]
"""Creates the learner of a scheme (by its number) in a new run."""


@dataclass(frozen=True, eq=False, slots=True)
class Data:
    """Training and test data."""

    images: Vector
    labels: Labels
    test_images: Vector
    test_labels: Labels

    @classmethod
    def read(cls, path: Path) -> Data:
        """Read a file written by `write`."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(*(arrays[name] for name in ("images", "labels", "test_images", "test_labels")))

    def write(self, path: Path) -> None:
        """Write the data to a file for the sites."""
        arrays = {name: getattr(self, name) for name in ("images", "labels", "test_images", "test_labels")}
        np.savez(path, **arrays)

    def batch(self, task: Task, step: int, rank: int) -> tuple[Vector, Labels]:
        """A site's samples of a step: disjoint between sites, and the same for all schemes."""
        order = np.random.default_rng([task.seed, step]).permutation(len(self.labels))
        chosen = order[rank * task.batch : (rank + 1) * task.batch]
        return self.images[chosen], self.labels[chosen]


def train_all(place: Place, task: Task, joining: Joining) -> list[Training]:
    """Train over all schemes one after the other, each in its own run; returns their measurements."""
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
    """Train over all schemes with numpy; called at every site where PyTorch is not installed."""
    return train_all(place, msgspec.convert(task, Task), _with_numpy)


class _NumpyLearner:
    """A learner in numpy, whose gradient is averaged by `Group.all_reduce`."""

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
