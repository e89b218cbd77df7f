"""Faults without a sign on virtual time: silent and one-way cuts, parts, flapping links, stopped ranks, black holes."""

from __future__ import annotations

import statistics
from collections import Counter

import numpy as np
import pytest

from tradewind.network import Network, Site
from tradewind.sim.chunks.storm import SILENT_KINDS, Storm, StormRun, run_storm, silent_storm_of

PATIENCE_S = 3.0


def sweep(seeds: range) -> Counter[str]:
    faults: Counter[str] = Counter()
    for seed in seeds:
        faults.update(run_storm(silent_storm_of(seed)).faults)
    return faults


def test_after_silent_faults_every_rank_synchronises_again_and_none_diverges() -> None:
    assert set(sweep(range(8))) == set(SILENT_KINDS), "every fault must have fired"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(50))
def test_a_thousand_silent_storms(block: int) -> None:
    assert sum(sweep(range(1000 + 20 * block, 1020 + 20 * block)).values()) == 400


def recovery(seed: int) -> tuple[float, float]:
    """One silent cut of a link in a run of 4 or 8 ranks: the longest round after it, and the median before it."""
    random = np.random.default_rng([seed, 20])
    world = (4, 8)[seed % 2]
    storm = Storm(
        Network("cut", [Site(f"s{n}") for n in range(world)], 1e7 * (1 - np.eye(world)), np.full((world, world), 5e-3)),
        str(random.choice(["ring", "multi-star", "scatter", "fapt", "balanced-tree"])),
        "bsp",
        seed=seed,
        events=1,
        gap_s=3.0,
        items=20_000,
        train_s=0.1,
        patience_s=PATIENCE_S,
        kinds=(str(random.choice(["silent_cut", "one_way_cut"])),),
    )
    run = StormRun(storm)
    run.run()
    (cut_s,) = run.fault_times_s
    begun: dict[int | None, float] = {}
    ended: dict[int | None, float] = {}
    for step in run.step_times:
        assert step.round is not None, "no rank goes on alone: all can reach each other"
        begun[step.round] = max(begun.get(step.round, 0.0), step.asked_s)
        ended[step.round] = max(ended.get(step.round, 0.0), step.ended_s)
    seconds = {number: ended[number] - begun[number] for number in begun}
    after = [seconds[number] for number in seconds if ended[number] > cut_s]
    return max(after), statistics.median(seconds[number] for number in seconds if ended[number] <= cut_s)


def check_recovery(seeds: range) -> int:
    """The number of rounds that were hit; each ended in time."""
    hit = 0
    for seed in seeds:
        longest_s, normal_s = recovery(seed)
        hit += longest_s > PATIENCE_S / 5
        assert longest_s <= PATIENCE_S / 3 + 2 * normal_s, f"seed {seed}: {longest_s:.3f} s, normally {normal_s:.3f} s"
    return hit


def test_a_round_over_a_silently_cut_link_ends_within_a_third_of_the_patience_and_twice_its_time() -> None:
    assert check_recovery(range(10)) > 3, "cuts must have hit links in use"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(50))
def test_so_do_a_thousand_others(block: int) -> None:
    check_recovery(range(100 + 20 * block, 120 + 20 * block))
