"""A small model that learns at one site, for experiments that compare synchronisation methods.

The model's parameters are averaged by a `Synchronizer` on `model`, or by any method that averages the flat array
between `gather` and `scatter`. SGD has no momentum, so averaging models after every step equals averaging gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from tradewind.torch.models import make_model

Array = np.ndarray[Any, Any]


class Learner:
    """A model of `kind` (see `make_model`) trained with SGD; sites with the same seed start from the same model."""

    def __init__(self, kind: str, seed: int, learning_rate: float) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.model = make_model(kind)
        self._optimizer = torch.optim.SGD(self.model.parameters(), learning_rate)
        self.flat = np.empty(sum(p.numel() for p in self.model.parameters()), np.float32)

    def step(self, images: Array, labels: Array) -> None:
        """Take one local SGD step on this batch."""
        self._optimizer.zero_grad()
        scores = self.model(torch.from_numpy(images))
        nn.functional.cross_entropy(scores.flatten(0, -2), torch.from_numpy(labels).flatten()).backward()
        self._optimizer.step()

    @torch.no_grad()
    def judge(self, images: Array, labels: Array) -> tuple[float, float]:
        """The cross-entropy, and the fraction of labels predicted correctly (of a text: of next characters)."""
        scores = self.model(torch.from_numpy(images)).flatten(0, -2)
        shown = torch.from_numpy(labels).flatten()
        right = (scores.argmax(dim=1) == shown).float().mean()
        return float(nn.functional.cross_entropy(scores, shown)), float(right)

    @torch.no_grad()
    def gather(self) -> Array:
        """Copy all parameters into the flat array, and return it."""
        torch.cat([p.reshape(-1) for p in self.model.parameters()], out=torch.from_numpy(self.flat))
        return self.flat

    @torch.no_grad()
    def scatter(self) -> None:
        """Copy the flat array back into the model."""
        parameters = list(self.model.parameters())
        pieces = torch.from_numpy(self.flat).split([p.numel() for p in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.copy_(piece.view_as(parameter))
