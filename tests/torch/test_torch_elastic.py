"""Under torchrun: the errors of the other ranks name a killed rank within the deadline, and the restart continues."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ranks import free_port

SCRIPT = Path(__file__).parents[1] / "support" / "torch_lose_a_worker.py"
WORLD, DEADLINE_S = 3, 10


@pytest.mark.slow
@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_a_killed_rank_is_named_and_training_continues_after_the_restart(rendezvous: str) -> None:
    static, elastic = ["--master-port", str(free_port())], ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    how = static if rendezvous == "static" else elastic
    command = [sys.executable, "-m", "torch.distributed.run", *how, "--nproc-per-node", str(WORLD)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRADEWIND_PATIENCE_S": str(DEADLINE_S)}
    done = subprocess.run(
        [*command, "--max-restarts", "1", "--monitor-interval", "3", str(SCRIPT)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for rank in (0, 1):
        (failed,) = (line for line in done.stdout.splitlines() if f"attempt 0, rank {rank} failed in step 5" in line)
        assert "'rank2'" in failed
    for rank in range(WORLD):
        assert f"attempt 1, rank {rank} is done" in done.stdout
