"""Probing meets every pair once without collisions, ends in bounded time, and finds what the links carry."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.control.awareness import Awareness
from tradewind.control.network.probing import Probing
from tradewind.control.network.rack_probing import GRACE, TOURNAMENTS, Pair, tournament
from tradewind.wire import messages as m


@given(st.integers(2, 41))
def test_a_tournament_has_every_pair_once_and_each_site_once_per_turn(n: int) -> None:
    sites = [f"s{i}" for i in range(n)]
    turns = tournament(sites)
    met = [pair for turn in turns for pair in turn]
    assert len(met) == len(set(met)) == n * (n - 1) // 2
    assert all(sites.index(a) < sites.index(b) for a, b in met)
    for turn in turns:
        busy = [site for pair in turn for site in pair]
        assert len(busy) == len(set(busy))
    assert len(turns) == (n - 1 if n % 2 == 0 else n), "as few turns as there can be"


class Links:
    """Links that answer trains after the time that they take, and start slowly."""

    def __init__(self, rates: dict[Pair, float], slow_start_bytes: int, dead: set[Pair]) -> None:
        self.rates, self.slow_start_bytes, self.dead = rates, slow_start_bytes, dead
        self.busy: list[tuple[Pair, float, float]] = []

    def run(self, probing: Probing) -> float:
        now_s, most = 0.0, 0
        pending: list[tuple[float, str, m.Measured]] = []

        def send(explores: list[tuple[str, m.Explore]]) -> None:
            for src, explore in explores:
                link = (src, explore.peer)
                nbytes = explore.chunks * explore.chunk_bytes
                took_s = 8 * (nbytes + self.slow_start_bytes) / self.rates[link]
                self.busy.append((link, now_s, now_s + took_s))
                if link not in self.dead:
                    answer = m.Measured(src, 8 * nbytes / took_s, True, explore.chunks, 0.01, explore.train)
                    heapq.heappush(pending, (now_s + took_s, explore.peer, answer))

        send(probing.start(now_s))
        while not probing.done:
            if pending and pending[0][0] < probing.wake_at_s:
                now_s, worker, answer = heapq.heappop(pending)
                send(probing.measured(worker, answer, now_s))
            else:
                now_s = probing.wake_at_s
                send(probing.tick(now_s))
            most += 1
            assert most < 10_000
        return now_s


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 7), st.randoms(use_true_random=False), st.integers(0, 200_000))
def test_every_link_is_found_within_bounded_time(n: int, random: object, slow_start: int) -> None:
    sites = [f"s{i}" for i in range(n)]
    pairs = [(a, b) for a in sites for b in sites if a != b]
    rates = {pair: 10 ** random.uniform(6.5, 9.5) for pair in pairs}  # type: ignore[attr-defined]
    probing = Probing(sites, pairs, Awareness(probe_s=1.0))
    took_s = Links(rates, slow_start, set()).run(probing)
    assert took_s <= (1 + TOURNAMENTS) * len(tournament(sites)) * GRACE
    assert {(r.src, r.dst) for r in probing.results} == set(pairs)
    for result in probing.results:
        rate = rates[result.src, result.dst]
        assert result.bandwidth_bps <= rate * 1.001 and result.latency_s == 0.01
        if rate > 8 * 20 * slow_start:  # long enough to outgrow the slow start
            assert result.bandwidth_bps > 0.75 * rate


def test_trains_of_one_turn_never_share_a_nic() -> None:
    sites = [f"s{i}" for i in range(6)]
    pairs = [(a, b) for a in sites for b in sites if a != b]
    links = Links(dict.fromkeys(pairs, 1e8), 0, set())
    links.run(Probing(sites, pairs, Awareness(probe_s=1.0)))
    for one, from_s, to_s in links.busy:
        for other, start_s, _ in links.busy:
            if other != one and from_s < start_s < to_s:
                assert one[0] != other[0] and one[1] != other[1]


def test_a_link_that_never_answers_costs_its_turn_and_no_more() -> None:
    sites = ["a", "b", "c", "d"]
    pairs = [(x, y) for x in sites for y in sites if x != y]
    probing = Probing(sites, pairs, Awareness(probe_s=1.0))
    took_s = Links(dict.fromkeys(pairs, 1e8), 0, {("a", "b")}).run(probing)
    assert {(r.src, r.dst) for r in probing.results} == set(pairs) - {("a", "b")}
    assert took_s == pytest.approx(GRACE, abs=1.0)


def test_links_that_are_not_there_are_not_probed() -> None:
    probing = Probing(["a", "b", "c"], [("a", "b"), ("b", "a")], Awareness())
    assert [(src, x.peer) for src, x in probing.start(0.0)] == [("a", "b"), ("b", "a")]
    alone = Probing(["a"], [], Awareness())
    assert alone.start(0.0) == [] and alone.done
