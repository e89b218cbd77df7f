"""ASP and SSP live: a server rank keeps the model, and ranks exchange with it at their own pace."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranks import run_ranks
from tradewind.arithmetic import Array
from tradewind.errors import BadArray, BadOption, InternalError
from tradewind.node.served import INIT, PUSH, ServedArray
from tradewind.runtime.group import Group
from tradewind.runtime.kvstore import KVStore

ITEMS = 20_000


def descend(_: str, pushed: Array, stored: Array) -> Array:
    return stored - 0.5 * pushed


def test_the_server_holds_the_model_and_every_push_counts_exactly_once() -> None:
    """Rank 0 serves and does not train; the others push gradients of their own number and pull what is there."""

    def body(group: Group) -> tuple[float, float]:
        store = KVStore(group, updater=descend)
        store.init("w", np.full(ITEMS, 100.0, np.float32))
        if group.rank == 0:
            store.serve()
            return 0.0, 0.0
        last = 100.0
        for _ in range(4 * group.rank):  # at their own pace: no rank waits for another
            store.push("w", np.full(ITEMS, 2.0 * group.rank, np.float32))
            pulled = store.pull("w")
            assert np.all(pulled <= last - group.rank), "its own push is in it, and none is taken back"
            last = float(pulled.max())
        store.serve()
        return float(pulled.min()), float(pulled.max())

    answers = run_ranks(4, body, scheme="ps-asp", policy_options={"server": "rank0"})
    assert not [a for a in answers if isinstance(a, Exception)], answers
    whole = 100.0 - sum(4 * rank * rank for rank in (1, 2, 3))
    assert min(low for low, _ in answers[1:]) == whole, "the last one to push sees all pushes, each once"


@pytest.mark.parametrize("bound", [0, 2])
def test_ssp_keeps_every_rank_within_its_bound_of_the_slowest(bound: int) -> None:
    steps, most = np.zeros(3, int), [0]
    slow = threading.Event()

    def body(group: Group) -> None:
        array = np.ones(100, np.float32)
        for step in range(8):
            if group.rank == 2 and step:
                slow.wait(0.05)  # slower than the others
            array = group.average(array + 1.0)
            steps[group.rank] += 1
            most[0] = max(most[0], int(steps.max() - steps.min()))

    run_ranks(3, body, scheme="ps-ssp", policy_options={"k": bound, "server": "rank1"})
    assert steps.tolist() == [8, 8, 8]
    assert most[0] <= bound + 1, "one more has exchanged than has been counted at the slowest"


def test_asp_lets_fast_ranks_run_ahead_without_bound() -> None:
    done = threading.Event()

    def body(group: Group) -> int:
        if group.rank == 2:
            done.wait(60.0)  # until the others have taken all their steps
        for _ in range(10):
            group.average(np.ones(100, np.float32))
        if group.rank == 0:
            done.set()
        return 10

    assert run_ranks(3, body, scheme="ps-asp", policy_options={"server": "rank1"}) == [10, 10, 10]


def test_averages_with_a_server_add_the_changes_of_all_ranks_to_one_model() -> None:
    """What makes ASP lose accuracy: changes are added to a model that has moved on, not averaged."""

    def body(group: Group) -> Array:
        model = group.average(np.zeros(ITEMS, np.float32))  # the first exchange fetches the model
        group.barrier()
        for _ in range(3):
            model = group.average(model + np.float32(group.rank + 1))
        group.barrier()
        return group.average(model)  # no change: only what the server has

    for answer in run_ranks(3, body, scheme="ps-asp"):
        assert (answer == 3 * (1 + 2 + 3)).all()


def test_what_a_server_cannot_do_is_refused() -> None:
    def body(group: Group) -> None:
        with pytest.raises(BadArray, match="float32 or float64, got int64"):
            group.average(np.ones(3, np.int64))

    run_ranks(2, body, scheme="ps-asp")

    def without(group: Group) -> None:
        with pytest.raises(BadOption, match="push needs a server"):
            group.push(np.ones(3), "w")
        with pytest.raises(BadOption, match="serve needs a server"):
            KVStore(group).serve()

    run_ranks(2, without)


@given(st.lists(st.tuples(st.integers(1, 3), st.lists(st.integers(1, 99), max_size=3)), min_size=1, max_size=5))
def test_a_push_that_is_repeated_is_added_once(steps: list[tuple[int, list[int]]]) -> None:
    """Each step may fail after some chunks and be repeated with other cuts, under another round."""
    served, expected, number = ServedArray("w"), 0.0, 0
    served.pulled = np.zeros(100)
    served.serve(100, np.dtype(float))
    for step, (change, failures) in enumerate(steps):
        for cut in [*failures, 100]:
            number += 1
            for first, end in ((0, cut),) if cut < 100 else ((0, 40), (40, 100)):
                reply = np.full(end - first, float(change))
                served.exchange(PUSH, "rank1", step, number, (first, end), reply)
        expected += change
        assert (reply == expected).all()


def test_the_first_array_becomes_the_servers_and_a_new_server_starts_with_what_it_had() -> None:
    served = ServedArray("w")
    served.serve(4, np.dtype(float))
    first, second = np.array([1.0, 2.0]), np.array([5.0, 6.0, 7.0, 8.0])
    served.exchange(INIT, "a", 0, 0, (0, 2), first)
    served.exchange(INIT, "b", 0, 1, (0, 4), second)
    assert second.tolist() == [1.0, 2.0, 7.0, 8.0]
    other = ServedArray("w")
    other.pulled = second.copy()
    other.serve(4, np.dtype(float))
    change = np.ones(4)
    other.exchange(PUSH, "a", 1, 2, (0, 4), change)
    assert change.tolist() == [2.0, 3.0, 8.0, 9.0]
    unknown = ServedArray("w")
    unknown.serve(4, np.dtype(float))
    with pytest.raises(InternalError, match="the server does not have"):
        unknown.exchange(PUSH, "a", 1, 2, (0, 4), change)
