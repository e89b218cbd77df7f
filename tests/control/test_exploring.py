"""Probes beside rounds: within a share of what each site sends, and spread over the sites."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tradewind.control.awareness import Awareness
from tradewind.control.network.exploring import Exploring, Train
from tradewind.control.network.view import NetworkView
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.halves import plan_broadcast
from tradewind.planning.hops import bytes_per_link, link_shares
from tradewind.planning.plan import Coded, Plan
from tradewind.wire.codecs import sum_sizes

N = 8
AWARE = Awareness()


def mesh(n: int = N) -> Network:
    return Network("mesh", [Site(f"s{k}") for k in range(n)], 1e8 * (1 - np.eye(n)))


def after(plan: Plan, nbytes: int, rounds: int) -> list[list[Train]]:
    """The trains after each round on a network of which nothing was measured yet, one round every update time."""
    view, found = NetworkView(mesh()), []
    exploring = Exploring(view, AWARE, 0.0)
    for number in range(1, rounds + 1):
        now_s = number * AWARE.update_time_s
        exploring.moved(1, plan, nbytes)
        found.append(exploring.trains(now_s, is_network_shift=False))
        for src, train in found[-1]:
            view.measured(src, train.peer, 1e8, now_s, active=True)
    return found


def nbytes_of(trains: list[Train]) -> Counter[str]:
    spent: Counter[str] = Counter()
    for src, train in trains:
        spent[src] += train.chunks * train.chunk_bytes
    return spent


@pytest.mark.parametrize("nbytes", [10_000, 135_168, 4_000_000])
def test_no_site_spends_more_on_probes_than_its_share_however_small_rounds_are(nbytes: int) -> None:
    """A fragment of Streaming DiLoCo is smaller than a train; its links are never measured by chunks of rounds."""
    sent, spent, trains = 0.0, Counter[str](), list[Train]()
    for told in after(make_plan("ring", mesh(), nbytes), nbytes, rounds=800):
        sent += 2 * (N - 1) / N * nbytes
        spent += nbytes_of(told)
        assert max(spent.values(), default=0) <= AWARE.explore_share * sent
        trains += told
    if nbytes > 10_000:
        assert {src for src, _ in trains} == set(mesh().names)
        assert len({src for src, _ in trains[:N]}) == N, "no site probes again before all others have"
        assert len({(src, train.peer) for src, train in trains}) == N * (N - 1), "and every link has its turn"


def test_bytes_of_a_broadcast_count_once_at_the_sites_that_send_them() -> None:
    plan = plan_broadcast(make_plan("star", mesh(), 10**6, root="s0"), "s0")
    (told,) = after(plan, 10**8, rounds=1)
    assert [src for src, _ in told] == ["s0"]
    assert sum(link_shares(plan).values()) == N - 1


def test_sparse_sums_count_as_they_are_sent() -> None:
    network, sizes = mesh(), sum_sizes("topk", N)
    plan = make_plan("star", network, 10**6, coded=Coded(sizes))
    expected = bytes_per_link(plan, network)
    shares = link_shares(plan)
    for (src, dst), share in shares.items():
        assert 10**6 * share == pytest.approx(expected[network.index[src], network.index[dst]])
    assert min(shares.values()) == pytest.approx(sizes[0])


def test_bytes_between_ranks_of_a_site_pay_for_no_probes() -> None:
    away = 1 - np.eye(2)
    network = Network("two", [Site("a", ranks=2), Site("b", ranks=2)], 1e8 * away).with_ranks()
    plan = make_plan("multi-star", network, 10**8)
    local = sum(share for (src, dst), share in link_shares(plan).items() if src[0] == dst[0])
    assert local > 0
    exploring = Exploring(NetworkView(network), Awareness(explore_share=0.01), 0.0)
    sent = {"a": 0.0, "b": 0.0}
    for (src, dst), share in link_shares(plan).items():
        sent[src[0]] += share if src[0] != dst[0] else 0.0
    between = max(sent.values())
    chunks, chunk_bytes = AWARE.train(1e8)
    exploring.moved(1, plan, int(0.99 * chunks * chunk_bytes / 0.01 / between))
    assert exploring.trains(100.0, is_network_shift=False) == [], "with local bytes it would be enough"
    exploring.moved(1, plan, int(0.02 * chunks * chunk_bytes / 0.01 / between))
    assert exploring.trains(200.0, is_network_shift=False)
