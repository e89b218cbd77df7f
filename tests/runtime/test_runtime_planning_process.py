"""Plans made in a process of their own: elsewhere, survived, and ended."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ranks import SECRET
from tradewind.catalog import load_network
from tradewind.control import ControlOptions
from tradewind.control.plans.versions import Key, PlanMade, PlanWanted
from tradewind.network import Network
from tradewind.planning import PLANNERS, NoOptions, checked_plan, planner, register_planner
from tradewind.planning.plan import Plan
from tradewind.runtime.control_server import ControlServer
from tradewind.runtime.planning_process import PlanningProcess
from tradewind.wire.handshake import Credentials

NBYTES = 10_000_000


def wanted(name: str = "fapt", sites: int = 5) -> PlanWanted:
    network = load_network("mesh", n=sites)
    current = checked_plan("ring", network, NBYTES)
    return PlanWanted(Key(current.members, NBYTES, "", 1), network, name, {}, current)


@pytest.fixture
def planning() -> Iterator[PlanningProcess]:
    with contextlib.closing(PlanningProcess()) as process:
        yield process


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_plan_is_made_in_another_process_as_it_would_be_made_in_this_one(planning: PlanningProcess) -> None:
    asked, before = wanted("fapt"), planning.pid
    made, here = planning.make(asked), asked.make()
    assert before is None and planning.planned == 1 and planning.pid not in (None, os.getpid())
    assert made.plan is not None and here.plan is not None
    assert (made.key, made.problem) == (here.key, "")
    assert [s.reduce for s in made.plan.shards] == [s.reduce for s in here.plan.shards]
    assert (made.gain, made.seconds) == pytest.approx((here.gain, here.seconds))


def test_a_problem_of_the_planner_comes_back_as_its_text(planning: PlanningProcess) -> None:
    asked = replace(wanted("fapt"), options={"colour": "red"})
    assert planning.make(asked).problem == asked.make().problem != ""
    assert planning.planned == 1


def test_plug_ins_and_small_groups_are_planned_in_this_process(planning: PlanningProcess) -> None:
    seen: list[int] = []

    def plan_here(network: Network, members: tuple[str, ...], nbytes: int, options: NoOptions) -> Plan:
        """A planner that exists in this process only."""
        del options
        seen.append(os.getpid())
        return planner("ring").function(network, members, nbytes, planner("ring").options())

    register_planner("here-only", plan_here)
    try:
        assert planning.make(wanted("here-only")).plan is not None
        assert planning.make(replace(wanted("auto"), options={"planners": ["here-only"]})).plan is not None
    finally:
        PLANNERS.forget("here-only")
    assert planning.make(wanted("fapt", sites=3)).plan is not None
    assert seen == [os.getpid()] * 2 and planning.planned == 0 and planning.pid is None


def test_a_process_that_dies_is_survived_and_replaced(
    planning: PlanningProcess, caplog: pytest.LogCaptureFixture
) -> None:
    assert planning.make(wanted()).plan is not None
    first = planning.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    made: list[PlanMade] = []
    asking = threading.Thread(target=lambda: made.append(planning.make(wanted())))
    asking.start()
    with caplog.at_level(logging.WARNING, "tradewind.runtime"):
        os.kill(first, signal.SIGKILL)
        asking.join(30)
    assert made[0].plan is not None and "planning process ended with code -9" in caplog.text
    assert planning.make(wanted()).plan is not None
    assert planning.planned == 2 and planning.pid not in (None, first)


def test_without_a_process_plans_are_made_here(planning: PlanningProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    assert planning.make(wanted()).plan is not None
    assert planning.planned == 0 and planning.pid is None


def test_closing_ends_the_process_also_while_it_plans() -> None:
    planning = PlanningProcess()
    made: list[PlanMade] = []
    asking = threading.Thread(target=lambda: made.append(planning.make(wanted("optimal", sites=40))))
    asking.start()
    until(lambda: planning.pid)
    pid = planning.pid
    assert pid is not None
    planning.close()
    asking.join(30)
    assert is_gone(pid) and planning.pid is None
    assert made[0].plan is None and "has ended" in made[0].problem
    assert planning.make(wanted()).plan is None


def test_the_controller_plans_in_the_process_and_ends_it() -> None:
    credentials = Credentials("tradewind", "boss", SECRET.encode())
    server = ControlServer("127.0.0.1", 0, credentials, ControlOptions(5))
    server.change(lambda controller, now_s: [wanted()])  # noqa: ARG005
    until(lambda: server.stats().planning_pid)
    pid = server.stats().planning_pid
    assert pid is not None and pid != os.getpid()
    server.close("done")
    assert is_gone(pid)


SCRIPT = """
import os, sys
from test_runtime_planning_process import PlanningProcess, wanted
print("imported", __name__)
planning = PlanningProcess()
planning.make(wanted())
print(planning.pid, flush=True)
if os.fork() == 0:
    sys.stdin.read()  # a forked child that outlives its parent, with copies of all its files
    os._exit(0)
os._exit(0)
"""


def test_a_script_without_a_main_guard_is_run_once_and_its_death_ends_the_process() -> None:
    here = os.pathsep.join(path for path in sys.path if path)
    run = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": here},
        text=True,
    )
    assert run.stdin is not None and run.stdout is not None
    assert run.stdout.readline() == "imported __main__\n"
    pid = int(run.stdout.readline())
    run.wait(30)
    until(lambda: is_gone(pid))
    run.stdin.close()
    assert run.stdout.read() == ""
    run.stdout.close()
