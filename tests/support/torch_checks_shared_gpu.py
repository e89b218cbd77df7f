"""Two ranks on one GPU with the default inner group, NCCL, which refuses them. See test_torch_cuda.py."""

from __future__ import annotations

import torch
import torch.distributed as dist

import tradewind.torch


def start() -> None:
    dist.init_process_group(
        "tradewind", pg_options=tradewind.torch.Options(tolerance=tradewind.Tolerance(patience_s=20))
    )
    torch.cuda.set_device(0)


def check_planned_collectives_do_not_need_nccl() -> None:
    tensor = torch.ones(1000, device="cuda")
    dist.all_reduce(tensor)
    assert (tensor == dist.get_world_size()).all()


def check_the_error_of_the_inner_group_names_the_option() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = [1 + (rank + k) % 2 for k in range(world)]
    given, got = torch.ones(sum(sizes), device="cuda"), torch.ones(sum(sizes), device="cuda")
    try:
        dist.all_to_all_single(got, given, sizes, sizes)  # with split sizes: the inner group's
        torch.cuda.synchronize()
    except RuntimeError as error:
        assert "inner='gloo'" in str(error), str(error)
    else:
        raise AssertionError("NCCL did not refuse two ranks on one GPU")
