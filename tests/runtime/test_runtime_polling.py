"""Connections of slow links share one thread: pieces are put together, and one that breaks harms no other."""

from __future__ import annotations

import sys
import threading
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
from tradewind.runtime.polled_link import PolledLink

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="others do not poll")
TRIANGLE = Network("triangle", [Site(n) for n in "abc"], 1e8 * (1 - np.eye(3)))
KNOWN: dict[str, Any] = {"network": TRIANGLE, "local_sockets": False}


def links_of(group: Group) -> list[PolledLink]:
    bundles = group._worker._peers._bundles.values()
    links = [link for bundle in bundles for link in bundle.links]
    assert all(isinstance(link, PolledLink) for link in links)
    return [link for link in links if isinstance(link, PolledLink)]


def test_a_worker_of_a_known_network_has_one_thread_for_all_its_connections() -> None:
    def body(group: Group) -> int:
        group.all_reduce(np.ones(100_000))
        group.barrier()
        names = [thread.name for thread in threading.enumerate()]
        group.barrier()
        assert not [name for name in names if name.startswith(("tradewind-rx", "tradewind-tx"))]
        assert names.count("tradewind-poll") == 3, "one for each rank"
        return len(links_of(group))

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
    def body(group: Group) -> tuple[float, bool]:
        group.all_reduce(np.ones(1000))
        group.barrier()
        before = links_of(group)
        handles = [group.all_reduce_async(np.full(500_000, 2.0**group.rank, np.float32)) for _ in range(4)]
        if group.rank == 0:
            next(link for link in before if link.peer == 1).close()
        sums = {float(handle.wait(60).mean()) for handle in handles}
        group.barrier()
        made_again = all(link not in links_of(group) for link in before if {group.rank, link.peer} == {0, 1})
        return (*sums, made_again)  # type: ignore[return-value]

    assert run_ranks(3, body, **KNOWN, tolerant=tolerant) == [(7.0, True)] * 3


def test_nonsense_on_a_connection_ends_it_and_the_inputs_survive() -> None:
    def body(group: Group) -> bool:
        group.all_reduce(np.ones(1000))
        group.barrier()
        before = links_of(group)
        if group.rank == 0:
            link = next(link for link in before if link.peer == 1)
            assert link._sock.send(b"nonsense" * 20) == 160
        array = np.ones(500_000)
        for _ in range(5):
            assert (group.all_reduce(array) == 3.0).all()
        assert (array == 1.0).all()
        return all(link not in links_of(group) for link in before if {group.rank, link.peer} == {0, 1})

    assert run_ranks(3, body, **KNOWN) == [True] * 3
