"""One of two ranks, of which rank 1 runs another version of a package; see test_torch_machines.py."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

import tradewind.version


def main(package: str) -> None:
    """Join with another version of `package`, and reduce."""
    if os.environ["RANK"] == "1":
        {"torch": torch, "tradewind": tradewind.version}[package].__version__ = "0.0.1"
    dist.init_process_group("tradewind")
    summed = torch.ones(1000)
    dist.all_reduce(summed)
    print(f"sum {summed[0].item():g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
