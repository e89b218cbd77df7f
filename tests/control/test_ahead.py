"""Rounds that the controller announces before they start, and those that it does not confirm."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from control_driver import said
from tradewind.control import Controller, ControlOptions
from tradewind.control.rounds.ahead import Forecast
from tradewind.network import Network, Site
from tradewind.wire import messages as m

MESH = Network("mesh", [Site(n) for n in "abc"], 1e8 * (1 - np.eye(3)), 0.01 * (1 - np.eye(3)))
LARGE, SMALL = (m.Operation(items, 4, "float32", "sum") for items in (1_000_000, 50_000))


def operation(items: int) -> m.Operation:
    return m.Operation(items, 4, "float32", "sum")


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=12),
    st.integers(2, 4),
    st.integers(1, 8),
)
def test_operations_that_repeat_are_foreseen(step: list[int], steps: int, ahead: int) -> None:
    forecast = Forecast()
    for position in range(len(step) * steps):
        forecast.record(position, operation(step[position % len(step)]))
    end = len(step) * steps
    # A shorter period may fit the end of the sequence by chance; it then foretells itself.
    found = forecast.expected(end + ahead - 1)
    assert found is not None
    if steps > 2 and len(set(step)) == len(step):
        assert found == operation(step[(end + ahead - 1) % len(step)])


def test_operations_without_a_period_are_not_foreseen() -> None:
    forecast = Forecast()
    for position in range(50):
        forecast.record(position, operation(1 + position))
    assert forecast.expected(50) is None


class Run:
    """Three ranks whose every operation is in stream 0, as in a tolerant run."""

    def __init__(self, **options: object) -> None:
        self.controller = Controller(ControlOptions(3, MESH, tolerant=True, **options), 0.0)  # type: ignore[arg-type]
        for rank, worker in enumerate("abc"):
            self.controller.connected(worker, 0.0)
            self.controller.received(worker, m.Join("host", 1000 + rank, rank), 0.0)
        self.iteration = 0

    def start(self, asked: m.Operation = LARGE) -> m.Start:
        self.iteration += 1
        actions = [
            a
            for w in "abc"
            for a in self.controller.received(w, m.Ready(0, self.iteration, asked), float(self.iteration))
        ]
        (start,) = [x for x in said(actions)["a"] if isinstance(x, m.Start)]
        return start

    def finish(self, start: m.Start) -> m.Start | None:
        """Finish a round; return what was announced with its end."""
        done = m.Finished(start.round, start.version, 1)
        actions = [a for w in "abc" for a in self.controller.received(w, done, float(self.iteration))]
        told = said(actions)
        assert all(told[w] == told["a"] for w in "abc") and told["a"][0] == m.Commit(start.round)
        announced = [x.start for x in told["a"] if isinstance(x, m.Announce)]
        assert len(announced) <= 1
        return announced[0] if announced else None

    def announced(self) -> m.Start:
        """What is announced after two equal rounds."""
        self.finish(self.start())
        found = self.finish(self.start())
        assert found is not None
        return found


def test_the_next_round_of_operations_that_repeat_is_announced_and_confirmed() -> None:
    run = Run()
    assert run.finish(run.start()) is None, "one operation is no period"
    ahead = run.finish(run.start())
    assert ahead is not None and ahead.operation == LARGE and ahead.iterations == (3,)
    started = run.start()
    assert (started.round, started.version, started.weights) == (ahead.round, ahead.version, ahead.weights)
    assert started.floor <= started.round
    following = run.finish(started)
    assert following is not None and following.round > started.round


def test_numbers_of_announced_rounds_are_not_forgotten_by_rounds_of_other_streams() -> None:
    run = Run()
    ahead = run.announced()
    actions = [a for w in "abc" for a in run.controller.received(w, m.Ready(1, 1, LARGE), 5.0)]
    (other,) = [x for x in said(actions)["a"] if isinstance(x, m.Start)]
    assert other.round > ahead.round >= other.floor


def test_another_operation_than_announced_gets_a_round_of_its_own() -> None:
    run = Run()
    ahead = run.announced()
    started = run.start(SMALL)
    assert started.round > ahead.round and started.operation == SMALL


def test_a_round_is_not_confirmed_after_a_link_was_reset() -> None:
    run = Run()
    ahead = run.announced()
    run.controller.received("a", m.LinkChanged("b", "it was reset and restored", back=True), 2.5)
    started = run.start()
    assert started.version == ahead.version, "the plan has not changed"
    assert started.round > ahead.round, "chunks that were sent on it may be lost"


def test_a_round_is_not_confirmed_after_a_rank_was_lost() -> None:
    run = Run()
    ahead = run.announced()
    run.controller.disconnected("c", "killed", 2.5)
    actions = [a for w in "ab" for a in run.controller.received(w, m.Ready(0, 3, LARGE), 3.0)]
    (start,) = [x for x in said(actions)["a"] if isinstance(x, m.Start)]
    assert start.round > ahead.round


def test_nothing_is_announced_where_it_is_switched_off() -> None:
    run = Run(send_ahead=False)
    assert [run.finish(run.start()) for _ in range(4)] == [None] * 4
