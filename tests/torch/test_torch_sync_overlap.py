"""Overlap gives the same numbers as without it, also for shared, unused and partially used parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ranks import run_ranks
from tradewind.runtime.group import Group

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from torch_training import batch, flat, made, network, train  # noqa: E402
from tradewind.torch.ensemble import Ensemble  # noqa: E402
from tradewind.torch.synchronizer import Synchronizer  # noqa: E402

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}


def trained(group: Group, overlap: bool, policy: str, make: Any, **options: Any) -> tuple[np.ndarray, int]:
    model = network()
    group.barrier()  # otherwise a fast rank could fetch a model that another rank still trains and offers
    # Two groups of parameters, of which each bucket has both or one.
    optimizer = make([{"params": model[0].parameters()}, {"params": [*model[1:].parameters()], "lr": 0.02}])
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with Synchronizer(
        model, policy, group=group, optimizer=optimizer, overlap=overlap, bucket_bytes=64, **options
    ) as sync:
        for step in range(8):
            train(model, optimizer, sync, group.rank, range(step, step + 1), ours=not overlap)
            schedule.step()
        sync.wait()
        return flat(model), sync.rounds


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_overlap_gives_the_same_model_to_the_last_bit(optimizer: str) -> None:
    def body(group: Group) -> Any:
        make = OPTIMIZERS[optimizer]
        return [trained(group, overlap, "bsp", make) for overlap in (False, True)]

    (plain, plain_rounds), (overlapped, rounds) = run_ranks(2, body)[0]
    assert plain_rounds == rounds == 8
    assert np.array_equal(plain, overlapped)


@pytest.mark.parametrize("every", [1, 2])
def test_groups_that_shuffle_and_rarer_rounds_overlap_alike(every: int) -> None:
    def body(group: Group) -> Any:
        make = OPTIMIZERS["sgd"]
        return [trained(group, overlap, "shuffle", make, every=every)[0] for overlap in (False, True)]

    for plain, overlapped in run_ranks(4, body, policy="shuffle"):
        assert np.array_equal(plain, overlapped)


def test_the_ensemble_sees_every_layer_after_its_average() -> None:
    def body(group: Group) -> Any:
        found = []
        for overlap in (False, True):
            model = network()
            optimizer = OPTIMIZERS["sgd"](model.parameters())
            with Synchronizer(
                model, "bsp", group=group, optimizer=optimizer, overlap=overlap, ensemble=Ensemble(0.8, start=2)
            ) as sync:
                train(model, optimizer, sync, group.rank, range(6), ours=not overlap)
                sync.finish()
            found.append(flat(model))
        return found

    plain, overlapped = run_ranks(2, body)[0]
    assert np.allclose(plain, overlapped, rtol=1e-6)


class Branches(nn.Module):
    """A shared weight, a layer that gets a gradient in odd steps only, and one that never does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.sometimes, self.never = (nn.Linear(6, 6) for _ in range(4))
        self.second.weight = self.first.weight
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        x = self.second(self.first(x).tanh())
        return (self.sometimes(x) if self.calls % 2 else x)[:, :3]


def test_shared_and_unused_parameters_and_batches_in_pieces() -> None:
    def body(group: Group) -> Any:
        found = []
        for overlap in (False, True):
            model = made(Branches)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            with Synchronizer(model, "bsp", group=group, optimizer=optimizer, overlap=overlap, bucket_bytes=1) as sync:
                for step in range(5):
                    x, y = batch(group.rank, step)
                    with sync.no_sync():
                        nn.functional.mse_loss(model(x[:8]), y[:8]).backward()
                    nn.functional.mse_loss(model(x[8:]), y[8:]).backward()
                    if not overlap:
                        optimizer.step()
                        optimizer.zero_grad()
                    sync.step()
                found.append(np.concatenate([v.numpy().ravel() for v in model.state_dict().values()]))
        return found

    plain, overlapped = run_ranks(2, body)[0]
    assert np.array_equal(plain, overlapped), "state_dict waits for running averages"


@pytest.mark.mechanism("DS-Sync III-A, layer-wise overlap of averaging and backward pass")
def test_averaging_starts_while_the_backward_pass_still_runs() -> None:
    def body(group: Group) -> Any:
        model = network()
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        with Synchronizer(model, "bsp", group=group, optimizer=optimizer, overlap=True, bucket_bytes=64) as sync:
            pending = []
            first = model[0].weight
            first.register_hook(lambda _: pending.append(sync.pending))
            train(model, optimizer, sync, group.rank, range(2), ours=False)
            later = sync.pending
            model[0](torch.ones(1, 6))
            awaited = later - sync.pending
            sync.wait()
        return pending, later, awaited

    for pending, later, awaited in run_ranks(2, body):
        assert all(number > 0 for number in pending), "later layers were sent before the first layer's gradient"
        assert later > awaited > 0, "a forward pass waits only for the layers that it uses"
