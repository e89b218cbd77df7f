"""The backend is registered whichever module is imported first, also through PyTorch's entry point."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SHOW = "import torch.distributed as dist; print('tradewind' in dist.Backend.backend_list)"


@pytest.mark.parametrize("first", ["tradewind.torch", "torch"])
def test_the_backend_is_registered_whatever_is_imported_first(tmp_path: Path, first: str) -> None:
    installed = tmp_path / "found_by_torch-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: found-by-torch\nVersion: 1\n")
    entry = "[torch.backends]\ntradewind = tradewind.torch.registration:register\n"
    (installed / "entry_points.txt").write_text(entry)
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    done = subprocess.run(
        [sys.executable, "-c", f"import {first}; {SHOW}"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr
