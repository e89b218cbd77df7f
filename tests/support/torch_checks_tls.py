"""Checks of an encrypted PyTorch group whose certificates come through the store; see test_torch_tls.py."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from tradewind.native.aead import aead
from tradewind.torch.synchronizer import Synchronizer


def start() -> None:
    """Make the group; its runs connect when they are first used."""
    dist.init_process_group("tradewind")


def check_all_reduce_is_encrypted_and_leaves_no_key_behind() -> None:
    """Two runs, each with certificates of its own."""
    for group in (None, dist.new_group()):
        numbers = torch.full((100_000,), dist.get_rank() + 1.0)
        dist.all_reduce(numbers, group=group)
        assert (numbers == sum(range(1, dist.get_world_size() + 1))).all()
    dist.barrier()
    assert not list(Path(tempfile.gettempdir()).glob("tradewind-*/key"))


def check_the_synchronizer_says_that_its_links_are_encrypted() -> None:
    """Its group is reached by the user, and so its statistics."""
    with Synchronizer(torch.nn.Linear(64, 2048), policy="bsp") as synchronizer:
        synchronizer.step()
        used = {peer.transport for peer in synchronizer.group.stats().peers if peer.connections}
        synchronizer.group.barrier()  # a rank that leaves closes its connections
    assert used == {"tls" if aead() is None else "tls-aead"}, used
