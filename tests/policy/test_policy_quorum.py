"""Rounds of a quorum: who is in them, when they start, and what happens to a rank that missed one."""

from __future__ import annotations

from typing import Any

import pytest

from policy_driver import mesh
from tradewind.errors import BadOption
from tradewind.policy import Policy, make_policy
from tradewind.policy.actions import Proceed, SetTimer, StartRound
from tradewind.policy.events import RoundFailed, RoundFinished, TimerFired, WorkerJoined, WorkerLost, WorkerReady

NETWORK = mesh(4)


def quorum(**options: Any) -> Policy:
    return make_policy("quorum", NETWORK, NETWORK.names, **options)


def test_a_round_starts_at_once_when_all_are_ready_and_after_the_grace_window_without_the_late_rank() -> None:
    policy = quorum(quorum=0.75, grace_s=2.0)
    assert not policy.handle(WorkerReady("w0", 1), 1.0) and not policy.handle(WorkerReady("w1", 1), 1.0)
    (timer,) = policy.handle(WorkerReady("w2", 1), 3.0)
    assert isinstance(timer, SetTimer) and timer.at_s == 5.0
    (start,) = policy.handle(TimerFired("grace"), 5.0)
    assert isinstance(start, StartRound) and start.members == ("w0", "w1", "w2")
    assert not policy.handle(WorkerReady("w3", 1), 5.5), "one round at a time"
    policy.handle(RoundFinished(0, start.members, 1.0), 6.0)
    for worker in ("w0", "w1"):
        policy.handle(WorkerReady(worker, 2), 7.0)
    whole = policy.handle(WorkerReady("w2", 2), 7.0)
    assert [a.members for a in whole if isinstance(a, StartRound)] == [("w0", "w1", "w2", "w3")]


def test_weights_are_in_proportion_to_what_ranks_have_processed() -> None:
    policy = quorum()
    for worker, tokens in zip(NETWORK.names, (100.0, 100.0, 300.0, 500.0), strict=True):
        actions = policy.handle(WorkerReady(worker, 1, tokens), 1.0)
    (start,) = actions
    assert isinstance(start, StartRound) and start.weights == (0.1, 0.1, 0.3, 0.5)


def test_a_rank_that_missed_a_round_proceeds_and_none_is_averaged_with_an_older_model() -> None:
    policy = quorum(quorum=0.75)
    for worker in ("w0", "w1", "w2"):
        actions = policy.handle(WorkerReady(worker, 1, 1.0, 7), 1.0)
    (start,) = actions
    assert not policy.handle(WorkerReady("w3", 1, 1.0, 7), 1.5), "it waits for the end of the round that it missed"
    assert isinstance(start, StartRound)
    (missed,) = policy.handle(RoundFinished(0, start.members, 1.0), 2.0)
    assert isinstance(missed, Proceed) and missed.worker == "w3"
    for worker in ("w0", "w1"):
        assert not policy.handle(WorkerReady(worker, 2, 1.0, 8), 3.0)
    again = policy.handle(WorkerReady("w3", 2, 1.0, 8), 3.0)
    assert [a.members for a in again if isinstance(a, StartRound)] == [("w0", "w1", "w3")], "it has caught up"


def test_a_failed_round_takes_the_late_rank_in_because_no_model_has_changed() -> None:
    policy = quorum(quorum=0.75)
    for worker in ("w0", "w1", "w2"):
        policy.handle(WorkerReady(worker, 1, 1.0, 3), 1.0)
    policy.handle(WorkerReady("w3", 1, 1.0, 3), 1.5)
    (timer,) = policy.handle(RoundFailed(0, "a cut link"), 2.0)
    assert isinstance(timer, SetTimer)
    actions = policy.handle(TimerFired(timer.timer), timer.at_s)
    assert [a.members for a in actions if isinstance(a, StartRound)] == [NETWORK.names]


def test_the_newest_model_is_that_of_live_ranks_so_the_rest_continue_when_its_holders_are_lost() -> None:
    policy = quorum(quorum=0.75)
    for worker in ("w0", "w1", "w2"):
        policy.handle(WorkerReady(worker, 1, 1.0, 0), 1.0)
    policy.handle(RoundFinished(0, ("w0", "w1", "w2"), 1.0), 2.0)
    for worker in ("w0", "w1", "w2"):
        policy.handle(WorkerLost(worker), 3.0)
    policy.handle(WorkerJoined("w0"), 4.0)
    assert not policy.handle(WorkerReady("w3", 1, 1.0, 0), 5.0)
    actions = policy.handle(WorkerReady("w0", 1, 1.0, 0), 6.0)
    assert [a.members for a in actions if isinstance(a, StartRound)] == [("w0", "w3")]


@pytest.mark.parametrize("options", [{"quorum": 0.5}, {"quorum": 1.1}, {"grace_s": -1.0}])
def test_a_quorum_of_half_the_ranks_or_less_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(BadOption, match="above"):
        quorum(**options)
