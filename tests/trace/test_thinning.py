"""Which rounds a trace records: as many as its bytes allow, the ones worth it first, and sums of the others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.trace.thinning import SAVED_S, Interest, Sampler


def run(sampler: Sampler, seconds: int, pace: int, cost: float, special: frozenset[int] = frozenset()) -> list[int]:
    """The numbers of rounds that are taken in so many seconds."""
    taken = []
    for second in range(seconds):
        for number in range(second * pace, (second + 1) * pace):
            if sampler.takes(number, number in special):
                taken.append(number)
                sampler.spent(cost)
        sampler.passed(1.0)
    return taken


@given(st.integers(1, 200), st.floats(1, 2000), st.floats(10, 5000))
def test_the_bytes_of_any_run_stay_within_the_rate_and_what_was_saved(pace: int, cost: float, rate: float) -> None:
    taken = run(Sampler(rate), 300, pace, cost)
    assert len(taken) * cost <= rate * (300 + SAVED_S) + pace * cost, "with the last second"


def test_rounds_that_are_all_worth_it_stay_within_the_rate_too() -> None:
    taken = run(Sampler(100.0), 300, 20, 60.0, frozenset(range(300 * 20)))
    assert len(taken) * 60.0 <= 100.0 * (300 + SAVED_S) + 20 * 60.0


@given(st.integers(1, 100), st.floats(1, 500))
def test_a_run_below_the_rate_is_recorded_whole(pace: int, cost: float) -> None:
    assert len(run(Sampler(2.0 * pace * cost), 60, pace, cost)) == 60 * pace


@given(st.integers(3, 200), st.floats(0.5, 3.0))
def test_at_most_so_many_regular_rounds_a_second_are_taken_whatever_they_cost(pace: int, most: float) -> None:
    taken = run(Sampler(1e9, most), 100, pace, 1.0)
    assert sum(number >= 10 * pace for number in taken) <= 90 * most + 1


def test_processes_with_different_rates_take_the_same_rounds() -> None:
    few, many = Sampler(100.0), Sampler(400.0)
    later = 100 * 20
    seen = {n for n in run(few, 200, 20, 60.0) if n > later}
    assert seen and seen < {n for n in run(many, 200, 20, 60.0) if n > later}
    assert math.log2(few.every).is_integer() and few.every > many.every > 1


def test_rounds_that_are_worth_it_are_taken_between_the_regular_ones() -> None:
    special = frozenset(range(1501, 2001, 50))
    assert special <= set(run(Sampler(200.0), 100, 20, 60.0, special))


def test_without_a_rate_everything_is_taken() -> None:
    assert run(Sampler(None), 10, 50, 1e9) == list(range(500))


@pytest.mark.parametrize(("seconds", "is_worth"), [(0.14, False), (0.16, True), (1.0, True)])
def test_a_round_is_worth_it_if_it_takes_half_as_long_again_as_usual(seconds: float, is_worth: bool) -> None:
    interest = Interest()
    for _ in range(50):
        interest.of(8, 0.1, plan=1)
    assert interest.of(8, seconds, plan=1) is is_worth


def test_first_rounds_of_a_plan_and_of_a_size_are_worth_it() -> None:
    interest = Interest()
    first = [interest.of(8, 0.1, plan=1) for _ in range(25)]
    assert first == [True] * 20 + [False] * 5
    assert interest.of(9, 0.1, plan=1) and not interest.of(8, 0.1, plan=1)
    assert interest.of(8, 0.1, plan=2)
