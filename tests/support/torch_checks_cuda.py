"""Checks with CUDA tensors, on all ranks of one launch; all ranks may share one GPU. See test_torch_cuda.py."""

from __future__ import annotations

import faulthandler
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import tradewind.torch

MEGABYTE = 2**20
_device: Any = None
_gloo: Any = None


def start() -> None:
    global _device, _gloo
    faulthandler.enable()
    # NCCL takes no two ranks on one GPU.
    dist.init_process_group(
        "tradewind", pg_options=tradewind.torch.Options(tolerance=tradewind.Tolerance(patience_s=20), inner="gloo")
    )
    _device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(_device)
    _gloo = dist.new_group(backend="gloo")


def check_every_type_and_operation() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):
        tensor = torch.full((1000,), rank + 1, dtype=dtype, device=_device)
        dist.all_reduce(tensor)
        assert tensor.is_cuda and (tensor == world * (world + 1) // 2).all()
    tensor = torch.full((1000,), rank + 1.0, device=_device)
    dist.all_reduce(tensor, ReduceOp.AVG)
    assert (tensor == (world + 1) / 2).all()


def check_work_of_the_stream_before_and_after_is_waited_for() -> None:
    """Long kernels before the all-reduce, and kernels after it that must see its result."""
    world = dist.get_world_size()
    for _ in range(5):
        big = torch.ones(4 * MEGABYTE, device=_device)
        for _ in range(50):
            big = big * 1.0 + 0.0
        big += 1.0
        work = dist.all_reduce(big, async_op=True)
        other = torch.randn(1000, 1000, device=_device)
        other = other @ other  # may overlap
        work.wait()
        after = big * 2.0
        assert (after == 4.0 * world).all() and torch.isfinite(other).all()


def check_streams_of_the_callers_own() -> None:
    world = dist.get_world_size()
    stream = torch.cuda.Stream(_device)
    with torch.cuda.stream(stream):
        tensor = torch.zeros(MEGABYTE, device=_device)
        for _ in range(20):
            tensor += 0.05
        dist.all_reduce(tensor)
        total = tensor.sum()
    stream.synchronize()
    torch.testing.assert_close(total.item() / MEGABYTE, float(world), rtol=1e-4, atol=0)


def check_strided_and_coalesced() -> None:
    world = dist.get_world_size()
    whole = torch.ones(64, 64, device=_device)
    dist.all_reduce(whole[::2].t())
    assert (whole[::2] == world).all() and (whole[1::2] == 1).all()
    tensors = [torch.ones(size, device=_device) for size in (3, 5, MEGABYTE)]
    dist.all_reduce_coalesced(tensors)
    assert all((tensor == world).all() for tensor in tensors)


def check_futures_on_the_device() -> None:
    world = dist.get_world_size()
    futures = []
    for k in range(6):
        work = dist.all_reduce(torch.full((MEGABYTE,), float(k), device=_device), async_op=True)
        futures.append(work.get_future().then(lambda future: future.value()[0] * 2.0))
    for k, future in enumerate(futures):
        assert (future.wait() == 2.0 * k * world).all()


def train(group: Any, hook: Any = None) -> torch.Tensor:
    torch.manual_seed(3)
    model: Any = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
    model = DistributedDataParallel(model.to(_device), process_group=group, bucket_cap_mb=0.1)
    if hook is not None:
        hook(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(20):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        x = torch.randn(32, 64, generator=generator).to(_device)
        loss = (model(x) - x.sum(1, keepdim=True).sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).cpu()
    gathered = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, flat, group=_gloo)
    assert all(torch.equal(flat, other) for other in gathered), "ranks differ"
    return torch.tensor(losses)


def check_ddp_beside_gloo() -> None:
    torch.testing.assert_close(train(None), train(_gloo), rtol=1e-3, atol=1e-4)


def check_ddp_hooks() -> None:
    train(None, lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook))
    train(
        None,
        lambda model: model.register_comm_hook(
            powerSGD_hook.PowerSGDState(model.process_group, matrix_approximation_rank=2, start_powerSGD_iter=2),
            powerSGD_hook.powerSGD_hook,
        ),
    )


def check_tensors_are_encoded_on_the_device() -> None:
    feedback, items = tradewind.torch.ErrorFeedback("int8"), 300_000
    group: Any = dist.group.WORLD
    drawn = torch.Generator().manual_seed(dist.get_rank())
    given, got = torch.zeros(items), torch.zeros(items)
    for _ in range(3):
        own = torch.randn(items, generator=drawn)
        tensor = own.to(_device)
        group.reduce_encoded(tensor, feedback.coding_of("bucket", tensor)).wait()
        assert tensor.is_cuda
        first = tensor.cpu()
        dist.broadcast(first, 0, group=_gloo)
        assert torch.equal(first, tensor.cpu()), "all ranks have the same bits"
        given += own
        got += tensor.cpu()
    assert feedback.nbytes == 2 * 4 * items, "one residual on the device, and one on the host"
    (kept,) = feedback.state_dict()["residuals"]
    left = given - kept
    dist.all_reduce(left, group=_gloo)
    assert torch.allclose(left, got, atol=1e-4), "inputs, results and residuals add up"
