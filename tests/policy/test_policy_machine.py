"""The rules that all policies share: repair, retry, the last rank, illegal events, and the registry."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from policy_driver import mesh
from tradewind.errors import BadOption, InputError, InternalError, UnknownName
from tradewind.policy import Policy, make_policy, policy, policy_names, policy_options
from tradewind.policy.actions import AbandonRound, Proceed, RepairRound, SetTimer, StartRound
from tradewind.policy.events import (
    Event,
    LinkMeasured,
    RoundFailed,
    RoundFinished,
    TimerFired,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)

THIRD = (1 / 3, 1 / 3, 1 / 3)


def bsp(workers: int = 3) -> Policy:
    network = mesh(workers)
    return make_policy("bsp", network, network.names)


def all_ready(machine: Policy, workers: int, now_s: float, iteration: int = 1) -> tuple[object, ...]:
    actions: tuple[object, ...] = ()
    for i in range(workers):
        actions += machine.handle(WorkerReady(f"w{i}", iteration), now_s)
    return actions


def test_bsp_starts_when_the_last_worker_is_ready() -> None:
    machine = bsp()
    assert machine.handle(WorkerReady("w2", 1), 0.5) == ()
    assert machine.handle(WorkerReady("w0", 1), 0.7) == ()
    assert machine.handle(WorkerReady("w1", 1), 0.9) == (
        StartRound(0, ("w0", "w1", "w2"), THIRD, "all 3 live ranks are ready", "all", staleness=(0, 0, 0)),
    )
    assert machine.handle(RoundFinished(0, ("w0", "w1", "w2"), 0.4), 1.3) == ()
    assert machine.state.training == ("w0", "w1", "w2")


def test_a_round_that_loses_a_member_is_repaired_while_two_are_left_and_then_abandoned() -> None:
    machine = bsp()
    all_ready(machine, 3, 1.0)
    assert machine.handle(WorkerLost("w1", "crash"), 1.2) == (
        RepairRound(0, "w1", "w1 was lost (crash); 2 members remain"),
    )
    assert machine.handle(WorkerLost("w0"), 1.3) == (
        AbandonRound(0, "w0 was lost; no second member remains"),
        Proceed("w2", "it is the only live rank"),
    )
    assert machine.state.lost == ("w0", "w1")


def test_bsp_stops_waiting_for_a_lost_worker_and_waits_for_one_that_joins() -> None:
    machine = bsp()
    machine.handle(WorkerReady("w0", 1), 1.0)
    machine.handle(WorkerReady("w1", 1), 1.0)
    (start,) = machine.handle(WorkerLost("w2"), 1.1)
    assert isinstance(start, StartRound) and start.members == ("w0", "w1")
    machine.handle(WorkerJoined("w2"), 1.2)
    machine.handle(RoundFinished(0, ("w0", "w1"), 0.1), 1.3)
    machine.handle(WorkerReady("w0", 2), 2.0)
    assert machine.handle(WorkerReady("w1", 2), 2.0) == ()
    (start,) = machine.handle(WorkerReady("w2", 1), 2.1)
    assert isinstance(start, StartRound) and start.round == 1 and start.scope == "all"


def test_the_members_of_a_failed_round_try_again_later_and_later() -> None:
    machine = bsp(2)
    all_ready(machine, 2, 1.0)
    expected_s = 0.1
    now_s = 1.0
    for number in range(9):
        (timer,) = machine.handle(RoundFailed(number, "no route"), now_s)
        assert isinstance(timer, SetTimer) and timer.at_s == pytest.approx(now_s + expected_s)
        assert machine.state.ready == ("w0", "w1")
        now_s = timer.at_s
        (start,) = machine.handle(TimerFired(timer.timer), now_s)
        assert isinstance(start, StartRound) and start.round == number + 1
        expected_s = min(10.0, 2 * expected_s)


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (WorkerReady("w0", 2), "'w0' became ready, but it is synchronising already"),
        (WorkerReady("w9", 1), "no rank of that name has joined"),
        (WorkerJoined("w0"), "'w0' joined, but it is synchronising already"),
        (RoundFinished(0, ("w0", "w1"), 1.0), "its members are ('w0', 'w1', 'w2')"),
        (RoundFinished(1, ("w0", "w1"), 1.0), "round 1 finished, but it never started"),
        (RoundFailed(7, "x"), "round 7 ended without effect, but it never started"),
        (TimerFired("nap"), "timer 'nap' fired, but it is not set"),
        (LinkMeasured("w0", "w1", 0.0), "Send LinkLost for a lost link"),
    ],
)
def test_an_illegal_event_raises_with_the_last_events(event: Event, complaint: str) -> None:
    machine = bsp()
    all_ready(machine, 3, 1.0)
    with pytest.raises(InternalError, match=re.escape(complaint)) as raised:
        machine.handle(event, 1.5)
    story = str(raised.value)
    assert "1 s: WorkerReady(worker='w2', iteration=1, weight=1.0, model=None)" in story
    assert "-> StartRound(round=0" in story
    assert story.rstrip().endswith(f"1.5 s: {event}")


def test_time_and_steps_never_go_back() -> None:
    machine = bsp()
    machine.handle(WorkerReady("w0", 3), 5.0)
    for backwards in (4.0, float("nan")):
        with pytest.raises(InternalError, match="now_s must not decrease"):
            machine.handle(WorkerReady("w1", 3), backwards)
    machine = bsp(2)
    all_ready(machine, 2, 1.0, iteration=3)
    machine.handle(RoundFinished(0, ("w0", "w1"), 1.0), 2.0)
    with pytest.raises(InternalError, match="step 3 after step 3; steps must increase"):
        machine.handle(WorkerReady("w0", 3), 3.0)


def test_a_lost_worker_must_join_before_it_is_ready_again() -> None:
    machine = bsp()
    machine.handle(WorkerLost("w1"), 1.0)
    with pytest.raises(InternalError, match="it is lost and has not rejoined"):
        machine.handle(WorkerReady("w1", 1), 2.0)


def test_the_registry_refuses_what_it_does_not_know() -> None:
    network = mesh(3)
    with pytest.raises(UnknownName, match="unknown policy 'partail'"):
        make_policy("partail", network, network.names)
    with pytest.raises(BadOption, match=r"policy 'bsp' has no option 'p'\. It takes none\."):
        make_policy("bsp", network, network.names, p=2)
    with pytest.raises(BadOption, match=r"policy 'partial' has no option 'q'\. It takes p, weights\."):
        make_policy("partial", network, network.names, q=2)
    with pytest.raises(BadOption, match="p must be between 2 and 3 with 3 ranks, got 9"):
        make_policy("partial", network, network.names, p=9)
    with pytest.raises(InputError, match="'w0' is named twice"):
        make_policy("bsp", network, ("w0", "w0"))
    with pytest.raises(InputError, match="at least one rank"):
        make_policy("bsp", network, ())
    with pytest.raises(UnknownName, match="unknown site 'w7'"):
        make_policy("bsp", network, ("w0", "w7"))


def test_options_may_be_text_as_on_a_command_line() -> None:
    assert policy_options("partial", {"p": "4", "weights": "staleness"}).p == 4
    assert policy_options("selective", {"slack": "0.25"}).slack == 0.25


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("selective", {"slack": 1.0}),
        ("selective", {"gain": -1}),
        ("selective", {"horizon_s": 0}),
        ("selective", {"full_every": -1}),
        ("selective", {"value_scale": 2}),
        ("selective", {"nbytes": 0}),
        ("selective", {"probability": "bayes"}),
        ("selective", {"readiness": 3}),
        ("ssp", {"k": -1}),
        ("shuffle", {"contended": 1.0}),
        ("shuffle", {"window": 0}),
        ("shuffle", {"adjust_every": -1}),
        ("hierarchical", {"global_every": 0}),
        ("hierarchical", {"global_every": 1, "top": "representatives"}),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, object]) -> None:
    with pytest.raises(BadOption, match=f"policy '{name}'"):
        policy_options(name, options)


@pytest.mark.parametrize("name", policy_names())
def test_the_documentation_lists_every_policy_with_its_options_and_defaults(name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "policies.md").read_text(encoding="utf-8")
    (row,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
    for field in policy(name).option_fields:
        default = "none" if field.default is None else field.default
        assert f"`{field.name}={default}`" in row, f"{field.name}={default} is missing in {row}"
    listed = re.findall(r"`(\w+)=[^`]*`", row)
    assert set(listed) == {field.name for field in dataclasses.fields(policy(name).options)}
    assert policy(name).summary
