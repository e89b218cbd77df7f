"""The simulator runs the code that trains: breaking the controller breaks fluid scenarios, too."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tradewind.catalog import load_compute_times, load_network
from tradewind.control.plans import versions
from tradewind.errors import InfeasiblePlan
from tradewind.schemes import make_scheme
from tradewind.sim import LinkOutage, SimulationResult, WorkerOutage, simulate

CREW = load_network("crew-n2", n=12, seed=1)
IMPORTED = """
import sys
from tradewind.catalog import load_network
from tradewind.sim import simulate
assert simulate(load_network("mesh", n=3), "bsp-ring", 2, compute=0.1, nbytes=1000).finished_rounds
print(*sorted(name for name in sys.modules if name.startswith("tradewind.")))
"""


def test_simulate_runs_the_controller_and_the_protocol_and_nothing_of_the_runtime() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True, timeout=120)
    loaded = set(done.stdout.split())
    assert {"tradewind.control.controller", "tradewind.node.node"} <= loaded
    assert not {name for name in loaded if name.startswith(("tradewind.runtime", "tradewind.torch"))}


def lose_an_aggregator() -> SimulationResult:
    compute = load_compute_times("lstm").rescaled(0.05, 0.2)
    first = simulate(CREW, "crew", 5, 1, compute=compute, nbytes=40_000_000, policy_options={"p": 4}).rounds[0]
    victim = next(name for name in CREW.names if name not in first.members)
    faults = [WorkerOutage(victim, first.start_s + 0.1)]
    return simulate(CREW, "crew", 5, 1, compute=compute, nbytes=40_000_000, policy_options={"p": 4}, faults=faults)


def test_a_controller_that_cannot_repair_fails_a_fluid_round(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lose_an_aggregator().rounds[0].outcome == "finished"

    def cannot(*_: object) -> object:
        raise InfeasiblePlan("broken on purpose")

    monkeypatch.setattr(versions, "patch_plan", cannot)
    assert lose_an_aggregator().rounds[0].outcome == "failed"


def test_crew_answers_a_lost_link_with_another_aggregator() -> None:
    """Eq. (3) for links, as published; ours goes around the link and keeps the aggregator."""
    compute = load_compute_times("lstm").rescaled(0.05, 0.2)
    how = {"compute": compute, "nbytes": 40_000_000, "policy_options": {"p": 4}}
    first = simulate(CREW, "crew", 5, 1, **how).rounds[0]  # type: ignore[arg-type]
    aggregator = next(name for name in CREW.names if name not in first.members)
    faults = [LinkOutage(first.members[0], aggregator, first.start_s + 0.05)]
    moved = {}
    for failover in ("replace", "reroute"):
        scheme = replace(make_scheme("crew"), failover=failover)
        ended = simulate(CREW, scheme, 5, 1, faults=faults, **how).rounds[0]  # type: ignore[arg-type]
        assert ended.outcome == "finished"
        moved[failover] = ended.moved_shards
    assert make_scheme("crew").failover == "replace"
    assert moved["replace"] >= 1 and moved["reroute"] == 0
