"""Checks of what a PyTorch group listens on, with TRADEWIND_PORTS set; see test_torch_ports.py."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from listening import listening_ports
from tradewind.runtime.addresses import PortRange


def start() -> None:
    """Make the group; its runs connect when they are first used."""
    dist.init_process_group("tradewind")


def check_all_listeners_of_ours_are_in_the_range() -> None:
    """What listens before the first all-reduce is PyTorch's store and Gloo; what comes then is ours."""
    allowed = PortRange.parse(os.environ["TRADEWIND_PORTS"])
    before = listening_ports()
    world, half = torch.ones(100_000), torch.ones(100_000)
    dist.all_reduce(world)
    assert (world == dist.get_world_size()).all()
    first = listening_ports() - before
    assert len(first) == (2 if dist.get_rank() == 0 else 1), "data, and the controller on rank 0"
    assert all(port in allowed for port in first), (first, allowed)
    dist.barrier()
    between = listening_ports()
    group = dist.new_group()
    made = listening_ports() - between  # Gloo's of the new group
    dist.all_reduce(half, group=group)
    second = listening_ports() - between - made
    dist.barrier()  # a rank that leaves ends the runs of the others
    assert len(second) == len(first) and all(port in allowed for port in second), (second, allowed)
