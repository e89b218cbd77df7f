"""`Group.stats()`: what a process says it has done is what happened."""

from __future__ import annotations

import socket
import threading
from typing import Any

import numpy as np
import pytest

from ranks import run_ranks
from tradewind.network import Network, Site
from tradewind.planning.connections import connections_by_cores
from tradewind.runtime.connections import this_machine
from tradewind.runtime.group import Group
from tradewind.runtime.stats import GroupStats

TRIANGLE = Network("triangle", [Site(n) for n in "abc"], 1e8 * (1 - np.eye(3)))
ITEMS = 100_000
POLLED: dict[str, Any] = {"network": TRIANGLE, "local_sockets": False}


@pytest.mark.parametrize("options", [{}, {"local_sockets": False}, {**POLLED, "connections": 2}])
def test_rounds_bytes_and_connections_add_up_over_all_ranks(options: dict[str, Any]) -> None:
    """A ring of three sends two thirds of the array twice; what one has sent another has received."""

    def body(group: Group) -> GroupStats:
        for _ in range(5):
            group.all_reduce(np.ones(ITEMS, np.float32))
        group.barrier()
        return group.stats()

    found = run_ranks(3, body, planner="ring", **options)
    assert all(isinstance(stats, GroupStats) for stats in found), found
    by_cores = connections_by_cores(this_machine().rank_cores(3), peers=2)
    transport, count = ("unix", 1) if not options else ("tcp", options.get("connections", by_cores))
    for stats in found:
        assert (stats.rounds, stats.inline_rounds, stats.alone, stats.failed, stats.pending) == (6, 0, 0, 0, 0)
        assert stats.array_bytes == 5 * 4 * ITEMS + 4 and stats.kept_bytes == 0
        assert stats.plan_version is not None and stats.plans >= 1 and stats.halts == 0
        assert len({*stats.members}) == 3 and stats.name in stats.members and stats.term == 0
        assert [p.name for p in stats.peers] == [name for name in sorted(stats.members) if name != stats.name]
        for peer in stats.peers:
            assert (peer.connections, peer.transport, peer.broken) == (count, transport, 0)
            assert peer.polled is ("network" in options)
    by_name = {stats.name: stats for stats in found}
    for stats in found:
        for peer in stats.peers:
            assert peer.sent_bytes == by_name[peer.name].peer(stats.name).received_bytes
            assert peer.received_frames <= by_name[peer.name].peer(stats.name).sent_frames
    assert sum(stats.sent_bytes for stats in found) >= 5 * 4 * (4 * ITEMS)
    (hosted,) = [stats.controller for stats in found if stats.controller is not None]
    assert found[0].controller is hosted and hosted.snapshot.state == "acting"
    assert set(hosted.unsent_frames) == set(found[0].members) and hosted.snapshot.next_round >= 6


def test_inline_rounds_are_counted_and_need_no_connection() -> None:
    def body(group: Group) -> GroupStats:
        for _ in range(4):
            group.all_reduce(np.ones(10))
        return group.stats()

    for stats in run_ranks(2, body, inline_bytes=16 * 1024):
        assert (stats.rounds, stats.inline_rounds, stats.array_bytes, stats.sent_bytes) == (4, 4, 320, 0)
        assert stats.peers[0].connections == 0 and stats.plan_version is None


def test_a_failed_operation_is_counted_and_stats_work_on_a_closed_group() -> None:
    groups: list[Group] = []

    def body(group: Group) -> None:
        groups.append(group)
        with pytest.raises(Exception, match="the members of a round must ask for the same operation"):
            group.all_reduce(np.ones(3 + group.rank))

    run_ranks(2, body)
    assert [(group.stats().failed, group.stats().pending) for group in groups] == [(1, 0)] * 2


@pytest.mark.parametrize("options", [{}, {"local_sockets": False}])
def test_a_connection_that_broke_keeps_its_bytes(options: dict[str, Any]) -> None:
    sockets: dict[tuple[int, str], socket.socket] = {}

    def body(group: Group) -> bool:
        for _ in range(6):
            group.all_reduce(np.ones(ITEMS))
        group.barrier()
        before = group.stats()
        group.barrier()
        if group.rank == 0:
            sockets[0, "rank1"].shutdown(socket.SHUT_RDWR)
        group.all_reduce(np.ones(ITEMS))
        after = group.stats()
        other = group.names[1 - group.rank]
        assert after.peer(other).broken == 1 and after.peer(other).connections == 1
        return after.peer(other).sent_bytes > before.peer(other).sent_bytes > 0

    def connected(rank: int, peer: str, sock: socket.socket) -> None:
        sockets.setdefault((rank, peer), sock)

    assert run_ranks(2, body, connected=connected, **options) == [True, True]


def test_many_threads_may_ask_during_rounds() -> None:
    def body(group: Group) -> bool:
        over = threading.Event()
        seen: list[list[int]] = [[] for _ in range(4)]

        def ask(into: list[int]) -> None:
            while not over.is_set():
                into.append(group.stats().rounds)

        threads = [threading.Thread(target=ask, args=(into,)) for into in seen]
        for thread in threads:
            thread.start()
        for _ in range(20):
            group.all_reduce(np.ones(1000))
        over.set()
        for thread in threads:
            thread.join()
        return all(into == sorted(into) and into for into in seen)

    assert run_ranks(2, body) == [True, True]
