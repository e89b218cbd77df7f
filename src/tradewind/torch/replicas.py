"""Replicas of one model that train in one process, and exchange what a run would: for the accuracy of codecs.

Pseudo-gradients and outer steps are the production `OuterSteps`; every hop of a round (from each replica to the root of
a part of the array, and from the root to all) goes through a production codec, with production's error feedback. No
network is involved: losses and bytes do not depend on one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tradewind.node.actions import Outcome
from tradewind.torch.buckets import tracked_tensors
from tradewind.torch.models import make_gpt, make_model
from tradewind.torch.outer import Outer, OuterSteps, Sent
from tradewind.torch.quantised import mean_by_hops

REPLICAS = 4
TEST_BATCH = 256


@dataclass(frozen=True)
class Method:
    """One way to synchronise."""

    name: str
    codec: str = "none"
    feedback: bool = False
    """Whether what a codec loses is added to the next contribution."""
    outer: Outer | None = None
    """The outer optimizer; None: gradients are averaged at every step (DDP)."""
    every: int = 1


@dataclass(frozen=True)
class Work:
    """What a replica does in a step."""

    batch: int
    """Samples of a step."""
    learning_rate: float
    steps: int = 0
    """Number of steps in which the learning rate falls to a tenth along a cosine; 0: it stays."""

    def rate_at(self, step: int) -> float:
        """The learning rate of a step.

        >>> [round(Work(8, 1.0, 100).rate_at(step), 3) for step in (1, 50, 100)], Work(8, 1.0).rate_at(7)
        ([1.0, 0.55, 0.1], 1.0)
        """
        done = step / self.steps if self.steps else 0.0
        return self.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


class Labelled(Protocol):
    """Training and test samples with their labels, as arrays."""

    @property
    def train(self) -> Any: ...

    @property
    def train_labels(self) -> Any: ...

    @property
    def test(self) -> Any: ...

    @property
    def test_labels(self) -> Any: ...


class _Landed:
    """A handle whose operation has ended: the exchange of replicas in one process takes no time."""

    outcome = Outcome(("replicas",), (1.0,), (0,), 0, round=0)


class Exchange:
    """What replicas exchange, by hops with a codec, and the bytes of it."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.nbytes = 0.0
        """Bytes that one of the replicas has sent, in an all-reduce without waste."""
        self.largest = 0
        """Bytes of the largest round."""
        self._lost: dict[int, list[Tensor]] = {}

    def residuals(self, key: int) -> list[Tensor]:
        """What each replica has kept of the tensors that `key` names."""
        return self._lost[key]

    def average(self, key: int, contributions: Sequence[Tensor], residuals: Sequence[Tensor | None] = ()) -> Tensor:
        """The mean of the replicas' flat tensors; `key` names what they are, for error feedback.

        `residuals`: those of an outer optimizer, which are added, and replaced by what encoding loses.
        """
        given, kept = list(contributions), list(residuals)
        if self.method.feedback:
            kept = [*self._lost.setdefault(key, [torch.zeros_like(own) for own in given])]
        for k, residual in enumerate(kept):
            if residual is not None:
                given[k] = given[k] + residual.to(given[k].device)
        mean, own_bytes, mean_bytes = mean_by_hops(given, self.method.codec, kept)
        self.nbytes += (len(given) - 1) / len(given) * (own_bytes + mean_bytes)
        self.largest = max(self.largest, mean_bytes)
        return mean


class Replicas:
    """Replicas of one model, each with its own data and optimizer."""

    def __init__(self, model: nn.Module, method: Method, work: Work, seed: int, device: str) -> None:
        self.method, self.work, self.device = method, work, device
        self.models = [copy.deepcopy(model).to(device) for _ in range(REPLICAS)]
        fused = device != "cpu"
        self.optimizers = [torch.optim.AdamW(m.parameters(), work.learning_rate, fused=fused) for m in self.models]
        self._on_device: tuple[Labelled, list[Tensor]] | None = None
        self.exchange = Exchange(method)
        self._random = [np.random.default_rng([seed, rank]) for rank in range(REPLICAS)]
        self.outers = [self._outer(m) for m in self.models] if method.outer is not None else []

    def _outer(self, model: nn.Module) -> OuterSteps:
        assert self.method.outer is not None
        trained = [t for t in tracked_tensors(model) if t.trained]
        return OuterSteps(self.method.outer, trained, self.method.every, common=True, bucket_bytes=None)

    @property
    def parameters(self) -> int:
        """Parameters of one replica."""
        return sum(p.numel() for p in self.models[0].parameters())

    def backward(self, rank: int, samples: Labelled) -> None:
        """Compute the gradients of one replica for its next batch."""
        train, labels = self._tensors(samples)[:2]
        at = torch.from_numpy(self._random[rank].integers(0, len(samples.train), self.work.batch)).to(self.device)
        self.optimizers[rank].zero_grad()
        _loss(self.models[rank], train[at], labels[at]).backward()

    def _tensors(self, samples: Labelled) -> list[Tensor]:
        """Training and test samples with their labels on the device, copied once."""
        if self._on_device is None or self._on_device[0] is not samples:
            arrays = (samples.train, samples.train_labels, samples.test, samples.test_labels)
            copied = [torch.from_numpy(np.ascontiguousarray(array)).to(self.device) for array in arrays]
            self._on_device = samples, copied
        return self._on_device[1]

    def step(self, number: int, samples: Labelled) -> None:
        """One local step of every replica, and what follows it."""
        for rank in range(REPLICAS):
            self.backward(rank, samples)
        if not self.outers:
            self._average_gradients()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.work.rate_at(number)
            optimizer.step()
        if self.outers:
            self._outer_step(number)

    @torch.no_grad()
    def _average_gradients(self) -> None:
        flats = [torch.cat([p.grad.reshape(-1) for p in m.parameters() if p.grad is not None]) for m in self.models]
        mean = self.exchange.average(0, flats)
        for model in self.models:
            at = 0
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.copy_(mean[at : at + parameter.numel()].view_as(parameter))
                    at += parameter.numel()

    @torch.no_grad()
    def _outer_step(self, number: int) -> None:
        for outer in self.outers:
            for fragment in outer.fragments:
                if fragment.flight is not None and fragment.flight.due <= number:
                    outer.end(fragment, alone=False)
        if number % self.outers[0].interval:
            return
        turn = self.outers[0].round % len(self.outers[0].fragments)
        submitted: list[list[Sent]] = []

        def submit(sent: list[Sent], weight: float) -> list[Any]:  # noqa: ARG001 - all replicas weigh the same
            submitted.append(sent)
            return [_Landed() for _ in sent]

        begun = [outer.begin(submit, number, REPLICAS) for outer in self.outers]
        for k, each in enumerate(zip(*submitted, strict=True)):
            flats, residuals = [sent.flat.to(self.device, copy=True) for sent in each], [sent.residual for sent in each]
            mean = self.exchange.average(1000 * turn + k, flats, residuals)
            for sent in each:
                sent.flat.copy_(mean)
        if self.outers[0].options.delay == 0:
            for outer, fragment in zip(self.outers, begun, strict=True):
                outer.end(fragment, alone=False)

    @torch.no_grad()
    def judge(self, samples: Labelled, most: int | None = None) -> float:
        """The test loss of the mean of all replicas' models, which is what training returns; with the first `most`."""
        mean = copy.deepcopy(self.models[0])
        for parameters in zip(*(m.parameters() for m in (mean, *self.models)), strict=True):
            parameters[0].copy_(torch.stack(parameters[1:]).mean(dim=0))
        test, labels = (tensor[:most] for tensor in self._tensors(samples)[2:])
        parts = zip(test.split(TEST_BATCH), labels.split(TEST_BATCH), strict=True)
        return sum(float(_loss(mean, inputs, of)) * len(inputs) for inputs, of in parts) / len(test)


def _loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    device = inputs.device.type
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        scores: Tensor = model(inputs)
    return nn.functional.cross_entropy(scores.float().flatten(0, -2), labels.flatten())


def make_replicas(
    gpt: tuple[int, int, int, int] | None, method: Method, work: Work, seed: int, device: str
) -> Replicas:
    """Replicas of a GPT with this width, layers, heads and context, or of a CNN for images (None)."""
    torch.manual_seed(seed)
    return Replicas(make_model("resnet") if gpt is None else make_gpt(*gpt), method, work, seed, device)
