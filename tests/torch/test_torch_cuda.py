"""CUDA tensors: staged through pinned memory, in the order of the streams that made them. Needs a GPU; one is enough.

Runs by itself where pytest is missing: `python tests/torch/test_torch_cuda.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

try:
    import torch
except ImportError:
    torch = None

from torch_ranks import launch

MODULE = "torch_checks_cuda"


def has_cuda() -> bool:
    return torch is not None and torch.cuda.is_available()


def test_cuda() -> None:
    if not has_cuda():
        import pytest

        pytest.skip("no CUDA device")
    outcomes = launch(MODULE, 2)
    assert len(outcomes) > 3
    assert not any(outcomes.values()), "\n".join(problem for found in outcomes.values() for problem in found)


if __name__ == "__main__":
    test_cuda()
    print("all checks passed")
