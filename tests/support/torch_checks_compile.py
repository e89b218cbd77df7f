"""Checks of `torch.compile` around collectives, on all ranks of one launch; see test_torch_compile.py.

The compiler is the one that the variable COMPILER names.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch._dynamo  # before the fork: it loads for long
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tradewind.torch
from torch_checks_collectives import Planned
from tradewind.torch.process_group import TradewindGroup

STEPS = 4


def start() -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "tradewind", pg_options=tradewind.torch.Options(tolerance=tradewind.Tolerance(patience_s=60))
    )


def compiled(function: Any) -> Any:
    """The function as one graph: whatever cannot be in it raises."""
    return torch.compile(function, fullgraph=True, backend=os.environ["COMPILER"])


def is_reduced_by_us(call: Any) -> bool:
    """Whether a call leads to an all-reduce of ours, rather than of a group that the compiler put in its place."""
    called = []
    ours = TradewindGroup.allreduce

    def noted(self: TradewindGroup, tensors: list[Any], opts: Any = None) -> Any:
        called.append(tensors)
        return ours(self, tensors, opts)

    TradewindGroup.allreduce = noted  # type: ignore[method-assign]
    try:
        call()
    finally:
        TradewindGroup.allreduce = ours  # type: ignore[method-assign]
    return bool(called)


def check_all_reduce_in_place() -> None:
    world = dist.get_world_size()

    def step(tensor: torch.Tensor) -> torch.Tensor:
        doubled = tensor * 2
        dist.all_reduce(doubled)
        return doubled + 1

    run = compiled(step)
    for size in (10, 10, 5000):
        assert torch.equal(run(torch.ones(size)), torch.full((size,), 2.0 * world + 1))
    assert is_reduced_by_us(lambda: run(torch.ones(10)))


def check_asynchronous_ones_break_the_graph_and_work() -> None:
    def step(tensor: torch.Tensor) -> torch.Tensor:
        work = dist.all_reduce(tensor, async_op=True)
        doubled = tensor.new_full((3,), 2.0)
        work.wait()
        return tensor[:3] * doubled

    run = torch.compile(step, backend=os.environ["COMPILER"])
    for _ in range(2):
        assert torch.equal(run(torch.ones(100)), torch.full((3,), 2.0 * dist.get_world_size()))


def check_functional_collectives() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD

    def step(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        total = functional.all_reduce(tensor, "avg", group)
        everything = functional.all_gather_tensor(tensor, 0, group)
        return total.sin(), everything, functional.reduce_scatter_tensor(everything, "sum", 0, group)

    mine = torch.full((4,), float(rank))
    with Planned() as kinds:
        total, everything, scattered = compiled(step)(mine)
    assert kinds == ["all-gather", "reduce-scatter"]
    torch.testing.assert_close(total, torch.full((4,), (world - 1) / 2).sin())
    assert torch.equal(everything.view(world, 4)[:, 0], torch.arange(float(world)))
    assert torch.equal(scattered, mine * world)


def check_ddp_trains_as_it_does_without() -> None:
    losses: list[list[float]] = []
    for compile_it in (False, True):
        torch.manual_seed(1)
        model: Any = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        forward = torch.compile(model, backend=os.environ["COMPILER"]) if compile_it else model
        inputs = torch.randn(STEPS, 12, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
        losses.append([])
        for batch in inputs:
            optimizer.zero_grad()
            loss = forward(batch).square().mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(float(loss))
    torch.testing.assert_close(losses[0], losses[1])
