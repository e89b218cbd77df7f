"""Scaling of a compute-bound model over 4 sites of 2 ranks with 20 ms between sites: DDP by Tradewind and by Gloo.

A lab (`delay`) has 4 sites of 2 ranks; every link between two sites has 200 Mbps and 20 ms one way. Eight processes
train the same model of 12 layers and 12.6 MB with DDP, whose buckets of 2 MB are all-reduced during the backward pass.
Every layer sleeps in place of a computation, a third of its time forward and two thirds backward, as if on an
accelerator: so 8 ranks need no 8 cores, and a busy machine only adds to what is measured. Steps without communication,
by Tradewind and by Gloo take turns in the same processes, for three lengths of a step, and always in the same order: a
training repeats its operations, and so does Tradewind's run here. A step begins when the last rank has left the barrier
before it, and ends when the last rank has all gradients: ranks leave a barrier up to 20 ms apart. Scaling is the median
time of a step without communication over that with it; exposed is their difference, which for a synchronous step is at
least the all-reduce of the last bucket: the gradients of the first layer are known when nothing is left to compute.
*By rank* is the median of the longest step of any rank by its own clock, from its own start: it contains how far apart
ranks began. Gloo has ranks in the order of sites.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import numpy as np

SITES, RANKS, RATE_BPS, LATENCY_S = 4, 2, 200e6, 0.02
LAYERS, WIDTH, BUCKET_MB = 12, 512, 2
COMPUTE_S = tuple(float(text) for text in os.environ.get("BENCHMARK_SCALING_S", "1,2,4").split(","))
STEPS = int(os.environ.get("BENCHMARK_SCALING_STEPS", "7"))
ALONE, OURS, GLOO = "alone", "tradewind", "gloo"
DEADLINE_S = 900.0


Times = dict[str, list[tuple[float, float]]]
"""Begin and end of steps on the machine's clock, by way and time of computing."""


def steps_at_rank(place: Any, compute_s: list[float], steps: int) -> Times:
    """Train in one rank's process; returns when its steps began and ended."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import tradewind.torch

    torch.set_num_threads(1)
    os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.world))
    dist.init_process_group("tradewind", pg_options=tradewind.torch.Options(network=place.network, site=place.site))
    groups = {OURS: None, GLOO: dist.new_group(backend="gloo")}
    layer_s = [0.0]
    ways: dict[str, Callable[[Any], Any]] = {ALONE: sleeping_model(layer_s)}
    for way, group in groups.items():
        ways[way] = DistributedDataParallel(sleeping_model(layer_s), process_group=group, bucket_cap_mb=BUCKET_MB)
    x, times = torch.randn(2, WIDTH), Times()
    for number in range(2 + steps * len(compute_s)):
        # The first two steps of DDP set up its buckets, and connect and plan.
        computes_s = compute_s[(number - 2) // steps] if number >= 2 else 0.1
        layer_s[0] = computes_s / LAYERS
        for way in ways:
            dist.barrier()
            start_s = time.monotonic()
            ways[way](x).square().mean().backward()
            if number >= 2:
                times.setdefault(f"{way} {computes_s:g}", []).append((start_s, time.monotonic()))
    dist.barrier()
    dist.destroy_process_group()
    return times


def sleeping_model(layer_s: list[float]) -> Any:
    """A model whose layers each take `layer_s[0]`, a third of it forward."""
    import torch
    from torch import nn

    class Takes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:  # noqa: ARG004 - PyTorch's signature
            time.sleep(layer_s[0] / 3)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:  # noqa: ARG004 - PyTorch's signature
            time.sleep(2 * layer_s[0] / 3)
            return grad.clone()

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            return self.linear(Takes.apply(x))  # so that its own gradients come before its sleep

    torch.manual_seed(0)
    return nn.Sequential(*[Layer() for _ in range(LAYERS)])


def run(out: TextIO) -> dict[str, Any]:
    """Measure, write one table, and return all numbers."""
    from tradewind.lab.processes import call_sites
    from tradewind.lab.session import Lab
    from tradewind.network import Network, Site

    apart, load = 1 - np.eye(SITES), os.getloadavg()[0]
    sites = [Site(f"s{k}", ranks=RANKS) for k in range(SITES)]
    network = Network("scaling", sites, RATE_BPS * apart, LATENCY_S * apart)
    with Lab(network, "delay", calibrate=False) as lab:
        arguments = {"compute_s": list(COMPUTE_S), "steps": STEPS}
        answers = call_sites(network, steps_at_rank, arguments, groups=1, deadline_s=DEADLINE_S, inside=lab)
    steps = {name: zip(*(answer[name] for answer in answers), strict=True) for name in answers[0]}
    taken = {name: [step_seconds(ranks) for ranks in each] for name, each in steps.items()}
    out.write("| computing | alone | Tradewind | scaling | exposed | by rank | Gloo | scaling | exposed | by rank |\n")
    out.write("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
    for computes_s in COMPUTE_S:
        (alone_s, alone_by_rank_s), *others = (medians(taken[f"{way} {computes_s:g}"]) for way in (ALONE, OURS, GLOO))
        cells = [
            f"{s:.3f} s | {alone_s / s:.1%} | {1e3 * (s - alone_s):.0f} ms | {alone_by_rank_s / by_rank_s:.1%}"
            for s, by_rank_s in others
        ]
        out.write(f"| {computes_s:g} s | {alone_s:.3f} s | {' | '.join(cells)} |\n")
    out.write(f"\n{STEPS} steps each; load before {load:.1f} on {os.cpu_count()} cores.\n")
    return {"seconds": taken}


def step_seconds(ranks: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The seconds of a step of all ranks, and the longest of any by its own begin and end.

    >>> step_seconds([(0.0, 4.0), (0.5, 4.25)])
    (3.75, 4.0)
    """
    return max(e for _, e in ranks) - max(b for b, _ in ranks), max(e - b for b, e in ranks)


def medians(steps: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The medians of both times of some steps."""
    return statistics.median(s for s, _ in steps), statistics.median(s for _, s in steps)
