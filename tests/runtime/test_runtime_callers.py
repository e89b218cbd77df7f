"""What callers give and do: refused at the call or done, and never the end of the run or an endless wait."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest

from ranks import SECRET, free_port, run_ranks
from tradewind.errors import BadArray, BadOption, PeerLost
from tradewind.runtime.group import Group, Hooks, connect
from tradewind.runtime.kvstore import KVStore
from tradewind.runtime.options import Transport

LONGEST_S = 20.0


def overlapping(items: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    whole = np.ones(items + 1, np.float32)
    return whole[:-1], whole[1:]


def read_only(items: int) -> np.ndarray[Any, Any]:
    array = np.ones(items, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("items", [10, 50_000], ids=["in a message", "by a plan"])
def test_a_result_that_cannot_be_put_where_it_should_go_is_refused_at_the_call(items: int) -> None:
    array = np.ones(items, np.float32)
    masked: Any = np.ma.masked_array(np.ones(items, np.float32))
    places: list[tuple[Any, str]] = [
        (read_only(items), "out is read-only"),
        (np.ones(items, np.float64), "out must be a contiguous"),
        (np.ones((items, 1), np.float32), "out must be a contiguous"),
        (np.ones(2 * items, np.float32)[::2], "contiguous"),
        (np.ones(items, ">f4"), "out must be a contiguous"),
        ([0.0] * items, "must be a numpy array, got a list"),
        (masked, "must be a numpy array, got a MaskedArray"),
    ]

    def body(group: Group) -> float:
        for out, says in places:
            with pytest.raises(BadArray, match=says):
                group.all_reduce_async(array, out=out)
            with pytest.raises(BadArray, match=says):
                group.average_async(array, out=out)
        first, second = overlapping(items)
        with pytest.raises(BadArray, match="out overlaps the memory of array"):
            group.all_reduce_async(first, out=second)
        fixed = read_only(items)
        with pytest.raises(BadArray, match="read-only"):
            group.all_reduce_async(fixed, out=fixed)
        return float(group.all_reduce_async(fixed).wait(LONGEST_S)[-1])  # to read it is enough, and the run goes on

    assert run_ranks(2, body, inline_bytes=1024) == [2.0, 2.0]


@pytest.mark.parametrize("items", [10, 200_000], ids=["in a message", "by a plan"])
def test_a_place_that_becomes_read_only_gets_its_result_all_the_same(items: int) -> None:
    def body(group: Group) -> float:
        out = np.zeros(items, np.float32)
        handle = group.all_reduce_async(np.ones(items, np.float32), out=out)
        out.flags.writeable = False
        assert handle.wait(LONGEST_S) is out
        return float(out[-1])

    assert run_ranks(2, body, inline_bytes=1024) == [2.0, 2.0]


def test_lists_and_scalars_are_converted() -> None:
    def body(group: Group) -> None:
        result = group.all_reduce([[1, 2], [3, 4]])
        assert type(result) is np.ndarray and result.dtype == np.int64
        np.testing.assert_array_equal(result, [[2, 4], [6, 8]])
        assert group.all_reduce(1.5) == 3.0 and group.average((1.0, 2.0)).tolist() == [1.0, 2.0]
        np.testing.assert_array_equal(group.broadcast([1, 2, 3]), [1, 2, 3])

    assert run_ranks(2, body) == [None, None]


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.ma.masked_array([1.0, 2.0], [True, False]), r"masked.*filled"),
        (np.array([object()]), "arrays of object cannot"),
        ([None], "arrays of object cannot"),
        (["a", "b"], "arrays of str.* cannot"),
        (np.zeros(2, [("x", "f4"), ("y", "i4")]), "arrays of void.* cannot"),
        (np.zeros(2, np.complex64), "arrays of complex64 cannot"),
        (np.zeros(2, ">f4"), "foreign byte order"),
        ([[1], [1, 2]], "cannot be used as a numpy array"),
    ],
)
def test_what_has_no_sum_is_refused_at_the_call(array: Any, says: str) -> None:
    with connect(f"127.0.0.1:{free_port()}", 0, 1, secret=SECRET) as group:
        with pytest.raises(BadArray, match=says):
            group.all_reduce(array)
        assert group.all_reduce([1.0]) == [1.0]


def test_bits_are_not_taken_for_those_of_another_type() -> None:
    with connect(f"127.0.0.1:{free_port()}", 0, 1, secret=SECRET) as group:
        for array, dtype in ((np.ones(2, np.float16), "bfloat16"), (np.ones(2, np.int32), "float32")):
            with pytest.raises(BadArray, match=f"dtype={dtype!r} needs an array of"):
                group.all_reduce(array, dtype=dtype)
        assert group.all_reduce(np.ones(2, np.uint16), dtype="bfloat16").dtype == np.uint16


def test_a_broadcast_refuses_what_it_cannot_carry_and_sees_another_byte_order() -> None:
    def body(group: Group) -> str:
        for array in (np.ma.masked_array([1.0], [True]), np.array([None])):
            with pytest.raises(BadArray):
                group.broadcast(array)
        with pytest.raises(BadArray, match="foreign byte order") as caught:
            group.broadcast(np.ones(3, ">f4" if group.rank else "<f4"))
        assert group.broadcast(np.full(3, group.rank, ">f4")).tolist() == [0.0, 0.0, 0.0]
        return str(caught.value)

    first, second = run_ranks(2, body)
    assert first == second


def test_tensors_on_the_cpu_are_taken_and_what_numpy_cannot_hold_is_refused() -> None:
    torch = pytest.importorskip("torch")
    with connect(f"127.0.0.1:{free_port()}", 0, 1, secret=SECRET) as group:
        result = group.all_reduce(torch.arange(3.0))
        assert type(result) is np.ndarray and result.dtype == np.float32 and result.tolist() == [0.0, 1.0, 2.0]
        place = torch.zeros(3)
        group.all_reduce(torch.arange(3.0), out=place.numpy())
        assert place.tolist() == [0.0, 1.0, 2.0]
        with pytest.raises(BadArray, match=r"got a Tensor.*tensor\.numpy"):
            group.all_reduce(torch.arange(3.0), out=place)
        for tensor in (torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.bfloat16)):
            with pytest.raises(BadArray, match="a Tensor cannot be used"):
                group.all_reduce(tensor)
        bits = torch.ones(2, dtype=torch.bfloat16).view(torch.uint16)
        assert group.all_reduce(bits, dtype="bfloat16").tolist() == bits.tolist()


@pytest.mark.parametrize("items", [10, 200_000], ids=["in a message", "by a plan"])
def test_a_callback_that_raises_is_logged_and_the_run_goes_on(items: int, caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Semaphore(0)

    def fails(_: object) -> None:
        called.release()
        raise ZeroDivisionError("in a callback")

    def body(group: Group) -> float:
        for _ in range(3):
            handle = group.all_reduce_async(np.ones(items, np.float32))
            handle.when_done(fails)
            handle.wait(LONGEST_S)
            handle.when_done(fails)  # called at once, in this thread
        return float(group.all_reduce(np.ones(items))[0])

    with caplog.at_level(logging.ERROR, "tradewind.runtime"):
        assert run_ranks(2, body, inline_bytes=1024) == [2.0, 2.0]
        assert all(called.acquire(timeout=LONGEST_S) for _ in range(12))
    raised = [record.exc_info[0] for record in caplog.records if record.exc_info is not None]
    assert raised == [ZeroDivisionError] * 12


def test_an_updater_that_raises_raises_in_pull_and_the_push_is_applied_by_the_next() -> None:
    def body(group: Group) -> float:
        fails = [True]

        def update(_: str, pushed: Any, stored: Any) -> Any:
            if fails.pop() if fails else False:
                raise ZeroDivisionError
            return stored - pushed

        store = KVStore(group, updater=update)
        store.init("w", np.full(3, 5.0))
        store.push("w", np.full(3, 2.0))
        with pytest.raises(ZeroDivisionError):
            store.pull("w")
        return float(store.pull("w")[0])

    assert run_ranks(2, body) == [3.0, 3.0]


def test_an_offer_that_raises_is_no_offer(caplog: pytest.LogCaptureFixture) -> None:
    def body(group: Group) -> object:
        if group.rank == 0:
            group.offer_state(lambda: bytes([1 // 0]))
        if group.rank == 1:
            group.offer_state(lambda: b"model")
        group.barrier()
        answer = group.fetch_state() if group.rank == 2 else None
        group.barrier()
        return answer

    with caplog.at_level(logging.ERROR, "tradewind.runtime"):
        state = run_ranks(3, body, tolerant=True)[2]
    assert state.sources == ("rank1",) and state.data == b"model"
    assert "offer_state raised" in caplog.text and "ZeroDivisionError" in caplog.text


def test_a_listening_callback_that_raises_leaves_no_port_taken() -> None:
    port = free_port()

    def fails(_: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        connect(f"127.0.0.1:{port}", 0, 1, secret=SECRET, hooks=Hooks(listening=fails))
    with pytest.raises(BadOption, match="connections"):
        connect(f"127.0.0.1:{port}", 0, 1, secret=SECRET, transport=Transport(connections=99))
    with connect(f"127.0.0.1:{port}", 0, 1, secret=SECRET) as group:
        assert group.all_reduce([1.0]) == [1.0]


def test_a_closed_group_says_so_however_it_is_used() -> None:
    group = connect(f"127.0.0.1:{free_port()}", 0, 1, secret=SECRET)
    group.close()
    group.close()
    for use in (group.barrier, group.network, lambda: group.all_reduce([1.0]), lambda: group.broadcast([1.0])):
        with pytest.raises(PeerLost, match="left the run"):
            use()


@pytest.mark.parametrize("items", [10, 50_000], ids=["in a message", "by a plan"])
def test_closing_in_another_thread_ends_a_wait(items: int) -> None:
    closed = threading.Event()

    def body(group: Group) -> str:
        group.barrier()
        if group.rank == 1:  # it stays: the run must not be over before rank 0 has submitted
            assert closed.wait(LONGEST_S)
            return ""
        handle = group.all_reduce_async(np.ones(items))  # which rank 1 never asks for
        closers = [threading.Thread(target=group.close) for _ in range(2)]
        for closer in closers:
            closer.start()
        with pytest.raises(PeerLost) as caught:
            handle.wait(LONGEST_S)
        for closer in closers:
            closer.join(LONGEST_S)
        closed.set()
        return str(caught.value)

    said = run_ranks(2, body, [{}, {}], inline_bytes=1024)
    assert "left the run" in said[0]


def test_a_wait_that_takes_too_long_can_be_repeated() -> None:
    gave_up = threading.Event()

    def body(group: Group) -> float:
        if group.rank == 1:
            assert gave_up.wait(LONGEST_S)
        handle = group.all_reduce_async(np.ones(3))
        if group.rank == 0:
            with pytest.raises(TimeoutError, match=r"has not ended after 0\.01 s"):
                handle.wait(0.01)
            gave_up.set()
        return float(handle.wait(LONGEST_S)[0])

    assert run_ranks(2, body) == [2.0, 2.0]
