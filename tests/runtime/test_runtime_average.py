"""`Group.average`: its members, weights and outcome; and operations of all ranks beside it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from ranks import run_ranks
from tradewind.errors import BadOption
from tradewind.runtime.group import Group

PARTIAL: dict[str, Any] = {"policy": "partial", "policy_options": {"p": 2}}


def test_broadcast_and_barrier_involve_all_ranks_under_any_policy() -> None:
    def body(group: Group) -> Any:
        group.barrier()
        return group.broadcast(np.full(5, group.rank), root=2).tolist(), group.all_reduce(np.ones(1)).tolist()

    assert run_ranks(4, body, **PARTIAL) == [([2] * 5, [4.0])] * 4


def test_an_average_names_the_members_that_the_policy_chose() -> None:
    def body(group: Group) -> Any:
        handle = group.average_async(np.full(3, float(group.rank)))
        return handle.wait().tolist(), handle.outcome

    answers = run_ranks(4, body, **PARTIAL)
    ranks = {f"rank{rank}": rank for rank in range(4)}
    for rank, (mean, outcome) in enumerate(answers):
        assert f"rank{rank}" in outcome.contributors and len(outcome.contributors) == 2
        assert mean == [float(np.mean([ranks[name] for name in outcome.contributors]))] * 3
        assert outcome.weights == (0.5, 0.5) and outcome.staleness == (0, 0) and outcome.nbytes == 24
        assert outcome.waited_s >= 0 and outcome.seconds > 0 and not outcome.alone
    assert {answer[1].round for answer in answers} == {
        min(a[1].round for a in answers),
        max(a[1].round for a in answers),
    }


STEPS = (3, 4, 5, 7)


def test_a_rank_that_takes_more_steps_than_the_others_continues_alone() -> None:
    def body(group: Group) -> Any:
        outcomes = []
        for _ in range(STEPS[group.rank]):
            handle = group.average_async(np.ones(2))
            assert handle.wait().tolist() == [1.0, 1.0]
            outcomes.append(handle.outcome)
        group.barrier()
        return [outcome.alone for outcome in outcomes]

    answers = run_ranks(4, body, **PARTIAL)
    assert [len(a) for a in answers] == list(STEPS)
    assert sum(STEPS) % 2 and any(map(any, answers)), "rounds are of two: one rank was left over"
    assert not any(a[0] for a in answers), "but not at the beginning"


def test_parts_of_a_step_have_the_same_members() -> None:
    def body(group: Group) -> Any:
        seen = []
        for step in range(6):
            handles = [group.average_async(np.full(4 + k, float(step)), part=k, parts=3) for k in (2, 0, 1)]
            seen.append({handle.outcome.contributors for handle in handles})
        group.barrier()
        return seen

    for steps in run_ranks(5, body, **PARTIAL):
        assert all(len(members) == 1 for members in steps)


def test_steps_may_be_asked_for_ahead_and_run_one_after_the_other() -> None:
    def body(group: Group) -> Any:
        sizes = (1, 500_000)  # the first part of a step ends long before the second
        asked = [
            [group.average_async(np.full(n, float(step)), part=k, parts=2) for k, n in enumerate(sizes)]
            for step in range(4)
        ]
        return [[float(handle.wait()[0]) for handle in step] for step in asked]

    assert run_ranks(2, body) == [[[float(step)] * 2 for step in range(4)]] * 2


def test_a_part_twice_or_out_of_range_is_refused_whole() -> None:
    def body(group: Group) -> Any:
        first = group.average_async(np.ones(1), part=1, parts=2)
        for part, parts in ((1, 2), (0, 3), (2, 2), (-1, 2), (0, 99)):
            with pytest.raises(BadOption, match="is not valid"):
                group.average_async(np.ones(1), part=part, parts=parts)
        second = group.average_async(np.ones(1), part=0, parts=2)
        return first.wait().tolist() + second.wait().tolist()

    assert run_ranks(2, body) == [[1.0, 1.0]] * 2


def test_a_worker_that_computes_aggregates_for_others_meanwhile() -> None:
    """CREW's scatter has all ranks aggregate; the rounds below end while rank 2's own thread does something else."""
    over = threading.Event()

    def body(group: Group) -> Any:
        if group.rank == 2:
            assert over.wait(30)
        else:
            for _ in range(5):
                outcome = group.average_async(np.arange(50_000.0)).outcome
                assert outcome.contributors == ("rank0", "rank1")
            over.set()
        group.barrier()  # whose end is told after the ends of the rounds
        return group.stats().helped_rounds

    assert run_ranks(3, body, planner="scatter", **PARTIAL) == [0, 0, 5]
