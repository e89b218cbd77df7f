"""Local steps, and averages among the ranks that are ready, instead of DDP: handwritten digits, with one slow rank.

torchrun --nproc-per-node 4 examples/local_sgd.py                        # the first two ready ranks average
torchrun --nproc-per-node 4 examples/local_sgd.py --policy selective     # or: shuffle, bsp, gossip, hierarchical
torchrun --nproc-per-node 4 examples/local_sgd.py --every 8 --outer      # DiLoCo: 8 local steps, then an outer one
torchrun --nproc-per-node 4 examples/local_sgd.py --policy shuffle --overlap --ensemble   # all of DS-Sync
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

from tradewind.torch import Synchronizer

parser = argparse.ArgumentParser()
parser.add_argument("--policy", default="partial")
parser.add_argument("--planner", default=None)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--every", type=int, default=1)
for flag in ("outer", "overlap", "ensemble"):
    parser.add_argument(f"--{flag}", action="store_true")
given = parser.parse_args()

dist.init_process_group("gloo")  # only for rendezvous; any backend works
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = images.float() / 16
test, mine = slice(0, 360), torch.arange(360 + rank, len(labels), world)

model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
sync = Synchronizer(
    model,
    given.policy,
    given.planner,
    every=given.every,
    optimizer=optimizer,
    outer=given.outer,
    overlap=given.overlap,
    ensemble=given.ensemble,
)

started_s = time.monotonic()
waited_s = averaged_s = 0.0
for _ in range(given.steps):
    rows = mine[torch.randint(len(mine), (32,))]
    nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
    time.sleep(0.02 if rank == world - 1 else 0.002)  # the last rank is slow
    if not given.overlap:  # with --overlap every layer is updated and sent as soon as its gradients are ready
        optimizer.step()
        optimizer.zero_grad()
    outcome = sync.step()
    if outcome is not None:
        waited_s, averaged_s = waited_s + outcome.waited_s, averaged_s + outcome.seconds
trained_s = time.monotonic() - started_s

sync.finish()  # all ranks get the same model; with --ensemble the average of the moving averages
model.eval()
with torch.no_grad():
    right = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
print(
    f"rank {rank}: {given.steps} steps in {trained_s:.1f} s, {sync.rounds} of them averaged; waited {waited_s:.1f} s "
    f"for others, averaged for {averaged_s:.1f} s; reads {right:.1%} right",
    flush=True,
)
sync.close()
dist.destroy_process_group()
