"""Small arrays travel in messages to the controller and back: the same results and guarantees, with fewer hops."""

from __future__ import annotations

import functools
import logging
from typing import Any

import numpy as np
import pytest

from ranks import run_ranks
from tradewind.arithmetic import DTYPES, OPERATIONS, Arithmetic, can_compute, storage_of
from tradewind.errors import BadArray, BadOption, PeerLost
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.runtime.group import Group
from tradewind.runtime.shaping import ShapedNetwork
from tradewind.wire.messages import MAX_INLINE_BYTES

CARRIED: dict[str, Any] = {"inline_bytes": 16 * 1024}


def of_rank(rank: int, dtype: str, items: int = 100) -> Any:
    numbers = np.random.default_rng(rank).integers(1, 4, items)
    if dtype == "bfloat16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(storage_of(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operation_on_every_type_gives_what_a_plan_gives(dtype: str) -> None:
    """Whole numbers, so that the order of sums does not matter."""

    def body(inline: bool, group: Group) -> list[bytes]:
        done = []
        for op in OPERATIONS:
            if can_compute(op, dtype):
                handle = group.all_reduce_async(of_rank(group.rank, dtype), op, dtype=dtype)
                assert handle.outcome.inline is inline
                done.append(handle.wait().tobytes())
        return done

    carried, planned = (
        run_ranks(4, functools.partial(body, nbytes > 0), inline_bytes=nbytes) for nbytes in (16 * 1024, 0)
    )
    assert all(answers == planned[0] for answers in [*carried, *planned])


def test_sums_are_made_in_the_order_of_ranks() -> None:
    arrays = [np.random.default_rng(rank).standard_normal(1000).astype(np.float32) for rank in range(4)]
    expected = np.empty(1000, np.float32)
    Arithmetic("float32", "sum").combine(expected, arrays[0], arrays[1:])
    for answer in run_ranks(4, lambda group: group.all_reduce(arrays[group.rank]), **CARRIED):
        assert answer.tobytes() == expected.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5)])
def test_any_shape_in_place_or_not_with_inputs_as_they_were(shape: tuple[int, ...]) -> None:
    def body(group: Group) -> None:
        array = np.full(shape, group.rank + 1.0)
        result = group.all_reduce(array)
        assert result.shape == shape and (result == 3.0).all() and (array == group.rank + 1.0).all()
        assert group.all_reduce(array, out=array) is array and (array == 3.0).all()

    assert run_ranks(2, body, **CARRIED) == [None, None]


def test_no_connection_is_made_for_barriers_broadcasts_and_small_sums() -> None:
    def body(group: Group) -> tuple[str, int]:
        group.barrier()
        said = group.broadcast(np.array(f"from {group.rank}"), root=1)
        group.all_reduce(np.ones(3))
        return str(said), sum(peer.connections for peer in group.stats().peers)

    assert run_ranks(3, body, **CARRIED) == [("from 1", 0)] * 3


def test_large_and_small_operations_under_way_at_once_end_each_in_its_own_way() -> None:
    sizes = [10, 100_000, 3, 4096, 4097, 50_000, 1]

    def body(group: Group) -> list[bool]:
        handles = [group.all_reduce_async(np.full(size, float(size), np.float32)) for size in sizes]
        for size, handle in zip(sizes, handles, strict=True):
            assert (handle.wait() == 3.0 * size).all()
        return [handle.outcome.inline for handle in handles]

    assert run_ranks(3, body, **CARRIED) == [[size <= 4096 for size in sizes]] * 3


def test_ranks_that_disagree_are_told_what_each_has_and_go_on() -> None:
    def body(group: Group) -> str:
        with pytest.raises(BadArray) as caught:
            group.all_reduce(np.ones(3 if group.rank else 5_000_000, np.float32))
        with pytest.raises(BadArray, match=r"int32 for sum.*float64 for max"):
            group.all_reduce(*((np.ones(3), "max") if group.rank else (np.ones(3, np.int32),)))
        assert group.all_reduce(np.ones(3))[0] == 3.0
        return str(caught.value)

    for said in run_ranks(3, body, **CARRIED):
        assert "'rank0' has 5000000 items of float32" in said and "'rank2' has 3 items" in said


def test_one_rank_that_does_not_carry_switches_it_off_for_its_rounds() -> None:
    each = [{"inline_bytes": nbytes} for nbytes in (16 * 1024, 0, 16 * 1024)]

    def body(group: Group) -> bool:
        handle = group.all_reduce_async(np.ones(10))
        assert (handle.wait() == 3.0).all()
        group.barrier()
        return handle.outcome.inline

    assert run_ranks(3, body, each) == [False] * 3


def test_a_plan_that_was_given_and_a_network_that_is_imitated_carry_everything() -> None:
    network = Network("two", [Site("a"), Site("b")], 1e9 * (1 - np.eye(2)))

    def body(group: Group) -> bool:
        return group.all_reduce_async(np.ones(10)).outcome.inline

    plan = make_plan("ring", network, 100)
    assert run_ranks(2, body, network=network, plan=plan, **CARRIED) == [False] * 2
    assert run_ranks(2, body, network=network, shape=ShapedNetwork(network), **CARRIED) == [False] * 2
    assert run_ranks(2, body, network=network, planner="ring", **CARRIED) == [True] * 2


def test_a_worker_that_leaves_in_the_middle_is_named_and_inputs_are_as_they_were() -> None:
    def body(group: Group) -> str:
        group.barrier()
        if group.rank == 1:
            group.close()
            return "left"
        array = np.ones(10)
        with pytest.raises(PeerLost) as caught:
            group.all_reduce(array, out=array)
        assert (array == 1.0).all()
        return str(caught.value)

    said = run_ranks(3, body, [{}] * 3, **CARRIED)
    assert said[1] == "left" and all("'rank1' has left the run" in said[rank] for rank in (0, 2))


def test_policies_choose_and_weigh_and_steps_come_in_parts() -> None:
    def body(group: Group) -> Any:
        array = np.full(4, float(group.rank))
        handles = [group.average_async(array, part=part, parts=3) for part in (2, 0, 1)]
        outcomes = [handle.outcome for handle in handles]
        assert len({outcome.contributors for outcome in outcomes}) == 1 and all(o.inline for o in outcomes)
        weights = dict(zip(outcomes[0].contributors, outcomes[0].weights, strict=True))
        expected = sum(weight * int(name[-1]) for name, weight in weights.items())
        assert all((handle.wait() == expected).all() for handle in handles)
        return len(weights)

    assert run_ranks(4, body, policy="partial", policy_options={"p": 2}, **CARRIED) == [2] * 4


def test_a_run_says_how_many_rounds_went_in_messages(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tradewind.run")

    def body(group: Group) -> None:
        for _ in range(4):
            group.all_reduce(np.ones(10))

    run_ranks(2, body, **CARRIED)
    assert "5 rounds of small arrays, 324 B in total, travelled in control messages (inline rounds)" in caplog.text


@pytest.mark.parametrize("nbytes", [-1, MAX_INLINE_BYTES + 1])
def test_what_messages_cannot_hold_is_refused(nbytes: int) -> None:
    for answer in run_ranks(1, lambda _: None, inline_bytes=nbytes):
        assert isinstance(
            answer, BadOption
        ) and f"inline_bytes must be from 0 to {MAX_INLINE_BYTES}, got {nbytes}" in str(answer)
