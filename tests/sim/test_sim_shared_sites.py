"""Ranks that share sites on virtual time: as fast as one rank a site, in every model of execution."""

from __future__ import annotations

import numpy as np
import pytest

from tradewind.network import Network, Site
from tradewind.planning import checked_plan
from tradewind.planning.cost import cost
from tradewind.planning.host import FREE_HOST
from tradewind.sim import simulate
from tradewind.sim.faults import WorkerOutage
from virtual_rounds import seconds

BYTES = 40_000_000


def network_of(counts: list[int], nic_bps: float = np.inf) -> Network:
    n = len(counts)
    rates = 1e8 * (1 - np.eye(n)) * (1 + np.arange(n)[:, None] / n)
    sites = [Site(f"s{i}", ranks=k, egress_bps=nic_bps, ingress_bps=nic_bps) for i, k in enumerate(counts)]
    return Network("shared", sites, rates, 0.005 * (1 - np.eye(n)))


@pytest.mark.parametrize("counts", [[2, 2, 2], [4, 2, 1]])
@pytest.mark.parametrize("nic_bps", [np.inf, 1.2e8])
def test_a_pipelined_round_among_ranks_takes_as_long_as_cost_says(counts: list[int], nic_bps: float) -> None:
    network = network_of(counts, nic_bps).with_ranks()
    plan = checked_plan("optimal", network, BYTES)
    expected = cost(plan, network, host=FREE_HOST).seconds
    assert seconds([plan], network, "pipelined") == [pytest.approx(expected, rel=1e-6)]
    two = seconds([plan, plan], network, "pipelined")
    assert max(two) == pytest.approx(2 * cost(plan, network, host=FREE_HOST).transfer_seconds, rel=0.1)


@pytest.mark.parametrize("execution", ["store-and-forward", "chunked"])
def test_flows_of_a_site_s_ranks_share_its_links(execution: str) -> None:
    network = network_of([2, 2])
    alone, shared = network.with_ranks_each(1), network.with_ranks()
    times = [
        seconds([checked_plan("star", each, BYTES)], each, execution, "fs")[0]  # type: ignore[arg-type]
        for each in (alone, shared)
    ]
    assert times[1] == pytest.approx(times[0], rel=0.05)


@pytest.mark.parametrize("planner", ["optimal", "ring"])
def test_a_simulated_run_with_several_ranks_a_site_is_as_fast_as_with_one(planner: str) -> None:
    network = network_of([2, 2, 2])
    results = [
        simulate(each, f"bsp+{planner}", 60, compute=0.1, nbytes=BYTES, execution="pipelined")
        for each in (network.with_ranks_each(1), network)
    ]
    assert results[1].finished_rounds == pytest.approx(results[0].finished_rounds, rel=0.05)
    assert results[0].finished_rounds > 10


def test_a_lost_rank_of_a_site_is_repaired_on_virtual_time() -> None:
    network = network_of([2, 2, 1])
    outage = [WorkerOutage("s1/1", 10.0, 30.0)]
    result = simulate(network, "partial+optimal", 60, compute=0.1, nbytes=BYTES, faults=outage, policy_options={"p": 4})
    during = [one for one in result.finished if 11.0 < one.start_s < 29.0]
    after = [one for one in result.finished if one.start_s > 31.0]
    assert during and all("s1/1" not in one.members for one in during)
    assert any("s1/1" in one.members for one in after)
