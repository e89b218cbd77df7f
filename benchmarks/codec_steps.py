"""What encoding does to AdamW's steps: why 4 bits cost some models more than others.

Four replicas train in float32 (seed 150, which no page on accuracy shows), and all gradients are kept. They are then
averaged again with each codec and error feedback, as by the [evidence](compression_evidence.md), and AdamW's moments
computed from what comes out. Training itself is the same for all rows, so that rows differ by the codec alone, without
the noise of trainings that drift apart.

- *error*: of the averaged gradient, as a share of its length;
- *step*: how far AdamW's steps go along those with float32 gradients. What is lost here is lost of the learning rate;
- *off*: how far they are from those, as a share of their length;
- *exact second moment*: the same with the second moment of the float32 gradients.

Blocks: of the whole array as production cuts them; *by parameter*: each parameter begins a new block; *matrices*: only
parameters with two and more dimensions are encoded, in blocks by parameter.

Environment: `STEPS` (90), `REPRODUCE_DATA` (the folder with the unpacked packages).
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TextIO

import torch
from torch import Tensor

from tradewind.experiments.fewer_bytes import SIZES, TESTED, Size, make_model_of
from tradewind.experiments.stragglers.tasks import load_samples
from tradewind.torch.replicas import Exchange, Method, make_replicas
from tradewind.wire.codecs import BLOCK_ITEMS

SEED, FIRST = 150, 20
"""The first steps, in which moments begin at zero, are not counted."""
CODECS = ("bf16", "fp8", "int8", "int4", "int4-32")
WHOLE, BY_PARAMETER, MATRICES = "as they are", "by parameter", "matrices"
BETAS, EPSILON = (0.9, 0.999), 1e-8


def run(out: TextIO) -> dict[str, Any]:
    """Train each model once, and write a row for each codec."""
    steps, found = int(os.environ.get("STEPS", "90")), {}
    out.write("| model | codec | blocks | error | step | off | exact second moment: step | off |\n")
    out.write("|---|---|---|---:|---:|---:|---:|---:|\n")
    for name in ("cnn-cpu", "gpt-cpu"):
        size = SIZES[name]
        gradients = _recorded(size, steps)
        for codec, blocks in _rows():
            places = _places(size, blocks)
            found[f"{name} {codec} {blocks}"] = row = _compared(gradients, codec, places)
            shown = " | ".join(f"{value:.1%}" for value in row)
            out.write(f"| {name} | {codec} | {blocks} | {shown} |\n")
            out.flush()
    return found


def _rows() -> Iterator[tuple[str, str]]:
    for codec in CODECS:
        yield codec, WHOLE
    for blocks in (BY_PARAMETER, MATRICES):
        yield "int4", blocks


def _recorded(size: Size, steps: int) -> Tensor:
    """The gradients of all replicas in each step of a training in float32."""
    work = replace(size.work, steps=size.steps)
    replicas = make_replicas(lambda: make_model_of(size), Method("ddp"), work, (SEED,), "cpu")
    samples, kept = load_samples(*TESTED[size.task]), []
    for number in range(1, steps + 1):
        replicas.backward(samples)
        gradient = replicas.rows.grad
        assert gradient is not None
        kept.append(gradient.clone())
        gradient.copy_(gradient.mean(dim=0, keepdim=True).expand_as(gradient))
        replicas.optimizer.param_groups[0]["lr"] = work.rate_at(number)
        replicas.optimizer.step()
    return torch.stack(kept)


def _places(size: Size, blocks: str) -> Tensor:
    """The item of the array at each place of what is encoded; -1: a zero that fills a block."""
    shapes = [parameter.shape for parameter in make_model_of(size).parameters()]
    items = torch.arange(sum(shape.numel() for shape in shapes))
    parts = list(items.split([shape.numel() for shape in shapes]))
    if blocks == MATRICES:
        parts = [part for part, shape in zip(parts, shapes, strict=True) if len(shape) > 1]
    if blocks != WHOLE:
        parts = [torch.cat([part, torch.full((-len(part) % BLOCK_ITEMS,), -1)]) for part in parts]
    return torch.cat(parts)


def _compared(gradients: Tensor, codec: str, places: Tensor) -> list[float]:
    """The mean of a row's values over all steps but the first."""
    exchange, used = Exchange(Method("ddp", codec, feedback=True)), places >= 0
    count = gradients.shape[2]
    came, exact = (torch.zeros(2, count) for _ in range(2))
    rows = []
    for number, of_step in enumerate(gradients):
        given = torch.zeros(len(of_step), len(places))
        given[:, used] = of_step[:, places[used]]
        mean = of_step.mean(dim=0)
        averaged = mean.clone()
        averaged[places[used]] = exchange.average(0, given)[used]
        for moments, gradient in ((came, averaged), (exact, mean)):
            moments[0].lerp_(gradient, 1 - BETAS[0])
            moments[1].lerp_(gradient.square(), 1 - BETAS[1])
        if number >= FIRST:
            right = _step(exact[0], exact[1])
            row = [float((averaged - mean).norm() / mean.norm())]
            for step in (_step(came[0], came[1]), _step(came[0], exact[1])):
                row += [float(step @ right / (right @ right)), float((step - right).norm() / right.norm())]
            rows.append(row)
    return [statistics.mean(values) for values in zip(*rows, strict=True)]


def _step(first: Tensor, second: Tensor) -> Tensor:
    """AdamW's step but for the learning rate and the correction of the moments, which is the same for all."""
    return first / (second.sqrt() + EPSILON)
