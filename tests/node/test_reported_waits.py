"""When a rank reports that nothing moves in a round, and what it says."""

from __future__ import annotations

import pytest

from frames import body_of
from tradewind.errors import BadFrame
from tradewind.node.waits import RoundWait, Waits
from tradewind.wire import messages as m


def wait(mark: int, missing: tuple[tuple[int, int, int, int], ...] = ((0, 0, 1, 3),), busy: bool = False) -> RoundWait:
    return RoundWait(7, 2, (mark,), busy, lambda: missing)


def test_nothing_is_reported_while_chunks_move() -> None:
    waits = Waits()
    for look in range(20):
        assert waits.look([wait(look)], {}, 0.5 * look, 1.0) == []


def test_a_round_that_stands_still_is_reported_again_and_again_with_what_is_missing() -> None:
    waits = Waits()
    said = [waits.look([wait(5)], {1: 10}, 0.25 * look, 1.0) for look in range(13)]
    assert [len(found) for found in said] == [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]
    assert said[8] == [m.Waiting(7, 2, 2.0, ((0, 0, 1, 3),))]
    assert waits.look([wait(6)], {1: 10}, 3.25, 1.0) == [], "something has moved"
    assert waits.look([wait(6)], {1: 10}, 4.0, 1.0) == [], "and the wait begins again"


def test_peers_that_send_other_chunks_meanwhile_are_named() -> None:
    waits = Waits()
    waits.look([wait(5)], {1: 10, 2: 20}, 0.0, 1.0)
    (said,) = waits.look([wait(5)], {1: 10, 2: 21, 3: 1}, 1.0, 1.0)
    assert said.heard == (2, 3)


def test_a_report_is_bounded_and_says_so() -> None:
    waits, missing = Waits(), tuple((shard, 0, 1, 0) for shard in range(m.MOST_AWAITED + 1))
    waits.look([wait(5, missing, busy=True)], {}, 0.0, 1.0)
    (said,) = waits.look([wait(5, missing, busy=True)], {}, 1.0, 1.0)
    assert len(said.awaited) == m.MOST_AWAITED and said.more and said.busy
    assert m.decode_message(body_of(m.encode_message(said, 1))) == said
    for wrong in (m.Waiting(7, 2, 1.0, missing), m.Waiting(7, 2, 1.0, ((0, 2, 1, 0),)), m.Waiting(7, 2, -1.0, ())):
        with pytest.raises(BadFrame):
            m.decode_message(body_of(m.encode_message(wrong, 1)))


def test_rounds_that_have_ended_are_forgotten() -> None:
    waits = Waits()
    waits.look([wait(5)], {}, 0.0, 1.0)
    waits.look([], {}, 0.5, 1.0)
    assert waits.look([wait(5)], {}, 5.0, 1.0) == [], "it is another wait"
