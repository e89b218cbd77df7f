"""Elastic runs in storms: members that take a step stay equal, whichever ranks, links and controllers fail."""

from __future__ import annotations

import pytest

from elastic_storm import MOSTLY_KILLS, run_elastic
from tradewind.node.lockstep import Verdict


def test_members_stay_equal_while_ranks_links_and_controllers_fail() -> None:
    storms = [run_elastic(seed) for seed in range(6)]
    assert sum(storm.faults.get("kill", 0) for storm in storms) > 10
    assert sum(len(storm.taken) for storm in storms) > 100
    for verdict in (Verdict.TAKE, Verdict.REPEAT, Verdict.BEHIND):
        assert sum(storm.verdicts[verdict] for storm in storms), verdict


@pytest.mark.slow
def test_members_stay_equal_while_most_faults_are_ranks_that_leave_and_join() -> None:
    """`python tests/support/storms.py 450 --elastic` does this for 10,000 leaves and joins."""
    assert sum(run_elastic(seed, kinds=MOSTLY_KILLS).faults["kill"] for seed in range(20)) > 200
