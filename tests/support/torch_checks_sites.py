"""Checks of ranks that share sites, 3 + 2 + 1, on all ranks of one launch; see test_torch_sites.py."""

from __future__ import annotations

import faulthandler
import os
import zlib
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tradewind.torch
from tradewind.network import Network, Site

NETWORK = Network(
    "uneven",
    [Site("fra", ranks=3), Site("nyc", ranks=2), Site("sin")],
    np.array([[0, 200e6, 100e6], [150e6, 0, 80e6], [100e6, 90e6, 0]]),
)
NAMES = NETWORK.rank_names
ITEMS = 300_000
STEPS = 6


def start() -> None:
    faulthandler.enable()
    torch.set_num_threads(1)
    dist.init_process_group("tradewind", pg_options=options())


def options(**more: Any) -> Any:
    return tradewind.torch.Options(
        network=NETWORK,
        tolerance=tradewind.Tolerance(patience_s=20),
        transport=tradewind.Transport(inline_bytes=0),
        awareness=tradewind.Awareness(measure=False),
        **more,
    )


def gathered(own: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found


def sent_between_sites(group: Any) -> int:
    """Bytes that all ranks have sent to ranks of other sites."""
    own = group.stats()
    here = NETWORK.site_of(own.name)
    return sum(gathered(sum(peer.sent_bytes for peer in own.peers if NETWORK.site_of(peer.name) != here)))


def check_ranks_without_a_site_fill_the_network_site_by_site() -> None:
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    stats = dist.group.WORLD.stats()
    assert stats.members == ("fra/0", "fra/1", "fra/2", "nyc/0", "nyc/1", "sin"), stats.members
    assert stats.name == NAMES[dist.get_rank()]
    assert (tensor == 6).all()


def check_sums_are_the_same_bits_on_all_ranks_and_cross_between_sites_once() -> None:
    group = dist.group.WORLD
    before = sent_between_sites(group)
    generator = torch.Generator().manual_seed(dist.get_rank())
    own = torch.randn(ITEMS, generator=generator)
    everything = [torch.randn(ITEMS, generator=torch.Generator().manual_seed(rank)) for rank in range(6)]
    dist.all_reduce(own)
    torch.testing.assert_close(own, torch.stack(everything).sum(0), rtol=1e-4, atol=1e-4)
    assert len(set(gathered(zlib.crc32(own.numpy().tobytes())))) == 1
    sent, once = sent_between_sites(group) - before, 2 * (3 - 1) * 4 * ITEMS
    assert abs(sent - once) <= 0.02 * once, (sent, once)


def model_of(seed: int = 7) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 1))


def batch_of(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 12, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, x.sum(1, keepdim=True).sin()


def check_ddp_trains_as_a_single_process_does() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(model_of())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    alone = model_of()
    of_alone = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        x, y = batch_of(step, rank)
        (model(x) - y).square().mean().backward()
        xs, ys = zip(*(batch_of(step, other) for other in range(world)), strict=True)
        (alone(torch.cat(xs)) - torch.cat(ys)).square().mean().backward()
        for taken in (optimizer, of_alone):
            taken.step()
            taken.zero_grad()
    for own, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)
    bits = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    assert len(set(gathered(zlib.crc32(bits)))) == 1


def check_a_site_given_by_its_name_is_shared() -> None:
    sites = ["nyc", "fra", "fra", "sin", "sin", "fra"]
    group: Any = dist.new_group(pg_options=options(site=sites[dist.get_rank()]))
    tensor = torch.ones(1000)
    dist.all_reduce(tensor, group=group)
    assert (tensor == 6).all()
    assert group.stats().name == ["nyc", "fra/0", "fra/1", "sin/0", "sin/1", "fra/2"][dist.get_rank()]


def check_nodes_of_torchrun_are_sites_where_nothing_is_given() -> None:
    rank = dist.get_rank()
    os.environ |= {"GROUP_RANK": str(rank // 4), "GROUP_WORLD_SIZE": "2"}
    unknown = tradewind.torch.Options(
        tolerance=tradewind.Tolerance(patience_s=20), transport=tradewind.Transport(inline_bytes=0)
    )
    group: Any = dist.new_group(pg_options=unknown)
    for items in (1000, ITEMS):
        tensor = torch.full((items,), float(rank + 1))
        dist.all_reduce(tensor, group=group)
        assert (tensor == 21).all()
    own = group.stats()
    assert own.members == ("host0/0", "host0/1", "host0/2", "host0/3", "host1/0", "host1/1"), own.members
    apart = sum(gathered(sum(peer.sent_bytes for peer in own.peers if peer.name[:5] != own.name[:5])))
    assert abs(apart - 2 * 4 * (ITEMS + 1000)) <= 0.02 * apart, apart
