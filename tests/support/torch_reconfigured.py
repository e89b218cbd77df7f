"""One rank of a process group whose members change; see test_torch_reconfigure.py, which chooses the members.

The test hosts the store. For each generation every rank stores its handle, and the test the list of all handles, which
is the out-of-band exchange that PyTorch leaves to the user. A rank joins the next generation when its work fails, or
when the test asks for one.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

import tradewind.torch  # noqa: F401 - registers the backend where Tradewind is not installed, but on the path

STEP_S, LONGEST = 0.01, timedelta(seconds=240)


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()[:16]


def regroup(store: dist.Store, generation: int, name: str, uuid_base: int) -> None:
    """Meet the members of a generation; others that still wait for this rank in the old one fail at once."""
    dist.group.WORLD.abort()
    store.set(f"handle/{generation}/{name}", dist._get_reconfigure_handle())
    handles = json.loads(store.get(f"members/{generation}").decode())
    dist._reconfigure(uuid_base + generation, handles, timeout=LONGEST).wait()


def align(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> int:
    """All members continue from the most advanced one: over delegated and planned collectives of the new members."""
    steps = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(steps, torch.tensor([step]))
    newest = max(int(other) for other in steps)
    source = [int(other) for other in steps].index(newest)
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, source)
    optimizer.zero_grad()
    return newest


def last_step(store: dist.Store) -> int:
    """The step after which ranks end; the test says it when all of them train."""
    return int(store.get("until")) if store.check(["until"]) else sys.maxsize


def main(name: str, port: int, generation: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=LONGEST)
    store = dist.PrefixStore("group", store)
    dist.init_process_group("tradewind", store=store, rank=0, world_size=1, enable_reconfigure=True, timeout=LONGEST)
    assert dist._supports_reconfigure()
    torch.manual_seed(os.getpid())
    model = nn.Linear(300, 50)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    while step < last_step(store):
        try:
            regroup(store, generation, name, 100)
            step = align(model, optimizer, step)
            say(generation=generation, rank=dist.get_rank(), world=dist.get_world_size(), step=step)
            while step < last_step(store):
                if store.check([f"wanted/{generation + 1}"]):
                    raise RuntimeError("the test wants other members")
                optimizer.zero_grad()
                model(torch.full((4, 300), float(step % 7))).square().mean().backward()
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
                optimizer.step()
                step += 1
                say(step=step, digest=digest(model), world=dist.get_world_size(), at_s=time.monotonic())
                time.sleep(STEP_S)
        except RuntimeError as error:
            say(failed=str(error).splitlines()[0], at_s=time.monotonic())
            generation += 1
    dist.barrier()
    say(done=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
