"""Inline rounds, message by message: in strict and tolerant runs, and when a rank is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack, structs

from control_driver import said
from data_planes import InstantPlane
from frames import body_of
from tradewind.arithmetic import COPY, DTYPES, OPERATIONS, can_compute, storage_of
from tradewind.control import Controller, ControlOptions
from tradewind.control.controller import Action
from tradewind.control.quorum import resolve
from tradewind.errors import BadFrame
from tradewind.node.actions import Failed, SendControl, Succeeded
from tradewind.node.node import Node, small_array
from tradewind.planning.collective import Kind
from tradewind.wire import messages as m
from tradewind.wire.frames import digest_of
from tradewind.wire.messages import decode_message, encode_message

SUM = m.Operation(2, 4, "float32", "sum")
POLICY = {"policy": "partial", "policy_options": {"p": 3}, "tolerant": True}


def array(*items: float) -> bytes:
    return np.array(items, np.float32).tobytes()


def gathered(**options: object) -> Controller:
    controller = Controller(ControlOptions(3, **options), 0.0)  # type: ignore[arg-type]
    for rank, worker in enumerate("abc"):
        controller.connected(worker, 0.0)
        controller.received(worker, m.Join("host", 1000 + rank, rank), 0.0)
    return controller


def all_ready(
    controller: Controller, stream: int = 0, arrays: tuple[bytes | None, ...] = (array(1, 2), array(3, 4), array(5, 6))
) -> dict[str, list[m.Message]]:
    actions: list[Action] = []
    for worker, brought in zip("abc", arrays, strict=True):
        actions += controller.received(worker, m.Ready(stream, 1, SUM, brought), 1.0)
    return said(actions)


def test_a_strict_round_ends_with_the_answer() -> None:
    controller = gathered()
    told = all_ready(controller)
    for worker in "abc":
        (answer,) = told[worker]
        assert isinstance(answer, m.InlineResult) and answer.final and answer.members == ((0, 3),)
        assert answer.array == array(9, 12)
    assert all(isinstance(messages[0], m.InlineResult) for messages in all_ready(controller, stream=1).values())
    assert controller.closed is None


def test_a_member_without_an_array_has_the_round_go_by_a_plan() -> None:
    told = all_ready(gathered(), arrays=(array(1, 2), None, array(5, 6)))
    assert [type(message) for message in told["a"]] == [m.PlanChanged, m.Start]


def test_a_tolerant_round_takes_effect_when_all_members_have_it() -> None:
    controller = gathered(**POLICY)
    answer = all_ready(controller, m.POLICY_STREAM)["a"][0]
    assert isinstance(answer, m.InlineResult) and not answer.final
    digest = digest_of(answer.array)
    for worker in "ab":
        assert controller.received(worker, m.Finished(answer.round, m.INLINE_VERSION, digest), 1.0) == []
    told = said(controller.received("c", m.Finished(answer.round, m.INLINE_VERSION, digest), 1.0))
    assert told == {worker: [m.Commit(answer.round)] for worker in "abc"}


@pytest.mark.parametrize("finished", ["", "c", "ab"])
def test_a_member_that_is_lost_has_contributed_and_the_others_go_on(finished: str) -> None:
    controller = gathered(**POLICY)
    answer = all_ready(controller, m.POLICY_STREAM)["a"][0]
    assert isinstance(answer, m.InlineResult)
    actions: list[Action] = []
    done = m.Finished(answer.round, m.INLINE_VERSION, digest_of(answer.array))
    for worker in finished:
        actions += controller.received(worker, done, 1.0)
    actions += controller.disconnected("c", "reset", 1.0)
    for worker in "ab" if finished != "ab" else "":
        actions += controller.received(worker, done, 1.0)
    told = said(actions)
    for worker in "ab":
        assert m.Commit(answer.round) in told[worker]
        assert not [message for message in told[worker] if isinstance(message, m.Halt | m.Abandon | m.Start)]


def test_a_broken_link_does_not_disturb_it() -> None:
    controller = gathered(**POLICY)
    all_ready(controller, m.POLICY_STREAM)
    told = said(controller.received("a", m.LinkChanged("b", "it broke"), 1.0))
    assert not any(isinstance(message, m.Halt) for messages in told.values() for message in messages)


def test_a_member_that_received_something_else_is_sent_away_and_the_others_go_on() -> None:
    controller = gathered(**POLICY)
    answer = all_ready(controller, m.POLICY_STREAM)["a"][0]
    assert isinstance(answer, m.InlineResult)
    actions: list[Action] = []
    good = digest_of(answer.array)
    for worker, digest in zip("abc", (good, good + 1, good), strict=True):
        actions += controller.received(worker, m.Finished(answer.round, m.INLINE_VERSION, digest), 1.0)
    told = said(actions)
    assert isinstance(told["b"][0], m.Refused) and "a different result" in told["b"][0].reason
    assert all(m.Commit(answer.round) in told[worker] for worker in "ac")


def joined(site: str, tolerant: bool) -> Node:
    node = Node(site, InstantPlane())
    workers = tuple(m.Address(number, name, "host", 1) for number, name in enumerate("abc"))
    node.told(m.Roster(workers, 1.0, tolerant))
    return node


def inline_result(round_: int, final: bool, iteration: int = 1) -> m.InlineResult:
    return m.InlineResult(
        round_, 0, ((0, 3),), (iteration,), (1 / 3,), (0,), array(9, 12), final, digest_of(array(9, 12))
    )


def test_arrays_are_carried_as_far_as_the_controllers_links_go() -> None:
    def goes(nbytes: int, workers: int, most_bytes: int = 16_000) -> bool:
        return small_array(SUM, np.zeros(nbytes, np.uint8), "a", most_bytes, workers) is not None

    assert goes(16_000, 2) and goes(16_000, 17) and not goes(16_001, 2) and not goes(16_000, 18)
    assert goes(4_000, 65) and not goes(4_000, 66)
    assert goes(0, 2) and not goes(0, 2, most_bytes=0)
    broadcast = m.Operation(3, 1, "bytes", COPY, root="b", kind="broadcast")
    assert small_array(broadcast, np.zeros(3, np.uint8), "a", 100, 2) == b""


def test_a_node_does_not_use_a_final_answer_that_changed_after_the_controller_made_it() -> None:
    node = joined("a", tolerant=False)
    number, _ = node.submit(SUM, inline=array(1, 2))
    (failed,) = node.told(structs.replace(inline_result(5, final=True), array=array(9, 13)))
    assert isinstance(failed, Failed) and failed.operation == number
    assert "the result of round 5 changed after the controller computed it. Nothing was applied" in str(failed.error)


def test_a_node_uses_a_final_answer_at_once_and_asks_for_the_next() -> None:
    node = joined("a", tolerant=False)
    number, (asked,) = node.submit(SUM, inline=array(1, 2))
    assert asked == SendControl(m.Ready(0, 1, SUM, array(1, 2)))
    (succeeded,) = node.told(inline_result(5, final=True))
    assert isinstance(succeeded, Succeeded) and succeeded.operation == number
    assert succeeded.array == array(9, 12) and succeeded.outcome.inline and succeeded.outcome.round == 5


def test_a_node_holds_an_answer_back_until_the_commit_and_reports_it_meanwhile() -> None:
    node = joined("a", tolerant=True)
    node.submit(SUM, inline=array(1, 2))
    (finished,) = node.told(inline_result(5, final=False))
    digest = digest_of(array(9, 12))
    assert finished == SendControl(m.Finished(5, m.INLINE_VERSION, digest))
    report = node.report()
    assert report is not None and report.ready == ()
    (holding,) = report.rounds
    assert holding.finished and holding.digest == digest and holding.ready == m.Ready(0, 1, SUM, array(1, 2))
    assert resolve({"a": report}).abandoned == {5: ("a",)}, "it is unknown whether the others have it"
    others = dict.fromkeys("abc", report)
    assert resolve(others).committed == {5: ("a", "b", "c")}
    (succeeded,) = node.told(m.Commit(5))
    assert isinstance(succeeded, Succeeded) and succeeded.array == array(9, 12)


def test_a_node_whose_answer_is_taken_back_waits_ready_as_before() -> None:
    node = joined("a", tolerant=True)
    number, _ = node.submit(SUM, inline=array(1, 2))
    node.told(inline_result(5, final=False))
    assert node.told(m.Abandon(5, "its controller was lost")) == []
    assert node.pending == (number,)
    node.told(inline_result(6, final=False))
    assert isinstance(node.told(m.Commit(6))[0], Succeeded)


def test_an_answer_without_a_request_is_not_used() -> None:
    node = joined("a", tolerant=True)
    node.submit(SUM, inline=array(1, 2))
    (find_controller,) = node.told(inline_result(5, final=False, iteration=2))
    assert "this rank did not request" in find_controller.reason  # type: ignore[union-attr]


@given(
    items=st.integers(0, 20),
    item_bytes=st.integers(1, 16),
    dtype=st.sampled_from([*DTYPES, "bytes", "complex64"]),
    op=st.sampled_from([*OPERATIONS, COPY, "median"]),
    brought=st.binary(max_size=200),
)
def test_an_array_that_does_not_fit_its_operation_is_refused(
    items: int, item_bytes: int, dtype: str, op: str, brought: bytes
) -> None:
    """Whatever comes through can be computed with."""
    kind: Kind = "broadcast" if op == COPY else "all-reduce"
    wanted = m.Operation(items, item_bytes, dtype, op, root="a" if op == COPY else "", kind=kind)
    fields = msgpack.decode(body_of(encode_message(m.Ready(0, 1, wanted), 1)))
    fields[1 + m.Ready.__struct_fields__.index("array")] = brought  # after the name of the message
    body = msgpack.encode(fields)
    fits = len(brought) == items * item_bytes
    if op == COPY:
        fits = fits or not brought
    else:
        fits = fits and can_compute(op, dtype) and storage_of(dtype).itemsize == item_bytes
    if fits:
        assert decode_message(body) == m.Ready(0, 1, wanted, brought)
    else:
        with pytest.raises(BadFrame):
            decode_message(body)


def test_an_array_that_is_too_long_is_refused() -> None:
    wanted = m.Operation(m.MAX_INLINE_BYTES + 1, 1, "bytes", COPY, root="a", kind="broadcast")
    frame = encode_message(m.Ready(0, 1, wanted, bytes(m.MAX_INLINE_BYTES + 1)), 1)
    with pytest.raises(BadFrame, match="length"):
        decode_message(body_of(frame))
