"""Plans carried out on virtual time take as long as `cost` says, in every model, when nothing else is going on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from networks import Problem, problems
from tradewind.catalog import load_network
from tradewind.network import Network, Site
from tradewind.planning import planner, planner_options, resolve_members
from tradewind.planning.bound import bound
from tradewind.planning.cost import cost
from tradewind.planning.host import FREE_HOST
from tradewind.planning.plan import Plan, Shard
from virtual_rounds import seconds

BYTES = 100_000_000


def made(name: str, network: Network, nbytes: int = BYTES, members: tuple[str, ...] | None = None) -> Plan:
    return planner(name).function(network, resolve_members(network, members), nbytes, planner_options(name, {}))


NETWORKS = {
    "sparse": load_network("gscale"),
    "mesh": load_network("mesh", n=7),
    "nics": load_network("selective-nics", n=7),
    "racks": load_network("ds-sync-racks"),
}
PLANNERS = ("ring", "star", "multi-star", "all-to-all", "balanced-tree", "spanning-tree", "hierarchical")


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_store_and_forward_under_fair_sharing_is_what_cost_predicts(name: str, network: Network) -> None:
    plan = made(name, network)
    predicted = cost(plan, network, pipelined=False).seconds
    assert seconds([plan], network, "store-and-forward", "fs") == [pytest.approx(predicted)]


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_a_pipelined_round_alone_is_what_cost_predicts(name: str, network: Network) -> None:
    plan = made(name, network)
    assert seconds([plan], network, "pipelined") == [pytest.approx(cost(plan, network, host=FREE_HOST).seconds)]


@given(problems(max_sites=6))
@settings(max_examples=60)
def test_any_star_on_any_network_takes_as_long_as_cost_says(problem: Problem) -> None:
    network, members, nbytes = problem
    plan = made("star", network, nbytes, members)
    predicted = cost(plan, network, pipelined=False).seconds
    assert seconds([plan], network, "store-and-forward", "fs") == [pytest.approx(predicted, rel=1e-6)]
    assert seconds([plan], network, "pipelined") == [
        pytest.approx(cost(plan, network, host=FREE_HOST).seconds, rel=1e-6)
    ]


@pytest.mark.parametrize("name", ["star", "balanced-tree", "spanning-tree"])
def test_the_more_pieces_the_closer_to_the_pipelined_prediction(name: str) -> None:
    """Store and forward is one piece; from there on, pieces close the gap."""
    network = NETWORKS["mesh"]
    plan = made(name, network)
    predicted = cost(plan, network, host=FREE_HOST).seconds
    whole = seconds([plan], network, "store-and-forward")[0]
    gaps = [seconds([plan], network, "chunked", pieces=k)[0] / predicted - 1 for k in (4, 16, 64, 256)]
    assert whole / predicted - 1 > gaps[0] > gaps[1] > gaps[2] > gaps[3]
    assert -0.01 < gaps[3] < 0.03


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_sending_beats_the_limit_and_some_come_near(seed: int) -> None:
    """Pieces are sent as early as they can be, so sums and results of a round overlap more than `cost` assumes."""
    rng = np.random.default_rng(seed)
    n, nbytes = int(rng.integers(3, 6)), int(10 ** rng.uniform(4, 7))
    rate_bps = rng.uniform(10e6, 100e6, (n, n)) if seed % 2 else np.full((n, n), 50e6)
    latency_s = rng.uniform(0, 0.1, (n, n)) if seed % 3 else np.full((n, n), 0.05)
    network = Network("drawn", [Site(f"s{i}") for i in range(n)], rate_bps * (1 - np.eye(n)), latency_s)
    limit_s = bound(network, network.names, nbytes).seconds
    took_s = [
        seconds([made(name, network, nbytes)], network, "chunked", discipline, pieces=24)[0]
        for name in ("multi-star", "all-to-all", "relay", "optimal")
        for discipline in ("fcfs", "fs")
    ]
    assert limit_s * (1 - 1e-9) <= min(took_s)
    if not seed % 2:
        assert min(took_s) < 1.3 * limit_s


def test_a_line_of_relays_stores_and_forwards() -> None:
    """a -> b -> c at 8 Mbps with 0.1 s: two hops up, two hops down, one megabyte a second each."""
    network = Network(
        "line", [Site(s) for s in "abc"], [[0, 8e6, 0], [8e6, 0, 8e6], [0, 8e6, 0]], [[0.1] * 3 for _ in range(3)]
    )
    shard = Shard(1.0, "c", (("a", "b", "c"),), (("c", "b", "a"),), chunk_bytes=1000)
    plan = Plan("by hand", "line", ("a", "c"), 1_000_000, (shard,))
    assert seconds([plan], network, "store-and-forward") == [pytest.approx(4.4)]


def test_two_pipelined_rounds_halve_what_both_need() -> None:
    network = NETWORKS["mesh"]
    plan = made("ring", network)
    alone = cost(plan, network, host=FREE_HOST)
    assert (
        seconds([plan, plan], network, "pipelined")
        == [pytest.approx(2 * alone.transfer_seconds + alone.fill_seconds)] * 2
    )


def test_pipelined_rounds_that_share_nothing_do_not_slow_each_other() -> None:
    network = NETWORKS["mesh"]
    one = made("ring", network, members=network.names[:3])
    other = made("ring", network, members=network.names[3:])
    together = seconds([one, other], network, "pipelined")
    assert together == [pytest.approx(cost(plan, network, host=FREE_HOST).seconds) for plan in (one, other)]


def test_rounds_share_by_what_each_needs_most() -> None:
    """Dominant-resource fairness: x needs its slow link most and an eighth of the link that y needs most.

    Both get 8/9 of what they would get alone: that fills the shared link, 8/9 for y and 1/9 for x. When y is through at
    9/8 s, x has done one of its eight seconds and goes on at full speed.
    """
    bandwidth = [[0, 8e6, 1e6], [8e6, 0, 8e6], [1e6, 8e6, 0]]
    network = Network("shared", [Site(s) for s in "abc"], bandwidth)
    slow = Shard(1.0, "a", (("b", "a"), ("c", "a")), (("a", "b"), ("a", "c")), chunk_bytes=1)
    x = Plan("slow", "shared", ("a", "b", "c"), 1_000_000, (slow,))
    y = Plan("fast", "shared", ("a", "b"), 1_000_000, (Shard(1.0, "a", (("b", "a"),), (("a", "b"),), 1),))
    assert seconds([x, y], network, "pipelined") == [pytest.approx(8.125, rel=1e-4), pytest.approx(1.125, rel=1e-4)]


def test_first_come_first_served_between_rounds_of_pieces_lets_the_first_round_finish_first() -> None:
    network = NETWORKS["mesh"]
    plan = made("star", network)
    alone = seconds([plan], network, "chunked")[0]
    first, second = seconds([plan, plan], network, "chunked")
    assert first < second
    assert second < 2.05 * alone


@pytest.mark.parametrize("discipline", ["fs", "fcfs", "task-fcfs", "scatter-first", "multicast-first"])
def test_no_discipline_loses_work(discipline: str) -> None:
    """Whichever round goes first, two rounds take at most the time of one after the other."""
    network = NETWORKS["mesh"]
    plan = made("multi-star", network)
    alone = seconds([plan], network, "store-and-forward", discipline)[0]
    assert alone < max(seconds([plan, plan], network, "store-and-forward", discipline)) <= 2 * alone * (1 + 1e-9)
