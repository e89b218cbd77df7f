"""Every sample of an epoch is in exactly one committed step, whatever members leave and join."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from tradewind.errors import BadFrame, BadOption
from tradewind.torch import ElasticSampler
from tradewind.torch.packed_state import pack_state, unpack_state

CHANGES = st.lists(st.tuples(st.sampled_from(["step", "leave", "join", "late"]), st.integers(0, 100)), max_size=60)


@given(length=st.integers(1, 200), batch=st.integers(1, 7), shuffle=st.booleans(), changes=CHANGES)
def test_every_sample_is_used_exactly_once_an_epoch(
    length: int, batch: int, shuffle: bool, changes: list[tuple[str, int]]
) -> None:
    """Each rank has its own sampler; a rank that joins gets the state of a member."""
    names = iter(f"rank{k}" for k in range(1000))
    ranks = {next(names): ElasticSampler(length, batch, shuffle=shuffle) for _ in range(3)}
    for sampler in ranks.values():
        sampler.begin(sorted(ranks))
    used: Counter[tuple[int, int]] = Counter()

    def step() -> None:
        epoch = next(iter(ranks.values())).epoch
        taken = {name: sampler.batch_of(name) for name, sampler in ranks.items()}
        assert all(len(samples) <= batch for samples in taken.values())
        used.update((epoch, sample) for samples in taken.values() for sample in samples)
        for sampler in ranks.values():
            sampler.commit(sorted(ranks))
        states = [sampler.state_dict() for sampler in ranks.values()]
        assert all(state == states[0] for state in states), "members compute the same"

    for kind, which in changes:
        if kind == "leave" and len(ranks) > 1:
            del ranks[sorted(ranks)[which % len(ranks)]]  # in the middle of a step, which is committed without it
        elif kind in ("join", "late"):
            joiner = ElasticSampler(length, batch, shuffle=shuffle)
            joiner.load_state_dict(unpack_state(pack_state(next(iter(ranks.values())).state_dict())))
            ranks[next(names)] = joiner
        if kind != "late":
            step()
    while next(iter(ranks.values())).epoch == 0:
        step()
    assert {sample for epoch, sample in used if epoch == 0} == set(range(length))
    assert max(used.values()) == 1


def test_what_a_lost_rank_was_to_take_is_taken_in_the_next_step() -> None:
    sampler = ElasticSampler(100, 4, seed=3)
    sampler.begin(["a", "b", "c"])
    lost = sampler.batch_of("b")
    sampler.commit(["a", "c"])
    assert sampler.batch_of("a") == lost


def test_orders_differ_between_epochs_and_seeds_and_are_the_same_everywhere() -> None:
    def orders(seed: int) -> list[list[int]]:
        sampler = ElasticSampler(50, 50, seed=seed)
        sampler.begin(["a"])
        found = []
        for _ in range(3):
            found.append(sampler.batch_of("a"))
            sampler.commit(["a"])
        return found

    assert orders(1) == orders(1) != orders(2)
    assert len({tuple(order) for order in orders(1)}) == 3


def test_a_state_of_other_data_is_refused() -> None:
    with pytest.raises(BadOption, match="length=10 cannot continue one with length=11"):
        ElasticSampler(11, 2).load_state_dict(ElasticSampler(10, 2).state_dict())
    with pytest.raises(BadOption, match="at least 1, got 0 and 2"):
        ElasticSampler(0, 2)


SIMPLE = st.integers(-(2**40), 2**40) | st.text() | st.booleans() | st.none()
NESTED = st.recursive(SIMPLE, lambda of: st.lists(of) | st.dictionaries(st.text() | st.integers(0, 99), of))


@given(NESTED)
def test_packed_states_are_what_they_were(state: object) -> None:
    assert unpack_state(pack_state(state)) == state


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64, torch.uint8])
def test_packed_tensors_keep_dtype_shape_and_bits(dtype: torch.dtype) -> None:
    tensors = [torch.randint(0, 2, shape).to(dtype) for shape in ((), (3,), (2, 0), (5, 7), (1,))]
    back = unpack_state(pack_state({"odd": torch.ones(3, dtype=torch.uint8), "of": tensors}))["of"]
    for before, after in zip(tensors, back, strict=True):
        assert before.dtype == after.dtype and before.shape == after.shape and torch.equal(before, after)


def test_what_is_no_state_is_refused() -> None:
    for data in (b"", b"\0" * 8, b"\0" * 7 + b"\x05hello", bytes(pack_state({"a": torch.ones(9)}))[:-8]):
        with pytest.raises(BadFrame, match="not one of tradewind"):
            unpack_state(bytearray(data))
    with pytest.raises(BadOption, match="a state with a object cannot be sent"):
        pack_state({"a": object()})
