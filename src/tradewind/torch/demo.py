"""The model that `tradewind demo` trains where PyTorch is installed: a perceptron under DDP, in ordinary user code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tradewind.network import Network
from tradewind.runtime.options import RunOptions, Transport

Array = np.ndarray[Any, Any]


def perceptron(widths: tuple[int, ...]) -> nn.Sequential:
    """A multi-layer perceptron with ReLU between its layers; `widths` are the layer sizes, input first."""
    layers: list[nn.Module] = []
    for into, out in pairwise(widths):
        layer = nn.Linear(into, out)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DdpLearner:
    """A perceptron trained with SGD under DistributedDataParallel."""

    def __init__(self, widths: tuple[int, ...], seed: int, learning_rate: float, momentum: float) -> None:
        torch.manual_seed(seed)
        self._model = DistributedDataParallel(perceptron(widths))
        self._optimizer = torch.optim.SGD(self._model.parameters(), learning_rate, momentum)
        self._cost = nn.CrossEntropyLoss()

    def warm_up(self, items: int) -> None:
        """Establish all connections by all-reducing `items` zeros."""
        dist.all_reduce(torch.zeros(items))

    def step(self, images: Array, labels: Array) -> float:
        """Take one training step (DDP averages the gradients) and return this batch's loss before it."""
        self._optimizer.zero_grad()
        loss = self._cost(self._model(torch.from_numpy(images)), torch.from_numpy(labels))
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        dist.barrier()

    def loss(self, images: Array, labels: Array) -> float:
        """The model's cross-entropy on these images."""
        with torch.no_grad():
            return float(self._cost(self._model.module(torch.from_numpy(images)), torch.from_numpy(labels)))

    def accuracy(self, images: Array, labels: Array) -> float:
        """The fraction of these images that the model classifies correctly."""
        with torch.no_grad():
            read = self._model.module(torch.from_numpy(images)).argmax(dim=1).numpy()
        return float((read == labels).mean())

    def digest(self) -> str:
        """A SHA-256 digest of all parameters, in hexadecimal."""
        digest = hashlib.sha256()
        for parameter in self._model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        return digest.hexdigest()


def make_store(address: str, rank: int, world: int) -> dist.Store:
    """The store for the rendezvous of all schemes: one port for all, as a free port may be taken before the next."""
    host, _, port = address.rpartition(":")
    return dist.TCPStore(host, int(port), world, is_master=rank == 0)


@contextmanager
def process_group(store: dist.Store, name: str, rank: int, world: int, network: Network, plan: str) -> Iterator[None]:
    """Initialise the default process group on the tradewind backend for scheme `name`; destroy it at the end."""
    torch.set_num_threads(1)
    options = RunOptions(network=network, plan=Path(plan), transport=Transport(connections=1))
    dist.init_process_group(
        "tradewind", store=dist.PrefixStore(name, store), rank=rank, world_size=world, pg_options=options
    )
    try:
        yield
    finally:
        dist.destroy_process_group()
