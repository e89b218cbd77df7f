"""The controller's decisions, message by message: joining, rounds, mismatches, losses and deadlines."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_driver import said
from tradewind.control import Controller, ControlOptions
from tradewind.control.controller import Action, Disconnect
from tradewind.control.deadlines import Deadlines
from tradewind.control.plans.versions import PlanMade, PlanWanted
from tradewind.control.quorum import resolve
from tradewind.errors import BadOption
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.cost import cost
from tradewind.planning.host import HostCost, Machine
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m

MESH = Network("mesh", [Site(n) for n in "abc"], 1e8 * (1 - np.eye(3)))
SUM = m.Operation(100, 4, "float32", "sum")


def gathered(**options: object) -> Controller:
    controller = Controller(ControlOptions(3, **options), 0.0)  # type: ignore[arg-type]
    for rank, worker in enumerate("abc"):
        controller.connected(worker, 0.0)
        actions = controller.received(worker, m.Join("host", 1000 + rank, rank), 0.0)
    rosters = said(actions)
    assert [a.site for a in rosters["b"][0].workers] == ["a", "b", "c"]  # type: ignore[union-attr]
    return controller


def all_ready(
    controller: Controller, operation: m.Operation = SUM, stream: int = 0, iteration: int = 1
) -> list[Action]:
    return [a for w in "abc" for a in controller.received(w, m.Ready(stream, iteration, operation), 1.0)]


def test_a_round_starts_when_all_are_ready_and_commits_when_all_have_finished() -> None:
    controller = gathered(network=MESH)
    told = said(all_ready(controller))
    for worker in "abc":
        change, start = told[worker]
        assert isinstance(change, m.PlanChanged) and isinstance(start, m.Start)
        assert change.plan.plan.members == ("a", "b", "c") and start.version == change.version
    assert controller.received("a", m.Finished(0, 1), 1.0) == []
    assert controller.received("b", m.Finished(0, 1), 1.0) == []
    assert said(controller.received("c", m.Finished(0, 1), 1.0)) == {w: [m.Commit(0)] for w in "abc"}
    again = said(all_ready(controller, iteration=2))
    assert [type(x) for x in again["a"]] == [m.Start], "the plan is known already"


def test_a_new_plan_is_told_when_it_is_made_and_not_when_a_round_starts_with_it() -> None:
    controller = gathered(network=MESH)
    large = m.Operation(10**6, 4, "float32", "sum")
    all_ready(controller, large)
    (key,) = controller.plans.keys
    told = said(controller.planned(PlanMade(key, make_plan("star", MESH, key[1]), float("inf"), ""), 1.0))
    changes = {w: change for w in "abc" for change in told[w] if isinstance(change, m.PlanChanged)}
    assert changes.keys() == set("abc"), "while the first round is under way"
    assert changes["a"] is changes["b"] and changes["a"].forget == (1,)
    for worker in "abc":
        controller.received(worker, m.Finished(0, 1), 1.0)
    for worker, heard in said(all_ready(controller, large, iteration=2)).items():
        (start,) = heard
        assert isinstance(start, m.Start) and start.version == changes[worker].version


def test_streams_have_rounds_under_way_at_the_same_time() -> None:
    controller = gathered()
    all_ready(controller, stream=0)
    told = said(all_ready(controller, stream=1))
    start = told["a"][-1]
    assert isinstance(start, m.Start) and (start.round, start.floor, start.stream) == (1, 0, 1)


def test_ranks_that_disagree_are_told_what_each_of_them_has() -> None:
    controller = gathered()
    controller.received("a", m.Ready(0, 1, SUM), 0.0)
    controller.received("b", m.Ready(0, 1, SUM), 0.0)
    told = said(controller.received("c", m.Ready(0, 1, m.Operation(99, 8, "float64", "sum")), 0.0))
    for worker in "abc":
        (message,) = told[worker]
        assert isinstance(message, m.Mismatch) and "'c' has 99 items of float64" in message.reason
    assert said(all_ready(controller, iteration=2))["a"], "the next operation works"


def test_a_lost_worker_ends_the_run_and_is_named() -> None:
    controller = gathered()
    all_ready(controller)
    told = said(controller.disconnected("b", "connection reset", 1.0))
    assert told == {w: [m.Closing("'b' was lost (connection reset)", "b")] for w in "ac"}
    assert controller.received("a", m.Ready(0, 2, SUM), 1.0) == []
    assert [type(x) for x in said(controller.connected("d", 2.0))["d"]] == [m.Refused]


def test_silence_counts_as_loss_and_heartbeats_prevent_it() -> None:
    controller = gathered(deadlines=Deadlines(10.0))
    for worker in "ac":
        assert said(controller.received(worker, m.Heartbeat(5.0), 5.0)) == {worker: [m.HeartbeatSeen(5.0, 5.0)]}
    assert controller.tick(controller.wake_at_s - 0.01) == []
    told = said(controller.tick(controller.wake_at_s))
    assert told["a"] == [m.Closing("'b' was silent for 8 s", "b")]


def test_workers_that_never_come_and_members_that_are_never_ready_end_the_run_in_bounded_time() -> None:
    controller = Controller(ControlOptions(3, deadlines=Deadlines(10.0)), 0.0)
    controller.connected("a", 39.0)
    controller.received("a", m.Join("host", 1000, 0), 39.0)
    assert "only 1 of 3 ranks joined within 40 s (a)" in said(controller.tick(40.0))["a"][0].reason  # type: ignore[union-attr]
    controller = gathered(deadlines=Deadlines(10.0))
    controller.received("a", m.Ready(0, 1, SUM), 0.0)
    for worker in "abc":
        controller.received(worker, m.Heartbeat(0.0), 199.0)
    (closing,) = said(controller.tick(200.0))["a"]
    assert isinstance(closing, m.Closing) and "'b', 'c' did not become ready within 200 s of 'a'" in closing.reason


@pytest.mark.parametrize(
    ("worker", "rank", "says"),
    [
        ("a", 1, "is already connected"),
        ("x", 0, "in use by another process, got 0"),
        ("x", 3, "rank must be in [0, 3)"),
        ("x", 1, "not a site"),
    ],
)
def test_who_does_not_fit_is_refused_and_the_run_goes_on(worker: str, rank: int, says: str) -> None:
    controller = Controller(ControlOptions(3, network=MESH if "site" in says else None), 0.0)
    controller.connected("a", 0.0)
    controller.received("a", m.Join("host", 1000, 0), 0.0)
    actions = controller.connected(worker, 0.0) or controller.received(worker, m.Join("host", 1, rank), 0.0)
    (refused,) = said(actions)[worker]
    assert isinstance(refused, m.Refused) and says in refused.reason and Disconnect(worker) in actions
    assert controller.closed is None


def test_a_plan_that_is_given_is_used_and_refused_if_it_does_not_fit() -> None:
    plan = make_plan("star", MESH, 1000, root="c")
    told = said(all_ready(gathered(network=MESH, plan=plan)))
    assert told["a"][0].plan.plan.shards == plan.shards  # type: ignore[union-attr]
    two = make_plan("ring", MESH, 1000, ("a", "b"))
    closing = said(all_ready(gathered(network=MESH, plan=two)))["a"][0]
    assert isinstance(closing, m.Closing) and "is for members a, b, but this round has a, b, c" in closing.reason


def test_another_policy_starts_rounds_of_those_who_are_ready() -> None:
    controller = gathered(network=MESH, policy="partial", policy_options={"p": 2})
    controller.received("b", m.Ready(m.POLICY_STREAM, 1, SUM), 0.0)
    told = said(controller.received("c", m.Ready(m.POLICY_STREAM, 1, SUM), 0.0))
    changed, start = told["b"]
    assert isinstance(start, m.Start) and isinstance(changed, m.PlanChanged)
    assert start.version == changed.version and changed.plan.plan.members == ("b", "c")


def links_of(start: m.Message) -> set[frozenset[str]]:
    assert isinstance(start, m.PlanChanged)
    routes = [r for s in start.plan.plan.shards for r in (*s.reduce, *s.broadcast)]
    return {frozenset(hop) for route in routes for hop in pairwise(route)}


def test_a_lost_link_between_rounds_of_a_strict_run_changes_the_plan() -> None:
    controller = gathered(network=MESH, planner="ring")
    assert frozenset("ac") in links_of(said(all_ready(controller))["a"][0])
    for worker in "abc":
        controller.received(worker, m.Finished(0, 1), 1.0)
    tried = said(controller.received("a", m.LinkChanged("c", "connection refused"), 1.0))
    assert tried == {n: [m.Connect(p)] for n, p in (("a", ("b",)), ("b", ("a", "c")), ("c", ("b",)))}
    assert said(controller.received("c", m.LinkChanged("a", "connection refused"), 1.0)) == {}
    again = said(all_ready(controller, iteration=2))
    assert links_of(again["a"][0]) == {frozenset("ab"), frozenset("bc")}
    for worker in "abc":
        controller.received(worker, m.Finished(1, 2), 1.0)
    (wanted,) = controller.received("c", m.LinkChanged("a", "made again", back=True), 1.0)
    assert isinstance(wanted, PlanWanted), "it is made in the background: rounds go on by the plan that they have"
    told = said(all_ready(controller, iteration=3))
    assert [type(message) for message in told["a"]] == [m.Start]
    changed = said(controller.planned(wanted.make(), 1.0))["a"][0]
    assert frozenset("ac") in links_of(changed)
    for worker in "abc":
        controller.received(worker, m.Finished(2, 2), 1.0)
    (start,) = said(all_ready(controller, iteration=4))["a"]
    assert isinstance(start, m.Start) and isinstance(changed, m.PlanChanged) and start.version == changed.version


def test_lost_links_of_a_rank_that_comes_back_are_taken_as_working() -> None:
    """Its peers stopped to watch them when it was lost, so none of them would say that they work."""
    controller = gathered(network=MESH, planner="ring", tolerant=True)
    for peer in "ab":
        controller.received(peer, m.LinkChanged("c", "it is silent"), 1.0)
    controller.disconnected("c", "connection reset", 1.0)
    controller.connected("c", 2.0)
    controller.received("c", m.Join("host", 1002, 2), 2.0)
    assert frozenset("ac") in links_of(said(all_ready(controller))["a"][0])


@pytest.mark.parametrize("overwrites", [False, True])
def test_a_link_that_a_strict_round_does_not_use_may_break_in_the_middle_of_it(overwrites: bool) -> None:
    controller = gathered(network=MESH, planner="star", planner_options={"root": "b"})
    for worker, peer in ("ab", "bc"):
        controller.received(worker, m.Linked(peer), 1.0)
    for worker in "abc":
        controller.received(worker, m.Ready(0, 1, SUM, overwrites=overwrites), 1.0)
    for back in (False, True):
        assert said(controller.received("a", m.LinkChanged("c", "connection reset", back), 1.0)) == {}
    assert said(controller.received("a", m.LinkChanged("b", "connection reset", True), 1.0)).keys() == set("abc")
    assert (controller.closed is None) is not overwrites, "one that it uses is another matter"
    if controller.closed is not None:
        assert "link between 'a' and 'b' broke (connection reset) during round 0" in controller.closed.reason


def test_a_round_that_cannot_be_repeated_starts_only_on_links_that_work() -> None:
    """Its results replace its inputs: the plan is told first, so that its links are connected."""
    controller = gathered(network=MESH, planner="ring")
    told = [said(controller.received(w, m.Ready(0, 1, SUM, overwrites=True), 1.0)) for w in "abc"]
    assert frozenset("ac") in links_of(told[0]["a"][0]) and not any(told[1:])
    controller.received("a", m.Linked("b"), 1.0)
    assert controller.received("b", m.Linked("c"), 1.0) == []
    (change, start) = said(controller.received("a", m.LinkChanged("c", "no route to host"), 1.0))["a"]
    assert links_of(change) == {frozenset("ab"), frozenset("bc")} and isinstance(start, m.Start)


def test_a_strict_round_is_repaired_around_a_lost_link() -> None:
    controller = gathered(network=MESH, planner="ring")
    for worker, peer in ("ab", "bc"):
        controller.received(worker, m.Linked(peer), 1.0)
    all_ready(controller)
    told = said(controller.received("a", m.LinkChanged("c", "it is silent"), 1.0))
    assert told == {w: [m.Halt(0, 1)] for w in "abc"}
    final = (b"\0",) * 3
    for worker in "abc":
        told = said(controller.received(worker, m.Progress(0, 1, (10,) * 3, final), 1.0))
    change, start = told["a"]
    assert isinstance(start, m.Start) and start.repaired and frozenset("ac") not in links_of(change)
    for worker in "abc":
        told = said(controller.received(worker, m.Finished(0, start.version, 7), 1.0))
    assert told == {w: [m.Commit(0)] for w in "abc"}


def test_a_given_plan_goes_around_a_lost_link() -> None:
    controller = gathered(network=MESH, plan=make_plan("star", MESH, 1000, root="c"))
    controller.received("a", m.LinkChanged("c", "connection refused"), 1.0)
    assert links_of(said(all_ready(controller))["a"][0]) == {frozenset("ab"), frozenset("bc")}


def test_a_strict_run_ends_when_the_only_way_to_a_worker_is_lost_and_says_why() -> None:
    controller = gathered(network=MESH)
    for peer in "ac":
        controller.received("b", m.LinkChanged(peer, f"no answer from {peer}."), 1.0)
    assert controller.closed is None, "nothing is asked for yet"
    closing = said(all_ready(controller))["a"][0]
    assert isinstance(closing, m.Closing)
    assert "The link between 'b' and 'c' is lost: no answer from c." in closing.reason


def test_a_message_at_the_wrong_time_ends_the_run_and_not_the_process() -> None:
    controller = gathered()
    told = said(controller.received("a", m.Finished(7, 1), 0.0))
    assert told["b"] == [m.Closing("'a' finished round 7, which has not started", "a")]


def report(*roster: str, sequence: int = 1, term: int = 0, **more: object) -> m.Report:
    addresses = tuple(m.Address("abc".index(name), name, "host", 1) for name in roster)
    return m.Report(term, sequence, addresses, 3, **more)  # type: ignore[arg-type]


def test_what_workers_say_after_their_reports_is_kept_until_a_controller_acts() -> None:
    controller = Controller(ControlOptions(3, MESH, tolerant=True, controllers=2, index=1), 0.0)
    for worker in "ab":
        controller.connected(worker, 0.0)
        controller.received(worker, m.Join("host", 1, "abc".index(worker), report("a", "b", "c")), 0.0)
        assert controller.received(worker, m.Ready(0, 1, SUM), 0.0) == []
    rosters = said(controller.tick(10.0))
    assert all(isinstance(rosters[worker][0], m.Roster) for worker in "ab")
    acts = [a for w in "ab" for a in controller.received(w, m.RosterSeen(1, 1), 10.0)]
    assert any(isinstance(message, m.Start) for message in said(acts)["a"])


def test_a_roster_that_only_one_worker_saw_does_not_make_it_the_majority() -> None:
    """Only `a` may have received the roster of one: it may be the small part of a partitioned network."""
    controller = Controller(ControlOptions(3, MESH, tolerant=True, controllers=2, index=1), 0.0)
    controller.connected("a", 0.0)
    split = report("a", sequence=5, electorates=(("a", "b", "c"), ("a",)))
    controller.received("a", m.Join("host", 1, 0, split), 0.0)
    assert controller.tick(2.0) == [] and controller.acting_term is None
    controller.connected("b", 2.0)
    actions = controller.received("b", m.Join("host", 1, 1, report("a", "b", "c")), 2.0)
    actions += controller.tick(20.0)
    assert any(isinstance(message, m.Roster) for message in said(actions).get("b", [])), "most have come"


@pytest.mark.parametrize(("known", "next_"), [(7, 8), (2, 4)], ids=["newer", "same"])
def test_a_rank_that_has_acknowledged_the_term_of_another_is_followed_by_the_others(known: int, next_: int) -> None:
    """It follows no older term, so the controller stands down, and begins a term that is newer than both.

    The same term is that of a controller that was lost with most ranks: this one could not know that it was taken.
    """
    controller = Controller(ControlOptions(3, MESH, tolerant=True, controllers=2), 0.0)

    def join(worker: str, reported: m.Report, now_s: float) -> list[Action]:
        controller.connected(worker, now_s)
        return controller.received(worker, m.Join("host", 1, "abc".index(worker), reported), now_s)

    old, newer = report("a", "b", "c"), report("a", "b", "c", term=known)
    for worker in "ab":
        join(worker, old, 0.0)
    controller.tick(10.0)
    for worker in "ab":
        controller.received(worker, m.RosterSeen(2, 1), 10.0)
    assert controller.snapshot(10.0).state == "acting"
    actions = join("c", newer, 11.0)
    assert controller.snapshot(11.0).state == "gathering"
    assert all(isinstance(said(actions)[worker][0], m.StandingDown) for worker in "abc")
    assert {action.worker for action in actions if isinstance(action, Disconnect)} == set("abc")
    actions = [action for worker in "abc" for action in join(worker, newer if worker == "c" else old, 12.0)]
    rosters = said(actions + controller.tick(30.0))
    begun = {worker: rosters[worker][0] for worker in "abc"}
    assert all(isinstance(message, m.Roster) and message.term == next_ for message in begun.values())


def test_a_rank_that_comes_back_in_the_term_that_it_was_told_may_join_it() -> None:
    controller = Controller(ControlOptions(3, MESH, tolerant=True, controllers=2), 0.0)
    for rank, worker in enumerate("abc"):
        controller.connected(worker, 0.0)
        controller.received(worker, m.Join("host", 1, rank, report("a", "b", "c")), 0.0)
    for worker in "abc":
        controller.received(worker, m.RosterSeen(2, 1), 1.0)
    controller.disconnected("c", "its connection broke", 2.0)
    controller.connected("c", 3.0)
    controller.received("c", m.Join("host", 1, 2, report("a", "b", "c", term=2)), 3.0)
    assert controller.snapshot(3.0).state == "acting"


def test_a_member_that_holds_less_than_the_committed_version_repeats_the_round() -> None:
    asked = m.Ready(0, 1, SUM)
    whole = m.RoundReport(7, 2, ("a", "b"), True, 5, asked)
    behind = m.RoundReport(7, 1, ("a", "b", "c"), True, 4, asked)
    found = resolve(
        {
            "a": report("a", "b", "c", committed=((7, 2),)),
            "b": report("a", "b", "c", rounds=(whole,)),
            "c": report("a", "b", "c", rounds=(behind,)),
        }
    )
    assert found.committed == {7: ("b",)} and found.abandoned == {7: ("c",)} and found.ready == (("c", asked),)


def test_deadlines_follow_from_one_setting() -> None:
    deadlines = Deadlines(30.0)
    assert deadlines.heartbeat_s < deadlines.handshake_s < deadlines.silence_s < deadlines.gather_s
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(BadOption):
            Deadlines(bad)


SMALL = st.integers(0, 3)
MESSAGES = st.one_of(
    st.builds(m.Join, st.just("host"), st.integers(1, 9), SMALL),
    st.builds(m.Ready, SMALL, SMALL, st.builds(m.Operation, SMALL, st.just(4), st.just("float32"), st.just("sum"))),
    st.builds(m.Finished, SMALL, SMALL),
    st.builds(m.LinkChanged, st.sampled_from("abcx"), st.just("why"), st.booleans()),
    st.builds(m.Linked, st.sampled_from("abcx")),
    st.builds(m.Measured, st.sampled_from("abcx"), st.floats(1, 1e12)),
    st.builds(m.Heartbeat, st.floats(allow_nan=False)),
    st.builds(m.Leave),
    st.builds(m.Commit, SMALL),
    st.builds(m.Refused, st.just("no")),
)
STEPS = st.lists(st.tuples(st.sampled_from("abcx"), st.one_of(MESSAGES, st.sampled_from(("comes", "goes", "time")))))


@settings(max_examples=150)
@given(st.booleans(), STEPS)
def test_whatever_workers_say_in_whatever_order_the_controller_stands(
    begun: bool, steps: list[tuple[str, Any]]
) -> None:
    controller = gathered(network=MESH) if begun else Controller(ControlOptions(3), 0.0)
    for now_s, (worker, what) in enumerate(steps, start=1):
        if what == "comes":
            controller.connected(worker, float(now_s))
        elif what == "goes":
            controller.disconnected(worker, "gone", float(now_s))
        elif what == "time":
            controller.tick(float(now_s))
        else:
            controller.received(worker, what, float(now_s))
        assert controller.wake_at_s >= 0


FAST = Network("fast", [Site(n) for n in "abc"], np.array([[0, 90, 30], [40, 0, 20], [30, 20, 0]]) * 1e9)


def trees(plan: Plan) -> tuple[object, ...]:
    return tuple((shard.fraction, shard.reduce, shard.chunk_bytes) for shard in plan.shards)


@pytest.mark.parametrize(
    ("options", "addresses", "same"),
    [
        ({}, "xyz", {}),
        ({"machine": Machine(16, 16)}, "xyz", {"rank_cores": 16}),
        ({"machine": Machine(16, 16)}, "xxy", {"rank_cores": 8}),
        ({"machine": Machine(16, 4)}, "xyz", {"rank_cores": 4}),
        ({"machine": Machine(16, 16), "connections": 1}, "xyz", {"rank_cores": 16, "connections": 1}),
        ({"machine": Machine(16, 16), "planner_options": {"rank_cores": 2}}, "xyz", {"rank_cores": 2}),
    ],
)
@pytest.mark.parametrize("planner", ["optimal", "auto", None])
def test_a_run_plans_for_the_cores_and_connections_of_its_ranks(
    planner: str | None, options: dict[str, Any], addresses: str, same: dict[str, Any]
) -> None:
    """The plan is the one of `tradewind plan --rank-cores N --connections M`, and is predicted with these hosts."""
    control = ControlOptions(3, FAST, planner=planner, **options)
    controller = Controller(control, 0.0)
    for rank, (worker, address) in enumerate(zip("abc", addresses, strict=True)):
        controller.connected(worker, 0.0)
        controller.received(worker, m.Join(address, 1000 + rank, rank), 0.0)
    change = said(all_ready(controller, m.Operation(2**26, 4, "float32", "sum")))["a"][0]
    assert isinstance(change, m.PlanChanged)
    expected = make_plan(planner or "optimal", FAST, 2**28, **same)
    assert trees(change.plan.plan) == trees(expected)
    host = control.host_cost(addresses)
    assert host == HostCost(**same)
    assert expected.predicted is not None
    assert cost(change.plan.plan, FAST, host=host).seconds == pytest.approx(expected.predicted.seconds)


def test_plans_of_fast_networks_differ_by_the_cores_and_connections_of_the_ranks() -> None:
    """Else the test above shows nothing."""
    hosts: tuple[dict[str, Any], ...]
    hosts = ({}, {"rank_cores": 4}, {"rank_cores": 8}, {"rank_cores": 16}, {"rank_cores": 16, "connections": 1})
    found = [make_plan("optimal", FAST, 2**28, **host) for host in hosts]
    assert len({trees(plan) for plan in found[1:]}) == len(hosts) - 1
    assert len({plan.predicted and plan.predicted.seconds for plan in found}) == len(hosts)
