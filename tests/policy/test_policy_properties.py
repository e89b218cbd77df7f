"""What must be true of every policy, whatever happens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy_driver import RandomDriver, mesh
from tradewind.policy import make_policy, policy_names

OPTIONS: dict[str, dict[str, Any]] = {
    "selective": {"full_every": 7, "horizon_s": 0.5},
    "shuffle": {"adjust_every": 4, "window": 2},
    "quorum": {"quorum": 0.6, "grace_s": 0.5},
}


def driver(name: str, workers: int, zones: int, seed: int, trouble: float) -> RandomDriver:
    network = mesh(workers, zones, [1e8 * (1 + i % 4) for i in range(workers)] if seed % 2 else None)
    policy = make_policy(name, network, network.names, seed=seed, **OPTIONS.get(name, {}))
    return RandomDriver(policy, network, seed, trouble)


situations = {
    "workers": st.integers(1, 9),
    "zones": st.integers(0, 4),
    "seed": st.integers(0, 2**32 - 1),
}


@pytest.mark.parametrize("name", policy_names())
@settings(max_examples=15, deadline=None)
@given(**situations)
def test_actions_are_legal_whatever_happens(name: str, workers: int, zones: int, seed: int) -> None:
    run = driver(name, workers, zones, seed, trouble=0.1)
    run.run(300)  # the driver checks every action


@pytest.mark.parametrize("name", policy_names())
@settings(max_examples=15, deadline=None)
@given(**situations)
def test_every_rank_makes_progress_once_failures_have_ended(name: str, workers: int, zones: int, seed: int) -> None:
    run = driver(name, workers, zones, seed, trouble=0.1)
    run.run(150)
    run.trouble = 0.0
    before = dict(run.steps)
    run.run(1500)
    for worker in set(run.network.names) - run.lost:
        assert run.steps[worker] >= before[worker] + 5, f"{worker} is stuck: {run.policy.state}"


@pytest.mark.parametrize("name", policy_names())
@settings(max_examples=10, deadline=None)
@given(**situations)
def test_same_events_and_seed_give_the_same_actions(name: str, workers: int, zones: int, seed: int) -> None:
    first, second = (driver(name, workers, zones, seed, trouble=0.1) for _ in range(2))
    first.run(200)
    second.run(200)
    assert first.actions == second.actions
    assert first.policy.state == second.policy.state
