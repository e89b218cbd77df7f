"""Killed processes: the remaining ranks continue and agree, and a killed rank can rejoin."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from failing import SECRET, Process, processes
from ranks import free_port, run_ranks
from tradewind.formats.json_network import network_to_json
from tradewind.network import Network, Site
from tradewind.runtime.group import Group
from tradewind.runtime.shaping import ShapedNetwork

POLICIES = {"partial": {"p": 2}, "selective": {"p": 2, "full_every": 0}, "shuffle": {}}


@pytest.mark.parametrize(("policy", "inline_bytes"), [*((policy, 0) for policy in POLICIES), ("partial", 4000)])
def test_a_killed_worker_does_not_end_a_tolerant_run(policy: str, inline_bytes: int) -> None:
    address = f"127.0.0.1:{free_port()}"
    options = {"policy": policy, "policy_options": POLICIES[policy], "inline_bytes": inline_bytes}
    with processes() as start:
        workers = [start(rank, address, 4, steps=100, pause_s=0.01, options=options) for rank in range(4)]
        for worker in workers:
            worker.wait_for(lambda said: said.get("step") == 5)
        workers[2].kill()
        for worker in (workers[0], workers[1], workers[3]):
            worker.wait_for(lambda said: "done" in said)
            assert not [said for said in worker.heard if "error" in said]
            steps = [said for said in worker.heard if "step" in said]
            assert len(steps) == 100 and all(said["intact"] for said in steps)
            late = [said for said in steps[60:] if not said["alone"]]
            assert late and all("rank2" not in said["members"] for said in late)
            assert all(said["inline"] is bool(inline_bytes) for said in late)
        assert_identical(workers)


def mesh(names: list[str], mbps: float) -> Network:
    return Network("mesh", [Site(name) for name in names], mbps * 1e6 * (1 - np.eye(len(names))))


def together(said: dict[str, Any]) -> bool:
    return "step" in said and not said["alone"]


@pytest.mark.parametrize(
    ("victim", "role"), [(3, "an aggregator"), pytest.param(1, "an initiator", marks=pytest.mark.slow)]
)
def test_a_round_is_repaired_when_a_rank_dies_in_the_middle_of_it(tmp_path: Path, victim: int, role: str) -> None:
    """CREW: all four aggregate for the three that are ready first; a round takes more than a second."""
    names = [f"rank{n}" for n in range(4)]
    file = tmp_path / "slow.json"
    file.write_bytes(network_to_json(mesh(names, 16.0)))
    options = {"policy": "partial", "policy_options": {"p": 3}, "planner": "scatter"}
    with processes() as start:
        address = f"127.0.0.1:{free_port()}"
        late = {"pause_s": 0.0, "environment": {"TRADEWIND_SHAPE": str(file)}, "options": options}
        first = [n for n in range(4) if n != 3]
        workers = {n: start(n, address, 4, items=1_000_000, steps=4, **late) for n in first}
        workers[3] = start(3, address, 4, items=1_000_000, steps=0, **late)  # never ready: it only helps
        for worker in workers.values():
            worker.wait_for(lambda said: "joined" in said)
        workers[first[0]].wait_for(lambda said: said.get("step") == 0)
        threading.Event().wait(0.5)  # into the second round, which takes longer than that
        workers[victim].kill()
        left = [worker for n, worker in workers.items() if n not in (3, victim)]
        for worker in left:
            worker.wait_for(lambda said: "done" in said)
        steps = [said for worker in left for said in worker.heard if "step" in said]
        assert any(said["repaired"] for said in steps), f"{role} was to die in the middle of a round"
        assert all(said["intact"] for said in steps)
        assert_identical(left)


def test_a_restarted_worker_joins_again() -> None:
    address = f"127.0.0.1:{free_port()}"
    options = {"policy": "partial", "policy_options": {"p": 2}}
    with processes() as start:
        workers = [start(rank, address, 3, steps=2000, pause_s=0.02, options=options) for rank in range(3)]
        for worker in workers:
            worker.wait_for(lambda said: said.get("step") == 3)
        workers[1].kill()
        again = start(1, address, 3, steps=2000, pause_s=0.02, options=options)
        assert "rank1" in again.wait_for(lambda said: "joined" in said)["names"]
        for _ in range(3):
            again.wait_for(together)
        workers[2].wait_for(lambda said: together(said) and "rank1" in said["members"])


def controller_process(port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from tradewind.cli import main; main()", "controller"]
    command += ["--listen", f"127.0.0.1:{port}", "--world", "3", "--policy", "partial", "--patience-s", "6s"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "TRADEWIND_SECRET": SECRET}
    )
    assert process.stderr is not None and "listening" in process.stderr.readline()
    return process


def test_ranks_continue_alone_without_a_controller_and_rejoin() -> None:
    port = free_port()
    controller = controller_process(port)
    try:
        with processes() as start:
            options = {"controller": f"127.0.0.1:{port}"}
            workers = [
                start(rank, f"127.0.0.1:{port}", 3, steps=100_000, pause_s=0.05, options=options) for rank in range(3)
            ]
            for worker in workers:
                worker.wait_for(together)
            controller.send_signal(signal.SIGKILL)
            assert controller.wait(10) == -signal.SIGKILL, "the fault did not fire"
            assert controller.stderr is not None
            controller.stderr.close()
            for worker in workers:
                worker.wait_for(lambda said: said.get("alone") is True)
            controller = controller_process(port)
            for worker in workers:
                worker.wait_for(together)
                assert not [said for said in worker.heard if "error" in said]
    finally:
        controller.kill()
        controller.wait(10)
        assert controller.stderr is not None
        controller.stderr.close()


@pytest.mark.parametrize("inline_bytes", [0, 4000])
def test_a_standby_takes_over_when_the_acting_controller_dies(inline_bytes: int) -> None:
    """Rank 0 runs the active controller, rank 1 the standby."""
    addresses = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
    options = {"policy": "partial", "policy_options": {"p": 2}, "inline_bytes": inline_bytes}
    with processes() as start:
        workers = [start(rank, addresses, 4, steps=100_000, pause_s=0.05, options=options) for rank in range(4)]
        for worker in workers:
            worker.wait_for(together)
        before = max(said["round"] for worker in workers for said in worker.heard if together(said))
        workers[0].kill()
        for worker in workers[1:]:
            after = worker.wait_for(lambda said: together(said) and said["round"] >= 2**32)
            assert "rank0" not in after["members"] and after["round"] > before
            assert after["inline"] is bool(inline_bytes)
        assert_identical(workers[1:])


def test_a_cut_link_is_gone_around_and_used_again_when_it_is_healed() -> None:
    names = ["a", "b", "c"]
    network = mesh(names, 40.0)
    shape = ShapedNetwork(network)
    cut, healed = threading.Event(), threading.Event()

    def cut_link() -> None:
        shape.cut("a", "b")
        cut.set()

    def body(group: Group) -> list[bool]:
        repaired = []
        array = np.full(400_000, float(group.rank), np.float32)
        for step in range(400):
            handle = group.average_async(array)
            assert handle.wait(60.0)[0] == 1.0 and (array == group.rank).all()
            repaired.append(handle.outcome.repaired)
            if group.rank == 0 and step == 1:
                threading.Timer(0.05, cut_link).start()
            if group.rank == 0 and cut.is_set() and any(repaired) and not healed.is_set():
                shape.heal("a", "b")
                healed.set()
            if np.any(group.all_reduce(np.array([float(healed.is_set() and step > 5)])) > 0):
                break
        return repaired

    answers = run_ranks(
        3, body, shape=shape, network=network, planner="ring", tolerant=True, patience_s=3.0, connections=1
    )
    assert cut.is_set() and healed.is_set(), "the fault did not fire"
    for answer in answers:
        assert isinstance(answer, list), answer
    assert any(any(answer) for answer in answers), "a round was to be repaired"


def assert_identical(workers: list[Process]) -> None:
    """All members of a round have the same bytes."""
    by_round: dict[int, set[tuple[float, float]]] = {}
    for worker in workers:
        for said in worker.heard:
            if "step" in said and not said["alone"]:
                by_round.setdefault(said["round"], set()).add((said["low"], said["high"]))
    assert by_round and all(len(results) == 1 for results in by_round.values())
