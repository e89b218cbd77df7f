"""Planners and policies from outside in runs on real connections, by every way to name them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tradewind
from ranks import run_ranks
from tradewind.errors import BadOption, BadPlugin, PeerLost
from tradewind.network import Network, Site
from tradewind.planning import PLANNERS, make_plan, planner_names
from tradewind.planning.plan import Plan
from tradewind.policy import POLICIES, Machine, make_policy, policy_names
from tradewind.registry import NoOptions
from tradewind.runtime.group import Group
from tradewind.runtime.options import resolve_options

ROOT = Path(__file__).parents[2]
LINE = f"{ROOT / 'examples' / 'plugin_planner.py'}:plan_line"
MAJORITY = f"{ROOT / 'examples' / 'plugin_policy.py'}:Majority"
MESH = Network("mesh", [Site(name) for name in "abc"], 1e9 * (1 - np.eye(3)))


@dataclass(frozen=True)
class RootOptions:
    """Where the sum is made."""

    root: int = 0


def plan_root(network: Network, members: tuple[str, ...], nbytes: int, options: RootOptions) -> Plan:
    """A star with a root by number."""
    return make_plan("star", network, nbytes, members, root=members[options.root])


class Careless(Machine):
    """A policy that forgets to look whether all workers are ready, when its timer fires."""

    def __init__(
        self, network: Network, workers: tuple[str, ...], options: NoOptions, *, seed: int, now_s: float
    ) -> None:
        super().__init__(network, workers, seed=seed, now_s=now_s)
        self.told = options

    def decide(self) -> None:
        if "soon" in dict(self.state.timers):
            return
        if self.roster.queue:
            self.set_timer("soon", self.now_s + 0.05, "the others may come")
        if self.now_s and not self.roster.queue == () and self.fired:
            raise RuntimeError("it forgot")

    fired = False

    def observe(self, event: object) -> None:
        self.fired = self.fired or type(event).__name__ == "TimerFired"


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    tradewind.register_planner("rooted", plan_root)
    tradewind.register_policy("careless", Careless)
    yield
    for registry, name in ((PLANNERS, "rooted"), (POLICIES, "careless")):
        registry.forget(name)


def average(group: Group) -> float:
    return float(group.average(np.full(1000, group.rank, np.float32))[0])


def test_a_run_uses_a_planner_and_a_policy_from_files() -> None:
    chosen: dict[str, Any] = {"policy": MAJORITY, "policy_options": {"wait_s": 30}, "planner": LINE}
    assert run_ranks(3, average, network=MESH, **chosen) == pytest.approx([1.0] * 3)
    assert run_ranks(2, average, scheme=f"bsp+{LINE}", planner_options={"order": "bandwidth"}) == [0.5] * 2


def test_environment_and_file_name_plugins_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text((ROOT / "examples" / "plugin_planner.py").read_text())
    (tmp_path / "tradewind.toml").write_text('planner = "mine.py:plan_line"\n')
    assert resolve_options()[0].planner == "mine.py:plan_line"
    monkeypatch.setenv("TRADEWIND_PLANNER", "mine.py:plan_lines")
    with pytest.raises(BadOption, match=r"TRADEWIND_PLANNER: .* is a plug-in .* defines no 'plan_lines'"):
        resolve_options()


def test_registered_ones_are_found_by_name() -> None:
    assert "rooted" in planner_names() and "careless" in policy_names()
    assert make_plan("rooted", MESH, 1000, root=2).shards[0].root == "c"
    assert make_plan("auto", MESH, 1000, planners=("rooted",)).shards[0].root == "a"
    assert run_ranks(2, average, planner="rooted", planner_options={"root": 1}) == [0.5] * 2
    tradewind.register_planner("rooted", lambda_planner)  # as a notebook's cell that is run again
    assert make_plan("rooted", MESH, 1000).shards[0].root == "b"


def lambda_planner(network: Network, members: tuple[str, ...], nbytes: int, options: NoOptions) -> Plan:
    assert options == NoOptions()
    return make_plan("star", network, nbytes, members, root=members[1])


def test_ours_cannot_be_replaced_and_auto_takes_no_plugin_unasked() -> None:
    for name in ("ring", "bsp"):
        register: Any = tradewind.register_planner if name == "ring" else tradewind.register_policy
        with pytest.raises(BadOption, match="Tradewind's own"):
            register(name, plan_root)
    with pytest.raises(BadOption, match="expected letters"):
        tradewind.register_planner("a:b", plan_root)
    with pytest.raises(BadPlugin, match=r"registered by .*cannot be called"):
        tradewind.register_planner("wrong", lambda network: network)
    assert "wrong" not in planner_names()
    assert "rooted" not in make_plan("auto", MESH, 1000, planners=("ring", "star")).reason


def test_a_policy_that_fails_ends_the_run_with_its_reason() -> None:
    """In the thread that watches the time, too: its timer is what makes it fail."""
    for error in run_ranks(2, average, policy="careless"):
        assert isinstance(error, PeerLost | BadPlugin), error
        assert "policy 'careless' is a plug-in (registered by test_runtime_plugins)" in str(error)
        assert "Careless.decide raised RuntimeError: it forgot" in str(error)


def test_a_planner_that_fails_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from tradewind.registry import NoOptions\ndef plan(n, m, b, options: NoOptions): return 3\n")
    for error in run_ranks(2, average, planner=f"{file}:plan"):
        assert "is a plug-in" in str(error) and "plan returned int, expected a tradewind.Plan" in str(error)


def test_an_event_that_cannot_happen_is_not_blamed_on_a_plugin() -> None:
    from tradewind.errors import InternalError
    from tradewind.policy.events import WorkerLost

    with pytest.raises(InternalError, match="has joined"):
        make_policy(MAJORITY, MESH, "ab").handle(WorkerLost("c"), 1.0)
