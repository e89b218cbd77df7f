"""Elastic training with real processes: members are killed and join, survivors are never restarted and stay equal."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from benchmarks.elastic import BATCH, storm
from torch import nn

from ranks import SECRET, free_port, run_ranks
from tradewind.errors import BadOption
from tradewind.runtime.group import Group
from tradewind.torch import Elastic, ElasticSampler


def make(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


DATA = torch.randn(120, 8, generator=torch.Generator().manual_seed(5))


def backward(model: nn.Module, samples: list[int]) -> float:
    loss = model(DATA[samples]).square().mean()
    loss.backward()
    return float(loss.detach())


def test_ranks_leave_and_join_while_the_others_train_on() -> None:
    """Every check is in `Storm.run`: equal parameters after each step, each sample once an epoch."""
    with storm(world=4, seed=4) as live:
        report = live.run(events=4)
    assert report.kills >= 2 and report.joins >= 1 and report.steps > 10


@pytest.mark.slow
def test_200_leaves_and_joins_in_one_run_of_8_processes() -> None:
    with storm(world=8, seed=8) as live:
        report = live.run(events=200)
    assert report.kills + report.joins >= 200 and report.epochs > 1 and report.unreported <= BATCH * report.kills


def test_all_ranks_start_from_the_first_and_take_the_steps_of_one_process_with_all_samples() -> None:
    made = [make(rank) for rank in range(3)]  # not in the threads of the ranks, which share one random generator

    def body(group: Group) -> object:
        model, optimizer = made[group.rank]
        sampler = ElasticSampler(len(DATA), 10, shuffle=False)
        with Elastic(model, optimizer, sampler, group=group) as elastic:
            model.eval()  # statistics of batches differ between one process and three
            for _ in range(8):
                elastic.step(lambda samples: backward(model, samples))
            assert elastic.version == 8 and sampler.epoch == 2
        group.barrier()
        return [t.clone() for t in model.state_dict().values()]

    found = run_ranks(3, body, tolerant=True)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    model, optimizer = make(0)
    model.eval()
    for step in range(8):
        first = step % 4 * 30
        optimizer.zero_grad()
        backward(model, list(range(first, first + 30)))
        optimizer.step()
    for a, b in zip(found[0], model.state_dict().values(), strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-6)


def test_a_run_that_is_not_tolerant_is_refused() -> None:
    def body(group: Group) -> object:
        with pytest.raises(BadOption, match="needs a tolerant run"):
            Elastic(*make(0), group=group)
        return True

    assert run_ranks(1, body) == [True]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(BadOption, match="rank, world is not set"):
        Elastic(*make(0), address="127.0.0.1:1")
    with pytest.raises(BadOption, match="needs the policy bsp, got 'partial'"):
        Elastic(*make(0), address="127.0.0.1:1", rank=0, world=2, policy="partial")


def test_ranks_with_other_states_are_refused() -> None:
    def body(group: Group) -> object:
        model, optimizer = make(0)
        sampler = ElasticSampler(10, 2) if group.rank == 0 else None
        try:
            Elastic(model, optimizer, sampler, group=group)
        except BadOption as error:
            return str(error)
        finally:
            group.barrier()
        return None

    assert "differ in sampler" in run_ranks(2, body, tolerant=True)[1]


def test_a_run_of_one_rank_trains() -> None:
    model, optimizer = make(0)
    where: dict[str, Any] = {"address": f"127.0.0.1:{free_port()}", "rank": 0, "world": 1, "secret": SECRET}
    with Elastic(model, optimizer, ElasticSampler(len(DATA), 10), **where) as elastic:
        losses = [elastic.step(lambda samples: backward(model, samples)) for _ in range(5)]
    assert elastic.version == 5 and all(loss is not None for loss in losses)
