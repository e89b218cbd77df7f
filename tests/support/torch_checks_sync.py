"""Checks of training with a Synchronizer, on all ranks of one launch over Gloo; see test_torch_sync_training.py.

Every policy trains the same network on digits, with a slow worker and hiccups of all of them; parameters are hashed
after every round, and the hashes of a round's members compared.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tradewind.experiments.papers.digits import deal, load_digits
from tradewind.runtime.options import Tolerance
from tradewind.torch import Ensemble, Outer, Synchronizer
from tradewind.torch.buckets import tracked_tensors

torch.set_num_threads(1)
DIGITS = load_digits()
STEPS = int(os.environ.get("SYNC_STEPS", "80"))
SEED = int(os.environ.get("SYNC_SEED", "0"))
NOISE = 0.04
"""How far two runs of the same training lie apart on so small a test set."""
accuracies: dict[str, float] = {}


def load_before_the_fork() -> None:
    """A first step loads much of torch, which takes seconds: once, and not in every rank."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=0.1).step()


load_before_the_fork()


def start() -> None:
    faulthandler.enable()
    dist.init_process_group("gloo")


def digest(model: nn.Module) -> str:
    sha = hashlib.sha256()
    for tracked in tracked_tensors(model):
        sha.update(tracked.tensor.detach().numpy().tobytes())
    return sha.hexdigest()


def gathered(mine: Any) -> list[Any]:
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, mine)
    return by_rank


def train(policy: str, momentum: float = 0.9, steps: int = STEPS, **options: Any) -> list[list[tuple[Any, str]]]:
    """Train, and see that all members of every round agree; outcomes and hashes of all workers."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    hand = deal(DIGITS.train_labels, world, np.random.default_rng(SEED))[rank]
    images = torch.tensor(DIGITS.train_images[hand], dtype=torch.float32)
    labels = torch.tensor(DIGITS.train_labels[hand])
    random = np.random.default_rng([SEED, rank])
    overlap = options.get("overlap", False)
    seen: list[tuple[Any, str]] = []
    with Synchronizer(model, policy, optimizer=optimizer, tolerance=Tolerance(patience_s=20), **options) as sync:
        for _ in range(steps):
            rows = torch.from_numpy(random.choice(len(labels), 32, replace=False))
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            time.sleep(0.006 if rank == 1 else 0.002 + 0.02 * (random.random() < 0.05))  # computes that long
            if not overlap:
                optimizer.step()
                optimizer.zero_grad()
            outcome = sync.step()
            if outcome is not None and not overlap:
                seen.append((outcome, digest(model)))
        if overlap:
            seen.append((sync.wait(), digest(model)))
        sync.finish()
        seen.append((None, digest(model)))
    model.eval()
    with torch.no_grad():
        right = model(torch.tensor(DIGITS.test_images, dtype=torch.float32)).argmax(1).numpy() == DIGITS.test_labels
    accuracies[f"{policy} {sorted(options)}"] = accuracy = float(right.mean())
    by_rank: list[list[tuple[Any, str]]] = gathered(seen)
    agree(by_rank)
    assert accuracy > 0.85, f"{policy} reads {accuracy:.0%}"
    assert accuracy >= next(iter(accuracies.values())) - NOISE, accuracies
    return by_rank


def agree(by_rank: list[list[tuple[Any, str]]]) -> None:
    assert len({worker[-1][1] for worker in by_rank}) == 1, "all end with the same model"
    rounds: dict[int, set[str]] = {}
    for rank, worker in enumerate(by_rank):
        for outcome, hashed in worker[:-1]:
            assert f"rank{rank}" in outcome.contributors
            assert abs(sum(outcome.weights) - 1) < 1e-9 and min(outcome.staleness) == 0
            if not outcome.alone:
                rounds.setdefault(outcome.round, set()).add(hashed)
    assert rounds and all(len(hashes) == 1 for hashes in rounds.values()), "the members of a round hold the same"


def check_bsp() -> None:
    for worker in train("bsp"):
        assert all(len(outcome.contributors) == dist.get_world_size() for outcome, _ in worker[:-1])


def check_partial_with_scatter() -> None:
    by_rank = train("partial", planner="scatter", policy_options={"p": 2, "weights": "staleness"})
    outcomes = [outcome for worker in by_rank for outcome, _ in worker[:-1]]
    assert max(max(outcome.staleness) for outcome in outcomes) > 0, "the slow worker was behind"
    assert any(max(o.weights) > min(o.weights) for o in outcomes), "and counted less"


def check_partial_with_relay() -> None:
    by_rank = train("partial", planner="relay", policy_options={"p": 3})
    sizes = {len(outcome.contributors) for worker in by_rank for outcome, _ in worker[:-1]}
    assert 3 in sizes and 4 not in sizes


def check_selective() -> None:
    options = {"p": 2, "horizon_s": 0.01, "full_every": 10}
    by_rank = train("selective", policy_options=options)
    sizes = [len(outcome.contributors) for outcome, _ in by_rank[0][:-1]]
    assert dist.get_world_size() in sizes and min(sizes) < dist.get_world_size(), "full rounds, and smaller ones"


def check_shuffle_with_ensemble() -> None:
    by_rank = train("shuffle", ensemble=Ensemble(decay=0.9))
    partners = {outcome.contributors for outcome, _ in by_rank[0][:-1]}
    assert len(partners) >= 2, "rows and columns in turn"


def check_outer_steps() -> None:
    by_rank = train("partial", every=8, outer=Outer(lr=0.7, momentum=0.5), policy_options={"p": 2})
    assert len(by_rank[0]) == STEPS // 8 + 1


def check_overlap() -> None:
    train("shuffle", overlap=True, bucket_bytes=4096)


def check_hierarchical_and_gossip() -> None:
    for policy in ("hierarchical", "gossip"):
        train(policy)
