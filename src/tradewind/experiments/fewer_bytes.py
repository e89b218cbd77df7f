"""What sending fewer bytes costs in accuracy: codecs and outer optimizers beside float32 DDP, on real data.

A GPT over characters learns a text (the Jargon File), a CNN learns Fashion-MNIST; `torch.replicas` says how replicas
exchange. `benchmarks/compression_evidence.py` is the command.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from tradewind.errors import BadOption
from tradewind.experiments.stragglers.tasks import CONTEXT, load_samples
from tradewind.torch.models import make_gpt, make_resnet
from tradewind.torch.outer import PRESETS, Outer
from tradewind.torch.replicas import REPLICAS, Method, Work, make_replicas


@dataclass(frozen=True)
class Size:
    """How large an experiment is."""

    task: str
    """gpt or cnn."""
    steps: int
    work: Work
    width: int = 64
    layers: int = 4
    heads: int = 4
    every: int = 20
    """Local steps between the rounds of a fragment (H)."""
    judged: int = 10
    """How often the test loss is computed."""
    together: bool = False
    """Whether a GPU trains all seeds of a method together: it would wait for the launches of small kernels."""


SIZES: dict[str, Size] = {
    "tiny": Size("gpt", 40, Work(8, 3e-3), width=32, layers=2, heads=2, every=10, judged=2),
    "gpt-cpu": Size("gpt", 300, Work(8, 3e-3), width=48, layers=4, heads=4),
    "cnn-cpu": Size("cnn", 300, Work(16, 2e-3), width=8),
    "cnn-1m-cpu": Size("cnn", 200, Work(8, 1e-3), width=56),
    "gpt-10m": Size("gpt", 1000, Work(32, 1e-3), width=320, layers=8, heads=8, every=20, together=True),
    "gpt-100m": Size("gpt", 300, Work(64, 3e-4), width=768, layers=14, heads=12, every=20),
    "cnn-gpu": Size("cnn", 2000, Work(32, 2e-3), width=8, every=20, together=True),
    "cnn-1m-gpu": Size("cnn", 2000, Work(32, 1e-3), width=56, every=20, together=True),
}
"""By name; `gpt-10m` has 10 million parameters, `gpt-100m` 100 million, `cnn-1m-cpu` 1 million."""


TESTED = {"cnn": ("clothes", 10_000), "gpt": ("text", 2000)}
"""The data of each task, and how many samples are for tests: with a few hundred, differences below 1% are noise."""
CURVE_TESTS = 500
"""How many of them are used before the end, for the curve."""


def find_size(name: str) -> Size:
    """The size of that name. Raises `BadOption` for an unknown one."""
    if name not in SIZES:
        raise BadOption(f"the size must be one of {', '.join(SIZES)}, got {name!r}.")
    return SIZES[name]


def methods(size: Size) -> list[Method]:
    """All methods of an experiment, float32 DDP first."""
    made = [Method("ddp")]
    made += [Method(f"ddp {codec}", codec) for codec in ("bf16", "fp8", "int8", "int4")]
    made += [Method(f"ddp {codec} + feedback", codec, feedback=True) for codec in ("int8", "int4", "int4-32")]
    diloco, interval = Outer(), size.every
    made += [
        Method("diloco", outer=diloco, every=interval),
        Method("diloco int8", "int8", outer=diloco, every=interval),
        Method("diloco int4", "int4", outer=diloco, every=interval),
        Method("delayed-diloco", outer=Outer(delay=None), every=interval),
        Method("delayed-diloco, lr 0.2", outer=Outer(lr=0.2, delay=None), every=interval),
        Method("eager-diloco", outer=Outer(delay=None, eager=True), every=interval),
        Method("eager-diloco, lr 0.2", outer=Outer(lr=0.2, delay=None, eager=True), every=interval),
    ]
    sparse = PRESETS["sparseloco"].outer
    made.append(Method("sparseloco", "topk", outer=sparse, every=interval))
    made.append(Method("sparseloco topk-256", "topk-256", outer=sparse, every=interval))
    made.append(Method("sparseloco topk-256, H / 4", "topk-256", outer=sparse, every=max(1, interval // 4)))
    faster = replace(sparse, lr=2.0)
    made.append(Method("sparseloco topk-256, H / 4, lr 2", "topk-256", outer=faster, every=max(1, interval // 4)))
    fragments = 2 if size.layers < 4 else 4
    streaming = Outer(lr=0.4, fragments=fragments, delay=min(5, interval // fragments), mix=0.5)
    made.append(Method("streaming-diloco int4", "int4", outer=streaming, every=interval))
    return made


def make_model_of(size: Size) -> nn.Module:
    """The model of a size."""
    return make_resnet(size.width) if size.task == "cnn" else make_gpt(size.width, size.layers, size.heads, CONTEXT)


def recording_is_right(device: str) -> bool:
    """Whether a short training whose steps are recorded ends as one whose steps are not."""
    size, method = find_size("tiny"), Method("ddp int8 + feedback", "int8", feedback=True)
    samples, found = load_samples(*TESTED[size.task]), []
    for recorded in (True, False):
        replicas = make_replicas(lambda: make_model_of(size), method, size.work, (0, 1), device, recorded)
        for number in range(1, 13):
            replicas.step(number, samples)
        found.append((replicas.judge(samples, CURVE_TESTS), replicas.exchanges[0].nbytes))
    (losses, nbytes), (expected, expected_nbytes) = found
    close = all(math.isclose(a, b, rel_tol=0.02) for a, b in zip(losses, expected, strict=True))
    return close and nbytes == expected_nbytes


def train(
    size_name: str,
    method: Method,
    seeds: Sequence[int],
    device: str,
    progress: Callable[[str], object] = str,
    is_late: Callable[[float], bool] = lambda share: False,  # noqa: ARG005
    recorded: bool = True,
) -> list[dict[str, Any]]:
    """Train with one method, several seeds at a time; returns losses, bytes and what they were measured with for each.

    `is_late`: asked with the share of the steps that are done, after each test; if it is, training is given up, and
    nothing is returned. `recorded`: whether a GPU gets a step at once (`torch.replicas.Recorded`).
    """
    size = find_size(size_name)
    samples = load_samples(*TESTED[size.task])
    work = replace(size.work, steps=size.steps)
    replicas = make_replicas(lambda: make_model_of(size), method, work, seeds, device, recorded)
    curves: list[list[list[float]]] = [[] for _ in seeds]
    for number in range(1, size.steps + 1):
        replicas.step(number, samples)
        if number % max(1, size.steps // size.judged) == 0 or number == size.steps:
            losses = replicas.judge(samples, None if number == size.steps else CURVE_TESTS)
            for curve, exchange, loss in zip(curves, replicas.exchanges, losses, strict=True):
                curve.append([number, exchange.nbytes, loss])
            shown = ", ".join(f"{loss:.4f}" for loss in losses)
            progress(f"{method.name}, seeds {', '.join(map(str, seeds))}: step {number}, loss {shown}")
            if is_late(number / size.steps):
                return []
    about = {"size": asdict(size), "parameters": replicas.parameters, "replicas": REPLICAS, "device": device}
    about["samples"] = len(samples.train)
    return [
        {**about, "method": method.name, "seed": seed, "loss": curve[-1][2], "bytes": exchange.nbytes}
        | {"largest_round": exchange.largest, "curve": curve}
        for seed, curve, exchange in zip(seeds, curves, replicas.exchanges, strict=True)
    ]
