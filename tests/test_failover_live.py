"""Real processes, really killed: the others go on, nobody diverges, and whoever comes back is let in."""

from __future__ import annotations

import pytest

from failing import processes
from ranks import free_port

POLICIES = {"partial": {"p": 2}, "selective": {"p": 2, "full_every": 0}, "shuffle": {}}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_killed_worker_does_not_end_a_tolerant_run(policy: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    options = {"policy": policy, "policy_options": POLICIES[policy]}
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
        assert_identical(workers)


def assert_identical(workers: list) -> None:  # type: ignore[type-arg]
    """All members of a round have the same bytes."""
    by_round: dict[int, set[tuple[float, float]]] = {}
    for worker in workers:
        for said in worker.heard:
            if "step" in said and not said["alone"]:
                by_round.setdefault(said["round"], set()).add((said["low"], said["high"]))
    assert by_round and all(len(results) == 1 for results in by_round.values())
