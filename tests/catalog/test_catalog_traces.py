"""Changing rates and compute times: the data is intact, and sampling agrees with the stated distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.catalog import (
    datafiles,
    list_compute_times,
    list_traces,
    load_compute_times,
    load_network,
    load_trace,
)
from tradewind.errors import BadOption, UnknownName

WORKLOADS = list_compute_times()


def test_netstorm_rates_change_every_three_minutes_within_the_stated_range() -> None:
    trace = load_trace("netstorm9")
    assert trace.start_s == tuple(180.0 * epoch for epoch in range(40))
    links = trace.network.bandwidth_bps > 0
    assert links.sum() == 26
    assert not trace.bandwidth_bps[:, ~links].any()
    rates = trace.bandwidth_bps[:, links] / 1e6
    assert rates.min() >= 20
    assert rates.max() <= 155
    assert np.array_equal(rates, np.rint(rates))
    assert len(np.unique(rates, axis=0)) == 40


def test_a_trace_gives_the_network_at_any_time() -> None:
    trace = load_trace("netstorm9")
    early, later = trace.network_at(179.9), trace.network_at(180)
    assert early == trace.network_at(0) != later
    assert later.link("dc1", "dc2").bandwidth_bps == 23e6
    assert later.link("dc1", "dc2").latency_s == 0.03
    assert trace.network_at(1e12) == trace.network_at(39 * 180), "the last rates stay"
    assert load_network("netstorm9", time_s="200") == later
    assert load_network("netstorm9") == trace.network
    for bad in (-1.0, math.nan):
        with pytest.raises(BadOption, match="the time must be finite"):
            trace.network_at(bad)
    assert list_traces() == ("netstorm9",)
    with pytest.raises(UnknownName, match="trace"):
        load_trace("netstorm")


@pytest.mark.parametrize(
    ("name", "samples", "mean_ms", "std_ms"),
    [("lstm", 1192, 1235, 706), ("transformer", 20653, 475, 144), ("resnet50", 25117, 454, 116)],
)
def test_distributions_match_what_the_paper_states(name: str, samples: int, mean_ms: float, std_ms: float) -> None:
    counts = [int(row["count"]) for row in datafiles.rows("compute_times.csv") if row["workload"] == name]
    assert sum(counts) == samples
    times = load_compute_times(name)
    assert times.mean_s * 1e3 == pytest.approx(mean_ms, rel=0.01)
    assert times.std_s * 1e3 == pytest.approx(std_ms, rel=0.02)


@pytest.mark.parametrize("name", WORKLOADS)
def test_samples_follow_the_distribution(name: str) -> None:
    times = load_compute_times(name)
    sample = times.sample(np.random.default_rng(1), 100_000)
    assert sample.min() >= times.min_s
    assert sample.max() <= times.max_s
    assert sample.mean() == pytest.approx(times.mean_s, rel=0.01)
    assert sample.std() == pytest.approx(times.std_s, rel=0.02)
    for t in np.linspace(times.min_s, times.max_s, 20):
        assert np.mean(sample <= t) == pytest.approx(times.cdf(float(t)), abs=0.01)
    assert np.array_equal(sample, times.sample(np.random.default_rng(1), 100_000))


@given(st.sampled_from(WORKLOADS), st.floats(0, 1))
def test_the_quantile_is_the_inverse_of_the_cdf(name: str, q: float) -> None:
    times = load_compute_times(name)
    t = times.quantile(q)
    assert times.min_s <= t <= times.max_s
    assert times.cdf(t) >= q - 1e-9
    if t > times.min_s:
        assert times.cdf(t - 1e-6) <= q + 1e-9


@given(st.sampled_from(WORKLOADS), st.floats(-1, 5), st.floats(0, 5))
def test_the_cdf_never_falls(name: str, t: float, step: float) -> None:
    times = load_compute_times(name)
    assert 0 <= times.cdf(t) <= times.cdf(t + step) <= 1


@pytest.mark.parametrize("name", WORKLOADS)
def test_rescaling_keeps_the_shape(name: str) -> None:
    times = load_compute_times(name)
    crew = times.rescaled(0.05, 0.2)
    assert (crew.quantile(0), crew.quantile(1)) == (crew.min_s, crew.max_s) == (0.05, 0.2)
    assert times.cdf(times.quantile(0.7)) == pytest.approx(crew.cdf(crew.quantile(0.7)))
    assert crew.std_s / 0.15 == pytest.approx(times.std_s / (times.max_s - times.min_s))
    slower = crew.scaled(4)
    assert slower.mean_s == pytest.approx(4 * crew.mean_s) and slower.min_s == 0.2


def test_arguments_out_of_range_are_refused() -> None:
    times = load_compute_times("lstm")
    for low, high in ((0.2, 0.05), (0.1, 0.1), (-1, 1), (0, math.inf), (math.nan, 1)):
        with pytest.raises(BadOption, match="rescaled"):
            times.rescaled(low, high)
    for factor in (0, -1, math.inf, math.nan):
        with pytest.raises(BadOption, match="scaled"):
            times.scaled(factor)
    for q in (-0.1, 1.1, math.nan):
        with pytest.raises(BadOption, match="probability"):
            times.quantile(q)
    with pytest.raises(UnknownName, match="Known: lstm, resnet50, transformer"):
        load_compute_times("bert")
