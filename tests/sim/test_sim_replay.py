"""A recorded run as the input of another simulation."""

from __future__ import annotations

import numpy as np
import pytest

from tradewind.catalog import load_network
from tradewind.errors import InputError
from tradewind.sim import simulate
from tradewind.sim.replay import recording_of
from tradewind.trace.records import Record, Trace


@pytest.mark.parametrize("name", ["mesh", "netstorm9"])  # without latencies, and with them
def test_the_same_scheme_on_a_recorded_network_takes_as_long(name: str) -> None:
    network = load_network(name, **({"n": 5, "seed": 3} if name == "mesh" else {}))
    first = simulate(network, "bsp+optimal", 20, 1, compute=0.2, nbytes=4_000_000, record="flows")
    assert first.trace is not None
    found = recording_of(first.trace)
    assert found.nbytes == 4_000_000 and found.steps is not None and found.seconds == 20
    again = simulate(
        found.rates.network, "bsp+optimal", 20, 1, compute=found.steps, nbytes=found.nbytes, rates=found.rates
    )
    assert again.average_sync_s == pytest.approx(first.average_sync_s, rel=0.02)


def test_a_trace_without_rates_is_refused() -> None:
    network = load_network("mesh", n=4)
    result = simulate(network, "bsp+ring", 3, compute=0.1, nbytes=1_000_000, record="rounds")
    assert result.trace is not None
    with pytest.raises(InputError, match="rates of links"):
        recording_of(result.trace)


def test_steps_that_are_only_summed_up_count_with_their_mean() -> None:
    rates = [Record("link", 0, 0, *link, phase="given", rate_bps=8e6) for link in (("a", "b"), ("b", "a"))]
    slow = [Record("compute", at_s, at_s + 5.0, "a") for at_s in (0.0, 10.0)]
    summed = Record("total", 0, 20, "a", phase="compute", count=98, spent_s=98.0)
    steps = recording_of(Trace((*rates, *slow, summed))).steps
    assert steps is not None
    drawn = steps.sample(np.random.default_rng(1), 10_000)
    assert set(drawn) == {1.0, 5.0} and drawn.mean() == pytest.approx(1.08, abs=0.03)
