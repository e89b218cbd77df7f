"""Drills: the network falls apart, or the controller is in a black hole; a standby takes over where most ranks are."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from drill_ranks import PORT, SPARE_S, DrillRanks, drill_in_lab, drill_with_controller, mesh
from lab_traffic import open_lab

PATIENCE_S = 4.0
BACK_S = 2 * PATIENCE_S + SPARE_S
"""For ranks to find the controller again after their links are back, and for rounds with all."""


@contextlib.contextmanager
def with_standby(world: int, standby: int, **more: Any) -> Iterator[DrillRanks]:
    """Rank 0 runs the controller, and another rank its standby."""
    with open_lab(mesh(world), "delay") as lab:
        addresses = [f"{lab.address(f'rank{n}')}:{PORT}" for n in (0, standby)]
        with drill_in_lab(lab, addresses, patience_s=PATIENCE_S, **more) as run:
            yield run


def divide(run: DrillRanks, parts: Sequence[Sequence[int]], heal: bool = False) -> None:
    """Cut, or heal, all links between two parts."""
    for a, b in itertools.product(*parts):
        (run.lab.heal if heal else run.lab.cut)(f"rank{a}-rank{b}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "rest"),
    [
        pytest.param((0, 1, 2), (3, 4), id="with the controller"),
        pytest.param((1, 2, 3), (0, 4), id="with the standby"),
    ],
)
def test_the_larger_part_goes_on_and_the_smaller_one_rejoins(most: tuple[int, ...], rest: tuple[int, ...]) -> None:
    with with_standby(5, 1) as run:
        run.rounds(2, 5)
        cut_s = time.monotonic()
        divide(run, (most, rest))
        run.rounds(2, 3, list(most), within_s=(0.8 if 0 in most else 5) * PATIENCE_S + SPARE_S)
        cut_off = rest if 0 in most else most
        assert "has lost the controller" in run.warned(cut_off[-1], "controller"), "the fault did not fire"
        run.alone(list(rest), cut_s + 2 * PATIENCE_S + SPARE_S)
        divide(run, (most, rest), heal=True)
        run.rounds(2, 5, within_s=BACK_S)
        run.stop()


@pytest.mark.slow
def test_equal_parts_never_go_on_as_two_runs_and_meet_again() -> None:
    """Four and four, a controller in each: no part is the majority, and rounds of both would diverge."""
    parts = (0, 2, 4, 6), (1, 3, 5, 7)
    with with_standby(8, 1) as run:
        run.rounds(2, 8)
        divide(run, parts)
        run.ranks[0].wait_for(lambda said: "warning" in said)  # each part goes on alone, or waits
        assert "has lost the controller" in run.warned(3, "controller"), "the fault did not fire"
        divide(run, parts, heal=True)
        run.rounds(2, 8, within_s=BACK_S)
        run.stop()


@pytest.mark.slow
def test_a_standby_takes_over_from_a_controller_in_a_black_hole() -> None:
    with with_standby(4, 1) as run:
        run.rounds(2, 4)
        divide(run, ((0,), (1, 2, 3)))
        run.rounds(2, 3, [1, 2, 3], within_s=5 * PATIENCE_S + SPARE_S)
        assert "has lost the controller" in run.warned(2, "controller"), "the fault did not fire"
        divide(run, ((0,), (1, 2, 3)), heal=True)
        run.rounds(2, 4, within_s=BACK_S)
        run.stop()


@pytest.mark.slow
@pytest.mark.parametrize(("most", "rest"), [((0, 1, 3), (2,)), ((0, 1, 2), (3, 4))])
def test_ranks_that_only_the_controller_reaches_are_left_out_and_return(
    most: tuple[int, ...], rest: tuple[int, ...]
) -> None:
    """Only data links are cut: the controller hears all ranks, and must not wait for those that no link reaches."""
    world = len(most) + len(rest)
    with open_lab(mesh(world + 1), "delay") as lab, drill_with_controller(lab, PATIENCE_S, "multi-star") as run:
        run.rounds(2, world)
        cut_s = time.monotonic()
        divide(run, (most, rest))
        run.rounds(2, len(most), list(most), within_s=2 / 3 * PATIENCE_S + SPARE_S)
        run.alone(list(rest), cut_s + 2 / 3 * PATIENCE_S + SPARE_S)  # the fault fired
        divide(run, (most, rest), heal=True)
        run.rounds(2, world, within_s=BACK_S)
        run.stop()
