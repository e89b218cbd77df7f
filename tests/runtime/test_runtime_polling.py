"""Connections of slow links share one thread: pieces are put together, and one that breaks harms no other."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ranks import run_ranks
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.plan import plan_to_json
from tradewind.runtime.group import Group
from tradewind.runtime.links import SCRATCH_BYTES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="others do not poll")
TRIANGLE = Network("triangle", [Site(n) for n in "abc"], 1e8 * (1 - np.eye(3)))
KNOWN: dict[str, Any] = {"network": TRIANGLE, "local_sockets": False}


Sockets = dict[tuple[int, str], socket.socket]


def connections_of(group: Group) -> int:
    peers = group.stats().peers
    assert all(peer.polled for peer in peers)
    return sum(peer.connections for peer in peers)


def is_new(group: Group) -> bool:
    """Whether just the connection between the first two ranks has been made again."""
    lost = {peer.name: peer.broken for peer in group.stats().peers if peer.connections}
    expected = {"a": {"b": 1, "c": 0}, "b": {"a": 1, "c": 0}, "c": {"a": 0, "b": 0}}
    return lost == expected[group.name]


def first_into(sockets: Sockets) -> Callable[[int, str, socket.socket], None]:
    """Keep the first connection to each peer."""

    def connected(rank: int, peer: str, sock: socket.socket) -> None:
        sockets.setdefault((rank, peer), sock)

    return connected


def test_a_worker_of_a_known_network_has_one_thread_for_all_its_connections() -> None:
    def body(group: Group) -> int:
        group.all_reduce(np.ones(100_000))
        group.barrier()
        names = [thread.name for thread in threading.enumerate()]
        group.barrier()
        assert not [name for name in names if name.startswith(("tradewind-rx", "tradewind-tx"))]
        assert names.count("tradewind-poll") == 3, "one for each rank"
        return connections_of(group)

    assert run_ranks(3, body, **KNOWN, connections=2) == [4] * 3


@pytest.mark.parametrize("planner", ["ring", "all-to-all", "star"])
def test_frames_larger_than_any_buffer_come_in_pieces(planner: str, tmp_path: object) -> None:
    path = tmp_path / "plan.json"  # type: ignore[operator]
    plan = make_plan(planner, TRIANGLE, 12_000_000)
    large = tuple(replace(shard, chunk_bytes=3 * SCRATCH_BYTES + 4) for shard in plan.shards)
    path.write_text(plan_to_json(replace(plan, shards=large, predicted=None)))

    def body(group: Group) -> None:
        values = np.arange(3_000_000, dtype=np.float32) % 1000
        for _ in range(3):
            array = values * (group.rank + 1)
            group.all_reduce(array, out=array)
            np.testing.assert_array_equal(array, 6 * values)

    assert run_ranks(3, body, **KNOWN, plan=path) == [None] * 3


@pytest.mark.parametrize("tolerant", [False, True])
def test_a_connection_that_breaks_is_made_again_while_others_go_on(tolerant: bool) -> None:
    sockets: Sockets = {}

    def body(group: Group) -> tuple[float, bool]:
        group.all_reduce(np.ones(1000))
        group.barrier()
        handles = [group.all_reduce_async(np.full(500_000, 2.0**group.rank, np.float32)) for _ in range(4)]
        if group.rank == 0:
            sockets[0, "b"].shutdown(socket.SHUT_RDWR)
        sums = {float(handle.wait(60).mean()) for handle in handles}
        group.barrier()
        (total,) = sums
        return total, is_new(group)

    assert run_ranks(3, body, connected=first_into(sockets), **KNOWN, tolerant=tolerant) == [(7.0, True)] * 3


def test_nonsense_on_a_connection_ends_it_and_the_inputs_survive() -> None:
    sockets: Sockets = {}

    def body(group: Group) -> bool:
        group.all_reduce(np.ones(1000))
        group.barrier()
        if group.rank == 0:
            assert sockets[0, "b"].send(b"nonsense" * 20) == 160
        array = np.ones(500_000)
        for _ in range(5):
            assert (group.all_reduce(array) == 3.0).all()
        assert (array == 1.0).all()
        return is_new(group)

    assert run_ranks(3, body, connected=first_into(sockets), **KNOWN) == [True] * 3
