"""Results that real processes use before all ranks have them: survivors agree, and a rank that leaves waits for all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from failing import processes
from ranks import free_port, run_ranks
from tradewind.formats.json_network import network_to_json
from tradewind.network import Network, Site
from tradewind.runtime.group import Group
from tradewind.runtime.worker import Worker
from tradewind.wire import messages as m


def mesh(n: int, latency_s: float = 0.05) -> Network:
    apart = 1 - np.eye(n)
    return Network("mesh", [Site(f"rank{i}") for i in range(n)], 1e9 * apart, latency_s * apart)


@pytest.fixture
def held_commits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Commits of plan rounds reach no rank of this process until the event is set."""
    may_pass, received = threading.Event(), Worker.received

    def late(self: Worker, message: m.Message) -> None:
        if isinstance(message, m.Commit):
            assert may_pass.wait(60.0)
        received(self, message)

    monkeypatch.setattr(Worker, "received", late)
    return may_pass


def test_a_result_is_there_before_the_commit_and_stays_when_the_caller_writes(
    held_commits: threading.Event,
) -> None:
    done = threading.Barrier(3)

    def body(group: Group) -> float:
        array = np.full(30_000, float(group.rank), np.float32)
        result = float(group.all_reduce(array, out=array)[0])
        array[:] = -1.0
        done.wait(60.0)  # all have it, and none was told that all have
        assert not held_commits.is_set() or group.rank
        if not group.rank:
            held_commits.set()
        return result

    network = mesh(3)
    each = [{"site": f"rank{rank}"} for rank in range(3)]
    answers = run_ranks(3, body, each=each, network=network)
    assert answers == [answers[0]] * 3 and answers[0] in (1.0, 3.0)


@pytest.mark.parametrize("moment", [0, 1, 2])
def test_survivors_have_equal_results_when_a_rank_is_killed(tmp_path: Path, moment: int) -> None:
    file = tmp_path / "far.json"
    file.write_bytes(network_to_json(mesh(4)))
    options = {"policy": "bsp", "network": str(file), "tolerant": True, "inline_bytes": 0}
    with processes() as start:
        address = f"127.0.0.1:{free_port()}"
        workers = [start(rank, address, 4, items=200_000, steps=40, options=options) for rank in range(4)]
        workers[moment].wait_for(lambda said: said.get("step") == 5 + moment)
        workers[3].kill()
        for worker in workers[:3]:
            worker.wait_for(lambda said: "done" in said)
        results: dict[int, set[tuple[Any, ...]]] = {}
        for worker in workers[:3]:
            steps = [said for said in worker.heard if "step" in said]
            assert len(steps) == 40 and all(said["intact"] and not said["alone"] for said in steps)
            for said in steps:
                results.setdefault(said["step"], set()).add(
                    (said["round"], *said["members"], said["low"], said["high"])
                )
        assert all(len(of_step) == 1 for of_step in results.values()), results
