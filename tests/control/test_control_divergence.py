"""Members that hold different results: nothing is applied, and no rank is removed that may be innocent."""

from __future__ import annotations

import itertools

from control_driver import said
from tradewind.control import Controller, ControlOptions
from tradewind.control.awareness import Awareness
from tradewind.control.controller import MOST_DIVERGING, Action
from tradewind.wire import messages as m

CLOCK = itertools.count(1)
SUM = m.Operation(1000, 4, "float32", "sum")


def started(**options: object) -> tuple[Controller, m.Start]:
    """A run of three ranks that all wait for a round by a plan."""
    controller = Controller(ControlOptions(3, planner="ring", **options), 0.0)  # type: ignore[arg-type]
    stream = m.POLICY_STREAM if options else 0
    actions: list[Action] = []
    for rank, worker in enumerate("abc"):
        controller.connected(worker, 0.0)
        controller.received(worker, m.Join("host", 1000 + rank, rank), 0.0)
    for worker in "abc":
        actions += controller.received(worker, m.Ready(stream, 1, SUM), next(CLOCK))
    return controller, start_in(said(actions)["a"])


def start_in(messages: list[m.Message]) -> m.Start:
    return next(message for message in messages if isinstance(message, m.Start))


def finish(controller: Controller, start: m.Start, digests: tuple[int, ...]) -> dict[str, list[m.Message]]:
    """Let all members finish; what the controller says then, and when the policy tries a failed round again."""
    actions: list[Action] = []
    for worker, digest in zip("abc", digests, strict=True):
        actions += controller.received(worker, m.Finished(start.round, start.version, digest), next(CLOCK))
    if len(set(digests)) > 1 and controller.closed is None:
        actions += controller.tick(controller.wake_at_s)
    return said(actions)


def tolerant() -> tuple[Controller, m.Start]:
    return started(policy="partial", policy_options={"p": 3}, tolerant=True)


def test_a_round_with_different_results_is_repeated_and_no_rank_is_removed() -> None:
    """The sender of a part may have changed it as well as the member that holds it."""
    controller, start = tolerant()
    told = finish(controller, start, (7, 7, 8))
    for worker in "abc":
        assert not [message for message in told[worker] if isinstance(message, m.Refused | m.Commit | m.Lost)]
        first = told[worker][0]
        assert isinstance(first, m.Abandon) and "at 'c' differs" in first.reason
    again = start_in(told["a"])
    assert again.round > start.round and controller.diverged == 1
    assert m.Commit(again.round) in finish(controller, again, (7, 7, 7))["c"]


def test_results_that_differ_again_and_again_end_the_run() -> None:
    controller, start = tolerant()
    for _ in range(MOST_DIVERGING):
        start = start_in(finish(controller, start, (7, 7, 8))["a"])
        assert controller.closed is None
    finish(controller, start, (7, 7, 8))
    assert controller.closed is not None and "Check the memory of all machines" in controller.closed.reason


def test_agreement_in_between_starts_the_count_again() -> None:
    controller, start = tolerant()
    for iteration in range(1, 2 * MOST_DIVERGING):
        start = start_in(finish(controller, start, (7, 8, 9))["a"])
        finish(controller, start, (7, 7, 7))
        actions: list[Action] = []
        for worker in "abc":
            actions += controller.received(worker, m.Ready(m.POLICY_STREAM, iteration + 1, SUM), next(CLOCK))
        start = start_in(said(actions)["a"])
    assert controller.closed is None


def test_a_strict_run_ends_and_names_who_differs() -> None:
    controller, start = started()
    finish(controller, start, (7, 8, 7))
    assert controller.closed is not None and "at 'b' differs" in controller.closed.reason


def test_digests_cover_whole_results_unless_rounds_are_too_fast_for_that() -> None:
    """A digest of 4 GB takes 0.2 s: 1% of a round of 20 s."""
    large = m.Operation(10**9, 4, "float32", "sum")
    controller = Controller(ControlOptions(3, planner="ring", awareness=Awareness(measure=False)), 0.0)
    for rank, worker in enumerate("abc"):
        controller.connected(worker, 0.0)
        controller.received(worker, m.Join("host", 1000 + rank, rank), 0.0)
    now_s, seen = 0.0, []
    for step, seconds in enumerate((19.0, 21.0, 1.0), 1):
        actions = [a for w in "abc" for a in controller.received(w, m.Ready(0, step, large), now_s)]
        start = start_in(said(actions)["a"])
        seen.append(start.whole_digest)
        now_s += seconds
        for worker in "abc":
            controller.received(worker, m.Finished(start.round, start.version, 7), now_s)
    assert seen == [True, False, True], "the first, after a round of 19 s, after one of 21 s"
