"""Results that are used before their round is committed, with the controller, nodes and engines that train."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tradewind.network import Network, Site
from tradewind.sim.chunks.run import ChunkDriver, ChunkRun, run_chunks
from tradewind.sim.chunks.storm import (
    StormResult,
    carrier_storm_of,
    early_storm,
    run_storm,
    silent_storm_of,
    storm_of,
    strict_storm_of,
)

KINDS = {"any": storm_of, "strict": strict_storm_of, "silent": silent_storm_of, "carrier": carrier_storm_of}


def mesh(n: int, mbps: float, latency_s: float) -> Network:
    apart = 1 - np.eye(n)
    return Network("mesh", [Site(f"s{i}") for i in range(n)], mbps * 1e6 * apart, latency_s * apart)


def test_operations_end_by_the_way_to_the_controller_and_back_earlier() -> None:
    setup = ChunkRun(mesh(4, 200, 0.02), "optimal", items=(250_000,) * 14, in_turn=True, control_s=0.08)

    def seconds(early: bool) -> float:
        driver = ChunkDriver(replace(setup, early_results=early))
        driver.run()
        assert bool(sum(worker.released for worker in driver.workers.values())) is early
        last = [max(worker.ended_s[k] for worker in driver.workers.values()) for k in range(len(setup.items))]
        return float(np.median(np.diff(last)[8:]))

    assert seconds(True) < seconds(False) - 0.04


@pytest.mark.parametrize("seed", range(12))
def test_results_are_right_when_links_break_while_some_members_have_used_them(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(3, 6))
    at_s = float(random.uniform(0.2, 3))
    setup = ChunkRun(
        mesh(n, float(random.choice([2, 50])), 0.02),
        str(random.choice(["optimal", "ring", "star", "multi-star"])),
        seed=seed,
        items=(int(random.integers(100, 30_000)),) * 12,
        in_turn=bool(seed % 2),
        jitter_s=float(random.choice([0.0, 0.05])),
        control_s=0.5,
        cut=(at_s, "s0", "s1"),
        healed_s=at_s + float(random.choice([0.01, 0.5])),
    )
    assert not run_chunks(setup).errors


@pytest.mark.parametrize("kind", KINDS)
def test_no_rank_that_stays_has_another_result_than_one_that_was_used(kind: str) -> None:
    results: list[StormResult] = [run_storm(early_storm(KINDS[kind](seed))) for seed in range(12)]
    assert sum(result.released for result in results) > 100
    assert sum(result.repaired for result in results) > 0
    superseded = sum(result.superseded for result in results)
    assert superseded == 0 if kind == "strict" else superseded < 30, "only ranks that were cut off"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_storms_with_early_results(kind: str) -> None:
    for seed in range(100, 600):
        run_storm(early_storm(KINDS[kind](seed)))
