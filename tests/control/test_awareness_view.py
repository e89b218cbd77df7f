"""What the controller makes of measurements: estimates, snapshots, plans made anew, links explored."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.control.awareness import Awareness
from tradewind.control.network.view import NetworkView, unknown_network
from tradewind.control.plans.replanning import Replanning
from tradewind.control.plans.versions import FOLLOWED_PLANS, Plans
from tradewind.errors import BadOption
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.wire import messages as m

MESH = Network("mesh", [Site(n) for n in "abc"], 1e8 * (1 - np.eye(3)))
MEGABYTE = 10**6


def links(network: Network) -> list[tuple[str, str]]:
    return [(link.src, link.dst) for link in network.links]


@given(st.floats(1e6, 1e9), st.lists(st.floats(-0.1, 0.1), min_size=12, max_size=12))
def test_an_estimate_follows_a_change_within_three_updates(rate: float, noise: list[float]) -> None:
    view = NetworkView(MESH)
    for k, off in enumerate(noise):
        view.measured("a", "b", rate * (1 + off), 0.5 * k)
    seen = view.estimate("a", "b", 6.0)
    assert seen.bandwidth_bps == pytest.approx(rate, rel=0.101)
    assert (seen.origin, seen.count) == ("measured", 12) and seen.age_s == pytest.approx(0.5)


def test_a_link_is_slower_when_all_measurements_of_a_while_say_so() -> None:
    view = NetworkView(MESH, confirm_s=2.0)
    for k in range(5):
        view.measured("a", "b", 1e8, 0.5 * k)
    for k in range(5, 9):
        view.measured("a", "b", 2e7, 0.5 * k)
    assert view.estimate("a", "b", 4.0).bandwidth_bps == 1e8, "1.5 s are not enough"
    view.measured("a", "b", 1e8, 4.5)
    for k in range(10, 14):
        view.measured("a", "b", 2e7, 0.5 * k)
    assert view.estimate("a", "b", 6.5).bandwidth_bps == 1e8, "one in between says otherwise"
    view.measured("a", "b", 2e7, 7.0)
    assert view.estimate("a", "b", 7.0).bandwidth_bps == 2e7


def test_a_link_is_faster_when_two_measurements_in_a_row_say_so_and_by_the_lower_of_them() -> None:
    view = NetworkView(MESH)
    view.measured("a", "b", 1e8, 0.0)
    view.measured("a", "b", 3e8, 0.5)
    assert view.estimate("a", "b", 0.5).bandwidth_bps == 1e8
    view.measured("a", "b", 1e8, 1.0)
    assert view.estimate("a", "b", 1.0).spread > 0.3, "that was noise"
    view.measured("a", "b", 3e8, 1.5)
    view.measured("a", "b", 2e8, 2.0)
    assert view.estimate("a", "b", 2.0).bandwidth_bps == 2e8


def test_what_a_link_carried_while_it_was_idle_raises_and_never_lowers() -> None:
    view = NetworkView(MESH)
    view.measured("a", "b", 1e6, 1.0, full=False)
    assert view.estimate("a", "b", 1.0).bandwidth_bps == 1e8
    view.measured("a", "b", 2e8, 2.0, full=False)
    assert view.estimate("a", "b", 2.0).bandwidth_bps == 2e8
    assert view.estimate("a", "b", 2.0).origin == "at least"


def test_a_full_nic_is_not_taken_for_slow_links() -> None:
    sites = [Site("a", egress_bps=1e8), Site("b"), Site("c")]
    view = NetworkView(Network("nic", sites, 1e8 * (1 - np.eye(3))))
    for k in range(6):
        view.measured("a", "b", 5e7, 0.5 * k)
        view.measured("a", "c", 5e7, 0.5 * k)
    assert view.estimate("a", "c", 3.0).bandwidth_bps > 0.9e8, "together they fill the NIC"
    for k in range(6, 12):
        view.measured("a", "b", 5e6, 0.5 * k)
        view.measured("a", "c", 5e7, 0.5 * k)
    assert view.estimate("a", "b", 6.0).bandwidth_bps < 2e7, "the NIC has room, and the link is slow"


def test_plans_are_made_anew_for_a_given_network_only_if_it_is_another_one() -> None:
    view = NetworkView(MESH)
    plans = Plans(view, "multi-star", {})
    first = plans.plan_for(("a", "b", "c"), MEGABYTE)
    view.give(Network("mesh", MESH.sites, MESH.bandwidth_bps))
    assert plans.plan_for(("a", "b", "c"), MEGABYTE) == first
    view.give(MESH.scaled(0.5))
    assert plans.plan_for(("a", "b", "c"), MEGABYTE) > first
    assert view.network.link("a", "b").bandwidth_bps == 5e7


def test_links_that_the_network_does_not_have_stay_out_of_it() -> None:
    sparse = Network("line", [Site(n) for n in "abc"], [[0, 1e8, 0], [1e8, 0, 1e8], [0, 1e8, 0]])
    view = NetworkView(sparse)
    view.measured("a", "c", 1e9, 1.0)
    view.take()
    assert links(view.network) == links(sparse)


def test_latency_is_the_least_that_was_seen_and_may_grow_slowly() -> None:
    view = NetworkView(MESH)
    for latency_s in (0.03, 0.05, 0.02, 0.9):
        view.measured("a", "b", 1e8, 1.0, latency_s=latency_s)
    assert 0.02 <= view.estimate("a", "b", 1.0).latency_s < 0.07


def test_an_unknown_network_is_planned_with_when_most_of_it_was_measured() -> None:
    view = NetworkView(unknown_network(("a", "b", "c", "d")), is_guess=True)
    plans = Plans(view, None, {})
    members = ("a", "b", "c", "d")
    assert plans.by_version[plans.plan_for(members, MEGABYTE)].planner == "ring"
    replanning = Replanning(plans, Awareness(), 0.0)
    pairs = links(view.network)
    for place, (src, dst) in enumerate(pairs[:-1]):
        replanning.measured(dst, m.Measured(src, 1e7 * (1 + place)), 1.0)
    (wanted,) = replanning.tick(replanning.wake_at_s)
    assert wanted.planner == "optimal"
    measured = [1e7 * (1 + place) for place in range(len(pairs) - 1)]
    assert wanted.network.link(*pairs[-1]).bandwidth_bps == pytest.approx(np.median(measured)), "like the others"
    replanning.planned(wanted.make(), 2.0)
    assert plans.by_version[plans.plan_for(members, MEGABYTE)].planner == "optimal"


def test_on_one_machine_nothing_is_planned_anew() -> None:
    """Rates of many Gbps are those of processors."""
    view = NetworkView(unknown_network(("a", "b", "c")), is_guess=True)
    plans = Plans(view, None, {})
    plans.plan_for(("a", "b", "c"), MEGABYTE)
    replanning = Replanning(plans, Awareness(), 0.0)
    for place, (src, dst) in enumerate(links(view.network)):
        replanning.measured(dst, m.Measured(src, 1e10 * (1 + place)), 1.0)
    assert replanning.tick(1e3) == [] and view.is_guess


RING = make_plan("ring", MESH, MEGABYTE)


def changed(**options: float) -> tuple[Plans, Replanning]:
    plans = Plans(NetworkView(MESH), "optimal", {})
    plans.plan_for(("a", "b", "c"), MEGABYTE)
    return plans, Replanning(plans, Awareness(**options), 0.0)  # type: ignore[arg-type]


def say(replanning: Replanning, bandwidth_bps: float, start_s: float, count: int = 6) -> float:
    """The link from a to b is measured every half second; when that was last."""
    for k in range(count):
        replanning.measured("b", m.Measured("a", bandwidth_bps), start_s + 0.5 * k)
    return start_s + 0.5 * (count - 1)


@pytest.mark.mechanism("NetStorm V, plans follow the measurements every UPDATE_TIME")
def test_a_significant_change_is_planned_for_when_it_is_sure_and_a_small_one_when_it_is_time() -> None:
    _, replanning = changed(update_time_s=5.0, significant_change=0.2)
    last_s = say(replanning, 0.92e8, 1.0)
    assert replanning.tick(last_s + 0.1) == []
    assert len(replanning.tick(5.1)) == 1, "8%, after the update time"
    _, replanning = changed(update_time_s=5.0, significant_change=0.2)
    last_s = say(replanning, 0.5e8, 1.0, count=1)
    assert replanning.tick(last_s + 0.6) == [], "a rank that gets no processor for a moment looks slow"
    last_s = say(replanning, 0.5e8, last_s + 0.7)
    assert len(replanning.tick(last_s + 0.6)) == 1, "50%, soon"
    assert last_s < 3 * replanning.options.update_time_s


@given(st.floats(0.05, 20.0))
def test_what_changes_for_all_links_alike_is_no_reason_to_plan(factor: float) -> None:
    plans, replanning = changed(update_time_s=5.0)
    view = plans.view
    for k in range(12):
        for src, dst in links(MESH):
            replanning.measured(dst, m.Measured(src, factor * 1e8), 0.5 * k)
    assert view.estimate("a", "b", 6.0).bandwidth_bps == pytest.approx(factor * 1e8, rel=0.05)
    assert replanning.tick(100.0) == []


def test_a_plan_that_is_hardly_better_is_not_worth_a_change() -> None:
    plans, replanning = changed(min_gain=0.05)
    version = plans.plan_for(("a", "b", "c"), MEGABYTE)
    replanning.measured("b", m.Measured("a", 0.97e8), 1.0)
    (wanted,) = replanning.tick(6.0)
    replanning.planned(wanted.make(), 6.1)
    assert plans.plan_for(("a", "b", "c"), MEGABYTE) == version and replanning.updates[-1].version is None
    for k in range(8):
        replanning.measured("b", m.Measured("a", 0.1e8), 7.0 + k)
    (wanted,) = replanning.tick(20.0)
    replanning.planned(wanted.make(), 20.1)
    assert plans.plan_for(("a", "b", "c"), MEGABYTE) > version and replanning.updates[-1].gain > 0.05


def test_a_new_plan_says_which_link_changed_and_what_rounds_will_take() -> None:
    plans, replanning = changed(update_time_s=5.0)
    plans.plan_for(("a", "b", "c"), MEGABYTE)
    for k in range(8):
        replanning.measured("b", m.Measured("a", 0.1e8), 7.0 + k)
    (wanted, *_) = replanning.tick(20.0)
    adopted = replanning.planned(wanted.make(), 20.1)
    assert adopted is not None
    assert re.match(r"a -> b fell from 100 Mbps to 10.* Mbps; rounds are predicted to take .* instead of ", adopted.why)


def test_one_plan_is_made_at_a_time_also_during_a_long_round() -> None:
    _plans, replanning = changed()
    say(replanning, 0.3e8, 0.0)
    (wanted,) = replanning.tick(2.9)
    say(replanning, 1.2e8, 3.0)
    assert replanning.tick(8.0) == []
    replanning.planned(wanted.make(), 9.0)
    (again,) = replanning.tick(15.0)  # no round has begun since: the next one is to begin with this plan
    assert again.key == wanted.key
    replanning.planned(again.make(), 15.1)
    assert replanning.tick(25.0) == [], "nothing has changed since"


def test_only_the_plans_that_were_used_last_follow_the_network() -> None:
    plans, _ = changed()
    sizes = [2**26 << k for k in range(FOLLOWED_PLANS + 2)]
    for size in sizes:
        plans.plan_for(("a", "b", "c"), size)
    assert [wanted.key[1] for wanted in plans.wanted()] == sizes[-FOLLOWED_PLANS:]


def test_plans_of_groups_that_met_once_do_not_follow_the_network() -> None:
    plans, _ = changed()
    for members in (("a", "b"), ("a", "c"), ("a", "b"), ("b", "c"), ("a", "b", "c")):
        plans.plan_for(members, 2**26)
    assert [wanted.key.members for wanted in plans.wanted()] == [("a", "b"), ("a", "b", "c")]


def test_versions_that_no_round_starts_with_are_forgotten() -> None:
    plans, _ = changed()
    key = plans.wanted()[0].key
    first = plans.plan_for(("a", "b", "c"), MEGABYTE)
    for _ in range(200):
        newest = plans.adopt(key, plans.by_version[plans.plan_for(("a", "b", "c"), MEGABYTE)])
    assert len(plans.by_version) <= 65 and newest == first + 200
    assert first not in plans.current and newest in plans.current


def test_links_that_carry_nothing_are_explored_within_the_budget() -> None:
    _, replanning = changed(explore_share=0.02, update_time_s=5.0)
    assert replanning.explorations(100.0) == [], "no rounds, no budget"
    replanning.ended(50 * MEGABYTE, RING, 0, 99.0, 100.0)
    told = replanning.explorations(100.0)
    explored = [(src, message) for src, message in told if isinstance(message, m.Explore)]
    called = {frozenset((who, peer)) for who, x in told if isinstance(x, m.Connect) for peer in x.peers}
    assert called == {frozenset((src, message.peer)) for src, message in explored}, "both ends know of it"
    spent = sum(message.chunks * message.chunk_bytes for _, message in explored)
    assert 0 < spent <= 0.02 * 4 * 50 * MEGABYTE, "each site has sent 4/3 of the array"
    assert len({src for src, _ in explored}) == len({x.peer for _, x in explored}) == len(explored)
    assert replanning.explorations(101.0) == [], "not before the next update"


def test_a_link_that_seemed_faster_once_is_explored_before_all_others() -> None:
    """A plan that thinks little of it gives it too little to show more."""
    plans, replanning = changed(explore_share=0.02, update_time_s=5.0)
    for src, dst in links(MESH):
        plans.view.measured(src, dst, 1e8, 99.0)
    plans.view.measured("c", "a", 3e8, 99.5)
    replanning.ended(50 * MEGABYTE, RING, 0, 99.0, 100.0)
    told = [(src, message.peer) for src, message in replanning.explorations(100.0) if isinstance(message, m.Explore)]
    assert told == [("c", "a")], "all others were measured a second ago"


@given(st.floats(1e5, 1e11))
def test_exploring_keeps_no_link_busy_for_long(rate: float) -> None:
    chunks, chunk_bytes = Awareness().train(rate)
    shortest_s = 8 * 7 * 16 * 1024 / rate
    assert 8 * chunks * chunk_bytes / rate <= max(0.13, shortest_s)
    assert chunks > Awareness().probe_chunks + 1, "what passes at once after a pause is not measured"


def test_switched_off_nothing_is_learned() -> None:
    plans, replanning = changed(measure=False)
    replanning.measured("b", m.Measured("a", 1e6), 1.0)
    replanning.ended(50 * MEGABYTE, RING, 0, 99.0, 100.0)
    assert replanning.tick(1e3) == [] and replanning.explorations(1e3) == []
    assert plans.view.estimate("a", "b", 1.0).count == 0


@pytest.mark.parametrize("bad", [{"update_time_s": 0.0}, {"explore_share": 0.9}, {"probe_chunks": 1}])
def test_switches_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(BadOption):
        Awareness(**bad)  # type: ignore[arg-type]


def test_a_network_with_prices_that_is_given_again_changes_no_plan() -> None:
    priced = MESH.with_prices(np.full((3, 3), 0.02))
    view = NetworkView(priced)
    assert view.network == view.whole == priced
    before = view.generation
    view.give(priced)
    assert view.generation == before
