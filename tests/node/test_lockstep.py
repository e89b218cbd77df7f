"""All members of a round take its step or none does, and a rank whose state differs sees it."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tradewind.node.actions import Outcome
from tradewind.node.lockstep import Lockstep, Verdict

WHOLE = Outcome(("a", "b", "c"), (1.0,) * 3, (0,) * 3, 8, round=5)
STATE = st.builds(Lockstep, st.integers(0, 10**6), st.integers(0, 2**20 - 1))


def averaged(states: list[Lockstep]) -> list[float]:
    columns = zip(*(state.status(1) for state in states), strict=True)
    return [math.fsum(column) / len(states) for column in columns]


@given(st.lists(STATE, min_size=2, max_size=30))
def test_members_see_whether_their_states_are_the_same(states: list[Lockstep]) -> None:
    versions, histories = {s.version for s in states}, {(s.version, s.history) for s in states}
    for state in states:
        verdict = state.judge([WHOLE], averaged(states), len(states))
        assert verdict == (
            Verdict.BEHIND if len(versions) > 1 else Verdict.SPLIT if len(histories) > 1 else Verdict.TAKE
        )


@given(STATE, st.integers(2, 4096))
def test_equal_states_are_seen_as_equal_by_any_number_of_members(state: Lockstep, members: int) -> None:
    status = averaged([state] * members)
    assert state.judge([WHOLE], status, members) is Verdict.TAKE


def test_a_step_is_repeated_if_a_member_was_lost_in_any_part_of_it() -> None:
    state = Lockstep(4, 9)
    status = state.status(1)
    assert state.judge([WHOLE, WHOLE], status, 3) is Verdict.TAKE
    assert state.judge([WHOLE, replace(WHOLE, repaired=True)], status, 3) is Verdict.REPEAT
    assert state.judge([WHOLE, replace(WHOLE, contributors=("a", "b"))], status, 3) is Verdict.REPEAT
    assert state.judge([WHOLE, replace(WHOLE, contributors=("a",), round=None)], status, 3) is Verdict.REPEAT


def test_a_rank_without_a_controller_waits() -> None:
    """Others may go on without it: its steps alone would be another history."""
    alone = replace(WHOLE, contributors=("a",), round=None)
    assert Lockstep(4).judge([alone], Lockstep(4).status(1), 3) is Verdict.WAIT
    assert Lockstep(4).judge([alone], Lockstep(4).status(1), 1) is Verdict.TAKE


def test_histories_differ_after_steps_with_other_members() -> None:
    a, b = Lockstep(0), Lockstep(0)
    a.taken(WHOLE)
    b.taken(replace(WHOLE, contributors=("b", "c")))
    assert a.version == b.version == 1 and a.history != b.history
    assert a.judge([WHOLE], averaged([a, b]), 3) is Verdict.SPLIT
