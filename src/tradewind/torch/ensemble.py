"""A stochastic weight average of each worker, and of all workers in the end (DS-Sync III-A, step 5).

Workers that average in changing groups take different ways to the same valley. Each keeps a moving average of its own
way; the average of those lies flatter than any end point, and generalises better. The final model is the average of
these averages, not of the models as the paper's last line of pseudo code has it.
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
    """How the moving average forgets, and when it begins."""

    decay: float = 0.99
    """What is kept of the average at every step (the paper's factor)."""
    start: int = 0
    """The step after which averaging begins: the first ones are far from any valley."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1 or self.start < 0:
            raise BadOption(
                f"an ensemble with decay {self.decay} from step {self.start} makes no sense: decay must be at least 0 "
                "and below 1, start at least 0."
            )


class MovingAverage:
    """Of all averaged tensors of one worker, bucket by bucket."""

    def __init__(self, options: Ensemble, buckets: Sequence[Bucket]) -> None:
        self.options, self.buckets = options, buckets
        self.averages = [torch.zeros(len(b.flat), dtype=wide(b.dtype)) for b in buckets]
        self.counts = [0] * len(buckets)
        """Steps that went into each."""

    def update(self, k: int, step: int) -> None:
        """The tensors of bucket k are those after that step, and after its round if it had one."""
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
        """For a checkpoint."""
        return {"averages": self.averages, "counts": self.counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint of the same model."""
        self.counts = list(state["counts"])
        for there, here in zip(state["averages"], self.averages, strict=True):
            here.copy_(there)
