"""Encoded rounds on virtual links: exact sums of exact inputs, identical bits, bounded memory, in every plan."""

from __future__ import annotations

import pytest

from storms import storm_number
from tradewind.catalog import load_network
from tradewind.sim import simulate
from tradewind.sim.chunks.run import coded_setup_of, run_seed
from tradewind.sim.chunks.storm import coded_storm, run_storm

SEEDS = range(24)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_contribution_is_in_an_encoded_sum_exactly_once(seed: int) -> None:
    run_seed(seed, coded=True)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_many_encoded_runs(first: int) -> None:
    for seed in range(first, first + 100):
        run_seed(seed, coded=True)


def test_the_runs_cover_codecs_cuts_and_planners() -> None:
    setups = [coded_setup_of(seed) for seed in SEEDS]
    assert len({setup.codec for setup in setups}) >= 8
    assert len({setup.planner for setup in setups}) >= 8
    assert sum(setup.cut is not None for setup in setups) >= 4
    assert any(setup.in_place for setup in setups)


@pytest.mark.parametrize("seed", [1, 2, 4, 7, 8, 9, 13])  # 7 and 9: sparse sums of positions that differ
def test_encoded_rounds_are_repaired_in_storms_with_each_contribution_once(seed: int) -> None:
    run_storm(coded_storm(storm_number(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(25))
def test_ten_thousand_faults_with_codecs_on(block: int) -> None:
    """`python tests/support/storms.py N FIRST --coded` runs more."""
    for seed in range(5000 + 20 * block, 5000 + 20 * block + 20):
        assert sum(run_storm(coded_storm(storm_number(seed))).faults.values()) == 20


def test_the_fluid_simulator_carries_encoded_bytes() -> None:
    network = load_network("mesh", n=5)
    plain, coded = (
        simulate(network, "bsp+ring", 1e4, compute=0.1, nbytes=10**7, codec=codec, stop_after_rounds=4)
        for codec in ("none", "int8")
    )
    assert plain.finished_rounds == coded.finished_rounds == 4
    assert plain.link_bytes.sum() / coded.link_bytes.sum() == pytest.approx(4 / (1 + 4 / 256), rel=0.001)
    took = [sum(round_.seconds for round_ in result.finished) for result in (plain, coded)]
    assert took[0] > 3 * took[1], "and rounds take accordingly less"
    assert coded.wire_bytes == 2_500_000 + 4 * 9766 and plain.wire_bytes == 10**7
