"""Networks that change as a whole: noticed, found out anew, planned for, and rounds under way go on by the new plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tradewind.control.awareness import Awareness
from tradewind.control.network.exploring import MOST_SAVED_BYTES, Exploring
from tradewind.control.network.network_shift import PAUSE, NetworkShift
from tradewind.control.network.view import NetworkView
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.sim.chunks.changing import ChangingRun, run_changing
from tradewind.sim.chunks.run import ChunkRun

N = 4
MESH = Network("mesh", [Site(f"s{i}") for i in range(N)], 1e8 * (1 - np.eye(N)))
LINKS = [(i, j) for i in range(N) for j in range(N) if i != j]
HALF = dict.fromkeys(LINKS[:6], 0.3) | dict.fromkeys(LINKS[6:], 1.0)
OPTIONS = Awareness(update_time_s=1.0)
RING = make_plan("ring", MESH, 10**6)


def uneven(seed: int, n: int = 4) -> Network:
    rates = 10 ** np.random.default_rng(seed).uniform(6.3, 7.7, (n, n)) * (1 - np.eye(n))
    return Network("uneven", [Site(f"s{i}") for i in range(n)], rates)


def measure(view: NetworkView, factors: dict[tuple[int, int], float], now_s: float) -> None:
    for (i, j), factor in factors.items():
        view.measured(f"s{i}", f"s{j}", 1e8 * factor, now_s)


def calm_view() -> NetworkView:
    view = NetworkView(MESH, confirm_s=OPTIONS.confirm_s)
    for k in range(5):
        measure(view, dict.fromkeys(LINKS, 1.0), 0.1 * k)
    return view


@pytest.mark.parametrize(
    ("factors", "once", "twice"),
    [
        (dict.fromkeys(LINKS, 1.0), False, False),
        (dict.fromkeys(LINKS, 0.5), False, False),  # all alike: no plan would be another
        (dict.fromkeys(LINKS[:3], 0.3) | dict.fromkeys(LINKS[3:], 1.0), False, False),  # a quarter
        (dict.fromkeys(LINKS[:4], 0.3) | dict.fromkeys(LINKS[4:], 1.0), False, True),  # a third
        (dict.fromkeys(LINKS[:4], 3.0) | dict.fromkeys(LINKS[4:], 1.0), False, True),
        (dict.fromkeys(LINKS[:3], 0.3) | dict.fromkeys(LINKS[3:6], 3.0) | dict.fromkeys(LINKS[6:], 1.0), True, True),
        (dict.fromkeys(LINKS[:6], 0.85) | dict.fromkeys(LINKS[6:], 1.0), False, False),  # not by enough
        ({LINKS[0]: 0.3, LINKS[1]: 3.0, LINKS[2]: 1.0}, False, False),  # too few
    ],
)
def test_many_links_that_change_at_once_are_a_network_shift(
    factors: dict[tuple[int, int], float], once: bool, twice: bool
) -> None:
    view = calm_view()
    measure(view, factors, 1.0)
    assert view.estimates.is_network_shift(0.2, 0.5, 1.0) is once
    measure(view, factors, 1.3)
    assert view.estimates.is_network_shift(0.2, 0.5, 1.3) is twice


def test_a_wrong_given_rate_of_a_rarely_measured_link_is_not_a_network_shift() -> None:
    view = NetworkView(MESH, confirm_s=OPTIONS.confirm_s)
    measure(view, HALF, 5.0)
    measure(view, HALF, 5.3)
    assert not view.estimates.is_network_shift(0.2, 1.2, 5.3)


def test_links_that_changed_long_ago_are_no_network_shift() -> None:
    view = calm_view()
    for k in range(6):
        measure(view, HALF, 1.0 + 0.5 * k)
    assert view.estimates.is_network_shift(0.2, 1.2, 2.5)
    assert not view.estimates.is_network_shift(0.2, 1.2, 3.5), "the estimates have moved, and stay there"


def test_an_invalidated_estimate_is_replaced_by_two_measurements_or_one_probe() -> None:
    estimates = calm_view().estimates
    estimates.invalidate_all()
    assert estimates.unseen.sum() == len(LINKS)
    estimates.measured(0, 1, 6e7, 1.0)  # began before the change
    assert not estimates.unseen[0, 1] and estimates.unconfirmed[0, 1] and estimates.bandwidth_bps[0, 1] == 6e7
    estimates.measured(0, 1, 2e7, 1.25)
    assert not estimates.unconfirmed[0, 1] and estimates.bandwidth_bps[0, 1] == 2e7, "at once, though it is far off"
    estimates.measured(0, 1, 1e8, 1.5)
    assert estimates.bandwidth_bps[0, 1] == 2e7, "and then it takes more than one again"
    estimates.measured(0, 2, 5e7, 1.5, full=False)
    assert estimates.unseen[0, 2], "a bound is no measurement"
    estimates.measured(0, 2, 3e8, 1.5, active=True)
    assert not estimates.unconfirmed[0, 2] and estimates.bandwidth_bps[0, 2] == 3e8


@pytest.mark.parametrize(("second_bps", "believed_bps"), [(2e7, 3e7), (9e7, 9e7)])
def test_a_link_that_seems_slower_is_looked_at_again_and_the_better_counts(
    second_bps: float, believed_bps: float
) -> None:
    view = calm_view()
    view.estimates.invalidate_all()
    view.measured("s0", "s1", 3e7, 1.0, active=True)
    assert view.seen.link("s0", "s1").bandwidth_bps == 3e7, "until then that is what is known"
    assert view.low_links(1.1) == [] and view.low_links(1.5) == [("s0", "s1")], "after a while"
    view.measured("s0", "s1", second_bps, 1.6, active=True)
    assert view.seen.link("s0", "s1").bandwidth_bps == believed_bps and not view.low_links(9.0)
    assert not view.estimates.unconfirmed[0, 1]
    view.measured("s0", "s1", 3 * believed_bps, 1.7)
    assert view.seen.link("s0", "s1").bandwidth_bps == believed_bps, "no doubts are left: one alone says nothing"


def test_a_probe_after_a_measurement_confirms_an_estimate() -> None:
    estimates = calm_view().estimates
    estimates.invalidate_all()
    estimates.measured(0, 1, 6e7, 1.0)
    estimates.measured(0, 1, 1e8, 1.2, active=True)
    estimates.measured(0, 1, 3e8, 1.4)
    assert estimates.bandwidth_bps[0, 1] == 1e8


def test_an_unseen_link_is_planned_with_as_no_better_than_the_worst_quarter_of_the_others() -> None:
    view = calm_view()
    view.estimates.invalidate_all()
    measure(view, {link: 0.1 * (k + 1) for k, link in enumerate(LINKS[:9])}, 1.0)
    seen = view.seen.bandwidth_bps
    assert seen[LINKS[11]] == pytest.approx(3e7)
    assert seen[LINKS[8]] == pytest.approx(9e7)


def test_plans_wait_until_every_link_was_seen_or_an_update_time_has_passed() -> None:
    for seen, ends_s in ((len(LINKS), 5.5), (len(LINKS) - 1, 6.0)):
        view = calm_view()
        network_shift = NetworkShift(view, OPTIONS)
        measure(view, HALF, 5.0)
        assert network_shift.begins(5.0) and network_shift.is_on and not network_shift.begins(5.1)
        assert not network_shift.ends(5.2)
        measure(view, {link: 0.3 + 0.1 * k for k, link in enumerate(LINKS[:seen])}, 5.4)
        assert network_shift.ends(5.5) == (ends_s == 5.5)
        assert network_shift.ends(6.0) == (ends_s == 6.0)
        assert not network_shift.is_on


def test_false_alarms_are_believed_less_and_less_often() -> None:
    view, now_s = calm_view(), 5.0
    network_shift = NetworkShift(view, OPTIONS)
    pauses_s = []
    for _ in range(3):
        noticed_s, before_s = None, now_s
        while noticed_s is None:
            now_s += 0.5
            measure(view, HALF, now_s)
            noticed_s = now_s if network_shift.begins(now_s) else None
            if noticed_s is None:  # noise: the next one says otherwise
                measure(view, dict.fromkeys(LINKS, 1.0), now_s + 0.1)
        pauses_s.append(now_s - before_s)
        measure(view, dict.fromkeys(LINKS, 1.0), now_s + 0.1)
        measure(view, dict.fromkeys(LINKS, 1.0), now_s + 0.2)
        assert network_shift.ends(now_s + 0.3)
    assert pauses_s == [0.5, 2 * PAUSE, 4 * PAUSE]


def test_everything_is_explored_once_and_the_share_pays_for_it() -> None:
    view = calm_view()
    exploring = Exploring(view, OPTIONS, 0.0)
    assert exploring.trains(0.5, is_network_shift=False) == [], "nothing was moved yet"
    view.estimates.invalidate_all()
    explored: list[tuple[str, str]] = []
    for k in range(len(LINKS)):
        trains = exploring.trains(1.0 + 0.1 * k, is_network_shift=True)
        assert len({src for src, _ in trains}) == len({train.peer for _, train in trains}) == len(trains)
        explored += [(src, train.peer) for src, train in trains]
    assert sorted(explored) == sorted((f"s{i}", f"s{j}") for i, j in LINKS)
    view.measured("s0", "s1", 3e7, 3.0, active=True)
    ((src, train),) = exploring.trains(4.0, is_network_shift=False)
    assert (src, train.peer) == ("s0", "s1"), "it seems slower: once more, and no more than that"
    assert exploring.trains(5.0, is_network_shift=False) == []
    exploring.moved(1, RING, 10**6)
    assert exploring.trains(60.0, is_network_shift=False) == [], "there are debts"
    exploring.moved(1, RING, int(2 * MOST_SAVED_BYTES / OPTIONS.explore_share))
    assert exploring.trains(120.0, is_network_shift=False)
    silent = Exploring(view, replace(OPTIONS, explore_share=0.0), 0.0)
    assert silent.trains(1.0, is_network_shift=True) == [], "with explore_share=0 there are no probes"


def changing(seed: int, aware: Awareness, in_place: bool = False) -> ChangingRun:
    """All links change while all rounds are under way, to a network where their plan is bad."""
    run = ChunkRun(uneven(seed), "optimal", seed, (500_000,) * 6, in_place=in_place)
    return ChangingRun(run, aware, ((2.0, uneven(seed + 50)),), control_s=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_rounds_under_way_go_on_by_a_better_plan_and_end_sooner(seed: int) -> None:
    stays = run_changing(changing(seed, replace(OPTIONS, reroute_gain=np.inf)))
    goes = run_changing(changing(seed, OPTIONS))
    assert not stays.rerouted and goes.rerouted
    assert goes.chunks.seconds < 0.7 * stays.chunks.seconds


def test_a_round_whose_result_goes_over_its_input_ends_as_it_began() -> None:
    assert not run_changing(changing(1, OPTIONS, in_place=True)).rerouted


@pytest.mark.parametrize("control_s", [0.01, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_round_may_change_its_plan_again_and_again(control_s: float) -> None:
    """Whatever messages take, and with detours: nothing is lost or applied twice, which the simulator checks."""
    eager = replace(OPTIONS, reroute_gain=0.001, min_gain=0.0, update_time_s=0.3, auxiliary=control_s == 0.01)
    run = ChunkRun(uneven(7), "optimal", 7, (300_000,) * 8, connections=2, jitter_s=0.05)
    changes = tuple((0.7 * k, uneven(100 + k)) for k in range(1, 20))
    assert run_changing(ChangingRun(run, eager, changes, control_s=control_s)).rerouted >= 8
