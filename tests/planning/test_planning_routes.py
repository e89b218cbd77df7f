"""Routes: where an edge runs without a link, and what it offers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from networks import networks
from tradewind.errors import DisconnectedMembers
from tradewind.network import Link, Network, Site
from tradewind.planning.hops import hop_rate_bps
from tradewind.planning.routes import HOP_COST_S, Routes

# a->b->c is quick, a->d->c is slow; c->a has a link of its own, which is slower than c->b->a.
DIAMOND = Network.from_links(
    "diamond",
    [Site(name) for name in "abcde"],
    [
        Link("a", "b", 30e6, 0.01),
        Link("b", "c", 10e6, 0.01),
        Link("a", "d", 90e6, 0.05),
        Link("d", "c", 90e6, 0.05),
        Link("c", "b", 50e6, 0.01),
        Link("b", "a", 50e6, 0.01),
        Link("c", "a", 5e6, 0.5),
        Link("e", "a", 1e6, 0.1),
    ],
)


def test_the_link_is_taken_where_there_is_one_else_the_path_of_least_latency() -> None:
    routes = Routes(DIAMOND)
    assert routes.route("a", "c") == ("a", "b", "c")
    assert routes.route("c", "a") == ("c", "a")
    assert routes.distance_s[0, 2] == pytest.approx(0.02 + 2 * HOP_COST_S)
    assert routes.distance_s[2, 0] == pytest.approx(0.5 + HOP_COST_S)


def test_what_a_route_offers_is_its_slowest_hop_and_on_average_their_mean() -> None:
    routes = Routes(DIAMOND)
    assert routes.bandwidth_bps()[0, 2] == 10e6
    assert routes.mean_bandwidth_bps()[0, 2] == 20e6
    assert routes.bandwidth_bps()[2, 0] == routes.mean_bandwidth_bps()[2, 0] == 5e6


def test_where_there_is_no_route_there_is_no_bandwidth_and_asking_for_it_says_so() -> None:
    routes = Routes(DIAMOND)
    assert routes.bandwidth_bps()[0, 4] == routes.mean_bandwidth_bps()[0, 4] == 0
    with pytest.raises(DisconnectedMembers, match="'a' cannot reach 'e'"):
        routes.route("a", "e")


def test_equal_latencies_prefer_fewer_hops() -> None:
    links = [Link(s, d, 1e6) for s, d in ("ab", "bc", "cd", "ae", "ed", "da")]
    assert Routes(Network.from_links("n", [Site(name) for name in "abcde"], links)).route("a", "d") == ("a", "e", "d")


@settings(max_examples=60, deadline=None)
@given(network=networks())
def test_all_pairs_agree_with_walking_every_route(network: Network) -> None:
    routes, rate = Routes(network), hop_rate_bps(network)
    bandwidth, mean = routes.bandwidth_bps(), routes.mean_bandwidth_bps()
    assert not np.diagonal(bandwidth).any()
    assert not np.diagonal(mean).any()
    for i in range(len(network)):
        for j in range(len(network)):
            if i != j:
                hops = list(pairwise(routes.path(i, j)))
                assert bandwidth[i, j] == min(rate[hop] for hop in hops)
                assert mean[i, j] == pytest.approx(np.mean([rate[hop] for hop in hops]))
                latency_s = sum(network.latency_s[hop] for hop in hops)
                assert routes.distance_s[i, j] == pytest.approx(latency_s + HOP_COST_S * len(hops))
