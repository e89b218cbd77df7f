"""`Controller.snapshot`: what a controller says of itself while a run goes from gathering to its end."""

from __future__ import annotations

import numpy as np
import pytest

from tradewind.control import Controller, ControlOptions
from tradewind.network import Network, Site
from tradewind.wire import messages as m

MESH = Network("mesh", [Site(n) for n in "abcd"], 1e8 * (1 - np.eye(4)))
OPERATION = m.Operation(1_000_000, 4, "float32", "mean")


def begun(**options: object) -> Controller:
    chosen = {"planner": "ring", "policy": "partial", "policy_options": {"p": 2}, **options}
    controller = Controller(ControlOptions(4, MESH, **chosen), 0.0)  # type: ignore[arg-type]
    for rank, worker in enumerate("abcd"):
        controller.connected(worker, 1.0)
        controller.received(worker, m.Join("host", 1000 + rank, rank), 1.0)
    return controller


def ready(controller: Controller, worker: str, now_s: float, step: int = 1) -> None:
    controller.received(worker, m.Ready(m.POLICY_STREAM, step, OPERATION), now_s)


def test_ranks_are_connected_then_joined_and_the_run_gathers_until_all_are() -> None:
    controller = Controller(ControlOptions(4, MESH), 0.0)
    controller.connected("b", 1.0)
    controller.connected("a", 2.0)
    controller.received("a", m.Join("host", 1000, 0), 2.0)
    seen = controller.snapshot(5.0)
    assert (seen.state, seen.term, seen.world, seen.rounds, seen.plans) == ("gathering", -1, 4, (), ())
    assert [(r.name, r.number, r.state, r.silent_s) for r in seen.members] == [
        ("a", None, "joined", 3.0),
        ("b", None, "connected", 4.0),
    ]
    seen = begun().snapshot(2.0)
    assert (seen.state, seen.term) == ("acting", 0)
    assert [(r.name, r.number) for r in seen.members] == [("a", 0), ("b", 1), ("c", 2), ("d", 3)]


def test_a_round_its_plan_and_the_reason_for_it_are_there_until_it_is_over() -> None:
    controller = begun()
    ready(controller, "c", 3.0)
    (stream,) = controller.snapshot(3.5).streams
    assert (stream.number, stream.ready, stream.since_s) == (m.POLICY_STREAM, ("c",), 3.0)
    ready(controller, "a", 4.0)
    seen = controller.snapshot(5.0)
    (round_,) = seen.rounds
    assert (round_.number, round_.members, round_.state, round_.planner) == (0, ("a", "c"), "running", "ring")
    assert (round_.nbytes, round_.started_s, round_.finished) == (4_000_000, 4.0, ())
    assert [plan.version for plan in seen.plans] == [round_.version] == [seen.plan_version]
    assert (seen.decisions[-1].what, seen.decisions[-1].round, seen.decisions[-1].at_s) == ("start", 0, 4.0)
    assert seen.decisions[-1].reason
    controller.received("a", m.Finished(0, round_.version, 7), 5.0)
    assert controller.snapshot(5.0).rounds[0].finished == ("a",)
    controller.received("c", m.Finished(0, round_.version, 7), 6.0)
    seen = controller.snapshot(6.0)
    assert seen.rounds == () and seen.next_round == 1


def test_a_lost_link_halts_the_round_and_is_listed_until_it_is_back() -> None:
    controller = begun()
    for worker in "ac":
        ready(controller, worker, 2.0)
    controller.received("a", m.LinkChanged("c", "cut"), 3.0)
    seen = controller.snapshot(3.0)
    assert seen.rounds[0].state == "halted"
    assert [(link.src, link.dst, link.origin) for link in seen.links] == [("a", "c", m.LOST), ("c", "a", m.LOST)]
    controller.received("a", m.LinkChanged("c", "", back=True), 4.0)
    assert controller.snapshot(4.0).links == ()


def test_only_links_that_something_is_known_of_are_listed_with_age_and_count() -> None:
    controller = begun()
    controller.received("b", m.Measured("a", 0.97e8, True, 4, 0.01), 3.0)
    (link,) = controller.snapshot(5.0).links
    assert (link.src, link.dst, link.origin, link.count, link.age_s) == ("a", "b", "measured", 1, 2.0)
    assert 0.97e8 <= link.bandwidth_bps < 1e8 and link.latency_s == pytest.approx(0.01)


def test_what_was_decided_is_bounded_and_a_closed_run_says_why() -> None:
    controller = begun()
    for number in range(120):
        for worker in "ab":
            ready(controller, worker, 2.0 + number, number + 1)
        version = controller.snapshot(0.0).rounds[0].version
        for worker in "ab":
            controller.received(worker, m.Finished(number, version, 7), 2.5 + number)
    seen = controller.snapshot(200.0)
    assert len(seen.decisions) == 100 and seen.decisions[-1].round == 119
    controller.close("enough")
    seen = controller.snapshot(201.0)
    assert (seen.state, seen.reason, seen.rounds) == ("closed", "enough", ())


def test_rates_that_are_given_lead_to_a_plan_that_is_made_beside_the_rounds() -> None:
    controller = begun(planner="optimal", policy_options={"p": 4})
    for worker in "abcd":
        ready(controller, worker, 2.0)
    before = controller.snapshot(2.0)
    slow = MESH.bandwidth_bps.copy()
    slow[0, 1:] = 1e7
    controller.rates_given(Network("slow", MESH.sites, slow), 3.0)
    (wanted,) = [action for action in controller.tick(3.1) if hasattr(action, "make")]
    assert controller.snapshot(3.1).plans == before.plans, "rounds go on by what they have"
    controller.planned(wanted.make(), 3.2)
    seen = controller.snapshot(3.3)
    assert seen.updates[-1].version == max(plan.version for plan in seen.plans) != before.plan_version
    assert seen.updates[-1].gain > 0.05
