"""One replica of torchft with Tradewind's process group, or with "gloo" torchft's own; see test_torch_torchft.py."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

from tradewind.torch.torchft import ProcessGroupTradewind

LONGEST = timedelta(seconds=120)


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def last_step(file: Path) -> int:
    """The step after which replicas end; the test writes it when all of them train."""
    return int(file.read_text()) if file.exists() else sys.maxsize


def main(backend: str, name: str, lighthouse: str, until: Path) -> None:
    torch.manual_seed(os.getpid())
    model = nn.Linear(400, 50)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = ProcessGroupTradewind(timeout=LONGEST) if backend == "tradewind" else ProcessGroupGloo(timeout=LONGEST)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=group,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=2,
        replica_id=name,
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        hostname="127.0.0.1",
        timeout=LONGEST,
        quorum_timeout=LONGEST,
        connect_timeout=LONGEST,
    )
    try:
        while manager.current_step() < last_step(until):
            manager.start_quorum()
            optimizer.zero_grad()
            step = manager.current_step()
            model(torch.full((4, 400), float(step % 5))).square().mean().backward()
            for parameter in model.parameters():
                manager.allreduce(parameter.grad).wait()
            committed = manager.should_commit()
            if committed:
                optimizer.step()
            state = b"".join(t.numpy().tobytes() for t in model.state_dict().values())
            digest = hashlib.sha256(state).hexdigest()[:16]
            say(step=step, committed=committed, replicas=manager.num_participants(), digest=digest)
            time.sleep(0.02)
        say(done=True)
    finally:
        manager.shutdown(wait=False)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
