"""All-reduce by slices that a site's ranks add up first, with Gloo in place of NCCL. See test_torch_slices.py."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore, ProcessGroupGloo, ReduceOp
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel

import tradewind.torch
from tradewind.network import Network, Site
from tradewind.runtime.options import resolve_options
from tradewind.torch.backend import slice_channel
from tradewind.torch.rendezvous import Place, identify
from tradewind.torch.site_reduction import SiteReduction, slices_of

ITEMS = 100_003
ON_GPU = os.environ.get("SLICES_ON_GPU") == "1"
_group: Any = None
_device = torch.device("cpu")


def start() -> None:
    """Make the group of two sites with two ranks each, whose slices are added up within a site."""
    global _group, _device
    network = Network("two", [Site("a"), Site("b")], [[0, 1e9], [1e9, 0]])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    site = "a" if rank < world // 2 else "b"
    if ON_GPU:
        if torch.cuda.device_count() < world:  # NCCL refuses ranks of one host on one GPU; so each is another host
            os.environ.update(NCCL_HOSTID=f"host{rank}", NCCL_SOCKET_IFNAME="lo")
        _device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(_device)
        dist.init_process_group("tradewind", pg_options=tradewind.torch.Options(inner="gloo"))
        _group = dist.new_group(pg_options=tradewind.torch.Options(network=network, site=site, inner="nccl"))
        assert _group.reduction is not None
    else:
        dist.init_process_group("tradewind")
        options = tradewind.torch.Options(network=network, site=site)
        _group = dist.new_group(pg_options=options)
        _group.reduction = with_gloo(options)


def with_gloo(options: Any) -> SiteReduction:
    """What the backend makes with NCCL."""
    rank, world = dist.get_rank(), dist.get_world_size()
    store = PrefixStore("slices", _get_default_store())
    place = Place(store, "sliced", rank, world, tuple(range(world)), 60.0, is_world=True, attempt="0")
    resolved, _ = resolve_options(options)
    identity = identify(place, resolved)
    slices = slices_of(identity.names, rank)
    assert slices is not None
    made = []
    for use in ("scatter", "gather"):
        own = PrefixStore(f"site{slices.site[0]}/{use}", store)
        gloo = ProcessGroupGloo(own, slices.site.index(rank), len(slices.site), timedelta(seconds=60))
        made.append(gloo)
    return SiteReduction(made[0], made[1], slice_channel(place, resolved, identity, slices), "cpu")


def check_every_operation() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for op, expected in ((ReduceOp.SUM, 10.0), (ReduceOp.AVG, 2.5), (ReduceOp.MIN, 1.0), (ReduceOp.MAX, 4.0)):
        tensor = torch.full((ITEMS,), rank + 1.0, device=_device)
        dist.all_reduce(tensor, op, _group)
        assert world == 4 and (tensor == expected).all(), (op, tensor[:3])
    part = torch.zeros(3, ITEMS, device=_device)[:, ::2]
    part += rank
    dist.all_reduce(part, group=_group)
    assert (part == 6.0).all(), "strided"


def check_only_slices_leave_a_site() -> None:
    """A rank sends its half to the other site, and nothing of it through the group's own run."""
    run = _group.reduction.channel.group
    assert run.names == ("a", "b") and _group.stats() is None, "the group's own run was used"
    before, tensor = run.stats().sent_bytes, torch.ones(ITEMS, device=_device)
    dist.all_reduce(tensor, group=_group)
    sent = run.stats().sent_bytes - before
    assert 0.9 * tensor.nbytes / 2 < sent < 1.3 * tensor.nbytes / 2, (sent, tensor.nbytes)


def check_results_waited_for_in_another_order_at_every_rank() -> None:
    tensors = [torch.full((ITEMS,), float(k), device=_device) for k in range(6)]
    works = [dist.all_reduce(tensor, group=_group, async_op=True) for tensor in tensors]
    order = list(range(6)) if dist.get_rank() % 2 else list(range(6))[::-1]
    for k in order:
        works[k].wait()
        assert (tensors[k] == 4.0 * k).all(), k


def check_small_tensors_take_the_groups_own_run() -> None:
    tensor = torch.ones(10, device=_device)
    dist.all_reduce(tensor, group=_group)
    assert (tensor == 4.0).all() and _group.stats() is not None


def check_ddp_has_the_same_parameters_at_all_ranks() -> None:
    torch.manual_seed(3)
    model: Any = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    model = model.to(_device)
    model = DistributedDataParallel(model, process_group=_group, bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(5):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        x = torch.randn(16, 64, generator=generator).to(_device)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True).sin()).square().mean().backward()
        optimizer.step()
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    gathered = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, flat)
    assert all(torch.equal(flat, other) for other in gathered), "ranks differ"
