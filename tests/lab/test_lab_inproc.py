"""The shaped transport keeps a network's rates, delays and shared capacities, and its cuts are noticed."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tradewind.lab.inproc import measure_wan, miniature, run_inproc
from tradewind.network import Machine, Network, Site
from tradewind.runtime.group import Group
from tradewind.runtime.options import Tolerance
from tradewind.runtime.shaping import ShapedNetwork

FAST = Network("fast", [Site(n) for n in "abc"], 5e8 * (1 - np.eye(3)), 1e-3 * (1 - np.eye(3)))


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tradewind.runtime.shaping.time.monotonic", lambda: 100.0)


@pytest.mark.usefixtures("stopped_clock")
def test_frames_leave_at_the_links_rate_and_arrive_a_latency_later() -> None:
    shape = ShapedNetwork(Network("pair", [Site("a"), Site("b")], [[0, 8e6], [4e6, 0]], [[0, 0.05], [0.02, 0]]))
    assert shape.reserve("a", "b", 10**6) == pytest.approx((101.0, 101.05))
    assert shape.reserve("a", "b", 10**6) == pytest.approx((102.0, 102.05)), "one after the other"
    assert shape.reserve("b", "a", 10**6) == pytest.approx((102.0, 102.02)), "the reverse direction is independent"
    shape.change(Network("pair", [Site("a"), Site("b")], [[0, 80e6], [4e6, 0]]))
    assert shape.reserve("a", "b", 10**6) == pytest.approx((102.1, 102.1))


@pytest.mark.usefixtures("stopped_clock")
def test_nics_are_shared_between_links() -> None:
    sites = [Site("a", egress_bps=8e6), Site("b"), Site("c")]
    shape = ShapedNetwork(Network("nic", sites, 1e9 * (1 - np.eye(3))))
    assert shape.reserve("a", "b", 10**6)[0] == pytest.approx(101.0)
    assert shape.reserve("a", "c", 10**6)[0] == pytest.approx(102.0)
    assert shape.reserve("b", "c", 10**6)[0] == pytest.approx(100.008, abs=1e-6), "other NICs are independent"


@pytest.mark.usefixtures("stopped_clock")
def test_nics_of_machines_are_shared_by_their_ranks_within_and_between_sites() -> None:
    machines = (Machine("m0", 2, egress_bps=8e6), Machine("m1", 1))
    sites = [Site("a", ranks=3, machines=machines), Site("b")]
    shape = ShapedNetwork(Network("machines", sites, 1e9 * (1 - np.eye(2))).with_ranks())
    assert shape.reserve("a/0", "b", 10**6)[0] == pytest.approx(101.0)
    assert shape.reserve("a/1", "a/2", 10**6)[0] == pytest.approx(102.0), "another machine of the site"
    assert shape.reserve("a/0", "a/1", 10**6)[0] < 100.01, "nothing leaves the machine"
    assert shape.reserve("a/2", "b", 10**6)[0] < 100.02, "a machine without a limit"


def test_ranks_on_machines_of_a_shaped_network_sum() -> None:
    machines = (Machine("m0", 2, 4e8, 4e8), Machine("m1", 1, 2e8, 2e8))
    network = Network("machines", [Site("a", ranks=3, machines=machines), Site("b", ranks=2)], 5e8 * (1 - np.eye(2)))
    assert (
        run_inproc(network, lambda group: float(group.all_reduce(np.full(300_000, 2.0**group.rank))[-1])) == [31.0] * 5
    )


def test_ranks_on_a_shaped_network_sum_and_broadcast() -> None:
    def body(group: Group) -> float:
        assert group.broadcast(np.full(10, group.rank), root=1)[0] == 1
        return float(group.all_reduce(np.full(10_000, 2.0**group.rank)).mean())

    assert run_inproc(FAST, body) == [7.0] * 3


def test_a_link_that_is_cut_is_planned_around_in_a_strict_run() -> None:
    shape, cut_once = ShapedNetwork(FAST), threading.Event()

    def body(group: Group) -> int:
        array, right = np.ones(200_000), 0
        for round_ in range(30):
            right += bool((group.all_reduce(array) == len(FAST)).all())
            if round_ == 2 and group.rank == 0:
                cut_once.set()
                shape.cut("a", "b")
        return right

    patient = Tolerance(patience_s=8.0)
    assert run_inproc(FAST, body, shape, planner="ring", tolerance=patient) == [30] * len(FAST)
    assert cut_once.is_set()


def test_measured_rounds_come_with_their_prediction_and_scale() -> None:
    scale = miniature(FAST, ["ring"], 10**6, most_bps=3e8)
    assert 0 < scale < 1
    times = measure_wan(FAST, "ring", 10**6, rounds=2, scale=scale)
    assert len(times.seconds) == 2 and times.predicted_s >= times.bound_s > 0
