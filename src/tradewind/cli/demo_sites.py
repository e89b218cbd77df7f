"""The training function of the demo's sites where PyTorch is installed: a model under DDP in the lab's training loop.

It is part of the CLI because the lab does not import PyTorch, and the PyTorch backend does not import the lab.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from tradewind.experiments.demo.model import LEARNING_RATE, MOMENTUM
from tradewind.experiments.demo.site import Learner, Task, Training, train_all
from tradewind.lab.site import Place


def train_with_torch(place: Place, task: dict[str, object]) -> list[Training]:
    """Train with every scheme in turn; called in the process of every site."""
    from tradewind.torch.demo import make_store

    store = make_store(place.controllers[0], place.rank, place.world)
    return train_all(place, msgspec.convert(task, Task), partial(_with_torch, store))


@contextmanager
def _with_torch(store: Any, place: Place, scheme: int, task: Task) -> Iterator[Learner]:
    from tradewind.torch.demo import DdpLearner, process_group

    plan = task.plans[scheme]
    with process_group(store, f"scheme{scheme}", place.rank, place.world, place.network, plan):
        yield DdpLearner(tuple(task.widths), task.seed, LEARNING_RATE, MOMENTUM)
