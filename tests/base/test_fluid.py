"""Max-min fair sharing on virtual time: hand-made examples, and what must hold for any flows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.fluid import FluidSharing

Flows = list[tuple[frozenset[str], int]]


def play(capacity_bps: Mapping[Hashable, float], flows: list[tuple[str, list[str], float]]) -> dict[str, float]:
    """Start all flows at once and let them end: when each ended."""
    fluid = FluidSharing(capacity_bps)
    for name, resources, nbytes in flows:
        fluid.start(name, resources, nbytes, 0.0)
    ends: dict[str, float] = {}
    while (ending := fluid.next_end()) is not None:
        now_s, flow_id = ending
        assert isinstance(flow_id, str)
        ends[flow_id] = now_s
        fluid.end(flow_id, now_s)
    return ends


def test_flows_on_one_link_share_it_and_the_rest_get_what_others_leave() -> None:
    # 8 Mbps are 1 MB/s: x and y at half of it until y is through at 1 s; then x takes all of it.
    ends = play({"link": 8e6}, [("x", ["link"], 1e6), ("y", ["link"], 0.5e6)])
    assert ends == {"y": pytest.approx(1.0), "x": pytest.approx(1.5)}


def test_what_a_flow_cannot_use_goes_to_the_others() -> None:
    """The textbook case: x crosses both links, y the narrow one, z the wide one."""
    fluid = FluidSharing({"narrow": 10.0, "wide": 100.0})
    fluid.start("x", ["narrow", "wide"], 1e6, 0.0)
    fluid.start("y", ["narrow"], 1e6, 0.0)
    fluid.start("z", ["wide"], 1e6, 0.0)
    assert [fluid.rate_bps(f) for f in "xyz"] == [5.0, 5.0, 95.0]
    fluid.end("y", 0.0)
    assert [fluid.rate_bps(f) for f in "xz"] == [10.0, 90.0]


def test_three_links_in_a_row() -> None:
    """One long flow against one short one on each link: all links are shared in half, the long flow by its slowest."""
    fluid = FluidSharing({"a": 12.0, "b": 20.0, "c": 40.0})
    fluid.start("long", "abc", 1e6, 0.0)
    for link in "abc":
        fluid.start(f"short {link}", link, 1e6, 0.0)
    rates = [fluid.rate_bps(f) for f in ("long", "short a", "short b", "short c")]
    assert rates == [6.0, 6.0, 14.0, 34.0]


def test_unlimited_resources_do_not_matter_and_a_flow_without_limits_ends_at_once() -> None:
    fluid = FluidSharing({"nic": math.inf, "link": 8.0})
    fluid.start("free", ["nic"], 5.0, 3.0)
    assert fluid.next_end() == (3.0, "free")
    assert fluid.remaining_bytes("free", 3.0) == 0.0
    fluid.start("bound", ["nic", "link"], 5.0, 3.0)
    fluid.end("free", 3.0)
    assert fluid.next_end() == (8.0, "bound")


def test_flows_that_share_nothing_do_not_change_each_other() -> None:
    fluid = FluidSharing({"a": 8.0, "b": 8.0})
    fluid.start("x", ["a"], 1.0, 0.0)
    fluid.start("y", ["b"], 1.0, 0.5)
    assert fluid.next_end() == (1.0, "x")
    fluid.end("x", 1.0)
    assert fluid.next_end() == (1.5, "y")


def test_a_flow_may_be_stopped_before_it_ends_and_started_again() -> None:
    fluid = FluidSharing({"link": 8.0})
    fluid.start("x", ["link"], 10.0, 0.0)
    fluid.end("x", 4.0)
    assert fluid.next_end() is None
    fluid.start("x", ["link"], 10.0, 5.0)
    assert fluid.next_end() == (15.0, "x"), "the end of the first x must not be taken for the second's"


def test_remaining_bytes_follow_the_rate() -> None:
    fluid = FluidSharing({"link": 8.0})
    fluid.start("x", ["link"], 10.0, 0.0)
    fluid.start("y", ["link"], 10.0, 4.0)
    assert fluid.remaining_bytes("x", 4.0) == 6.0
    assert fluid.remaining_bytes("x", 6.0) == 5.0
    assert fluid.remaining_bytes("x", 100.0) == 0.0


def test_the_same_flow_cannot_run_twice() -> None:
    fluid = FluidSharing({"link": 8.0})
    fluid.start("x", ["link"], 10.0, 0.0)
    with pytest.raises(ValueError, match="'x' is running already"):
        fluid.start("x", ["link"], 10.0, 0.0)


def test_equal_flows_end_in_the_order_of_their_start() -> None:
    assert list(play({"link": 8.0}, [(name, ["link"], 1.0) for name in "cab"])) == ["c", "a", "b"]


CAPACITIES = st.fixed_dictionaries({name: st.sampled_from((1.0, 3.0, 10.0, 1000.0)) for name in "abcde"})
FLOWS = st.lists(
    st.tuples(st.frozensets(st.sampled_from("abcde"), min_size=1), st.integers(1, 1000)), min_size=1, max_size=12
)


@settings(max_examples=150, deadline=None)
@given(capacity_bps=CAPACITIES, flows=FLOWS, stopped=st.sets(st.integers(0, 11)))
def test_sharing_is_max_min_fair(capacity_bps: dict[Hashable, float], flows: Flows, stopped: set[int]) -> None:
    """No resource above its capacity, and every flow has a full resource on which no flow is faster: Bertsekas and
    Gallager's condition, which only the max-min fair rates meet. It implies that no capacity is wasted."""
    fluid = FluidSharing(capacity_bps)
    for number, (resources, nbytes) in enumerate(flows):
        fluid.start(number, sorted(resources), nbytes, 0.0)
    running = {number: flow for number, flow in enumerate(flows) if number not in stopped}
    for number in sorted(stopped & set(range(len(flows)))):
        fluid.end(number, 0.0)
    rate = {number: fluid.rate_bps(number) for number in running}
    users = {r: [n for n, (resources, _) in running.items() if r in resources] for r in capacity_bps}
    load = {r: sum(rate[n] for n in users[r]) for r in capacity_bps}
    for resource, capacity in capacity_bps.items():
        assert load[resource] <= capacity * (1 + 1e-9)
    for number, (resources, _) in running.items():
        assert any(
            load[r] >= capacity_bps[r] * (1 - 1e-9) and rate[number] >= max(rate[n] for n in users[r]) * (1 - 1e-9)
            for r in resources
        ), f"flow {number} could be faster at the cost of no slower one"


@settings(max_examples=100, deadline=None)
@given(capacity_bps=CAPACITIES, flows=FLOWS)
def test_everything_is_carried_and_no_resource_carries_more_than_it_can(
    capacity_bps: dict[Hashable, float], flows: Flows
) -> None:
    named = [(str(k), sorted(resources), float(nbytes)) for k, (resources, nbytes) in enumerate(flows)]
    ends = play(capacity_bps, named)
    assert ends.keys() == {name for name, _, _ in named}
    assert list(ends.values()) == sorted(ends.values())
    for resource, capacity in capacity_bps.items():
        bits = sum(8 * nbytes for _, resources, nbytes in named if resource in resources)
        last = max((ends[name] for name, resources, _ in named if resource in resources), default=0.0)
        assert last >= bits / capacity * (1 - 1e-9)
