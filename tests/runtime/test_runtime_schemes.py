"""Live runs that ask for a published system by name: several processes, small arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from failing import Process, processes
from ranks import free_port
from tradewind.formats import network_to_json
from tradewind.network import Network, Site

WORLD, STEPS = 4, 6


def finished(how: dict[str, object], environment: dict[str, str]) -> list[Process]:
    """Four processes that averaged six times."""
    address = f"127.0.0.1:{free_port()}"
    with processes() as start:
        ranks = [
            start(rank, address, WORLD, steps=STEPS, options=how, environment=environment) for rank in range(WORLD)
        ]
        for rank in ranks:
            said = rank.end()
            assert said[-1] == {"done": True}, said[-1]
    return ranks


def check_means(ranks: list[Process]) -> list[list[str]]:
    """The members of every round; each holds the mean of what its members brought, which rank r has as r + 1."""
    rounds: dict[int, list[str]] = {}
    for rank in ranks:
        steps = [said for said in rank.heard if "step" in said]
        assert len(steps) == STEPS
        for said in steps:
            mean = np.mean([int(member.removeprefix("rank")) + 1.0 for member in said["members"]])
            assert said["low"] == said["high"] == pytest.approx(mean)
            rounds[said["round"]] = said["members"]
    return list(rounds.values())


def test_crew_averages_the_first_p_by_its_name_alone() -> None:
    rounds = check_means(finished({"scheme": "crew", "policy_options": {"p": 2}}, {}))
    assert any(len(members) == 2 for members in rounds) and all(len(members) <= 3 for members in rounds)


def test_selective_groups_ranks_by_bandwidth_with_its_name_in_the_environment(tmp_path: Path) -> None:
    rate = np.array([1e8, 1e8, 1e6, 1e6])
    rates = np.minimum.outer(rate, rate) * (1 - np.eye(WORLD))
    file = tmp_path / "two-kinds.json"
    file.write_bytes(network_to_json(Network("two-kinds", [Site(f"rank{r}") for r in range(WORLD)], rates)))
    environment = {
        "TRADEWIND_SCHEME": "selective",
        "TRADEWIND_POLICY_OPTIONS": "p=2,full_every=0,weights=uniform",
        "TRADEWIND_NETWORK": str(file),
    }
    rounds = check_means(finished({"scheme": None}, environment))
    assert any(len(members) == 2 for members in rounds), "under bsp all ranks are in every round"
