"""Replicas in one process: their codecs are the production ones, and their outer steps give what a run gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranks import run_ranks
from tradewind.runtime.group import Group
from tradewind.wire.codecs import codec_of

torch = pytest.importorskip("torch")
from tradewind.torch.models import make_gpt  # noqa: E402
from tradewind.torch.outer import PRESETS, Outer  # noqa: E402
from tradewind.torch.quantised import after_a_hop  # noqa: E402
from tradewind.torch.replicas import DRAWN_STEPS, REPLICAS, Method, Replicas, Work, make_replicas  # noqa: E402
from tradewind.torch.synchronizer import Synchronizer  # noqa: E402


@dataclass(frozen=True, eq=False)
class Random:
    """Characters that are drawn at random, with the next ones as labels."""

    train: Any
    train_labels: Any
    test: Any
    test_labels: Any


def samples() -> Random:
    random = np.random.default_rng(3)
    drawn = random.integers(0, 8, (60, 9))
    return Random(drawn[:40, :-1], drawn[:40, 1:].copy(), drawn[40:, :-1], drawn[40:, 1:].copy())


def replicas(method: Method, seeds: Sequence[int] = (0,)) -> Replicas:
    return make_replicas(lambda: make_gpt(16, 2, 2, 8), method, Work(4, 1e-3), seeds, "cpu")


class Alone:
    """One replica with a model and an optimizer of its own, as a rank of a run has."""

    def __init__(self, seed: int, rank: int) -> None:
        torch.manual_seed(seed)
        self.model = make_gpt(16, 2, 2, 8)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self._random = np.random.default_rng([seed, rank])

    def backward(self, data: Random) -> None:
        at = self._random.integers(0, len(data.train), 4)
        self.optimizer.zero_grad()
        scores = self.model(torch.from_numpy(data.train[at]))
        labels = torch.from_numpy(data.train_labels[at])
        torch.nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten()).backward()


@settings(max_examples=200, deadline=None)
@given(
    codec=st.sampled_from(["none", "bf16", "fp16", "int8", "fp8", "int4", "int4-32", "topk", "topk-256"]),
    items=st.integers(1, 1500),
    seed=st.integers(0, 2**32 - 1),
    magnitude=st.sampled_from([0.0, 1e-44, 1e-20, 1e-3, 1.0, 1e20]),
)
def test_a_hop_on_tensors_is_that_of_the_production_codec(codec: str, items: int, seed: int, magnitude: float) -> None:
    random = np.random.default_rng(seed)
    spread = 10.0 ** random.integers(-3, 3, items) if seed % 2 else 1.0
    values = (random.standard_normal(items) * magnitude * spread).astype(np.float32)
    expected = values.copy()
    if (made := codec_of(codec)) is not None:
        encoded = np.empty(made.most_bytes(items), np.uint8)
        made.encode(values, encoded)
        made.decode(encoded, expected)
    found = after_a_hop(torch.from_numpy(values.copy()), codec).numpy()
    assert np.array_equal(found.view(np.uint32) & 0x7FFFFFFF, expected.view(np.uint32) & 0x7FFFFFFF)  # but signs of 0
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    "outer", [Outer(), Outer(fragments=2, delay=2, mix=0.5), Outer(delay=None)], ids=["diloco", "streaming", "delayed"]
)
def test_replicas_in_one_process_train_as_ranks_of_a_run_do(outer: Outer) -> None:
    emulated, data = replicas(Method("outer", outer=outer, every=4)), samples()
    for step in range(1, 13):
        emulated.step(step, data)

    ranks = [Alone(0, rank) for rank in range(REPLICAS)]

    def body(group: Group) -> Any:
        own = ranks[group.rank]
        sync = Synchronizer(own.model, "quorum", group=group, every=4, outer=outer)
        for _ in range(12):
            own.backward(data)
            own.optimizer.step()
            sync.step()
        return flat(own.model).numpy()

    answers = run_ranks(REPLICAS, body, policy="quorum")
    for row, answer in zip(emulated.rows.detach(), answers, strict=True):
        own = row.numpy()
        assert not isinstance(answer, Exception), answer
        assert np.isclose(own, answer, rtol=1e-3, atol=2e-4).mean() > 0.98, "AdamW magnifies what is nearly zero"


def test_seeds_that_train_together_train_as_each_alone() -> None:
    data = samples()
    for method in (
        Method("ddp", "int8", feedback=True),
        Method("sparseloco", "topk", outer=PRESETS["sparseloco"].outer),
    ):
        both, alone = replicas(method, (3, 8)), replicas(method, (8,))
        for step in range(1, 4):
            both.step(step, data)
            alone.step(step, data)
        assert torch.allclose(both.rows[REPLICAS:], alone.rows, atol=1e-5)
        assert not torch.allclose(both.rows[:REPLICAS], alone.rows, atol=1e-2)
        assert both.judge(data)[1] == pytest.approx(alone.judge(data)[0], rel=1e-4)
        assert both.exchanges[1].nbytes == pytest.approx(alone.exchanges[0].nbytes, rel=0.01)


def test_samples_are_those_of_draws_one_step_after_the_other() -> None:
    run, data = replicas(Method("local"), (5,)), samples()
    alone = [np.random.default_rng([5, rank]) for rank in range(REPLICAS)]
    for step in range(DRAWN_STEPS + 2):
        drawn = np.stack([random.integers(0, len(data.train), 4) for random in alone])
        run.backward(data)
        assert torch.equal(run.drawn, torch.from_numpy(drawn)), step


def test_gradients_of_a_step_are_those_of_each_replica_alone() -> None:
    together, data = replicas(Method("local"), (0, 1)), samples()
    together.backward(data)
    assert together.rows.grad is not None
    for row, (seed, rank) in enumerate((seed, rank) for seed in (0, 1) for rank in range(REPLICAS)):
        alone = Alone(seed, rank)
        alone.backward(data)
        expected = torch.cat([p.grad.reshape(-1) for p in alone.model.parameters() if p.grad is not None])
        assert torch.allclose(together.rows.grad[row], expected, atol=1e-6)


def test_error_feedback_keeps_the_mean_of_many_steps_and_bytes_are_those_of_the_wire() -> None:
    plain, kept = Method("ddp int4", "int4"), Method("ddp int4 + feedback", "int4", feedback=True)
    gradients = torch.full((REPLICAS, 300), 0.01)
    gradients[:, 0] = 1.0  # the scale of its block: 0.01 is rounded to nothing
    sums = {}
    for method in (plain, kept):
        exchange = replicas(method).exchanges[0]
        sums[method.name] = sum(exchange.average(0, gradients)[1] for _ in range(100))
        assert exchange.nbytes == 100 * 1.5 * (150 + 2 * 4)
    assert sums["ddp int4"] == 0.0 and float(sums["ddp int4 + feedback"]) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4", "topk", "topk-256"])
def test_inputs_results_and_residuals_add_up(codec: str) -> None:
    """As in production, also what the root of a sum loses is kept, and is in a later round."""
    exchange = replicas(Method("ddp", codec, feedback=True)).exchanges[0]
    drawn = torch.Generator().manual_seed(1)
    given, got = torch.zeros(9000, dtype=torch.float64), torch.zeros(9000, dtype=torch.float64)
    for _ in range(5):
        inputs = torch.randn(REPLICAS, 9000, generator=drawn)
        given += inputs.double().sum(dim=0)
        got += REPLICAS * exchange.average(0, inputs).double()
    kept = exchange.residuals(0).double().sum(dim=0)
    assert float(kept.abs().max()) > 1e-3, "something is lost in every round"
    assert torch.allclose(got + kept, given, atol=1e-4)


def test_sparse_contributions_follow_the_published_rule() -> None:
    """The largest items of 0.95 e + g are sent, and e keeps the rest (SparseLoCo)."""
    outer = PRESETS["sparseloco"].outer
    assert (outer.lr, outer.momentum, outer.codec, outer.feedback) == (1.0, 0.0, "topk", 0.95)
    run = replicas(Method("sparseloco", "topk", outer=outer, every=1))
    data = samples()
    for step in range(1, 4):
        anchor = run.rows[0].detach().clone()
        run.step(step, data)
        changed = int((run.rows[0] != anchor).sum())
        assert 0 < changed <= REPLICAS * (len(anchor) // 64 + 8), "few parameters change"
        for each in run.outers:
            (residual,) = each.fragments[0].residuals
            assert int(torch.count_nonzero(residual)) > 0.9 * len(residual), "what is not sent is kept"
    assert run.exchanges[0].nbytes < 3 * 1.5 * 4 * run.parameters / 10


def flat(model: Any) -> Any:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])
