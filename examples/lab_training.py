"""The same training over Gloo and over Tradewind, on the same links, with the same seeds, and a picture of it.

    tradewind lab run mesh --option n=4 -- python examples/lab_training.py --out build/training

A small convolutional network learns the 1797 handwritten digits that come with scikit-learn, as DistributedDataParallel
on every site of the lab, first over the one backend and then over the other. The clock runs from the first step, so it
includes connecting and planning; the loss is that of the first site's model on digits that are not trained with.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import tradewind.torch  # noqa: F401 - registers the backend

BACKENDS = ("gloo", "tradewind")
BATCH = 16
HELD_OUT = 360


def network(hidden: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(512, hidden), nn.ReLU(), nn.Linear(hidden, 10)),
    )


def train(group: dist.ProcessGroup, steps: int, hidden: int) -> dict[str, list[float]]:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32).unsqueeze(1)[order]
    labels = torch.tensor(digits.target)[order]
    own, own_labels = images[HELD_OUT + rank :: world], labels[HELD_OUT + rank :: world]
    model = DistributedDataParallel(network(hidden), process_group=group)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    draw = torch.Generator().manual_seed(rank)
    found: dict[str, list[float]] = {"seconds": [], "loss": [], "accuracy": []}
    dist.barrier()
    start = time.monotonic()
    for _ in range(steps):
        batch = torch.randint(len(own), (BATCH,), generator=draw)
        optimizer.zero_grad()
        cross_entropy(model(own[batch]), own_labels[batch]).backward()
        optimizer.step()
        with torch.no_grad():
            scores = model.module(images[:HELD_OUT])
        found["seconds"].append(time.monotonic() - start)
        found["loss"].append(cross_entropy(scores, labels[:HELD_OUT]).item())
        found["accuracy"].append((scores.argmax(1) == labels[:HELD_OUT]).float().mean().item())
    return found


def draw(runs: dict[str, dict[str, list[float]]], title: str, path: Path) -> None:
    from tradewind.figures import render
    from tradewind.figures.chart import Panel, Series
    from tradewind.figures.panels import panels_figure

    def curves(x: str, y: str) -> tuple[Series, ...]:
        return tuple(
            Series(
                name,
                (0.0, *run["seconds"]) if x == "seconds" else (0.0, *range(1, len(run[y]) + 1)),
                (first(y), *run[y]),
            )
            for name, run in runs.items()
        )

    def first(y: str) -> float:
        return 2.303 if y == "loss" else 0.1  # of a model that knows nothing of ten classes

    panels = (
        Panel("against time", "seconds", "loss on held-out digits", curves("seconds", "loss")),
        Panel("against time", "seconds", "right, share of held-out digits", curves("seconds", "accuracy")),
        Panel("against steps", "steps", "loss on held-out digits", curves("steps", "loss")),
    )
    path.write_bytes(render(panels_figure(title, panels), path.suffix))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--out", type=Path, default=Path("build/training"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    size = sum(parameter.numel() for parameter in network(arguments.hidden).parameters())
    runs = {}
    for backend in BACKENDS:
        runs[backend] = train(dist.new_group(backend=backend), arguments.steps, arguments.hidden)
        if rank == 0:
            last = {name: values[-1] for name, values in runs[backend].items()}
            print(
                f"{backend}: {arguments.steps} steps in {last['seconds']:.1f} s, loss {last['loss']:.3f}, "
                f"{last['accuracy']:.1%} right",
                flush=True,
            )
    if rank == 0:
        ratio = runs["gloo"]["seconds"][-1] / runs["tradewind"]["seconds"][-1]
        apart = max(abs(a - b) for a, b in zip(runs["gloo"]["loss"], runs["tradewind"]["loss"], strict=True))
        load = os.getloadavg()[0]
        print(f"{ratio:.2f} times as fast; losses differ by at most {apart:.2g}; load of the machine {load:.1f}")
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "runs.json").write_text(json.dumps({"load": load, "parameters": size, **runs}))
        title = f"The same training on {world} sites ({4 * size / 1e6:.2f} MB of gradients a step)"
        draw(runs, title, arguments.out / "training.png")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
