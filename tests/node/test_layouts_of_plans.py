"""A worker works out its part in a plan once, and again when that may have changed."""

from __future__ import annotations

from tradewind.catalog import load_network
from tradewind.node.chunk_plane import Layouts
from tradewind.planning import make_plan
from tradewind.wire import messages as m

NETWORK = load_network("mesh", n=3)
NAMES = NETWORK.names
NUMBERS = {name: number for number, name in enumerate(NAMES)}
PLAN = make_plan("multi-star", NETWORK, 400)


def told(plans: Layouts, version: int) -> None:
    plans.told(version, PLAN, (version - 1,), NAMES[0], NUMBERS)


def start(version: int) -> m.Start:
    return m.Start(
        round=0,
        stream=0,
        iterations=(1,),
        version=version,
        floor=0,
        operation=m.Operation(100, 4, "float32", "sum"),
        weights=(1 / 3,),
        staleness=(0,),
    )


def test_rounds_of_one_size_share_a_layout_and_another_size_has_its_own() -> None:
    plans = Layouts()
    told(plans, 1)
    first = plans.layout(PLAN, start(1), NAMES[0], NUMBERS)
    assert plans.layout(PLAN, start(1), NAMES[0], NUMBERS) is first
    assert first.items == 100 and first.peers == (1, 2)


def test_who_has_another_number_is_found_under_it() -> None:
    """A worker that was started again is the same site of the same plan, and not the same peer."""
    plans = Layouts()
    told(plans, 1)
    assert plans.layout(PLAN, start(1), NAMES[0], NUMBERS).peers == (1, 2)
    plans.renumbered()
    assert plans.layout(PLAN, start(1), NAMES[0], {**NUMBERS, NAMES[2]: 7}).peers == (1, 7)


def test_a_plan_that_is_told_ahead_leaves_those_in_use_as_they_are() -> None:
    plans = Layouts()
    told(plans, 1)
    first = plans.layout(PLAN, start(1), NAMES[0], NUMBERS)
    told(plans, 3)  # says nothing of the first
    assert plans.layout(PLAN, start(1), NAMES[0], NUMBERS) is first


def test_the_part_in_a_plan_that_takes_the_place_of_another_is_worked_out_ahead() -> None:
    plans = Layouts()
    told(plans, 1)
    plans.layout(PLAN, start(1), NAMES[0], NUMBERS)
    told(plans, 2)
    assert plans.kept == ((2, 100, 4, "none", ()),)
    ahead = plans.layout(PLAN, start(2), NAMES[0], NUMBERS)
    assert plans.layout(PLAN, start(2), NAMES[0], NUMBERS) is ahead and plans.kept == ((2, 100, 4, "none", ()),)


def test_a_plan_with_an_absent_site_waits_for_its_round() -> None:
    plans = Layouts()
    told(plans, 1)
    plans.layout(PLAN, start(1), NAMES[0], NUMBERS)
    two = {name: NUMBERS[name] for name in NAMES[:2]}
    plans.told(2, PLAN, (1,), NAMES[0], two)
    assert plans.kept == ()


def test_what_was_worked_out_does_not_pile_up() -> None:
    plans = Layouts()
    for version in range(1, 20):
        told(plans, version)
        plans.layout(PLAN, start(version), NAMES[0], NUMBERS)
        assert len(plans.kept) == 1
