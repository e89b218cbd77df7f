"""Numbers in the messages of a rank cannot make the controller send what no rank can decode."""

from __future__ import annotations

import pytest

from control_driver import said
from frames import body_of
from tradewind.control import Controller, ControlOptions
from tradewind.control.controller import Action
from tradewind.control.term import MOST_TRIED
from tradewind.errors import BadFrame
from tradewind.wire import messages as m
from tradewind.wire.greetings import MOST_SITES, MOST_TERMS


@pytest.mark.parametrize(
    "report",
    [
        m.Report(0, 0, (), 2**40),
        m.Report(2**40, 0, (), 1),
        m.Report(0, 0, (), 1, committed=((1, 1),) * 2000),
    ],
    ids=["numbers", "term", "committed"],
)
def test_a_report_with_numbers_out_of_range_is_refused(report: m.Report) -> None:
    with pytest.raises(BadFrame):
        m.decode_message(body_of(m.encode_message(m.Join("host", 1000, 0, report), 1)))


def test_a_report_cannot_take_the_number_of_another_rank_or_leave_none() -> None:
    controller = Controller(ControlOptions(2, tolerant=True), 0.0)
    known = m.Report(0, 0, tuple(m.Address(number, name, "host", 1) for number, name in enumerate("ab")), 2)
    for rank, worker in enumerate("ab"):
        controller.connected(worker, 0.0)
        controller.received(worker, m.Join("host", 1000 + rank, rank, known), 0.0)
    controller.connected("c", 1.0)
    claimed = tuple(m.Address(number, "c", "host", 1) for number in (0, 1))
    report = m.Report(0, 0, claimed, MOST_SITES)
    sent = said(controller.received("c", m.Join("host", 1002, 2, report), 1.0))
    assert isinstance(sent["c"][0], m.Refused)
    for messages in sent.values():
        for message in messages:
            assert m.decode_message(body_of(m.encode_message(message, 1))) == message, "ranks can read it"
            numbers = [a.number for a in message.workers] if isinstance(message, m.Roster) else []
            assert len(set(numbers)) == len(numbers)
    assert controller.closed is None and MOST_TERMS * 2**20 <= 2**32


def test_a_rank_keeps_the_number_that_its_frames_carry_although_others_know_an_older_one() -> None:
    """It was restarted, got another number from a controller that was lost, and the others have not heard of it."""
    controller = Controller(ControlOptions(3, tolerant=True), 0.0)
    older = tuple(m.Address(number, name, "host", 1) for number, name in enumerate("abc"))
    newer = (m.Address(0, "a", "host", 1), m.Address(3, "c", "host", 1))
    rosters = {"b": older, "a": older, "c": newer}
    actions: list[Action] = []
    for rank, (worker, roster) in enumerate(rosters.items()):
        controller.connected(worker, 1.0)
        report = m.Report(0, 0, roster, len(roster) + 1, electorates=(("a", "b", "c"),))
        actions += controller.received(worker, m.Join("host", 1000, rank, report), 1.0)
    (sent,) = (message for message in said(actions)["b"] if isinstance(message, m.Roster))
    assert {address.site: address.number for address in sent.workers} == {"a": 0, "b": 1, "c": 3}


@pytest.mark.parametrize("stream", [m.MAX_STREAMS, 2**31])
def test_a_rank_cannot_make_the_controller_keep_more_streams(stream: int) -> None:
    controller = Controller(ControlOptions(2, tolerant=True), 0.0)
    for rank, worker in enumerate("ab"):
        controller.connected(worker, 0.0)
        controller.received(worker, m.Join("host", 1000 + rank, rank), 0.0)
    ready = m.Ready(stream, 0, m.Operation(10, 4, "float32", "sum"))
    sent = said(controller.received("a", ready, 1.0))
    assert isinstance(sent["a"][-1], m.Refused), "the rank is refused, and named"


def test_a_report_of_a_lost_link_makes_its_ends_try_so_many_others_and_no_more() -> None:
    """In a large run, a rank that reports links as lost could otherwise have all ranks connect to each other."""
    names = [f"rank{number}" for number in range(3 * MOST_TRIED)]
    controller = Controller(ControlOptions(len(names), tolerant=True), 0.0)
    for rank, name in enumerate(names):
        controller.connected(name, 0.0)
        controller.received(name, m.Join("host", 1000 + rank, rank), 0.0)
    sent = said(controller.received(names[0], m.LinkChanged(names[1], "it is silent"), 1.0))
    asked = {name: len(one.peers) for name, told in sent.items() for one in told if isinstance(one, m.Connect)}
    assert asked.pop(names[0]) == asked.pop(names[1]) == MOST_TRIED
    assert len(asked) <= 2 * MOST_TRIED and set(asked.values()) <= {1, 2}
