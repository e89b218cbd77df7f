"""Ray Train with `TorchConfig(backend="tradewind")`, on a real Ray cluster of this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_digits.py"
FIRST_LOSS = 2.303
"""Loss of an untrained classifier of ten digits: ln 10."""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'tradewind[ray]'"
)
def test_the_example_trains_over_tradewind(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.search(r"2 ranks over tradewind: loss ([\d.]+)", done.stdout + done.stderr)
    assert said is not None and float(said[1]) < FIRST_LOSS / 2, done.stdout + done.stderr
