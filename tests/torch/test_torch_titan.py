"""torchtitan with HSDP over Tradewind: its example trains with four processes, where torchtitan is installed."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ranks import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchtitan_hsdp.py"
NEEDED = ("torchtitan", "datasets", "tokenizers", "triton")


@pytest.mark.slow
def test_the_example_trains_over_tradewind(tmp_path: Path) -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip("torchtitan, or what it imports, is not installed: pip install torchtitan")
    command = [sys.executable, "-m", "torch.distributed.run", "--master-port", str(free_port())]
    done = subprocess.run(
        [*command, "--nproc-per-node", "4", str(EXAMPLE)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    losses = [float(text) for text in re.findall(r"\bloss: *([\d.]+)", re.sub(r"\x1b\[[\d;]*m", "", done.stdout))]
    assert len(losses) > 4 and losses[-1] < losses[0], done.stdout[-6000:]
    for name in ("dp_replicate", "fsdp"):
        assert f"{name}: 2 ranks over tradewind" in done.stdout, done.stdout[-6000:]
