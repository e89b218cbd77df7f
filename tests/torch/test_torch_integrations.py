"""Lightning and Accelerate over Tradewind: their examples train with two processes, where these are installed."""

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

EXAMPLES = Path(__file__).parents[2] / "examples"
UNTRAINED = 2.303
"""Loss of an untrained classifier of ten digits: ln 10."""


@pytest.mark.slow
@pytest.mark.parametrize("package", ["accelerate", "lightning"])
def test_the_example_trains_over_tradewind(package: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}")
    command = [sys.executable, "-m", "torch.distributed.run", "--master-port", str(free_port())]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", str(EXAMPLES / f"{package}_digits.py")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    losses = [float(text) for text in re.findall(r"\bloss ([\d.]+)", done.stdout)]
    assert losses and losses[-1] < UNTRAINED, done.stdout
