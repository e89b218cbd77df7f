"""Chunks that take other paths arrive once, in any order of events, and relays keep little."""

from __future__ import annotations

from collections import deque
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_driver import Driver
from tradewind.arithmetic import Arithmetic
from tradewind.control.plans.replanning import auxiliary_paths_of, published_paths_of
from tradewind.network import Network, Site
from tradewind.node import events as ev
from tradewind.node.engine.auxiliary import AuxiliaryPaths, AuxiliaryQueues
from tradewind.node.engine.sending import Flow
from tradewind.planning import make_plan
from tradewind.wire.frames import FrameHeader, FrameKind, Phase


def uneven(n: int, random: np.random.Generator) -> Network:
    rates = 10 ** random.uniform(7, 8, (n, n)) * (1 - np.eye(n))
    return Network("uneven", [Site(f"s{i}") for i in range(n)], rates)


def connect_all(driver: Driver) -> None:
    for here, there in permutations(range(len(driver.workers)), 2):
        for connection in range(driver.connections):
            if (here, there, connection) not in driver.wires:
                driver.wires[here, there, connection] = deque()
                driver.tell(here, ev.LinkIdle(there))


def taken(driver: Driver) -> int:
    """How many chunks on auxiliary paths were applied."""
    return sum(len(mark.path) > 2 for worker in driver.workers for mark in worker.applied)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(("star", "fapt", "ring", "optimal", "spanning-tree")),
    st.integers(1, 2),
    st.integers(1, 4),
    st.booleans(),
)
def test_sums_are_right_whatever_way_chunks_take(
    seed: int, planner: str, connections: int, queue_length: int, by_occupancy: bool
) -> None:
    random = np.random.default_rng(seed)
    network = uneven(5, random)
    items = 40_000
    plan = make_plan(planner, network, 4 * items)
    driver = Driver(network.names, random, connections)
    connect_all(driver)
    find = published_paths_of if by_occupancy else auxiliary_paths_of
    for name, paths in find(plan, network, busy_bound=1).items():
        numbered = tuple((tuple(driver.roster[s] for s in path.sites), path.busy_bound) for path in paths)
        driver.tell(driver.roster[name], ev.AuxiliaryChanged(numbered, queue_length, by_occupancy))
    arrays = {name: random.integers(-9, 9, items).astype(np.float32) for name in plan.members}
    rounds = dict.fromkeys(range(2), plan)
    results = [driver.add_round(number, plan, arrays, {"": Arithmetic("float32", "sum")}) for number in rounds]
    driver.run()
    driver.check_at_rest(rounds)
    for result in results:
        for name in plan.members:
            np.testing.assert_array_equal(result[name], sum(arrays.values()), err_msg=name)


@pytest.mark.mechanism("NetStorm VI-A, waiting chunks take auxiliary paths")
def test_a_star_over_idle_links_does_use_them() -> None:
    random = np.random.default_rng(1)
    network = Network("mesh", [Site(f"s{i}") for i in range(4)], 1e8 * (1 - np.eye(4)))
    plan = make_plan("star", network, 400_000)
    driver = Driver(network.names, random)
    connect_all(driver)
    for name, paths in auxiliary_paths_of(plan, network, busy_bound=2).items():
        numbered = tuple((tuple(driver.roster[s] for s in path.sites), path.busy_bound) for path in paths)
        driver.tell(driver.roster[name], ev.AuxiliaryChanged(numbered, 1))
    arrays = {name: np.ones(100_000, np.float32) for name in plan.members}
    driver.add_round(0, plan, arrays, {"": Arithmetic("float32", "sum")})
    driver.run()
    driver.check_at_rest({0: plan})
    assert taken(driver) > 0


def flow(chunks: int = 10, window: int | None = None) -> Flow:
    from tradewind.node.actions import Source

    ready = bytearray(b"\1" * chunks)
    made = Flow(1, 0, 1, 0, Phase.REDUCE, (0, 2), chunks, window, Source.INPUT, ready)
    made.queued = True
    return made


def chunk(index: int, path: tuple[int, ...], kind: FrameKind = FrameKind.CHUNK) -> FrameHeader:
    return FrameHeader(kind, 1, plan_version=1, index=index, chunks=10, hop=1, path=path, auxiliary=True)


@pytest.mark.mechanism("NetStorm VI-A, AUXILIARY_QUEUE_LENGTH")
def test_a_path_takes_as_many_chunks_as_its_queue_holds_until_they_arrive() -> None:
    paths = AuxiliaryPaths()
    paths.change([((0, 1, 2), 2)], queue_length=1)
    paths.note(flow())
    found = paths.find(1, lambda _: 1)
    assert found is not None
    paths.sent(found[1], chunk(0, (0, 1, 2)))
    assert paths.find(1, lambda _: 1) is None, "one is under way"
    assert paths.acknowledged(chunk(0, (2, 1, 0), FrameKind.ACK)) == 1
    assert paths.find(1, lambda _: 1) is not None
    paths.sent(found[1], chunk(1, (0, 1, 2)))
    paths.forget(0)
    assert paths.find(1, lambda _: 1) is None, "the round and its flows are over, and nothing is under way"
    paths.note(flow())
    assert paths.find(1, lambda _: 1) is not None, "the path was free: only the flow was gone"


@pytest.mark.mechanism("NetStorm VI-A, PRIMARY_BUSY_BOUND")
@pytest.mark.parametrize(("bound", "ready", "backlog", "goes"), [(2, 10, 1, True), (3, 2, 1, False), (3, 2, 2, True)])
def test_a_detour_is_taken_only_when_enough_wait(bound: int, ready: int, backlog: int, goes: bool) -> None:
    paths = AuxiliaryPaths()
    paths.change([((0, 1, 2), bound)], queue_length=1)
    paths.note(flow(ready))
    assert (paths.find(1, lambda _: backlog) is not None) is goes
    assert paths.find(1, lambda _: 0) is None, "the primary link is idle"


@pytest.mark.mechanism("NetStorm VII-B, a change of auxiliary paths keeps what is under way")
def test_new_paths_remember_what_is_under_way_on_them() -> None:
    paths = AuxiliaryPaths()
    paths.change([((0, 1, 2), 1)], queue_length=1)
    paths.note(flow())
    found = paths.find(1, lambda _: 1)
    assert found is not None
    paths.sent(found[1], chunk(0, (0, 1, 2)))
    paths.change([((0, 3, 2), 1), ((0, 1, 2), 1)], queue_length=1)
    assert paths.find(1, lambda _: 1) is None and paths.find(3, lambda _: 1) is not None
    paths.change([], queue_length=1)
    assert paths.acknowledged(chunk(0, (2, 1, 0), FrameKind.ACK)) is None, "a stale acknowledgement does no harm"


def test_slow_detours_need_more_waiting_and_hopeless_ones_are_left_out() -> None:
    rates = np.array([[0, 100, 100, 100], [100, 0, 25, 0], [100, 100, 0, 1], [100, 1, 1, 0]]) * 1e6
    network = Network("four", [Site(n) for n in "abcd"], rates)
    plan = make_plan("star", network, 10**6)
    found = {path.sites: path.busy_bound for paths in auxiliary_paths_of(plan, network, 2).values() for path in paths}
    assert all(len(sites) > 2 for sites in found)
    for sites, bound in found.items():
        rows = [network.index[s] for s in sites]
        times = sum(1 / network.bandwidth_bps[i, j] for i, j in pairwise(rows))
        assert bound >= max(2, times * network.bandwidth_bps[rows[0], rows[-1]]) - 1
        assert times * network.bandwidth_bps[rows[0], rows[-1]] <= 16


# --- NetStorm's scheduler as published -------------------------------------------------------------------------------

FAST, SLOW = (0, 1, 2), (0, 3, 2)


def queues(busy_bound: int, queue_length: int) -> AuxiliaryQueues:
    made = AuxiliaryQueues()
    made.change([(FAST, busy_bound), (SLOW, busy_bound)], queue_length)
    return made


@pytest.mark.mechanism("NetStorm VI-A Fig. 7, chunks go by the occupancy of primary and auxiliary queues")
@pytest.mark.parametrize(("bound", "length"), [(1, 1), (2, 1), (2, 5), (4, 2)])
def test_chunks_go_to_auxiliary_queues_when_the_primary_one_is_busy_and_back_when_these_are_full(
    bound: int, length: int
) -> None:
    """NetStorm's Fig. 7: PRIMARY_BUSY_BOUND to the primary path, AUXILIARY_QUEUE_LENGTH to each other, the rest back.

    No link has to be idle, one bound holds for all paths, and the faster path is filled first.
    """
    detours = queues(bound, length).assign(flow(20))
    fast, slow = range(bound, bound + length), range(bound + length, bound + 2 * length)
    assert [(d.index, d.path) for d in detours] == [*((i, FAST) for i in fast), *((i, SLOW) for i in slow)]


def test_a_queue_takes_chunks_again_when_those_in_it_have_arrived() -> None:
    made, first = queues(1, 1), flow(3)
    assert [d.path for d in made.assign(first)] == [FAST, SLOW]
    assert made.assign(flow(2)) == [], "all are busy: back to the primary path"
    made.acknowledged(chunk(2, SLOW[::-1], FrameKind.ACK))
    assert [d.path for d in made.assign(flow(1))] == [SLOW], "the primary path is still busy"
    for index in range(3):
        made.transmitted(0, 2, FrameHeader(FrameKind.CHUNK, 1, plan_version=1, index=index, chunks=10))
    assert made.assign(flow(1)) == [], "it is idle again"
    made.forget(0)
    assert [d.index for d in made.assign(flow(3))] == [1, 2], "the round is over, and all its chunks with it"


def test_a_chunk_beyond_the_window_gets_no_path_yet() -> None:
    made, limited = queues(1, 1), flow(10, window=2)
    assert [d.index for d in made.assign(limited)] == [1]
    limited.acknowledged = 1
    assert [d.index for d in made.assign(limited)] == [2]


def test_netstorm_uses_every_disjoint_path_with_one_bound() -> None:
    """Ours leaves slow detours out, and asks for more waiting chunks before it takes one."""
    rates = np.array([[0, 100, 100, 100], [100, 0, 25, 0], [100, 100, 0, 1], [100, 1, 1, 0]]) * 1e6
    network = Network("four", [Site(n) for n in "abcd"], rates)
    plan = make_plan("star", network, 10**6)
    published = {path.sites: path for paths in published_paths_of(plan, network, 2).values() for path in paths}
    ours = {path.sites for paths in auxiliary_paths_of(plan, network, 2).values() for path in paths}
    assert {path.busy_bound for path in published.values()} == {2}
    assert ours < published.keys(), "slow ones count, too"
    printed = published_paths_of(plan, network, 2, "global")
    assert sum(map(len, printed.values())) < len(published), "Algorithm 3 as printed leaves almost none"
