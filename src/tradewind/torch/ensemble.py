"""Stochastic weight averaging on each rank, and over all ranks at the end (DS-Sync III-A, step 5).

Ranks that average in changing groups follow different trajectories towards the same minimum. Each rank keeps a moving
average of its own trajectory; by DS-Sync, the mean of these averages lies in a flatter region than any end point and
generalises better. The final model is the mean of these averages, not of the models as in the last line of the paper's
pseudocode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tradewind.errors import BadOption
from tradewind.torch.buckets import Bucket, wide


@dataclass(frozen=True)
class Ensemble:
    """Options of the moving average. Raises `BadOption` for values out of range."""

    decay: float = 0.99
    """Weight of the previous average at every step, in [0, 1)."""
    start: int = 0
    """Number of first steps that are left out of the average, because the model is still far from a minimum."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1 or self.start < 0:
            raise BadOption(
                f"Ensemble: decay must be in [0, 1) and start at least 0, got decay={self.decay}, start={self.start}."
            )


class MovingAverage:
    """The moving average of all tracked tensors of one rank, by bucket.

    Mechanism: DS-Sync III-A, the final model is an ensemble of moving averages (SWA) (live: ds-sync/racks)
    """

    def __init__(self, options: Ensemble, buckets: Sequence[Bucket]) -> None:
        self.options, self.buckets = options, buckets
        self.averages = [torch.zeros(len(b.flat), dtype=wide(b.dtype), device=b.flat.device) for b in buckets]
        self.counts = [0] * len(buckets)
        """Number of steps in each bucket's average."""

    def update(self, k: int, step: int) -> None:
        """Add bucket k's tensors as they are after step `step` (and after its round, if it had one)."""
        if step <= self.options.start:
            return
        self.counts[k] += 1
        bucket, average = self.buckets[k], self.averages[k]
        bucket.gather()
        if self.counts[k] == 1:
            average.copy_(bucket.flat)
        else:
            average.lerp_(bucket.flat.to(average.dtype), 1 - self.options.decay)

    def state_dict(self) -> dict[str, Any]:
        """The averages and their step counts, for a checkpoint."""
        return {"averages": self.averages, "counts": self.counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the averages from a checkpoint of the same model."""
        self.counts = list(state["counts"])
        for there, here in zip(state["averages"], self.averages, strict=True):
            here.copy_(there)
