"""Ranks of a site add up among themselves first, and only own slices cross between sites: `inner="nccl"`.

NCCL needs a GPU for every rank; here Gloo takes its place within a site, on the CPU.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.distributed_c10d import _DistributedBackendOptions

import tradewind.torch
from torch_ranks import checks_of, launch
from tradewind.errors import BadOption
from tradewind.torch.backend import make_group

MODULE = "torch_checks_slices"


@pytest.fixture(scope="module")
def slices() -> dict[str, list[str]]:
    return launch(MODULE, 4)


@pytest.mark.parametrize("check", checks_of(MODULE))
def test_slices(check: str, slices: dict[str, list[str]]) -> None:
    assert slices.get(check, "it never ran") == [], slices.get("launch")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_the_option_is_refused_without_a_gpu() -> None:
    store = torch.distributed.HashStore()
    made = _DistributedBackendOptions()
    made.store, made.group_rank, made.group_size, made.group_id = store, 0, 1, "alone"
    with pytest.raises(BadOption, match="inner='nccl' needs a CUDA device"):
        make_group(made, tradewind.torch.Options(inner="nccl"), "0")
