"""What torchrun runs on each node in test_torch_nodes.py: DDP that continues from its checkpoint with any world size.

Every rank prints a line after its first step of an attempt, rank 0 after each. Training ends when the file in the first
argument exists; the decision is all-reduced, so that all ranks take the same steps.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tradewind.torch  # noqa: F401 - registers the backend where Tradewind is not installed, but on the path


def main(until: Path, checkpoint: Path) -> None:
    dist.init_process_group("tradewind")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # other weights at each rank: DDP has to send those of rank 0
    model = DistributedDataParallel(nn.Linear(64, 64))
    saved = torch.load(checkpoint) if checkpoint.exists() else {"step": -1}
    if "model" in saved:
        model.module.load_state_dict(saved["model"])
    first = step = saved["step"] + 1
    dist.barrier()  # all have read the checkpoint before rank 0 writes the next one
    while True:
        model(torch.full((2, 64), 1.0 + rank)).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1e-3 * parameter.grad
                parameter.grad = None
        if rank == 0:
            written = checkpoint.with_suffix(".new")
            torch.save({"model": model.module.state_dict(), "step": step}, written)
            written.replace(checkpoint)
        if rank == 0 or step == first:
            said = {"rank": rank, "world": world, "step": step, "first": first, "pid": os.getpid()}
            print("\n" + json.dumps(said), flush=True)
        ends = torch.tensor([float(until.exists())])
        dist.all_reduce(ends)
        if ends.item():
            break
        step += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*(Path(text) for text in sys.argv[1:]))
