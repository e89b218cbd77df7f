"""What messages about rounds contain for any number of members."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frames import body_of
from tradewind.errors import BadFrame
from tradewind.wire import messages as m
from tradewind.wire.greetings import MOST_SITES


@given(st.lists(st.integers(0, MOST_SITES - 1), max_size=50, unique=True))
def test_numbers_of_ranks_survive_as_runs(numbers: list[int]) -> None:
    assert list(m.numbers_in(m.runs_of(numbers))) == numbers


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_values_of_members_survive_merging(values: list[int]) -> None:
    merged = m.merged(values)
    assert m.value_of_each(merged, len(values)) == tuple(values)
    assert len(merged) == 1 or len(set(values)) > 1


def test_values_that_fit_no_round_are_refused() -> None:
    with pytest.raises(BadFrame, match="3 members has 2 values, expected 1 or 3"):
        m.value_of_each((1, 2), 3)


def test_an_inline_result_cannot_have_more_members_than_ranks() -> None:
    answer = m.InlineResult(1, 0, ((0, MOST_SITES),), (1,), (1.0,), (0,), b"", True, 0)
    assert m.decode_message(body_of(m.encode_message(answer, 1))) == answer
    with pytest.raises(ValueError, match=f"at most {MOST_SITES} members"):
        msgspec.structs.replace(answer, members=((0, MOST_SITES), (5, 1)))
