"""Links measured, plans switched and detours taken on real sockets, in one process that imitates a network."""

from __future__ import annotations

from collections import deque
from itertools import cycle

import numpy as np
import pytest

from tradewind.control.awareness import Awareness
from tradewind.control.controller import Action, Controller
from tradewind.control.plans.versions import PlanMade, finished_plan
from tradewind.lab.inproc import run_inproc
from tradewind.network import Network, Site
from tradewind.runtime.group import Group, Handle
from tradewind.runtime.probe import SeenNetwork
from tradewind.runtime.shaping import ShapedNetwork


def drawn(seed: int, n: int = 3) -> Network:
    rates = np.random.default_rng(seed).uniform(1e7, 5e7, (n, n)) * (1 - np.eye(n))
    return Network("drawn", [Site(f"s{i}") for i in range(n)], rates, 2e-3 * (1 - np.eye(n)))


def test_rounds_go_on_and_stay_right_while_the_network_changes() -> None:
    shape = ShapedNetwork(drawn(0))

    def body(group: Group) -> int:
        array = np.arange(80_000, dtype=np.float32)
        for number in range(16):
            if group.rank == 0 and number % 4 == 3:
                shape.change(drawn(number))
            total = group.all_reduce(array + number)
            assert (total == 3 * (array + number)).all()
        return sum(link.count for link in group.network().links)

    aware = Awareness(update_time_s=0.2, min_gain=0.0)
    assert min(run_inproc(drawn(0), body, shape, awareness=aware)) > 0, "something was measured on the way"


def test_an_unknown_network_is_probed_before_the_first_round() -> None:
    truth = drawn(1)

    def body(group: Group) -> SeenNetwork:
        group.barrier()
        return group.network()

    aware = Awareness(probe=True, probe_s=0.5)
    for seen in run_inproc(truth, body, None, network=None, awareness=aware):
        assert seen.measured == 1.0 and seen.network.names == truth.names
        assert all(link.origin == "measured" and link.bandwidth_bps > 0 for link in seen.links)


@pytest.mark.parametrize("planner", ["star", "fapt"])
def test_sums_are_right_on_detours(planner: str) -> None:
    def body(group: Group) -> None:
        for number in range(4):
            array = np.full(60_000, group.rank + number, np.float32)
            assert (group.all_reduce(array) == 6 + 4 * number).all()

    run_inproc(drawn(2, n=4), body, None, planner=planner, awareness=Awareness(auxiliary=True))


def test_switched_off_nothing_is_measured() -> None:
    def body(group: Group) -> int:
        for _ in range(3):
            group.all_reduce(np.ones(60_000, np.float32))
        return sum(link.count for link in group.network().links)

    assert run_inproc(drawn(3), body, None, awareness=Awareness(measure=False)) == [0, 0, 0]


ANYTHING = ("optimal", "fapt", "ring", "multi-star", "star", "spanning-tree")
ITEMS, UNDER_WAY = 70_000, 3  # larger than what is planned without regard to links


def switch(group: Group, planner: str) -> int | None:
    """Replace the plan between rounds without a reason; returns the version that the last round started with."""
    used: list[int | None] = []

    def adopt(controller: Controller, now_s: float) -> list[Action]:
        plans = controller.plans
        used.append(plans.last_used)
        if not plans.keys:
            return []
        key = max(plans.keys, key=lambda key: key[1])
        plan = finished_plan(planner, plans.view.network, key[1], key[0], {}, False)
        return controller.planned(PlanMade(key, plan, float("inf"), ""), now_s)

    assert group.controller is not None
    group.controller.change(adopt)
    return used[0]


@pytest.mark.parametrize(("least", "rounds"), [(20, 40), pytest.param(500, 1000, marks=pytest.mark.slow)])
def test_switches_between_rounds_under_way_lose_and_double_no_chunk(least: int, rounds: int) -> None:
    """Every sum is of numbers that no other round or rank has: a chunk that is lost, doubled or stale is noticed."""
    network = drawn(4).scaled(4.0)

    def body(group: Group) -> int:
        versions, planners = set[int | None](), cycle(ANYTHING)
        under_way: deque[tuple[int, Handle]] = deque()

        def finish() -> None:
            number, handle = under_way.popleft()
            expected = sum(numbers(rank, number) for rank in range(3))
            assert (handle.wait(60.0) == expected).all(), number

        for number in range(rounds):
            under_way.append((number, group.all_reduce_async(numbers(group.rank, number))))
            if len(under_way) == UNDER_WAY:
                finish()
            if group.rank == 0:
                versions.add(switch(group, next(planners)))
        while under_way:
            finish()
        return len(versions - {None})

    assert run_inproc(network, body, None, awareness=Awareness(measure=False))[0] > least


def numbers(rank: int, number: int) -> np.ndarray:
    """Whole, and small enough to be added without rounding."""
    return np.random.default_rng([rank, number]).integers(0, 2**20, ITEMS).astype(np.float32)
