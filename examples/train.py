"""Train across sites: `torchrun --nproc-per-node 4 --max-restarts 3 examples/train.py`.

With `TRADEWIND_NETWORK=net.json TRADEWIND_SITE=fra` on each machine (or a `tradewind.toml`), gradients travel by the
best plan for that network; `TRADEWIND_LOG=info` logs which and why. After a lost rank, torchrun restarts all ranks from
the last checkpoint.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tradewind.torch  # noqa: F401 - registers the backend

CHECKPOINT = Path("digits.pt")


def main() -> None:
    dist.init_process_group("tradewind")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    digits = load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.float32)[rank::world]
    y = torch.tensor(digits.target)[rank::world]
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    first = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1
    for epoch in range(first, 5):
        for start in range(0, len(x) - 31, 32):
            loss = nn.functional.cross_entropy(model(x[start : start + 32]), y[start : start + 32])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = (model.module(x).argmax(1) == y).float().mean()
        dist.all_reduce(right, dist.ReduceOp.AVG)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}, {right.item():.1%} right", flush=True)
            torch.save(
                {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, CHECKPOINT
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
