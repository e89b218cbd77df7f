"""How much of the time ranks compute with an outer optimizer, beside averaging at every step, on the links of a lab.

    tradewind lab run mesh --option n=4 -- python examples/lab_outer.py --out build/outer

A step waits for `--step` seconds instead of computing, and changes the model a little: so the processors of one machine
are free for all sites' rounds. Utilisation is the time of all steps over the whole time.
"""

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tradewind.torch import Outer, Synchronizer


def methods(every: int, fragments: int, delay: int) -> dict[str, dict[str, Any]]:
    streaming = Outer(lr=0.4, fragments=fragments, delay=delay, mix=0.5, codec="int4")
    return {
        "every step": {"policy": "bsp"},
        "diloco": {"preset": "diloco", "every": every},
        "streaming-diloco int4": {"preset": "streaming-diloco", "every": every, "outer": streaming},
    }


def sent_bytes(sync: Synchronizer) -> int:
    return sum(peer.sent_bytes for peer in sync.group.stats().peers)


def train(steps: int, step_s: float, given: dict[str, Any], layers: int, width: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)])
    with Synchronizer(model, **given) as sync:
        sent = [sent_bytes(sync)]
        sync.group.barrier()
        start = time.monotonic()
        for _ in range(steps):
            time.sleep(step_s)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter *= 0.999
            sync.step()
            sent.append(sent_bytes(sync))
        seconds = time.monotonic() - start
        blocked_s, rounds = sync.blocked_s, sync.rounds
        sync.group.barrier()
    each = [after - before for before, after in itertools.pairwise(sent)]
    return {
        "seconds": seconds,
        "utilisation": steps * step_s / seconds,
        "blocked_s": blocked_s,
        "rounds": rounds,
        "sent_bytes": sent[-1] - sent[0],
        "most_bytes_in_a_step": max(each),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--step", type=float, default=0.5, help="seconds")
    parser.add_argument("--every", type=int, default=24)
    parser.add_argument("--fragments", type=int, default=8)
    parser.add_argument("--delay", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--out", type=Path, default=Path("build/outer"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    runs = {}
    for name, given in methods(arguments.every, arguments.fragments, arguments.delay).items():
        runs[name] = train(arguments.steps, arguments.step, given, arguments.layers, arguments.width)
        if dist.get_rank() == 0:
            print(f"{name}: utilisation {runs[name]['utilisation']:.1%}, {runs[name]['sent_bytes']} bytes", flush=True)
    if dist.get_rank() == 0:
        arguments.out.mkdir(parents=True, exist_ok=True)
        given = {name: value for name, value in vars(arguments).items() if name != "out"}
        (arguments.out / "runs.json").write_text(json.dumps({"options": given, "runs": runs}))
    dist.barrier()


if __name__ == "__main__":
    main()
