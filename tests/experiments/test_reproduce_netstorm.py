"""NetStorm's figures: a tiny run of each, and the networks behind them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from experiments import check_experiment
from tradewind.experiments.papers import Setting, experiment_names
from tradewind.experiments.papers.netstorm import simulated as netstorm
from tradewind.experiments.papers.netstorm.example import LINKS_PER_SITE, random_overlay, worked_example
from tradewind.experiments.papers.netstorm.scale import MODELS, cluster_network
from tradewind.experiments.papers.netstorm.simulated import (
    ALEXNET_BYTES,
    FAPT,
    OPTIMAL,
    TOPOLOGIES,
    changing_rates,
    throughput_trial,
)
from tradewind.experiments.papers.netstorm.slices import cut, deal, tensors
from tradewind.experiments.papers.work import Workers

FIGURES = [
    pytest.param(name, marks=pytest.mark.slow) if name == "netstorm/fig20" else name
    for name in experiment_names()
    if name.startswith("netstorm/")
]


@pytest.fixture(scope="module")
def tiny() -> Iterator[Setting]:
    """A setting with a few minutes of virtual time, shared by all figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(netstorm, "STATIC_S", 600.0)
        patch.setattr(netstorm, "DYNAMIC_S", 600.0)
        yield Setting(Workers(), trials=1, quick=True)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_gives_numbers_curves_and_a_verdict_on_every_claim(name: str, tiny: Setting, tmp_path: Path) -> None:
    check_experiment(name, tiny, tmp_path)


def test_the_worked_example_takes_57_units() -> None:
    assert worked_example() == pytest.approx(57.0)


def test_overlays_are_connected_and_as_dense_as_asked_for() -> None:
    for sites in (5, 9, 14):
        network = random_overlay(3, sites)
        assert network.link_count == 2 * (sites + round((LINKS_PER_SITE - 1) * sites))
        assert np.array_equal(network.bandwidth_bps, network.bandwidth_bps.T)
        ring = [network.bandwidth_bps[k, (k + 1) % sites] for k in range(sites)]
        assert min(ring) > 0
        drawn = cluster_network(sites, 3)
        assert np.array_equal(drawn.bandwidth_bps > 0, network.bandwidth_bps > 0)
        rates = drawn.bandwidth_bps[drawn.bandwidth_bps > 0]
        assert rates.min() >= 20e6 and rates.max() <= 155e6


def test_each_trial_starts_with_another_draw_of_the_same_sequence() -> None:
    first, third = changing_rates(0), changing_rates(2)
    assert np.array_equal(first.network_at(360.0).bandwidth_bps, third.network_at(0.0).bandwidth_bps)
    assert not np.array_equal(first.network_at(0.0).bandwidth_bps, third.network_at(0.0).bandwidth_bps)


def test_the_optimal_plan_is_not_slower_than_fapt_and_following_pays() -> None:
    for trial in range(3):
        ours, theirs = (throughput_trial(TOPOLOGIES[name], False, ALEXNET_BYTES, trial) for name in (OPTIMAL, FAPT))
        assert ours >= theirs * (1 - 1e-6)


def test_dealing_chunks_by_number_is_uneven_where_tensors_are_small() -> None:
    even = [1 / 9] * 9
    by_model = {model: deal(cut(tensors(model)), even) for model in ("AlexNet", "ResNet-152")}
    spread = {model: max(shares) - min(shares) for model, shares in by_model.items()}
    assert all(abs(sum(shares) - 1) < 1e-9 for shares in by_model.values())
    assert spread["ResNet-152"] > spread["AlexNet"]
    assert sum(tensors("ResNet-152")) == MODELS["ResNet-152"] and len(tensors("ResNet-152")) == 467
    assert max(cut(tensors("AlexNet"))) == 1_000_000
