"""Loss against time on the links of a lab: a small GPT learns a text with one way to synchronise.

    tradewind lab run mesh --option n=4 -- python examples/lab_loss.py --method streaming-diloco --out build/loss

Every site trains for so many seconds with samples of its own. The first one keeps its model now and then, and judges
all of them on samples that no site trains with when the time is over. The text is Debian's package `jargon-text`
(`REPRODUCE_DATA` names the folder that it is unpacked to).
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tradewind.torch
from tradewind.experiments.stragglers.tasks import CONTEXT, load_samples
from tradewind.torch import Outer, Synchronizer
from tradewind.torch.models import make_gpt

OUTER: dict[str, Any] = {
    "diloco": Outer(),
    "streaming-diloco": Outer(lr=0.4, fragments=4, delay=2, mix=0.5, codec="int4"),
    "sparseloco": Outer(lr=2.0, momentum=0.0, nesterov=False, codec="topk-256", feedback=0.95),
}
EVERY = {"diloco": 20, "streaming-diloco": 20, "sparseloco": 5}


def loss_of(model: nn.Module, inputs: Any, labels: Any) -> torch.Tensor:
    scores = model(torch.from_numpy(np.ascontiguousarray(inputs)))
    return nn.functional.cross_entropy(scores.flatten(0, -2), torch.from_numpy(np.ascontiguousarray(labels)).flatten())


def train(method: str, seconds: float, kept: int, seed: int) -> tuple[nn.Module, list[tuple[float, int, Any]]]:
    """Train for so long; returns the model, and (time, steps, parameters) for each model that was kept."""
    samples, random = load_samples("text", 2000), np.random.default_rng([seed, dist.get_rank()])
    torch.manual_seed(seed)
    model = make_gpt(48, 4, 4, CONTEXT)
    sync = Synchronizer(model, "quorum", every=EVERY[method], outer=OUTER[method]) if method in OUTER else None
    trained = model if sync is not None else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    dist.barrier()
    began_s, steps = time.monotonic(), 0
    found: list[tuple[float, int, Any]] = []
    over = torch.zeros(1)
    while not over:
        at = random.integers(0, len(samples.train), 8)
        optimizer.zero_grad()
        loss_of(trained, samples.train[at], samples.train_labels[at]).backward()
        optimizer.step()
        if sync is not None:
            sync.step()
        steps += 1
        elapsed_s = time.monotonic() - began_s
        if elapsed_s >= seconds * (len(found) + 1) / kept:
            found.append((elapsed_s, steps, [p.detach().clone() for p in model.parameters()]))
        if sync is None or steps % EVERY[method] == 0:  # all ranks end after the same step
            over[0] = elapsed_s >= seconds
            dist.all_reduce(over, dist.ReduceOp.MAX)
    if sync is not None:
        sync.wait()
        sync.close()
    return model, found


@torch.no_grad()
def judged(model: nn.Module, parameters: list[torch.Tensor]) -> float:
    samples = load_samples("text", 2000)
    for own, kept in zip(model.parameters(), parameters, strict=True):
        own.copy_(kept)
    return float(loss_of(model, samples.test, samples.test_labels))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", required=True, help="ddp, ddp-CODEC, or one of: " + ", ".join(OUTER))
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--kept", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/loss"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    codec = arguments.method.removeprefix("ddp").removeprefix("-") or "none"
    options = None if arguments.method in OUTER else tradewind.torch.Options(compression=codec)
    dist.init_process_group(*(["gloo"] if options is None else ["tradewind"]), pg_options=options)
    model, found = train(arguments.method, arguments.seconds, arguments.kept, arguments.seed)
    if dist.get_rank() == 0:
        curve = [(round(elapsed_s, 2), steps, judged(model, kept)) for elapsed_s, steps, kept in found]
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / f"{arguments.method}.json").write_text(json.dumps(curve))
        print(arguments.method, curve[-1])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
