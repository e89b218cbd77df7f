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


def has_cuda() -> bool:
    return torch is not None and torch.cuda.is_available()


def expect_no_problem(module: str, least: int, world: int = 2, **environment: str) -> None:
    if not has_cuda():
        import pytest

        pytest.skip("no CUDA device")
    outcomes = launch(module, world, 150.0, **environment)
    assert len(outcomes) >= least
    assert not any(outcomes.values()), "\n".join(problem for found in outcomes.values() for problem in found)


def test_cuda() -> None:
    expect_no_problem("torch_checks_cuda", 10)


def test_two_ranks_on_one_gpu_need_gloo_inside() -> None:
    expect_no_problem("torch_checks_shared_gpu", 2)


def test_ranks_of_a_site_add_up_with_nccl() -> None:
    expect_no_problem("torch_checks_slices", 5, world=4, SLICES_ON_GPU="1")


if __name__ == "__main__":
    test_cuda()
    test_two_ranks_on_one_gpu_need_gloo_inside()
    test_ranks_of_a_site_add_up_with_nccl()
    print("all checks passed")
