"""What the demo's sites call where PyTorch is installed: the lab's training loop around a model under DDP.

It stands here because the lab does not know PyTorch, and our PyTorch backend does not know the lab.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tradewind.lab.demo_model import LEARNING_RATE, MOMENTUM
from tradewind.lab.demo_site import Learner, Task, Training, train_all
from tradewind.lab.site import Place


def train_with_torch(place: Place, task: dict[str, object]) -> list[Training]:
    """Called at every site."""
    return train_all(place, msgspec.convert(task, Task), _with_torch)


@contextmanager
def _with_torch(place: Place, scheme: int, task: Task) -> Iterator[Learner]:
    from tradewind.torch.demo import DdpLearner, process_group

    with process_group(place.controllers[scheme], place.rank, place.world, place.network, task.plans[scheme]):
        yield DdpLearner(tuple(task.widths), task.seed, LEARNING_RATE, MOMENTUM)
