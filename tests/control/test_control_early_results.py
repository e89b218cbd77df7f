"""Rounds whose members use the result before all of them have it, and what is done with the copies that they keep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from control_driver import said
from tradewind.control import Controller, ControlOptions
from tradewind.control.controller import Action
from tradewind.control.quorum import resolve
from tradewind.network import Network, Site
from tradewind.wire import messages as m

MESH = Network("mesh", [Site(n) for n in "abcd"], 1e8 * (1 - np.eye(4)), 0.01 * (1 - np.eye(4)))
SUM = m.Operation(50_000, 4, "float32", "sum")


def gathered(**options: object) -> Controller:
    given = {"tolerant": True, "tolerant_early_results": True, **options}
    controller = Controller(ControlOptions(4, MESH, **given), 0.0)  # type: ignore[arg-type]
    for rank, worker in enumerate("abcd"):
        controller.connected(worker, 0.0)
        controller.received(worker, m.Join("host", 1000 + rank, rank), 0.0)
    return controller


def started(actions: Sequence[Action]) -> m.Start:
    (start,) = {x for told in said(actions).values() for x in told if isinstance(x, m.Start)}
    return start


def ask(controller: Controller, asked: m.Operation = SUM, stream: int = 0) -> m.Start:
    return started([a for w in "abcd" for a in controller.received(w, m.Ready(stream, 1, asked), 1.0)])


def used(start: m.Start, contributors: str = "abcd") -> m.Released:
    even = (1 / len(contributors),) * len(contributors)
    return m.Released(start.round, start.version, tuple(contributors), even, (0,) * len(contributors))


def progress(start: m.Start, released: m.Released | None = None, shards: int = 4) -> m.Progress:
    return m.Progress(start.round, start.version, (1000,) * shards, (b"",) * shards, released)


def settle(controller: Controller, start: m.Start, by: dict[str, m.Released | None]) -> list[Action]:
    shards = len(controller.plans.by_version[start.version].shards)
    return [a for w, r in by.items() for a in controller.received(w, progress(start, r, shards), 2.0)]


@pytest.mark.parametrize(
    ("asked", "stream", "options", "releases"),
    [
        (SUM, 0, {}, True),
        (SUM, m.POLICY_STREAM, {"policy": "bsp"}, True),
        (SUM, m.POLICY_STREAM, {"policy": "partial", "policy_options": {"p": 4}}, False),
        (SUM, 0, {"early_results": False}, False),
        (SUM, 0, {"tolerant_early_results": False}, False),
        (SUM, 0, {"tolerant_early_results": False, "tolerant": False}, True),
        (m.Operation(16 * 2**20, 4, "float32", "sum"), 0, {}, False),
        (m.Operation(50_000, 4, "float32", "sum", codec="int8"), 0, {}, False),
        (m.Operation(200_000, 1, "bytes", "copy", root="a", kind="broadcast"), 0, {}, False),
    ],
)
def test_only_plain_sums_of_all_ranks_up_to_a_size_are_used_early(
    asked: m.Operation, stream: int, options: dict[str, object], releases: bool
) -> None:
    assert ask(gathered(**options), asked, stream).releases is releases


def test_without_latency_the_copy_would_cost_more_than_it_saves() -> None:
    near = Network("near", MESH.sites, MESH.bandwidth_bps)
    controller = Controller(ControlOptions(4, near, tolerant=True, tolerant_early_results=True), 0.0)
    for rank, worker in enumerate("abcd"):
        controller.connected(worker, 0.0)
        controller.received(worker, m.Join("host", 1000 + rank, rank), 0.0)
    assert not ask(controller).releases


def test_a_result_that_a_member_has_used_is_what_all_others_get() -> None:
    controller = gathered()
    first = ask(controller)
    controller.disconnected("d", "killed", 2.0)
    again = started(settle(controller, first, {"a": None, "b": used(first), "c": None}))
    assert (again.round, again.released) == (first.round, used(first)), "with the lost rank among the contributors"
    assert (again.operation.kind, again.operation.root, again.operation.nbytes) == ("broadcast", "b", SUM.nbytes)
    plan = controller.plans.by_version[again.version]
    assert set(plan.members) == set("abc") and {shard.root for shard in plan.shards} == {"b"}
    done = [controller.received(w, m.Finished(again.round, again.version, 5), 3.0) for w in "abc"]
    assert said(done[-1])["a"][0] == m.Commit(first.round)


def test_a_round_is_repeated_from_its_inputs_when_all_that_used_its_result_are_lost() -> None:
    controller = gathered()
    first = ask(controller)
    controller.disconnected("d", "killed", 2.0)
    second = started(settle(controller, first, {"a": None, "b": used(first), "c": None}))
    controller.disconnected("b", "killed", 2.0)
    third = started(settle(controller, second, {"a": None, "c": None}))
    assert third.operation == SUM and third.released is None and third.done == ()
    assert set(controller.plans.by_version[third.version].members) == set("ac")


def test_one_that_used_it_after_the_source_was_lost_is_the_next_source() -> None:
    controller = gathered()
    first = ask(controller)
    controller.disconnected("d", "killed", 2.0)
    second = started(settle(controller, first, {"a": None, "b": used(first), "c": None}))
    controller.disconnected("b", "killed", 2.0)
    third = started(settle(controller, second, {"a": None, "c": used(first)}))
    assert (third.operation.root, third.released) == ("c", used(first))


def test_a_round_that_a_member_does_not_contribute_to_is_halted_and_distributes_its_result() -> None:
    controller = gathered()
    first = ask(controller)
    earlier = m.Released(first.round + 7, first.version, tuple("abcd"), (0.25,) * 4, (0,) * 4)
    told = said(controller.received("c", m.Progress(first.round, first.version, released=earlier), 1.5))
    assert all(told[w] == [m.Halt(first.round, first.version)] for w in "abcd")
    again = started(settle(controller, first, {"a": None, "b": None, "d": None, "c": earlier}))
    assert (again.operation.root, again.released) == ("c", earlier)


def test_a_member_that_used_an_older_result_must_rejoin() -> None:
    controller = gathered()
    first = ask(controller)
    old, new = used(first), m.Released(first.round + 7, first.version, tuple("abcd"), (0.25,) * 4, (0,) * 4)
    controller.received("c", m.Progress(first.round, first.version, released=new), 1.5)
    told = said(settle(controller, first, {"a": None, "b": old, "c": new, "d": None}))
    assert any(isinstance(x, m.StandingDown) for x in told["b"])
    assert any(isinstance(x, m.Lost) and x.site == "b" for x in told["a"])


def test_members_with_another_result_than_most_must_rejoin_and_a_strict_run_ends() -> None:
    def finish(controller: Controller) -> dict[str, list[m.Message]]:
        first = ask(controller)
        digests = {"a": 5, "b": 5, "c": 6, "d": 5}
        return said([a for w in "abcd" for a in controller.received(w, m.Finished(0, first.version, digests[w]), 2.0)])

    assert any(isinstance(x, m.StandingDown) for x in finish(gathered())["c"])
    (end,) = [x for x in finish(gathered(tolerant=False))["a"] if isinstance(x, m.Closing)]
    assert "restart from a checkpoint" in end.reason and "'c'" in end.reason


def report(
    ready: m.Ready,
    number: int | None = None,
    version: int = 1,
    finished: bool = False,
    committed: tuple[int, int] | None = None,
) -> m.Report:
    rounds = () if number is None else (m.RoundReport(number, version, tuple("abc"), finished, 5, ready),)
    asked = (ready,) if number is None else ()
    return m.Report(0, 1, (), 3, rounds=rounds, ready=asked, committed=() if committed is None else (committed,))


HELD = m.Released(4, 1, tuple("abc"), (1 / 3,) * 3, (0,) * 3)


def test_a_controller_that_takes_over_keeps_a_used_result_that_others_wait_for() -> None:
    has, lacks = m.Ready(0, 3, SUM, released=HELD, tried=(4,)), m.Ready(0, 9, SUM, tried=(4,))
    found = resolve({"a": report(has, 4, finished=True), "b": report(lacks, 4)})
    assert found.superseded == () and dict(found.ready) == {"a": has, "b": lacks}


@pytest.mark.parametrize("other", ["has gone on", "has committed another", "has used a newer one"])
def test_a_used_result_is_superseded_where_others_have_gone_on(other: str) -> None:
    has = m.Ready(0, 3, SUM, released=HELD, tried=(4,))
    newer = m.Released(6, 2, tuple("bc"), (0.5,) * 2, (0,) * 2)
    waits = {"c": report(m.Ready(0, 9, SUM, tried=(4, 6)))}
    others = {
        "has gone on": {"b": report(m.Ready(0, 10, SUM))},
        "has committed another": {**waits, "b": report(m.Ready(0, 10, SUM), committed=(4, 2))},
        "has used a newer one": {**waits, "b": report(m.Ready(0, 9, SUM, released=newer, tried=(4, 6)), 6, 2, True)},
    }[other]
    found = resolve({"a": report(has, 4, finished=True), **others})
    assert found.superseded == (("a", has),) and "a" not in dict(found.ready)


def test_a_rank_that_rejoins_with_a_result_of_its_own_is_told_and_asks_anew() -> None:
    controller = gathered()
    first = ask(controller)
    controller.disconnected("d", "its connection broke", 2.0)
    controller.connected("d", 2.5)
    held = m.RoundReport(
        first.round,
        first.version,
        tuple("abcd"),
        True,
        5,
        m.Ready(0, 1, SUM, released=used(first), tried=(first.round,)),
    )
    back = m.Join("host", 1003, 3, m.Report(0, 1, (), 4, rounds=(held,)))
    told = said(controller.received("d", back, 2.5))["d"]
    assert [type(x) for x in told if isinstance(x, m.Abandon | m.OperationLost)] == [m.Abandon, m.OperationLost]
