"""The rank in whose process the controller runs: its small arrays take no socket, and no other thread if it is last."""

from __future__ import annotations

import queue
import threading
from typing import Any

import numpy as np

from ranks import run_ranks
from tradewind.runtime.group import Group, Handle

CARRIED: dict[str, Any] = {"inline_bytes": 16 * 1024}
ONE = np.ones(10, np.float32)


def thread_of(handle: Handle) -> queue.SimpleQueue[str]:
    """Gets the name of the thread in which an operation ends that has not ended."""
    name: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert not handle.done
    handle.when_done(lambda _: name.put(threading.current_thread().name))
    return name


def thread_at_rank_0(**options: Any) -> Any:
    """The thread in which the result of another rank's last request arrives at rank 0."""
    has_asked = threading.Event()

    def body(group: Group) -> str:
        if group.rank:
            assert has_asked.wait(20.0)
            group.all_reduce(ONE)
            return ""
        handle = group.all_reduce_async(ONE)
        name = thread_of(handle)
        has_asked.set()
        assert (handle.wait() == 2).all()
        return name.get(timeout=20.0)

    return run_ranks(2, body, **CARRIED, **options)[0]


def test_its_result_comes_from_the_thread_that_received_the_last_request() -> None:
    assert thread_at_rank_0() == "tradewind-control-rx"


def test_the_last_request_is_answered_before_its_call_returns() -> None:
    def body(group: Group) -> bool:
        if group.rank:
            assert (group.all_reduce(ONE) == 2).all()
            return True
        assert group.controller is not None
        while not any(stream.ready for stream in group.controller.stats().snapshot.streams):
            threading.Event().wait(0.001)  # until the other rank has asked
        handle = group.all_reduce_async(ONE)
        was_done = handle.done
        assert (handle.wait() == 2).all()
        return was_done

    assert run_ranks(2, body, **CARRIED) == [True, True]


def test_in_a_tolerant_run_its_results_come_in_the_order_of_its_other_messages() -> None:
    assert thread_at_rank_0(tolerant=True) == "tradewind-control"


def test_thousands_of_requests_at_once() -> None:
    """Each result makes a rank request the next one, whose result may be there at once."""
    count = 3000

    def body(group: Group) -> bool:
        handles = [group.all_reduce_async(ONE * n) for n in range(count)]
        ended: list[object] = []
        for handle in handles:
            handle.when_done(ended.append)
        right = all((handle.wait() == 2 * n).all() for n, handle in enumerate(handles))
        group.barrier()
        return right and ended == [None] * count

    assert run_ranks(2, body, **CARRIED) == [True, True]


def test_its_failure_ends_the_run_as_that_of_any_rank() -> None:
    def body(group: Group) -> None:
        group.barrier()  # until both ranks have joined
        if group.rank == 0:
            group.close()
        else:
            group.all_reduce(ONE)

    assert "rank0" in str(run_ranks(2, body, [{}, {}], **CARRIED)[1])
