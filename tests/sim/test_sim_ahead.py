"""Rounds whose first chunks are sent before they start, with the controller, nodes and engines that train."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tradewind.network import Network, Site
from tradewind.sim.chunks.run import ChunkDriver, ChunkRun, in_place_setup_of, run_chunks, run_in_place


def mesh(n: int, mbps: float, latency_s: float) -> Network:
    apart = 1 - np.eye(n)
    return Network("mesh", [Site(f"s{i}") for i in range(n)], mbps * 1e6 * apart, latency_s * apart)


IN_TURN = ChunkRun(mesh(4, 200, 0.02), "optimal", items=(250_000,) * 14, in_turn=True, control_s=0.08)
"""Eight rounds, one in each stream, are not announced; the others are."""


def seconds_of_last_rounds(setup: ChunkRun) -> float:
    driver = ChunkDriver(setup)
    driver.run()
    ends = [max(worker.ended_s[k] for worker in driver.workers.values()) for k in range(len(setup.items))]
    return float(np.median(np.diff(ends)[8:]))


def test_rounds_take_less_time_by_most_of_the_way_to_the_controller_and_back() -> None:
    waiting, ahead = (seconds_of_last_rounds(replace(IN_TURN, send_ahead=on)) for on in (False, True))
    assert ahead < waiting - 0.04, "links are busy while two messages of up to 80 ms each are on their way"


def test_sums_of_a_site_go_to_other_sites_before_the_round_starts() -> None:
    apart = 1 - np.eye(4)
    sites = Network("sites", [Site(f"s{i}", ranks=2) for i in range(4)], 2e8 * apart, 0.02 * apart)
    shared = replace(IN_TURN, network=sites.with_ranks(), planner="optimal")
    waiting, ahead = (seconds_of_last_rounds(replace(shared, send_ahead=on)) for on in (False, True))
    assert ahead < waiting - 0.04, "owners of lanes wait for the contributions of their site, but not for the start"


@pytest.mark.parametrize("seed", range(12))
def test_results_are_right_whatever_happens_before_a_round_starts(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 6))
    step = [int(random.integers(100, 60_000)) for _ in range(random.integers(1, 4))]
    network = mesh(n, float(random.choice([2, 50])), float(random.choice([0.0, 0.02])))
    setup = ChunkRun(
        network,
        str(random.choice(["optimal", "ring", "star", "multi-star"])),
        seed=seed,
        items=tuple(step * (20 // len(step))),
        in_turn=bool(seed % 2),
        connections=int(random.integers(1, 3)),
        jitter_s=float(random.choice([0.0, 0.05])),
        control_s=float(random.choice([0.05, 0.5])),
        in_place=seed % 3 == 0,
    )
    if seed % 3 and n > 2:
        at_s = float(random.uniform(1, 5))
        setup = replace(setup, cut=(at_s, "s0", "s1"), healed_s=at_s + float(random.choice([0.01, 0.5])))
    assert not run_chunks(setup).errors


def test_results_in_place_are_used_without_the_way_to_the_controller_and_back() -> None:
    waiting, used = (seconds_of_last_rounds(replace(IN_TURN, in_place=in_place)) for in_place in (False, True))
    assert used < waiting - 0.04, "two messages of up to 80 ms each"


def test_results_in_place_that_were_used_are_right_whenever_a_link_is_lost() -> None:
    ends = [(run_in_place(seed), in_place_setup_of(seed)) for seed in range(12)]
    assert any(result.errors for result, _ in ends) and any(not result.errors for result, _ in ends)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_results_in_place_are_right_whenever_a_link_is_lost(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        run_in_place(seed)
