"""The effect of a slow site: one model trained by BSP over Gloo, then with the ranks that are ready, for equal times.

torchrun --nproc-per-node 4 examples/stragglers.py
tradewind lab run mesh --option n=4 --option max_mbps=40 -- python examples/stragglers.py   # on slow links, too
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

from tradewind.catalog import load_compute_times
from tradewind.torch import Synchronizer

parser = argparse.ArgumentParser()
parser.add_argument("--policy", default="partial")
parser.add_argument("--planner", default="scatter")
parser.add_argument("--p", type=int, default=2, help="members of a round, under partial and selective")
parser.add_argument("--every", type=int, default=2, help="local steps between rounds")
parser.add_argument("--seconds", type=float, default=10.0)
parser.add_argument("--target", type=float, default=0.94)
given = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
images, labels = images[order].float(), labels[order]
images = (images - images.mean(0)) / (images.std(0) + 1)
test, mine = slice(0, 360), torch.arange(360 + rank, len(labels), world)
# A step takes as long as was measured for an LSTM, 25 times as fast; at the last site five times as long.
step_times = load_compute_times("lstm").scaled((5.0 if rank == world - 1 else 1.0) / 25)


def train(name: str, model: nn.Module, average: Callable[[bool], bool]) -> None:
    """Train until the time is up. `average(is_late)` is called after each local step; it returns whether to stop."""
    torch.manual_seed(rank)
    drawn = np.random.default_rng(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    dist.barrier()
    started_s, reached_s, right, steps, ended = time.monotonic(), None, 0.0, 0, False
    while not ended:
        step_s = time.monotonic()
        rows = mine[torch.randint(len(mine), (32,))]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
        time.sleep(max(0.0, step_s + step_times.sample(drawn, 1)[0] - time.monotonic()))
        ended = average(time.monotonic() - started_s >= given.seconds)
        steps += 1
        with torch.no_grad():
            right = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
        if right >= given.target and reached_s is None:
            reached_s = time.monotonic() - started_s
    when = "not reached" if reached_s is None else f"after {reached_s:.1f} s"
    print(f"{name}, rank {rank}: {given.target:.0%} {when}; {steps} steps, {right:.1%} in the end", flush=True)


def fresh_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def average_with_gloo(model: nn.Module) -> Callable[[bool], bool]:
    """All ranks average after every step, as with DDP; all stop when rank 0 does."""

    def average(is_late: bool) -> bool:
        flat = nn.utils.parameters_to_vector(model.parameters()).detach()
        message = torch.cat([flat, torch.tensor([float(is_late and rank == 0)])])
        dist.all_reduce(message)
        nn.utils.vector_to_parameters(message[:-1] / world, model.parameters())
        return bool(message[-1])

    return average


model = fresh_model()
train("BSP over Gloo", model, average_with_gloo(model))

model = fresh_model()
options = {"p": given.p} if given.policy in ("partial", "selective") else {}
with Synchronizer(model, given.policy, given.planner, policy_options=options, every=given.every) as sync:

    def average(is_late: bool) -> bool:
        sync.step()
        return is_late

    train(f"{given.policy} x {given.planner}", model, average)
    sync.finish()  # all ranks get the same model; a rank that is done waits here and delays no other
    dist.barrier()
dist.destroy_process_group()
