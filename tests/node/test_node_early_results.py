"""A rank that uses a result before all members have it: what it keeps, refuses and reports until they do."""

from __future__ import annotations

from data_planes import InstantPlane
from tradewind.node.actions import (
    FindController,
    NodeAction,
    RoundComplete,
    RoundHalted,
    SendControl,
    Settled,
    Started,
    Succeeded,
)
from tradewind.node.node import Node
from tradewind.planning.plan import Plan, Shard
from tradewind.wire import messages as m
from tradewind.wire.packed_plans import PackedPlan

SUM = m.Operation(1000, 4, "float32", "sum")
PLAN = Plan("star", "net", ("a", "b"), 4000, (Shard(1.0, "a", (("b", "a"),), (("a", "b"),), 4000),))
ROSTER = m.Roster(tuple(m.Address(k, name, "host", 1) for k, name in enumerate("ab")), 1.0, tolerant=True)


class LatePlane(InstantPlane):
    """Rounds are complete when a test says so: their digests are being computed."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[RoundComplete, int | None] | RoundHalted] = []
        self.is_late = True

    def take_reports(self) -> list[tuple[RoundComplete, int | None] | RoundHalted]:
        """What has come of rounds, without those that are held."""
        taken = super().take_reports()
        if self.is_late:
            self.held += [report for report in taken if not isinstance(report, RoundHalted)]
            return [report for report in taken if isinstance(report, RoundHalted)]
        held, self.held = self.held, []
        return [*held, *taken]


def running(plane: InstantPlane | None = None) -> tuple[Node, list[NodeAction]]:
    node = Node("a", plane or InstantPlane())
    node.told(ROSTER)
    node.told(m.PlanChanged(1, PackedPlan(PLAN)))
    node.submit(SUM)
    return node, node.told(start(5))


def start(number: int, version: int = 1, iteration: int = 1, released: m.Released | None = None) -> m.Start:
    return m.Start(number, version, 0, (iteration,), (0.5,), SUM, 0, (0,), releases=True, released=released)


def messages(actions: list[NodeAction]) -> list[m.Message]:
    return [action.message for action in actions if isinstance(action, SendControl)]


USED = m.Released(5, 1, ("a", "b"), (0.5, 0.5), (0, 0))


def test_a_result_is_used_when_it_is_complete_and_the_next_request_waits_for_all_members() -> None:
    node, actions = running()
    (succeeded,) = [action for action in actions if isinstance(action, Succeeded)]
    assert succeeded.released and messages(actions) == [m.Finished(5, 1, 7)]
    assert not node.pending and list(node.released) == [0]
    _, asked = node.submit(SUM)
    assert asked == [], "one operation of a stream at a time"
    committed = node.told(m.Commit(5))
    assert Settled(0) in committed and not node.released
    assert messages(committed) == [m.Ready(0, 2, SUM)]


def test_a_result_that_is_complete_after_a_halt_is_not_used() -> None:
    plane = LatePlane()
    node, _ = running(plane)
    (halted,) = messages(node.told(m.Halt(5, 1)))
    assert isinstance(halted, m.Progress) and halted.released is None
    plane.is_late = False
    assert node.advance() == [], "the controller has been told that it was not used"


def test_after_that_it_contributes_to_no_other_result() -> None:
    node, _ = running()
    (halted,) = messages(node.told(m.Halt(5, 1)))
    assert halted == m.Progress(5, 1, released=USED)
    node.told(m.Abandon(5, "a rank joined"))
    node.told(m.PlanChanged(2, PackedPlan(PLAN)))
    assert node.told(start(6, 2)) == [SendControl(m.Progress(6, 2, released=USED))]
    assert node.told(m.Halt(6, 2)) == [SendControl(m.Progress(6, 2, released=USED))]
    again = node.told(start(6, 2, released=USED))
    assert messages(again) == [m.Finished(6, 2, 7)], "its own result is distributed"
    assert not any(isinstance(action, Started | Succeeded) for action in again), "the caller has it"
    assert node.told(m.Commit(6)) == [Settled(0)]


def test_a_member_that_gets_a_used_result_has_the_outcome_of_the_round_that_made_it() -> None:
    node = Node("a", InstantPlane())
    node.told(ROSTER)
    node.told(m.PlanChanged(1, PackedPlan(PLAN)))
    node.submit(SUM)
    made = m.Released(5, 1, ("a", "b", "c"), (0.5, 0.25, 0.25), (0, 1, 0))
    (succeeded,) = [x for x in node.told(start(9, released=made)) if isinstance(x, Succeeded)]
    outcome = succeeded.outcome
    assert (outcome.round, outcome.contributors, outcome.weights) == (5, made.contributors, made.weights)
    report = node.report()
    assert report is not None and report.rounds[0].ready is not None
    assert report.rounds[0].ready.released == made and report.rounds[0].ready.tried == (9,)


def test_a_superseded_result_is_said_once_and_the_rank_asks_anew() -> None:
    node, _ = running()
    node.submit(SUM)
    node.told(m.Abandon(5, "disconnected"))
    assert node.told(m.OperationLost(0, 7, "another operation")) == []
    lost, ready = node.told(m.OperationLost(0, 1, "others have another"))
    assert lost == Settled(0, "others have another") and ready == SendControl(m.Ready(0, 2, SUM))


def test_a_committed_operation_is_reported_with_all_its_rounds() -> None:
    node, _ = running()
    node.told(m.Abandon(5, "a rank joined"))
    node.told(m.PlanChanged(2, PackedPlan(PLAN)))
    node.told(start(6, 2, released=USED))
    node.told(m.Commit(6))
    report = node.report()
    assert report is not None and report.committed == ((5, 1), (6, 2)), "both have the result of version 1"


def test_a_rank_that_went_on_does_not_take_the_result_of_an_operation_that_has_ended_here() -> None:
    node, _ = running()
    node.told(m.Abandon(5, "disconnected"))
    node.told(m.OperationLost(0, 1, "others may have another"))
    node.submit(SUM)
    (find,) = node.told(start(9, iteration=2, released=USED))
    assert isinstance(find, FindController)


def test_a_result_that_is_complete_after_a_report_is_not_used() -> None:
    plane = LatePlane()
    node, _ = running(plane)
    assert node.report() is not None
    plane.is_late = False
    assert messages(node.advance()) == [m.Finished(5, 1, 7)] and not node.released
