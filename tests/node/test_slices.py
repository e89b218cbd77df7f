"""Slices of a state: every one arrives once, whatever sources are lost, and fast links carry more of them."""

from __future__ import annotations

import heapq
import random

from hypothesis import given
from hypothesis import strategies as st

from tradewind.node.slices import LEAD_S, SliceSchedule


def transfer(
    nbytes: int, rates_bps: dict[str, float], lost_at_s: dict[str, float], known: bool, latency_s: float = 0.0
) -> tuple[float, SliceSchedule, dict[int, int]]:
    """Time of a transfer on virtual links, with sources that are lost; and how often each slice was received."""
    names = {name: rates_bps[name] if known else None for name in rates_bps}
    schedule, received = SliceSchedule(nbytes, names), dict[int, int]()
    queues: dict[str, list[int]] = {name: [] for name in rates_bps}
    events: list[tuple[float, int, str, int]] = []
    free_s = dict.fromkeys(rates_bps, 0.0)
    order, now_s = iter(range(10**9)), 0.0

    def ask_all(now_s: float) -> None:
        for name in schedule.sources:
            for index in schedule.ask(name, now_s):
                queues[name].append(index)
                begin_s = max(free_s[name], now_s + latency_s)
                free_s[name] = begin_s + 8.0 * schedule.span(index)[1] / rates_bps[name]
                heapq.heappush(events, (free_s[name], next(order), name, index))

    for name, when_s in lost_at_s.items():
        heapq.heappush(events, (when_s, next(order), name, -1))
    ask_all(0.0)
    while schedule.missing and events:
        now_s, _, name, index = heapq.heappop(events)
        if index < 0:
            schedule.lost(name)
        elif name in schedule.sources:
            received[index] = received.get(index, 0) + 1
            schedule.arrived(name, index, now_s)
        ask_all(now_s)
    return now_s, schedule, received


@given(
    nbytes=st.integers(1, 3 * 10**8),
    rates=st.lists(st.floats(1e6, 1e9), min_size=2, max_size=6),
    lost=st.lists(st.floats(0.0, 5.0), max_size=5),
    known=st.booleans(),
)
def test_all_slices_arrive_as_long_as_one_source_is_left(
    nbytes: int, rates: list[float], lost: list[float], known: bool
) -> None:
    sources = {f"s{k}": rate for k, rate in enumerate(rates)}
    lost_at_s = {f"s{k + 1}": when_s for k, when_s in enumerate(lost[: len(rates) - 1])}
    _, schedule, received = transfer(nbytes, sources, lost_at_s, known)
    assert not schedule.missing
    assert sum(schedule.sent_by.values()) == nbytes
    assert max(received.values()) <= 2


@given(seed=st.integers(0, 10**6), known=st.booleans())
def test_a_gigabyte_comes_at_the_rate_of_all_links_together(seed: int, known: bool) -> None:
    chosen = random.Random(seed)
    rates = {f"s{k}": chosen.uniform(20e6, 400e6) for k in range(chosen.randint(2, 8))}
    least_s = 8e9 / sum(rates.values())
    took_s, _, received = transfer(10**9, rates, {}, known, latency_s=chosen.uniform(0.0, LEAD_S / 4))
    assert took_s < 1.1 * least_s + 1.0
    assert sum(received.values()) - len(received) <= 2 * len(rates)


@given(seed=st.integers(0, 10**6))
def test_a_source_that_is_lost_in_the_middle_costs_only_its_rate(seed: int) -> None:
    chosen = random.Random(seed)
    rates = {f"s{k}": 100e6 for k in range(chosen.randint(3, 8))}
    whole_s, part = 8e9 / sum(rates.values()), chosen.uniform(0.1, 0.9)
    least_s = part * whole_s + (1 - part) * whole_s * len(rates) / (len(rates) - 1)
    took_s, _, received = transfer(10**9, rates, {"s0": part * whole_s}, known=True)
    assert took_s < 1.05 * least_s + 0.5
    assert sum(received.values()) - len(received) <= 2 * len(rates), "only missing slices are asked for again"


def test_what_a_lost_source_had_sent_is_not_asked_for_again() -> None:
    schedule = SliceSchedule(1000, {"a": None, "b": None}, slice_bytes=100)
    first = schedule.ask("a", 0.0)
    assert schedule.arrived("a", first[0], 1.0)
    schedule.lost("a")
    asked, now_s = list[int](), 1.0
    while schedule.missing:
        for index in schedule.ask("b", now_s):
            now_s += 1.0
            asked.append(index)
            assert schedule.arrived("b", index, now_s)
    assert sorted(asked) == sorted(set(range(10)) - {first[0]})
    assert asked[0] == first[1], "what was lost comes first"
