"""Replicas of one model that train in one process, and exchange what a run would: for the accuracy of codecs.

Pseudo-gradients and outer steps are the production `OuterSteps`; every hop of a round (from each replica to the root of
a part of the array, and from the root to all) goes through a production codec, with production's error feedback. No
network is involved: losses and bytes do not depend on one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from tradewind.node.actions import Outcome
from tradewind.torch.buckets import Tracked
from tradewind.torch.outer import Outer, OuterSteps, Sent
from tradewind.torch.quantised import mean_by_hops

REPLICAS = 4
TEST_BATCH = 256
DRAWN_STEPS = 250
"""Steps whose samples are drawn at a time."""
WARM_STEPS = 3
"""Steps of a CUDA device before one is recorded: by then all memory that lasts is allocated."""


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
    """What the replicas of one seed exchange, by hops with a codec, and the bytes of it."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.nbytes = 0.0
        """Bytes that one of the replicas has sent, in an all-reduce without waste."""
        self.largest = 0
        """Bytes of the largest round."""
        self._lost: dict[int, Tensor] = {}

    def residuals(self, key: int) -> Tensor:
        """What each replica has kept of the tensors that `key` names, in rows."""
        return self._lost[key]

    def average(self, key: int, contributions: Tensor, residuals: Tensor | None = None) -> Tensor:
        """The mean of the rows, the replicas' flat tensors; `key` names what they are, for error feedback.

        `residuals`: rows of an outer optimizer, which are added, and replaced by what encoding loses.
        """
        lost = residuals
        if self.method.feedback:
            lost = self._lost[key] = self._lost[key] if key in self._lost else torch.zeros_like(contributions)
        given = contributions if lost is None else contributions + lost
        mean, own_bytes, mean_bytes = mean_by_hops(given, self.method.codec, lost)
        self.nbytes += (len(given) - 1) / len(given) * (own_bytes + mean_bytes)
        self.largest = max(self.largest, mean_bytes)
        return mean


class Recorded:
    """Work of a CUDA device that is recorded once, and then launched at once (CUDA graph): from Python, a GPU would
    wait for thousands of launches a step.

    What the work reads and writes must be the same memory each time, and it must not wait for the device.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._calls = work, 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> bool:
        """Do the work; returns whether its Python code ran."""
        self._calls += 1
        if self._calls <= WARM_STEPS:
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                self._work()
            torch.cuda.current_stream().wait_stream(aside)
            return True
        is_new = self._graph is None
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._work()
        self._graph.replay()
        return is_new


class Replicas:
    """Replicas of one model for each of some seeds, each with its own data and state of the optimizer.

    All of them are rows of one tensor, and take their local steps together (`torch.func.vmap`): with one model after
    another a GPU would wait for the launches of small kernels. AdamW works item by item, so it is one for all rows.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        method: Method,
        work: Work,
        seeds: Sequence[int],
        device: str,
        recorded: bool = True,
    ) -> None:
        """`models`: the one that all replicas of a seed begin with, for each seed. `recorded`: whether a CUDA device
        gets a step at once (`Recorded`).
        """
        self.method, self.work, self.device = method, work, device
        self.parameters = sum(parameter.numel() for parameter in models[0].parameters())
        """Parameters of one replica."""
        self.seeds = tuple(seeds)
        self._model = copy.deepcopy(models[0]).to(device)
        self._shapes = {name: parameter.shape for name, parameter in self._model.named_parameters()}
        first = torch.stack([torch.cat([p.detach().reshape(-1) for p in model.parameters()]) for model in models])
        self.rows = nn.Parameter(first.to(device).repeat_interleave(REPLICAS, dim=0))
        """The parameters of each replica: all of the first seed, then those of the next."""
        self.rows.grad = torch.zeros_like(self.rows)
        self._leaves = {name: view.requires_grad_() for name, view in self._views(self.rows.detach()).items()}
        self._gradients = list(self._views(self.rows.grad).values())
        self._recorded = Recorded(self._local_step) if device != "cpu" and recorded else None
        is_recorded = self._recorded is not None
        rate = torch.tensor(work.learning_rate, device=device) if is_recorded else work.learning_rate
        self.optimizer = torch.optim.AdamW([self.rows], rate, fused=device != "cpu", capturable=is_recorded)
        self.exchanges = [Exchange(method) for _ in seeds]
        self._random = [np.random.default_rng([seed, rank]) for seed in seeds for rank in range(REPLICAS)]
        self._steps_drawn, self._drawn_ahead = 0, torch.empty(0)
        self.drawn = torch.zeros((len(self._random), work.batch), dtype=torch.int64, device=device)
        """The samples of the step."""
        self._on_device: tuple[Labelled, list[Tensor]] | None = None
        self._each = [0.0 for _ in seeds]
        """Bytes of a recorded step."""
        self.outers = [self._outer(row) for row in self.rows.detach()] if method.outer is not None else []

    def _views(self, rows: Tensor) -> dict[str, Tensor]:
        """The parameters by name, in views of rows (or of one row)."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        parts = rows.split(sizes, dim=-1)
        return {
            name: part.view(*rows.shape[:-1], *shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    def _outer(self, row: Tensor) -> OuterSteps:
        """The outer optimizer of one replica, which reads and writes its row; what it keeps is on the device."""
        assert self.method.outer is not None
        trained = [Tracked(name, nn.Parameter(view), True) for name, view in self._views(row).items()]
        made = OuterSteps(self.method.outer, trained, self.method.every, common=True, bucket_bytes=None)
        for fragment in made.fragments:
            fragment.residuals = [residual.to(self.device) for residual in fragment.residuals]
        return made

    def backward(self, samples: Labelled) -> None:
        """Compute the gradients of all replicas for their next batches."""
        self._tensors(samples)
        self._draw(len(samples.train))
        self._backward()

    def _draw(self, count: int) -> None:
        """Choose the samples of the next step."""
        within = self._steps_drawn % DRAWN_STEPS
        if within == 0:
            drawn = [random.integers(0, count, (DRAWN_STEPS, self.work.batch)) for random in self._random]
            self._drawn_ahead = torch.from_numpy(np.stack(drawn, axis=1)).to(self.device)
        self.drawn.copy_(self._drawn_ahead[within])
        self._steps_drawn += 1

    def _backward(self) -> None:
        assert self._on_device is not None
        train, labels = self._on_device[1][:2]
        with sdpa_kernel(SDPBackend.MATH):  # the only one that vmap can batch on every device
            losses = vmap(self._loss)(self._leaves, train[self.drawn], labels[self.drawn])
        found = torch.autograd.grad(losses.sum(), list(self._leaves.values()))
        torch._foreach_copy_(self._gradients, found)

    def _loss(self, parameters: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        device = inputs.device.type
        # Each weight is cast once: a cache of casts would keep them beyond a recording.
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda", cache_enabled=False):
            scores: Tensor = functional_call(self._model, parameters, (inputs,))
        return nn.functional.cross_entropy(scores.float().flatten(0, -2), labels.flatten())

    def _tensors(self, samples: Labelled) -> list[Tensor]:
        """Training and test samples with their labels on the device, copied once."""
        if self._on_device is None or self._on_device[0] is not samples:
            arrays = (samples.train, samples.train_labels, samples.test, samples.test_labels)
            copied = [torch.from_numpy(np.ascontiguousarray(array)).to(self.device) for array in arrays]
            self._on_device = samples, copied
        return self._on_device[1]

    def step(self, number: int, samples: Labelled) -> None:
        """One local step of every replica, and what follows it."""
        self._tensors(samples)
        self._draw(len(samples.train))
        self._set_rate(self.work.rate_at(number))
        before = [exchange.nbytes for exchange in self.exchanges]
        if self._recorded is None:
            self._local_step()
        elif self._recorded():
            self._each = [exchange.nbytes - was for exchange, was in zip(self.exchanges, before, strict=True)]
        else:
            for exchange, nbytes in zip(self.exchanges, self._each, strict=True):
                exchange.nbytes += nbytes
        if self.outers:
            for k, exchange in enumerate(self.exchanges):
                self._outer_step(number, self.outers[k * REPLICAS : (k + 1) * REPLICAS], exchange)

    def _set_rate(self, rate: float) -> None:
        group = self.optimizer.param_groups[0]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # a recorded step reads it there
        else:
            group["lr"] = rate

    def _local_step(self) -> None:
        self._backward()
        if not self.outers:
            self._average_gradients()
        self.optimizer.step()

    @torch.no_grad()
    def _average_gradients(self) -> None:
        assert self.rows.grad is not None
        for of_seed, exchange in zip(self.rows.grad.split(REPLICAS), self.exchanges, strict=True):
            of_seed.copy_(exchange.average(0, of_seed).expand_as(of_seed))

    @torch.no_grad()
    def _outer_step(self, number: int, outers: Sequence[OuterSteps], exchange: Exchange) -> None:
        for outer in outers:
            for fragment in outer.fragments:
                if fragment.flight is not None and fragment.flight.due <= number:
                    outer.end(fragment, alone=False)
        if number % outers[0].interval:
            return
        turn = outers[0].round % len(outers[0].fragments)
        submitted: list[list[Sent]] = []

        def submit(sent: list[Sent], weight: float) -> list[Any]:  # noqa: ARG001 - all replicas weigh the same
            submitted.append(sent)
            return [_Landed() for _ in sent]

        begun = [outer.begin(submit, number, REPLICAS) for outer in outers]
        for k, each in enumerate(zip(*submitted, strict=True)):
            kept = [sent.residual for sent in each if sent.residual is not None]
            residuals = torch.stack(kept) if kept else None
            mean = exchange.average(1000 * turn + k, torch.stack([sent.flat for sent in each]), residuals)
            for row, residual in enumerate(kept):
                assert residuals is not None
                residual.copy_(residuals[row])
            for sent in each:
                sent.flat.copy_(mean)
        if outers[0].options.delay == 0:
            for outer, fragment in zip(outers, begun, strict=True):
                outer.end(fragment, alone=False)

    @torch.no_grad()
    def judge(self, samples: Labelled, most: int | None = None) -> list[float]:
        """The test loss of the mean of the replicas of each seed, which training returns; with the first `most`."""
        test, labels = (tensor[:most] for tensor in self._tensors(samples)[2:])
        found = []
        for of_seed in self.rows.detach().split(REPLICAS):
            mean = self._views(of_seed.mean(dim=0))
            parts = zip(test.split(TEST_BATCH), labels.split(TEST_BATCH), strict=True)
            total = sum(self._loss(mean, inputs, of) * len(inputs) for inputs, of in parts)
            found.append(float(total) / len(test))
        return found


def make_replicas(
    make: Callable[[], nn.Module], method: Method, work: Work, seeds: Sequence[int], device: str, recorded: bool = True
) -> Replicas:
    """Replicas of the model that `make` returns, for each seed."""
    models = []
    for seed in seeds:
        torch.manual_seed(seed)
        models.append(make())
    return Replicas(models, method, work, seeds, device, recorded)
