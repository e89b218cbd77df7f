"""The baselines that exchange with a server: asp and ssp."""

from __future__ import annotations

from policy_driver import mesh
from tradewind.network import Network, Site
from tradewind.policy import make_policy
from tradewind.policy.actions import AbandonRound, Proceed, StartRound
from tradewind.policy.events import RoundFinished, WorkerJoined, WorkerLost, WorkerReady


def star(centre: str) -> Network:
    """Four sites, one of which has better links than the others."""
    names = ("a", "b", "c", "d")
    links = [[0.0 if s == t else (9e8 if centre in (s, t) else 1e8) for t in names] for s in names]
    return Network("star", [Site(name) for name in names], links)


def test_asp_lets_every_ready_rank_exchange_at_once_with_the_best_connected_site() -> None:
    policy = make_policy("asp", star("c"), "abcd")
    assert policy.handle(WorkerReady("b", 1), 1.0) == (
        StartRound(0, ("b",), (1.0,), "b is ready, and asp has no barrier", "server", "star", "c", (0,)),
    )
    (second,) = policy.handle(WorkerReady("a", 1), 1.1)
    assert isinstance(second, StartRound) and second.members == ("a",)
    (local,) = policy.handle(WorkerReady("c", 1), 1.2)
    assert isinstance(local, Proceed) and local.worker == "c"


def test_when_the_server_is_lost_its_exchanges_move_to_another() -> None:
    policy = make_policy("asp", star("c"), "abcd")
    policy.handle(WorkerReady("b", 1), 1.0)
    abandoned, again = policy.handle(WorkerLost("c", "power"), 1.5)
    assert isinstance(abandoned, AbandonRound) and abandoned.round == 0
    assert isinstance(again, Proceed | StartRound)
    server = policy.state.note.removeprefix("server at ")
    assert server in ("a", "b", "d")
    policy.handle(WorkerJoined("c"), 2.0)
    assert policy.state.note == f"server at {server}", "a server that works stays"


def test_the_server_may_be_a_site_that_does_not_train() -> None:
    policy = make_policy("asp", star("c"), "ab", server="d")
    (start,) = policy.handle(WorkerReady("a", 1), 1.0)
    assert isinstance(start, StartRound) and start.server == "d"


def finish(policy: object, *actions: object) -> None:
    for action in actions:
        if isinstance(action, StartRound):
            policy.handle(RoundFinished(action.round, action.members, 0.1), 9.0)  # type: ignore[attr-defined]


def test_ssp_lets_a_worker_be_k_steps_ahead_and_no_more() -> None:
    network = mesh(3)
    policy = make_policy("ssp", network, ("w0", "w1"), k=1, server="w2")
    finish(policy, *policy.handle(WorkerReady("w0", 1), 9.0))
    assert policy.handle(WorkerReady("w0", 2), 9.0) == (), "two steps ahead of w1"
    released = policy.handle(WorkerReady("w1", 1), 9.0)
    assert [action.members for action in released if isinstance(action, StartRound)] == [("w0",), ("w1",)]


def test_ssp_with_k_zero_is_a_barrier() -> None:
    network = mesh(4)
    policy = make_policy("ssp", network, ("w0", "w1", "w2"), k=0, server="w3")
    assert policy.handle(WorkerReady("w0", 1), 1.0) == ()
    assert policy.handle(WorkerReady("w2", 1), 1.0) == ()
    assert len(policy.handle(WorkerReady("w1", 1), 1.0)) == 3


def test_ssp_waits_neither_for_lost_ranks_nor_for_a_new_rank_to_catch_up() -> None:
    network = mesh(4)
    policy = make_policy("ssp", network, ("w0", "w1"), k=0, server="w3")
    assert policy.handle(WorkerReady("w0", 1), 9.0) == ()
    released = policy.handle(WorkerLost("w1"), 9.0)
    assert len(released) == 1
    finish(policy, *released)
    policy.handle(WorkerJoined("w2"), 9.0)
    assert policy.handle(WorkerReady("w0", 2), 9.0) == ()
    assert len(policy.handle(WorkerReady("w2", 1), 9.0)) == 2, "w2 started level with w0"
