"""Virtual time: order, cancelling, stopping, and loops that would never end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.errors import InternalError
from tradewind.sim import clock as clock_module
from tradewind.sim.clock import Clock, Priority


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(list(Priority)))))
def test_calls_are_made_by_time_then_priority_then_order_of_asking(asked: list[tuple[int, Priority]]) -> None:
    clock, made = Clock(), list[tuple[float, Priority, int]]()
    for k, (time_s, priority) in enumerate(asked):
        clock.at(float(time_s), priority, made.append, (float(time_s), priority, k))
    clock.run(until_s=10.0)
    assert made == sorted(made)
    assert len(made) == len(asked) == clock.calls


def test_a_call_sees_its_own_time_and_may_ask_for_more_at_that_time() -> None:
    clock, seen = Clock(), list[float]()

    def again(left: int) -> None:
        seen.append(clock.now_s)
        if left:
            clock.at(0.0, Priority.READY, again, left - 1)  # in the past: now

    clock.at(3.0, Priority.READY, again, 2)
    clock.run(until_s=9.0)
    assert seen == [3.0, 3.0, 3.0]
    assert clock.now_s == 9.0


def test_what_is_due_at_the_end_or_later_is_not_called() -> None:
    clock, seen = Clock(), list[str]()
    clock.at(1.0, Priority.READY, seen.append, "before")
    clock.at(2.0, Priority.READY, seen.append, "at the end")
    clock.run(until_s=2.0)
    assert seen == ["before"]


def test_a_stopped_clock_stands_where_it_is() -> None:
    clock, seen = Clock(), list[str]()
    clock.at(1.0, Priority.READY, lambda _: clock.stop(), None)
    clock.at(2.0, Priority.READY, seen.append, "later")
    clock.run(until_s=5.0)
    assert (clock.now_s, seen) == (1.0, [])


def test_only_the_cancelled_call_is_not_made() -> None:
    clock, seen = Clock(), list[str]()
    numbers = [clock.at(1.0, Priority.READY, seen.append, name) for name in "abc"]
    clock.cancel(numbers[1])
    clock.run(until_s=2.0)
    assert seen == ["a", "c"]


def test_a_loop_at_one_time_is_reported_rather_than_run_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module, "MAX_CALLS_AT_ONE_TIME", 100)
    clock = Clock()

    def forever(_: None) -> None:
        clock.at(clock.now_s, Priority.READY, forever, None)

    clock.at(1.0, Priority.READY, forever, None)
    with pytest.raises(InternalError, match="does not get past"):
        clock.run(until_s=2.0)
