"""The rank in whose process the controller runs: its small arrays take no socket, and no other thread if it is last."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from ranks import SECRET, free_port, run_ranks
from tradewind.errors import PeerLost, TradewindError
from tradewind.runtime.addresses import HostPort
from tradewind.runtime.control_server import ControlServer
from tradewind.runtime.dialling import Dialling
from tradewind.runtime.group import Group, Handle
from tradewind.runtime.options import options_by_field
from tradewind.runtime.sockets import call
from tradewind.wire import messages as m
from tradewind.wire.frames import digest_of
from tradewind.wire.handshake import CONTROL_PURPOSE, Credentials

CARRIED: dict[str, Any] = {"inline_bytes": 16 * 1024}
ONE = np.ones(10, np.float32)


def thread_of(handle: Handle) -> queue.SimpleQueue[str]:
    """Gets the name of the thread in which an operation ends that has not ended."""
    name: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert not handle.done
    handle.when_done(lambda _: name.put(threading.current_thread().name))
    return name


def last_to_ask(group: Group) -> None:
    """Wait, at rank 0, until the other rank has asked."""
    assert group.controller is not None
    while not any(stream.ready for stream in group.controller.stats().snapshot.streams):
        threading.Event().wait(0.001)


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


@pytest.mark.parametrize("tolerant", [False, True])
def test_callbacks_do_not_run_in_the_thread_that_serves_all_ranks(tolerant: bool) -> None:
    assert thread_at_rank_0(tolerant=tolerant) == "tradewind-control"


def test_a_callback_that_waits_holds_up_no_other_rank() -> None:
    has_asked, others_done, waited = threading.Event(), threading.Event(), list[bool]()

    def body(group: Group) -> bool:
        if group.rank:
            assert has_asked.wait(20.0)
            totals = [group.all_reduce(ONE) for _ in range(2)]
            others_done.set()
        else:
            first, second = group.all_reduce_async(ONE), group.all_reduce_async(ONE)
            first.when_done(lambda _: waited.append(others_done.wait(20.0)))
            has_asked.set()
            totals = [first.wait(), second.wait()]
        return all((total == 2).all() for total in totals)

    assert run_ranks(2, body, **CARRIED) == [True, True] and waited == [True]


def test_a_peer_that_leaves_with_the_result_does_not_overtake_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rank to ask is that of the controller; the other one has its result first, and closes its group."""
    asks, ready = threading.Event(), ControlServer.ready

    def slow(server: ControlServer, worker: str, message: m.Ready) -> list[m.InlineResult] | None:
        found = ready(server, worker, message)
        while found and not server.over:
            threading.Event().wait(0.001)  # until the other rank has left, which ends a strict run
        return found

    def body(group: Group) -> float:
        if group.rank:
            asks.set()
            return float(group.all_reduce(ONE)[0])
        assert asks.wait(20.0)
        last_to_ask(group)
        return float(group.all_reduce(ONE)[0])

    monkeypatch.setattr(ControlServer, "ready", slow)
    assert run_ranks(2, body, [{}, {}], **CARRIED) == [2.0, 2.0]


def test_the_last_request_is_answered_before_its_call_returns() -> None:
    def body(group: Group) -> bool:
        if group.rank:
            assert (group.all_reduce(ONE) == 2).all()
            return True
        last_to_ask(group)
        handle = group.all_reduce_async(ONE)
        was_done = handle.done
        assert (handle.wait() == 2).all()
        return was_done

    assert run_ranks(2, body, **CARRIED) == [True, True]


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


def spoil(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Have the controller return results to its own rank that are changed so, as bad memory would."""
    ready = ControlServer.ready

    def spoilt(server: ControlServer, worker: str, message: m.Ready) -> list[m.InlineResult] | None:
        found = ready(server, worker, message)
        return found and [msgspec.structs.replace(one, **changed) for one in found]

    monkeypatch.setattr(ControlServer, "ready", spoilt)


def test_a_wrong_digest_at_the_rank_of_the_controller_ends_the_run_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, digest=0)
    failed, ended = threading.Event(), threading.Event()

    def body(group: Group) -> str:
        if group.rank:
            group.all_reduce(ONE)
            assert failed.wait(20.0)
            with pytest.raises(PeerLost) as lost:
                group.all_reduce_async(ONE).wait(20.0)
            ended.set()
            return str(lost.value)
        last_to_ask(group)
        with pytest.raises(PeerLost, match="changed after the controller computed it"):
            group.all_reduce(ONE)
        failed.set()
        assert ended.wait(20.0), "it must not remain a member until it leaves"
        return ""

    answers = run_ranks(2, body, [{}, {}], **CARRIED, patience_s=600.0)  # no heartbeat is answered meanwhile
    assert answers[0] == "" and "rank0" in answers[1]


@pytest.mark.parametrize(
    ("changed", "words", "is_bug"),
    [
        pytest.param({"array": b"odd", "digest": digest_of(b"odd")}, "Call it again", False, id="when it is used"),
        pytest.param({"array": None}, "TypeError", True, id="when it arrives"),
    ],
)
def test_a_result_that_cannot_be_used_fails_its_operation_and_the_run(
    changed: dict[str, Any], words: str, is_bug: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that comes through a socket; the call that submits the operation, or another one, raises nothing."""
    failed = threading.Event()

    def body(group: Group) -> str:
        if group.rank:
            group.all_reduce(ONE)
            assert failed.wait(20.0)
            with pytest.raises(PeerLost):
                group.all_reduce(ONE)
            return ""
        last_to_ask(group)
        spoil(monkeypatch, **changed)
        errors = queue.SimpleQueue[TradewindError | None]()
        group.all_reduce_async(ONE).when_done(errors.put)
        error = errors.get(timeout=20.0)
        failed.set()
        return str(error)

    answer = run_ranks(2, body, [{}, {}], **CARRIED)[0]
    assert isinstance(answer, str) and words in answer
    assert any(record.exc_info is not None for record in caplog.records) == is_bug


def test_a_closed_controller_takes_no_request() -> None:
    """Its connections may end later than it closes."""
    credentials = Credentials("tradewind", "controller of rank0", SECRET.encode())
    server = ControlServer("127.0.0.1", free_port(), credentials, options_by_field({}).control_options(1, 1, 0))
    where, own = HostPort("127.0.0.1", server.port), replace(credentials, site="rank0")
    sock, _ = call(where, own, CONTROL_PURPOSE, time.monotonic() + 20.0, Dialling.to_controller("rank0"))
    request = m.Ready(0, 1, m.Operation(10, 4, "float32", "sum"), bytes(40))
    answers: list[list[m.InlineResult] | None] = []

    def close_and_ask(*_: object) -> list[Any]:
        answers.append(server.ready("rank0", request))
        server.close("the test is over")
        answers.append(server.ready("rank0", request))
        return []

    with contextlib.closing(sock):
        while "rank0" not in server.stats().unsent_frames:
            threading.Event().wait(0.001)
        server.change(close_and_ask)
    assert answers == [[], None]
