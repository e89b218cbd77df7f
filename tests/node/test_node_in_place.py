"""Results that overwrite their inputs, which a strict run uses before `Commit`."""

from __future__ import annotations

import numpy as np
import pytest

from data_planes import InstantPlane
from tradewind.errors import PeerLost
from tradewind.network import Network, Site
from tradewind.node.actions import Failed, NodeAction, SendControl, Succeeded
from tradewind.node.node import Node
from tradewind.planning import make_plan
from tradewind.wire import messages as m
from tradewind.wire.packed_plans import PackedPlan

SUM = m.Operation(1000, 4, "float32", "sum")
PLAN = make_plan("star", Network("pair", [Site("a"), Site("b")], 1e8 * (1 - np.eye(2))), 4000)
ROSTER = tuple(m.Address(number, name, "host", 1000 + number) for number, name in enumerate("ab"))


def started(tolerant: bool = False, overwrites: bool = True, part: int | None = None) -> tuple[Node, list[NodeAction]]:
    """A node whose first operation is complete, and what it did then."""
    node = Node("a", InstantPlane())
    node.told(m.Roster(ROSTER, 30.0, tolerant=tolerant))
    node.submit(SUM, None, part, overwrites=overwrites)
    node.told(m.PlanChanged(1, PackedPlan(PLAN)))
    stream = 0 if part is None else m.POLICY_STREAM
    return node, node.told(m.Start(0, 1, stream, (1,), (0.5,), SUM, 0, (0,)))


def ends(actions: list[NodeAction]) -> list[NodeAction]:
    return [action for action in actions if isinstance(action, Succeeded | Failed)]


def test_a_result_in_place_is_used_when_it_is_complete_and_only_once() -> None:
    node, actions = started()
    assert SendControl(m.Finished(0, 1, 7)) in actions
    assert [type(end) for end in ends(actions)] == [Succeeded]
    assert node.pending == () and not node.is_settled
    assert ends(node.told(m.Commit(0))) == [] and node.is_settled


@pytest.mark.parametrize("how", [{"tolerant": True}, {"overwrites": False}, {"part": 0}])
def test_a_result_that_a_repeated_round_could_change_waits_for_commit(how: dict[str, int]) -> None:
    node, actions = started(**how)  # type: ignore[arg-type]
    assert ends(actions) == [] and node.pending == (0,) and node.is_settled
    assert [type(end) for end in ends(node.told(m.Commit(0)))] == [Succeeded]


def test_an_operation_whose_result_was_used_does_not_fail_when_the_run_ends() -> None:
    node, _ = started()
    number, _ = node.submit(SUM)
    assert ends(node.told(m.Closing("'b' was lost", "b"))) == [Failed(number, node.lost)]  # type: ignore[arg-type]
    assert node.is_settled, "there is no round to wait for"


def test_the_next_operation_of_the_stream_is_requested_after_commit() -> None:
    node, _ = started()
    asked = [action for _ in range(m.POLICY_STREAM) for action in node.submit(SUM, overwrites=True)[1]]
    streams = [a.message.stream for a in asked if isinstance(a, SendControl) and isinstance(a.message, m.Ready)]
    assert streams == [*range(1, m.POLICY_STREAM)]
    (ready,) = [a.message for a in node.told(m.Commit(0)) if isinstance(a, SendControl)]
    assert isinstance(ready, m.Ready) and (ready.stream, ready.iteration) == (0, 2)


def test_a_round_whose_result_was_used_is_never_repeated() -> None:
    node, _ = started()
    node.submit(SUM)
    (failed,) = ends(node.told(m.Halt(0, 1)))
    assert isinstance(failed, Failed) and isinstance(failed.error, PeerLost)
    assert "round 0 cannot be repeated: 'a' has used its result" in str(failed.error)
