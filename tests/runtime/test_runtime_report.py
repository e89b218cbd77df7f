"""A run explains itself: the network, the plan and its limit, and at the end what limited it."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from ranks import run_ranks
from tradewind.control.options import ControlOptions
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.plan import plan_to_json
from tradewind.runtime.group import Group
from tradewind.runtime.report import RunReport, describe_plan, set_log_level
from tradewind.runtime.shaping import ShapedNetwork
from tradewind.units import format_duration
from tradewind.wire import messages as m
from tradewind.wire.packed_plans import PackedPlan

TRIANGLE = Network("triangle", [Site(n) for n in "abc"], [[0, 4e7, 2e7], [4e7, 0, 6e7], [2e7, 6e7, 0]])
SUM = m.Operation(250, 4, "float32", "sum")


def start(round_: int, stream: int) -> m.Start:
    return m.Start(round_, 1, stream, (1,), (1.0,), SUM, 0, (0,))


def report_with_a_plan() -> RunReport:
    report = RunReport(ControlOptions(3, TRIANGLE))
    report.sent(m.PlanChanged(1, PackedPlan(make_plan("ring", TRIANGLE, 1000))), 0.0)
    return report


def test_the_rank_that_others_waited_for_is_named() -> None:
    report = report_with_a_plan()
    for round_, times in enumerate([(0.0, 2.0, 0.5), (3.0, 4.0, 3.5), (5.0, 5.5, 7.0)]):
        for worker, at_s in zip("abc", times, strict=True):
            report.received(worker, m.Ready(round_ % 2, round_, SUM), at_s)
        for message, later_s in ((start(round_, round_ % 2), 0.0), (m.Commit(round_), 0.25)):
            for _ in "abc":  # the same message to each
                report.sent(message, max(times) + later_s)
    lines = list(report.summary())
    assert lines[0] == "3 rounds of 3 kB in total; 250 ms per round on average"
    assert lines[-1] == "waited longest for rank 'b': 2 s in total"


def test_the_slowest_link_is_the_slowest_of_those_that_were_busy() -> None:
    report = report_with_a_plan()
    report.sent(start(0, 0), 0.0)
    report.sent(m.Commit(0), 1.0)
    report.received("a", m.Measured("b", 1e6, full=False), 1.0)
    report.received("c", m.Measured("b", 3e6, full=False), 1.0)
    report.received("c", m.Measured("b", 5e7, full=True), 1.0)
    report.received("b", m.Measured("c", 3e7, full=True), 1.0)
    said = "\n".join(report.summary())
    assert "b -> a: at least 1 Mbps of 40 Mbps given" in said
    assert "b -> c: 50 Mbps of 60 Mbps given" in said
    assert "slowest saturated link: c -> b: 30 Mbps of 60 Mbps" in said


def test_a_plan_is_shown_with_its_reason_beside_the_limit() -> None:
    plan = make_plan("optimal", TRIANGLE, 2_000_000)
    said = describe_plan(1, plan, ControlOptions(3, TRIANGLE))
    assert "'optimal'" in said and "the network is known" in said and "of the limit of 60 Mbps" in said
    assert "set by plan=" in describe_plan(1, plan, ControlOptions(3, TRIANGLE, plan))
    assert "set by planner=" in describe_plan(1, plan, ControlOptions(3, None, None, "ring"))
    assert plan_to_json(plan)


def test_a_real_run_says_it_all_once(caplog: pytest.LogCaptureFixture) -> None:
    def body(group: Group) -> None:
        for _ in range(3):
            group.all_reduce(np.ones(300_000, np.float32))

    before = logging.getLogger("tradewind").level
    set_log_level("info")
    try:
        with caplog.at_level(logging.INFO, "tradewind.run"):
            answers = run_ranks(3, body, network=TRIANGLE, shape=ShapedNetwork(TRIANGLE), connections=1)
    finally:
        logging.getLogger("tradewind").setLevel(before)
    assert answers == [None] * 3
    said = [record.getMessage() for record in caplog.records if record.name == "tradewind.run"]
    assert said[0] == "network 'triangle': 3 ranks on 3 sites, 6 links of 20 Mbps to 60 Mbps"
    assert sum("for arrays of up to 2.1 MB: 'optimal'" in line for line in said) == 1
    assert sum(line.startswith("slowest saturated link:") for line in said) == 1
    assert sum(line.startswith("waited longest for rank") for line in said) == 1


@pytest.mark.parametrize("connections", [None, 1])
def test_a_live_run_plans_for_the_cores_and_connections_of_its_ranks(
    connections: int | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 48 cores each of three ranks has 16, as with `tradewind plan --rank-cores 16`."""
    monkeypatch.setattr("os.cpu_count", lambda: 48)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(48)), raising=False)
    fast = Network("fast", TRIANGLE.sites, np.array([[0, 90, 30], [40, 0, 20], [30, 20, 0]]) * 1e9)

    def body(group: Group) -> str:
        group.all_reduce(np.ones(2**21, np.float32))
        return group.name

    with caplog.at_level(logging.INFO, "tradewind.run"):
        given: dict[str, Any] = {} if connections is None else {"connections": connections}
        assert run_ranks(3, body, network=fast, log="info", **given) == list("abc")
    said = next(r.getMessage() for r in caplog.records if r.getMessage().startswith("plan 1"))
    plan = make_plan("optimal", fast, 2**23, rank_cores=16, connections=connections or 0)
    assert f"{len(plan.shards)} tree" in said
    assert plan.predicted is not None and f"predicted {format_duration(plan.predicted.seconds)} " in said
