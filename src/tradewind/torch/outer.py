"""An outer optimizer on top of rounds (DiLoCo): many local steps, then one outer step along their sum.

With anchor a (the model after the last outer step) and local model x, the pseudo-gradient is g = a - x. Averaged over a
round's members it drives Nesterov's momentum:

    v <- mu v + g        a <- a - lr (g + mu v)

Under `bsp` all anchors and momenta are equal, and averaging g is enough. Under any other policy they differ, and
averaging only g would leave the members' models different. But a and v after the step are linear in a, v and g before
it, so each member takes the step with its own g, and the round averages a and v: the result is exactly the step from
the members' mean anchor, at twice the bytes. After the round its members are equal, as with plain averaging.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tradewind.errors import BadOption
from tradewind.torch.buckets import Bucket


@dataclass(frozen=True)
class Outer:
    """Options of the outer step; the defaults are DiLoCo's. Raises `BadOption` for values out of range."""

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf or not 0 <= self.momentum < 1:
            raise BadOption(
                f"Outer: lr must be finite and above 0, and momentum in [0, 1), got lr={self.lr}, "
                f"momentum={self.momentum}."
            )

    def direction(self, gradient: Tensor, momentum: Tensor) -> Tensor:
        """The direction of the outer step, given the momentum already updated with this gradient."""
        return gradient + self.momentum * momentum if self.nesterov else momentum


class OuterSteps:
    """The state of the outer optimizer: anchors and momenta of all trainable parameters, by bucket."""

    def __init__(self, options: Outer, buckets: Sequence[Bucket], common: bool) -> None:
        self.options, self.buckets = options, buckets
        self.common = common
        """Whether all ranks have the same anchors, because every rank takes part in every round (`bsp`)."""
        self.anchors = [torch.empty_like(bucket.flat) for bucket in buckets]
        self.momenta = [torch.zeros_like(bucket.flat) for bucket in buckets]
        self._steps = [] if common else [torch.empty_like(bucket.flat) for bucket in buckets]
        for bucket, anchor in zip(buckets, self.anchors, strict=True):
            bucket.gather(anchor)

    def prepare(self) -> list[Tensor]:
        """The flat tensors that the round must average in place."""
        given: list[Tensor] = []
        for k, bucket in enumerate(self.buckets):
            bucket.gather()
            gradient = torch.sub(self.anchors[k], bucket.flat, out=bucket.flat)
            if self.common:
                given.append(gradient)
                continue
            # The next momentum and anchor are written to separate memory, because this round may fail.
            momentum = torch.add(gradient, self.momenta[k], alpha=self.options.momentum, out=self._steps[k])
            step = self.options.direction(gradient, momentum)
            bucket.flat.copy_(self.anchors[k]).sub_(step, alpha=self.options.lr)
            given += [bucket.flat, momentum]
        return given

    def apply(self) -> None:
        """Take the outer step with the averaged tensors, and copy the new anchors into the model."""
        for k, bucket in enumerate(self.buckets):
            if self.common:
                momentum = self.momenta[k].mul_(self.options.momentum).add_(bucket.flat)
                self.anchors[k].sub_(self.options.direction(bucket.flat, momentum), alpha=self.options.lr)
            else:
                self.anchors[k].copy_(bucket.flat)
                self.momenta[k].copy_(self._steps[k])
            bucket.scatter(self.anchors[k])

    def state_dict(self) -> dict[str, Any]:
        """The anchors and momenta, for a checkpoint."""
        return {"anchors": self.anchors, "momenta": self.momenta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore anchors and momenta from a checkpoint of the same model."""
        for name, own in (("anchors", self.anchors), ("momenta", self.momenta)):
            for there, here in zip(state[name], own, strict=True):
                here.copy_(there)
