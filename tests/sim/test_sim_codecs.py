"""Encoded rounds on virtual links: exact sums of exact inputs, identical bits, bounded memory, in every plan."""

from __future__ import annotations

import numpy as np
import pytest

from storms import storm_number
from tradewind.catalog import load_network
from tradewind.control.plans.coding import coded_by
from tradewind.errors import BadOption
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.cost import cost
from tradewind.planning.host import FREE_HOST
from tradewind.sim import simulate
from tradewind.sim.chunks.run import coded_setup_of, run_seed
from tradewind.sim.chunks.storm import coded_storm, run_storm
from tradewind.wire.codecs import wire_bytes

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


@pytest.mark.parametrize("codec", ["int8", "int4", "topk"])
@pytest.mark.parametrize(("n", "nbytes"), [(2, 40_000), (2, 40_000_000), (3, 4_000_000), (8, 400_000)])
def test_encoded_rounds_by_auto_send_what_was_predicted_as_fast_as_predicted(n: int, nbytes: int, codec: str) -> None:
    """With `auto`, which chose plans without broadcasts, encoded rounds sent float32."""
    away = 1 - np.eye(n)
    network = Network("mesh", [Site(f"s{k}") for k in range(n)], 1e8 * away, 0.02 * away)
    plan = make_plan("auto", network, wire_bytes(codec, nbytes // 4, 4, n), coded=coded_by(codec, n))
    predicted = cost(plan, network, host=FREE_HOST)
    result = simulate(network, "bsp+auto", 1e4, compute=0.1, nbytes=nbytes, codec=codec, stop_after_rounds=3)
    sent = result.link_bytes.sum() / result.finished_rounds
    assert sent == pytest.approx(predicted.link_bytes.sum(), rel=0.05)
    assert result.average_sync_s == pytest.approx(predicted.seconds, rel=0.15)


def test_a_run_with_a_codec_and_a_planner_without_broadcasts_ends_with_what_to_do() -> None:
    network = load_network("mesh", n=3)
    with pytest.raises(BadOption, match=r"'all-to-all' makes plans in which every member sums for itself"):
        simulate(network, "bsp+all-to-all", 10, compute=0.1, nbytes=10**6, codec="int8")
