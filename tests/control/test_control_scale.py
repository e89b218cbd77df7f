"""Messages of a round do not grow with the number of ranks, and all ranks get the same ones."""

from __future__ import annotations

import pytest

from tradewind.control import Controller, ControlOptions
from tradewind.control.controller import Send
from tradewind.wire import messages as m

LARGE = m.Operation(10_000_000, 4, "float32", "sum")


def bytes_of_a_round(ranks: int, array: bytes | None) -> dict[str, int]:
    """The size of each message that the controller sends in a round, by kind.

    Operations take the streams of a strict run in turn; the round is one of those that the controller foresees.
    """
    names = [f"rank{number}" for number in range(ranks)]
    controller = Controller(ControlOptions(ranks, planner="balanced-tree"), 0.0)
    for number, name in enumerate(names):
        controller.connected(name, 0.0)
        controller.received(name, m.Join("host", 1 + number, number), 0.0)
    operation = LARGE if array is None else m.Operation(len(array) // 4, 4, "float32", "sum")
    for number in range(2 * m.POLICY_STREAM):
        turn, stream = divmod(number, m.POLICY_STREAM)
        ready = m.Ready(stream, turn + 1, operation, array)
        sent = [a for name in names for a in controller.received(name, ready, 0.0) if isinstance(a, Send)]
        starts = [a.message for a in sent if isinstance(a.message, m.Start)]
        for start in starts[:1]:
            done = m.Finished(start.round, start.version, 7)
            sent += [a for name in names for a in controller.received(name, done, 0.0) if isinstance(a, Send)]
    distinct = {id(action.message): action.message for action in sent}
    kinds = [type(message).__name__ for message in distinct.values()]
    assert len(sent) == ranks * len(distinct) and len(set(kinds)) == len(kinds), "one object for all ranks"
    return {type(message).__name__: len(m.encode_message(message, 1)) for message in distinct.values()}


@pytest.mark.parametrize(("array", "kinds"), [(None, {"Start", "Commit", "Announce"}), (bytes(64), {"InlineResult"})])
def test_messages_of_a_round_do_not_grow_with_the_number_of_ranks(array: bytes | None, kinds: set[str]) -> None:
    few, many = bytes_of_a_round(8, array), bytes_of_a_round(200, array)
    assert few.keys() == many.keys() == kinds
    assert all(many[kind] <= few[kind] + 4 for kind in kinds), "only numbers get longer"
