"""Checks of training, on all ranks of one launch, beside the same training on Gloo; see test_torch_backend.py."""

from __future__ import annotations

import faulthandler
import io
import logging
import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import tradewind.torch
from torch_checks_collectives import Planned
from tradewind.torch.work import RunLost

Losses = list[float]
_gloo: Any = None


def start() -> None:
    global _gloo
    faulthandler.enable()
    torch.set_num_threads(1)
    dist.init_process_group(
        "tradewind", pg_options=tradewind.torch.Options(tolerance=tradewind.Tolerance(patience_s=20))
    )
    _gloo = dist.new_group(backend="gloo")


class Model(nn.Module):
    """Three layers, one of which may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.spare = nn.Linear(12, 40), nn.Linear(40, 40), nn.Linear(40, 40)
        self.last = nn.Linear(40, 1)

    def forward(self, x: torch.Tensor, with_spare: bool = True) -> torch.Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.last(torch.tanh(self.spare(x)) if with_spare else x)


def batch_of(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 12, generator=generator)
    return x, x.sum(1, keepdim=True).sin()


def fingerprints(model: nn.Module) -> list[int]:
    """One number of every rank's parameters, the same if and only if all their bits are."""
    own = 0
    for parameter in model.parameters():
        own = zlib.crc32(parameter.detach().numpy().tobytes(), own)
    gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, torch.tensor([own]), group=_gloo)
    return [int(number) for number in gathered]


def train(
    group: Any,
    steps: int = 12,
    hook: Callable[[Any], None] = lambda _: None,
    forward: Callable[[Any, torch.Tensor, int], torch.Tensor] = lambda model, x, _: model(x),
    accumulate: int = 1,
    bucket_cap_mb: float = 0.005,
    **ddp: Any,
) -> Losses:
    """Losses of this rank; all ranks have the same bits after every step."""
    torch.manual_seed(7)
    model = DistributedDataParallel(Model(), process_group=group, bucket_cap_mb=bucket_cap_mb, **ddp)
    hook(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        for part in range(accumulate):
            x, y = batch_of(step * accumulate + part, dist.get_rank())
            if part + 1 < accumulate:
                with model.no_sync():
                    (forward(model, x, step) - y).square().mean().backward()
            else:
                loss = (forward(model, x, step) - y).square().mean()
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        assert len(set(fingerprints(model))) == 1, f"ranks differ after step {step}"
    return losses


def same_as_gloo(**how: Any) -> None:
    """To the order of summation; PyTorch's own backends differ from each other by as much."""
    torch.testing.assert_close(
        torch.tensor(train(None, **how)), torch.tensor(train(_gloo, **how)), rtol=2e-4, atol=2e-5
    )


def check_two_hundred_steps_of_ddp() -> None:
    same_as_gloo(steps=200)


def check_ddp_by_the_scheme_mtree() -> None:
    logged = io.StringIO()
    handler, ours = logging.StreamHandler(logged), logging.getLogger("tradewind")
    ours.addHandler(handler)
    options = tradewind.torch.Options(
        scheme="mtree",
        log="info",
        transport=tradewind.Transport(inline_bytes=0),
        tolerance=tradewind.Tolerance(patience_s=20),
    )
    group = dist.new_group(pg_options=options)
    own = torch.tensor(train(group, steps=5))
    torch.testing.assert_close(own, torch.tensor(train(_gloo, steps=5)), rtol=2e-4, atol=2e-5)
    ours.removeHandler(handler)
    ours.setLevel("WARNING")
    assert dist.get_rank() != 0 or "mtree" in logged.getvalue(), logged.getvalue()


def check_ddp_gradient_as_bucket_view() -> None:
    same_as_gloo(gradient_as_bucket_view=True)


def check_ddp_find_unused_parameters() -> None:
    def sometimes(model: Any, x: torch.Tensor, step: int) -> torch.Tensor:
        return model(x, with_spare=(step + dist.get_rank()) % 3 == 0)

    same_as_gloo(find_unused_parameters=True, forward=sometimes)


def check_ddp_static_graph() -> None:
    same_as_gloo(static_graph=True)


def check_ddp_no_sync() -> None:
    same_as_gloo(accumulate=3)


def check_ddp_compressed_to_sixteen_bits() -> None:
    same_as_gloo(hook=lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook))


def check_ddp_power_sgd() -> None:
    """Its callbacks wait for further all-reduces. With several buckets that works on ours only: Gloo hangs."""

    def hook(model: Any) -> None:
        state = powerSGD_hook.PowerSGDState(
            model.process_group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    same_as_gloo(hook=hook, bucket_cap_mb=25)
    assert len(train(None, hook=hook, steps=30)) == 30  # with several


def check_ddp_join_with_uneven_inputs() -> None:
    def uneven(group: Any) -> Losses:
        torch.manual_seed(7)
        model = DistributedDataParallel(Model(), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        with Join([model]):
            for step in range(2 + dist.get_rank()):
                x, y = batch_of(step, dist.get_rank())
                loss = (model(x) - y).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        return losses

    torch.testing.assert_close(torch.tensor(uneven(None)), torch.tensor(uneven(_gloo)), rtol=2e-4, atol=2e-5)


def losses_of(model: Any) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(6):
        x, y = batch_of(step, dist.get_rank())
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return torch.tensor(losses)


def sharding_changes_nothing(mesh: Any) -> set[str]:
    """Beside DDP on Gloo; returns the kinds of collectives beside all-reduce that were planned."""
    torch.manual_seed(7)
    model = Model()
    for layer in (model.first, model.second, model.spare):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with Planned() as kinds:
        sharded = losses_of(model)
    torch.manual_seed(7)
    plain = DistributedDataParallel(Model(), process_group=_gloo)
    torch.testing.assert_close(sharded, losses_of(plain), rtol=2e-4, atol=2e-5)
    return set(kinds)


def check_fsdp() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    assert sharding_changes_nothing(mesh) == {"all-gather", "reduce-scatter"}


def check_hsdp() -> None:
    """Replicas in two halves of the ranks, shards inside."""
    shape = (2, dist.get_world_size() // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    assert dist.get_backend(mesh.get_group("replicate")) == "tradewind"
    assert sharding_changes_nothing(mesh) == {"all-gather", "reduce-scatter"}


def check_hsdp_with_shards_on_gloo() -> None:
    shape = (2, dist.get_world_size() // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"), backend_override={"shard": "gloo"})
    assert dist.get_backend(mesh.get_group("replicate")) == "tradewind"
    assert dist.get_backend(mesh.get_group("shard")) == "gloo"
    assert not sharding_changes_nothing(mesh)


def check_dtensor() -> None:
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    whole = torch.arange(8.0 * world).view(2 * world, 4)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    torch.testing.assert_close(sharded.sum().full_tensor(), whole.sum())
    partial = DTensor.from_local(torch.full((3,), float(dist.get_rank())), mesh, [Partial()])
    torch.testing.assert_close(
        partial.redistribute(mesh, [Replicate()]).to_local(), torch.full((3,), world * (world - 1) / 2)
    )


def check_an_error_reaches_the_caller_of_backward_as_it_is() -> None:
    """A rank that leaves, under every kind of hook and view that DDP has: the others get our error, and its text."""
    for hook, options in (
        (None, {}),
        (None, {"gradient_as_bucket_view": True}),
        (None, {"static_graph": True}),
        (default_hooks.allreduce_hook, {}),
        (default_hooks.fp16_compress_hook, {"gradient_as_bucket_view": True}),
    ):
        group = dist.new_group()
        model = DistributedDataParallel(Model(), process_group=group, bucket_cap_mb=0.01, **options)
        if hook is not None:
            model.register_comm_hook(group, hook)
        x, y = batch_of(0, dist.get_rank())
        for _ in range(3):  # after the first or second DDP makes its buckets anew, together
            (model(x) - y).square().mean().backward()
        if dist.get_rank() == 1:
            dist.destroy_process_group(group)
        else:
            try:
                (model(x) - y).square().mean().backward()
            except RunLost as error:
                assert str(error) == "the run has ended: 'rank1' has left the run."
            else:
                raise AssertionError("backward went on without rank 1")
        dist.barrier(_gloo)
