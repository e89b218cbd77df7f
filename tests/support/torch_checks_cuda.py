"""Checks with CUDA tensors, on all ranks of one launch; all ranks may share one GPU. See test_torch_cuda.py."""

from __future__ import annotations

import faulthandler
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.cuda import _sleep
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


def check_every_collective() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        own = torch.full((500,), rank + 1, dtype=dtype, device=_device)
        gathered = torch.empty(500 * world, dtype=dtype, device=_device)
        dist.all_gather_into_tensor(gathered, own)
        expected = torch.arange(1, world + 1, device=_device).repeat_interleave(500).to(dtype)
        assert torch.equal(gathered, expected), "all_gather_into_tensor"
        part = torch.empty(500, dtype=dtype, device=_device)
        dist.reduce_scatter_tensor(part, torch.full((500 * world,), rank + 1, dtype=dtype, device=_device))
        assert (part == world * (world + 1) // 2).all(), "reduce_scatter_tensor"
        for root in range(world):
            tensor = torch.full((700,), rank, dtype=dtype, device=_device)
            dist.broadcast(tensor, root)
            assert (tensor == root).all(), "broadcast"
            tensor = torch.ones(700, dtype=dtype, device=_device)
            dist.reduce(tensor, root)
            assert rank != root or (tensor == world).all(), "reduce"
        exchanged = torch.empty(3 * world, dtype=dtype, device=_device)
        dist.all_to_all_single(exchanged, torch.full((3 * world,), rank, dtype=dtype, device=_device))
        assert torch.equal(exchanged, torch.arange(world, device=_device).repeat_interleave(3).to(dtype)), "all_to_all"
    outputs = [torch.empty(7, device=_device) for _ in range(world)]
    dist.gather(torch.full((7,), float(rank), device=_device), outputs if rank == 0 else None)
    assert rank or all((outputs[k] == k).all() for k in range(world)), "gather"
    got = torch.empty(7, device=_device)
    dist.scatter(got, [torch.full((7,), float(k), device=_device) for k in range(world)] if rank == 0 else None)
    assert (got == rank).all(), "scatter"


def check_results_do_not_overtake_kernels_that_read_the_old_values() -> None:
    """A rank that only receives has nothing to copy to the host, and must still wait for the caller's stream."""
    for _ in range(5):
        target = (
            torch.ones(4 * MEGABYTE, device=_device) if dist.get_rank() else torch.zeros(4 * MEGABYTE, device=_device)
        )
        dist.barrier()
        _sleep(200_000_000)  # about 0.1 s of the caller's stream
        before = target.clone()
        dist.broadcast(target, 0)
        assert (before == float(dist.get_rank() > 0)).all() and not target.any()


def check_memory_of_freed_results_is_not_reused_too_soon() -> None:
    for _ in range(20):
        work = dist.all_reduce(torch.ones(MEGABYTE, device=_device), async_op=True)
        del work
        other = torch.full((MEGABYTE,), 7.0, device=_device)
        assert (other == 7.0).all()
    dist.barrier()


def check_pinned_memory_does_not_grow() -> None:
    tensors = [torch.ones(MEGABYTE, device=_device) for _ in range(4)]

    def step() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    for _ in range(3):
        step()
    before = torch.cuda.host_memory_stats().get("num_host_alloc", 0)
    for _ in range(20):
        step()
    assert torch.cuda.host_memory_stats().get("num_host_alloc", 0) - before <= len(tensors)


def small_model() -> nn.Module:
    torch.manual_seed(5 + dist.get_rank())
    return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1)).to(_device)


def parameters_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def check_synchronizer_averages_on_the_device() -> None:
    """Plain averages, layer by layer, and with an outer optimizer; its state is on the device."""
    for how in ({}, {"overlap": True}, {"outer": True}, {"preset": "diloco", "every": 2}):
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with tradewind.torch.Synchronizer(model, policy="bsp", optimizer=optimizer, **how) as sync:
            for step in range(4):
                generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
                loss = model(torch.randn(32, 64, generator=generator).to(_device)).square().mean()
                loss.backward()
                if "overlap" not in how:
                    optimizer.step()
                    optimizer.zero_grad()
                sync.step()
            sync.wait()
            own = parameters_of(model)
            others = [torch.empty_like(own) for _ in range(dist.get_world_size())]
            dist.all_gather(others, own)
            assert own.is_cuda and all(torch.equal(own, other) for other in others), how
            state = sync.state_dict()["outer"]
            for fragment in state["fragments"] if state else ():
                assert all(tensor.is_cuda for tensor in (*fragment["anchors"], *fragment["momenta"]))


def check_the_average_of_a_model_is_right() -> None:
    model = small_model()
    own = parameters_of(model)
    rank, world = dist.get_rank(), dist.get_world_size()
    with tradewind.torch.Synchronizer(model, policy="bsp") as sync:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float(rank))
        sync.step()
        assert own.is_cuda and (parameters_of(model) == (world - 1) / 2).all()


def check_tensors_are_encoded_on_the_device() -> None:
    feedback, items = tradewind.torch.ErrorFeedback("int8"), 300_000
    group: Any = dist.group.WORLD
    drawn = torch.Generator().manual_seed(dist.get_rank())
    given, got = torch.zeros(items), torch.zeros(items)
    for _ in range(3):
        own = torch.randn(items, generator=drawn)
        tensor = own.to(_device)
        group.reduce_encoded(tensor, feedback.coding_of("bucket", tensor, feedback.codec)).wait()
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
