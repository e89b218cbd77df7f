"""DDP over Gloo, on handwritten digits: `torchrun --nproc-per-node 4 examples/ddp_gloo.py`."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    digits = load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.float32)[rank::world]
    y = torch.tensor(digits.target)[rank::world]
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(5):
        for start in range(0, len(x) - 31, 32):
            loss = nn.functional.cross_entropy(model(x[start : start + 32]), y[start : start + 32])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
