"""Checks of training with forked children, on all ranks of one launch; see test_torch_forking.py."""

from __future__ import annotations

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import tradewind.torch
from tradewind.errors import ForkedProcess


def start() -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "tradewind", pg_options=tradewind.torch.Options(tolerance=tradewind.Tolerance(patience_s=20))
    )


def check_a_child_cannot_join_in_the_place_of_its_parent() -> None:
    """Which has not used the group yet, and so is not connected."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(Exception):
            try:
                dist.all_reduce(torch.ones(3))
            except ForkedProcess:
                code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class Forbidden(Dataset[torch.Tensor]):
    """Items that say whether their worker may use the process group: 1 if it is refused."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        try:
            dist.all_reduce(torch.ones(3))
        except ForkedProcess:
            return torch.ones(4)
        return torch.zeros(4)


def check_workers_of_a_data_loader_are_refused_and_training_goes_on() -> None:
    """With workers that live as long as an epoch, forked while threads of the run are at work."""
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    seen = 0
    for _ in range(2):
        for batch in DataLoader(Forbidden(), batch_size=8, num_workers=2, multiprocessing_context="fork"):
            assert bool((batch == 1).all()), "a worker could use the group"
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            seen += len(batch)
    assert seen == 64
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()


def check_a_child_that_ends_as_a_program_does_leaves_the_group_alone() -> None:
    under_way = dist.all_reduce(torch.ones(300_000), async_op=True)
    pid = os.fork()
    if pid == 0:
        dist.group.WORLD.leave()  # as at exit
        os._exit(0)
    under_way.wait()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()
