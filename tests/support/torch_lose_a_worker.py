"""What torchrun runs in test_torch_elastic.py: training in which one worker is killed, in the first attempt only."""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tradewind.torch  # noqa: F401 - registers the backend where Tradewind is not installed, but on the path

STEPS, LAST_WORDS_S = 12, 20.0


def main() -> None:
    dist.init_process_group("tradewind")
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), dist.get_rank()
    model = DistributedDataParallel(nn.Linear(1000, 50))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        if (attempt, step, rank) == (0, 5, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            model(torch.ones(4, 1000)).sum().backward()
        except RuntimeError as error:
            print(f"attempt {attempt}, rank {rank} failed in step {step}: {str(error).splitlines()[0]}", flush=True)
            time.sleep(LAST_WORDS_S)  # until torchrun ends us, so that it hears of the killed worker first
            raise
        optimizer.step()
        optimizer.zero_grad()
    print(f"attempt {attempt}, rank {rank} is done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
