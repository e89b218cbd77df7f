"""A small model to train in tests of the Synchronizer: its batches, its steps, and its numbers as one array."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import nn

from tradewind.torch.buckets import tracked_tensors
from tradewind.torch.synchronizer import Synchronizer

GENERATOR = threading.Lock()
"""Ranks are threads here, and torch has one generator for all of them."""


def made(make: Any, seed: int = 0) -> Any:
    """A model, always with the same numbers for the same seed."""
    with GENERATOR, torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def network(seed: int = 0) -> Any:
    """With BatchNorm, and of two types of numbers."""
    return made(lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3), _Wide()), seed)


class _Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        return (x.double() * self.scale).float()


def batch(rank: int, step: int) -> tuple[Any, Any]:
    """The inputs and targets of one step of a rank."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(16, 6, generator=generator)
    return x, x[:, :3].sin()


def train(
    model: nn.Module, optimizer: Any, sync: Synchronizer, rank: int, steps: range, ours: bool = True
) -> list[Any]:
    """Take these steps; what `sync.step` returned for each."""
    outcomes = []
    for step in steps:
        x, y = batch(rank, step)
        nn.functional.mse_loss(model(x), y).backward()
        if ours:
            optimizer.step()
            optimizer.zero_grad()
        outcomes.append(sync.step())
    return outcomes


def flat(model: nn.Module) -> np.ndarray:
    """All parameters that are trained, and averaged buffers."""
    return np.concatenate([t.tensor.detach().double().numpy().ravel() for t in tracked_tensors(model)])


def sgd(model: nn.Module) -> Any:
    """An optimizer that has a state."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
