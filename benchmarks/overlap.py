"""The share of the averaging that overlaps with the computation, layer by layer.

Two sites, a process each, on shaped links. Every layer of the model takes a fixed time forward and twice that backward,
as if on an accelerator: that keeps the result independent of how busy this machine's processors are. Steps with no
averaging, with averaging after the step, and with overlap, in turn; hidden is the share of the averaging time that
overlap removes from the step.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, TextIO

import numpy as np

from tradewind.lab.processes import call_sites
from tradewind.lab.site import Place
from tradewind.network import Network, Site

LAYERS, WIDTH, FORWARD_S = 8, 400, 0.015
STEPS = 7
RATES_BPS = (100e6, 50e6)
WAYS = ("alone", "after the step", "overlapped")


def run(out: TextIO) -> None:
    """Measure at several rates, and write one table."""
    nbytes = 4 * LAYERS * WIDTH * (WIDTH + 1)
    out.write(f"{LAYERS} layers, {nbytes / 1e6:.1f} MB, computing {3e3 * LAYERS * FORWARD_S:.0f} ms a step.\n\n")
    out.write("| link | alone | after the step | overlapped | averaging | hidden | speedup |\n")
    out.write("|---|---:|---:|---:|---:|---:|---:|\n")
    for rate_bps in RATES_BPS:
        network = Network("two", [Site("a"), Site("b")], rate_bps * (1 - np.eye(2)))
        seconds = call_sites(network, steps_at, groups=len(WAYS), deadline_s=120.0)[0]
        alone_s, after_s, overlapped_s = medians_s = [statistics.median(seconds[way]) for way in WAYS]
        times = " | ".join(f"{1e3 * s:.0f} ms" for s in (*medians_s, after_s - alone_s))
        out.write(
            f"| {rate_bps / 1e6:g} Mbps | {times} | {(after_s - overlapped_s) / (after_s - alone_s):.0%} | "
            f"{after_s / overlapped_s:.2f} |\n"
        )


def steps_at(place: Place) -> dict[str, list[float]]:
    """Run in a site's process; returns the seconds of steps by setting."""
    import torch
    from torch import nn

    from tradewind.torch import Synchronizer

    class Takes(torch.autograd.Function):
        """Sleeps in place of a computation."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:  # noqa: ARG004
            time.sleep(FORWARD_S)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:  # noqa: ARG004
            time.sleep(2 * FORWARD_S)
            return grad.clone()

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            return Takes.apply(self.linear(x))

    torch.set_num_threads(1)
    trainers: dict[str, Any] = {}
    for k, way in enumerate(WAYS):
        model = nn.Sequential(*[Layer() for _ in range(LAYERS)])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        options: dict[str, Any] = {"overlap": True, "bucket_bytes": 4 * WIDTH * WIDTH} if way == "overlapped" else {}
        sync = Synchronizer(model, "bsp", group=place.connect(k), optimizer=optimizer, **options)
        trainers[way] = (model, optimizer, sync)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    x = torch.randn(4, WIDTH)
    for way, (model, optimizer, sync) in trainers.items():
        for _ in range(STEPS):
            start_s = time.perf_counter()
            model(x).square().mean().backward()
            if way != "overlapped":
                optimizer.step()
                optimizer.zero_grad()
            if way != "alone":
                sync.step()
            seconds[way].append(time.perf_counter() - start_s)
        sync.finish()
    for _, _, sync in trainers.values():
        sync.group.barrier()
        sync.group.close()
    return {way: measured[2:] for way, measured in seconds.items()}
