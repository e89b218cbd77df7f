"""Which policy decides in which stream: operations of all ranks, steps of the policy's groups, and steps in parts."""

from __future__ import annotations

import numpy as np
import pytest

from tradewind.control import Controller, ControlOptions
from tradewind.control.controller import Action, Send
from tradewind.network import Network, Site
from tradewind.wire import messages as m

MESH = Network("mesh", [Site(n) for n in "abcd"], 1e8 * (1 - np.eye(4)))
STEP = m.POLICY_STREAM


def operation(parts: int = 1, items: int = 100) -> m.Operation:
    return m.Operation(items, 4, "float32", "mean", parts=parts)


def partial(p: int = 2) -> Controller:
    controller = Controller(ControlOptions(4, MESH, planner="ring", policy="partial", policy_options={"p": p}), 0.0)
    for rank, worker in enumerate("abcd"):
        controller.connected(worker, 0.0)
        controller.received(worker, m.Join("host", 1000 + rank, rank), 0.0)
    return controller


def messages(actions: list[Action], kind: type[m.Message]) -> list[tuple[str, m.Message]]:
    return [(a.worker, a.message) for a in actions if isinstance(a, Send) and isinstance(a.message, kind)]


def started(controller: Controller, actions: list[Action]) -> list[tuple[int, tuple[str, ...]]]:
    """Round and members of every round that starts."""
    starts = {start for _, start in messages(actions, m.Start) if isinstance(start, m.Start)}
    return sorted((start.round, controller.plans.by_version[start.version].members) for start in starts)


def ready(
    controller: Controller, worker: str, stream: int, iteration: int, parts: int = 1, items: int = 100
) -> list[Action]:
    return controller.received(worker, m.Ready(stream, iteration, operation(parts, items)), 1.0)


def finish(controller: Controller, round_: int, members: str) -> list[Action]:
    return [action for w in members for action in controller.received(w, m.Finished(round_, 1), 1.0)]


def test_an_operation_of_all_ranks_waits_for_all_ranks_whatever_the_policy() -> None:
    controller = partial()
    for worker in "abc":
        assert started(controller, ready(controller, worker, 0, 1)) == []
    assert started(controller, ready(controller, "d", 0, 1)) == [(0, ("a", "b", "c", "d"))]


def test_all_parts_of_a_step_run_with_the_members_of_the_first() -> None:
    controller = partial()
    assert started(controller, ready(controller, "a", STEP + 1, 1, parts=2)) == [], (
        "its first part has not been decided"
    )
    ready(controller, "a", STEP, 1, parts=2)
    assert started(controller, ready(controller, "c", STEP, 1, parts=2)) == [(0, ("a", "c"))]
    ready(controller, "b", STEP, 1, parts=2)
    assert started(controller, ready(controller, "b", STEP + 1, 1, parts=2)) == []
    assert started(controller, ready(controller, "d", STEP, 1, parts=2)) == [(1, ("b", "d"))]
    assert started(controller, ready(controller, "c", STEP + 1, 1, parts=2)) == [(2, ("a", "c"))], (
        "part 1 of the first group"
    )
    finish(controller, 0, "ac")
    finish(controller, 2, "ac")
    ready(controller, "a", STEP, 2, parts=1)
    assert started(controller, ready(controller, "c", STEP, 2, parts=1)) == [(3, ("a", "c"))], "the step was over"


def test_a_step_is_over_for_the_policy_when_its_last_part_is() -> None:
    controller = partial()
    for worker in "ab":
        for part in range(2):
            ready(controller, worker, STEP + part, 1, parts=2)
    finish(controller, 0, "ab")
    closed = ready(controller, "a", STEP, 2)
    assert "sent an unexpected Ready" in messages(closed, m.StandingDown)[0][1].reason  # type: ignore[union-attr]


def test_members_who_disagree_in_the_first_part_get_no_other_part() -> None:
    controller = partial()
    ready(controller, "a", STEP, 1, parts=2)
    told = ready(controller, "b", STEP, 1, parts=3)
    assert [worker for worker, _ in messages(told, m.Mismatch)] == ["a", "b"]
    assert "in 2 parts" in messages(told, m.Mismatch)[0][1].reason  # type: ignore[union-attr]
    ready(controller, "a", STEP + 1, 1, parts=2)
    later = ready(controller, "b", STEP + 1, 1, parts=3)
    assert [worker for worker, _ in messages(later, m.Mismatch)] == ["a", "b"]
    ready(controller, "a", STEP, 2)
    assert started(controller, ready(controller, "b", STEP, 2)) == [(0, ("a", "b"))], "they can go on"


def test_a_later_part_that_differs_fails_alone() -> None:
    controller = partial()
    for worker, items in (("a", 10), ("b", 11)):
        ready(controller, worker, STEP, 1, parts=2)
        told = ready(controller, worker, STEP + 1, 1, parts=2, items=items)
    assert len(messages(told, m.Mismatch)) == 2
    finish(controller, 0, "ab")
    ready(controller, "a", STEP, 2)
    assert started(controller, ready(controller, "b", STEP, 2)) == [(1, ("a", "b"))]


def test_ranks_left_in_the_queue_go_on_while_the_others_wait_for_an_operation_of_all_ranks() -> None:
    controller = partial(p=3)
    for worker in "ab":
        ready(controller, worker, STEP, 1)
    assert started(controller, ready(controller, "c", 0, 1)) == []
    assert started(controller, ready(controller, "d", 0, 1)) == [(0, ("a", "b"))], "no other rank can join"
    finish(controller, 0, "ab")
    ready(controller, "a", STEP, 2, parts=2)
    told = ready(controller, "b", 0, 1)
    assert [(w, x.stream) for w, x in messages(told, m.Proceed)] == [("a", STEP)]  # type: ignore[union-attr]
    told = ready(controller, "a", STEP + 1, 2, parts=2)
    assert [(w, x.stream) for w, x in messages(told, m.Proceed)] == [("a", STEP + 1)]  # type: ignore[union-attr]
    assert started(controller, ready(controller, "a", 0, 1)) == [(1, ("a", "b", "c", "d"))]
    finish(controller, 1, "abcd")
    ready(controller, "a", STEP, 3)
    ready(controller, "b", STEP, 2)
    assert started(controller, ready(controller, "c", STEP, 1)) == [(2, ("a", "b", "c"))], "all ranks are back"


def test_start_says_how_far_each_member_is_behind() -> None:
    controller = partial()
    for iteration, round_ in ((1, 0), (2, 1), (3, 2)):
        ready(controller, "a", STEP, iteration)
        ready(controller, "b", STEP, iteration)
        finish(controller, round_, "ab")
    ready(controller, "b", STEP, 4)
    told = ready(controller, "c", STEP, 1)
    start = messages(told, m.Start)[0][1]
    assert controller.plans.by_version[start.version].members == ("b", "c")  # type: ignore[union-attr]
    assert start.staleness == (0, 3) and start.iterations == (4, 1)  # type: ignore[union-attr]


def test_racks_are_detected_where_the_network_names_none() -> None:
    """DS-Sync's topologyDetect: near and far, from latencies."""
    near = np.kron(np.eye(2), np.ones((2, 2)))
    latency_s = np.where(near, 0.001, 0.04) * (1 - np.eye(4))
    network = Network("two racks", [Site(n) for n in "abcd"], 1e8 * (1 - np.eye(4)), latency_s)
    controller = Controller(ControlOptions(4, network, planner="ring", policy="shuffle"), 0.0)
    for rank, worker in enumerate("abcd"):
        controller.connected(worker, 0.0)
        controller.received(worker, m.Join("host", 1000 + rank, rank), 0.0)
    groups = {members for worker in "abcd" for _, members in started(controller, ready(controller, worker, STEP, 1))}
    assert groups == {("a", "c")}, "b and d, at home alone in their racks, go on; a and c represent them"


@pytest.mark.parametrize(("measured_bps", "first"), [(1e8, ("a", "b")), (1e7, ("b", "c"))])
def test_the_policy_hears_of_rates_that_were_measured(measured_bps: float, first: tuple[str, ...]) -> None:
    """Where the links of a are found to be slow, b does not begin with it but waits for better company."""
    large = {"p": 2, "full_every": 0, "nbytes": 10**8, "horizon_s": 100.0}
    options = ControlOptions(4, MESH, planner="ring", policy="selective", policy_options=large)
    controller = Controller(options, 0.0)
    for rank, worker in enumerate("abcd"):
        controller.connected(worker, 0.0)
        controller.received(worker, m.Join("host", 1000 + rank, rank), 0.0)
    for worker in "cd":
        ready(controller, worker, STEP, 1)
    finish(controller, 0, "cd")
    for now_s in (1.5, 2.0, 2.5, 3.0, 3.5, 4.0):
        for peer in "bcd":
            controller.received("a", m.Measured(peer, measured_bps, full=True), now_s)
            controller.received(peer, m.Measured("a", measured_bps, full=True), now_s)
    controller.tick(10.0)
    rounds = list[tuple[int, tuple[str, ...]]]()
    for worker, step in zip("abcd", (1, 1, 2, 2), strict=True):
        rounds += started(controller, controller.received(worker, m.Ready(STEP, step, operation()), 10.5))
    assert rounds[0] == (1, first)
