"""Training steps with PyTorch: compared with Gloo on loopback, beside a computation, and on a shaped mesh.

Everything is measured in the same processes in turn, so that other load of the machine affects all alike, and given as
ratios of medians; the time of a step is that of its slowest rank.

- **loopback**: DDP, a model of 25 M parameters, gradients in PyTorch's usual buckets, over Gloo and over Tradewind.
- **beside a computation**: two ranks run a network forward and backward, with and without all-reduces of 12.5 MB in the
  background ten times a second, which is 1 Gbit/s out of every process. *Slowdown* is the time of the same passes, with
  what the kernel copies. *Background* is the processor time of all other threads, as a share of one core.
- **shaped mesh**: 8 sites of `mesh` (20 to 155 Mbps), each a process that shapes what it sends. DDP steps with the plan
  of each planner. All rates are scaled to a tenth and the model to a quarter: two busy cores cannot run 8 sites at full
  rate, and then all plans look alike. Ratios of transfer times do not depend on either.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tradewind.torch.backend
from tradewind.catalog import load_network
from tradewind.formats.json_network import network_to_json
from tradewind.planning import make_plan
from tradewind.runtime.addresses import LOOPBACK, listen_on

LONGEST_S = 300.0
LOOPBACK_STEPS, WINDOWS = 9, 6
WINDOW_S = 2.0
BACKGROUND_BYTES, BACKGROUND_EVERY_S = 12_500_000, 0.1
SITES, MESH_SCALE, MESH_WIDTH = 8, 0.1, 560
PLANNERS = {"optimal": 4, "multi-star": 2, "ring": 1}
"""And how many steps of each."""


def run(out: TextIO) -> None:
    """Run all three parts."""
    out.write(f"Load at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; torch {torch.__version__}.\n\n")
    _loopback(out)
    _computation(out)
    _mesh(out)


# --- processes -----------------------------------------------------------------------------------------------------


def _launch(world: int, body: Callable[[], Any], environment: dict[str, str] | None = None) -> Any:
    """Run `body` on every rank of a group; returns the result of rank 0. torch is loaded once, before the fork."""
    with listen_on(LOOPBACK, 0) as probe:
        port = str(probe.getsockname()[1])
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def rank_main(rank: int) -> None:
        os.environ.update(environment or {}, MASTER_ADDR=LOOPBACK, MASTER_PORT=port)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
        torch.set_num_threads(1)
        dist.init_process_group("tradewind")
        answer = body()
        dist.barrier()
        if rank == 0:
            there.send(answer)
        dist.destroy_process_group()

    started = [context.Process(target=rank_main, args=(rank,)) for rank in range(world)]
    for process in started:
        process.start()
    try:
        if not here.poll(LONGEST_S):
            raise SystemExit(f"the benchmark did not end within {LONGEST_S:g} s")
        return here.recv()
    finally:
        for process in started:
            process.join(10.0)
            process.kill()


def _slowest(seconds: list[float]) -> list[float]:
    """The times of the slowest rank, by step."""
    times = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return [float(time_s) for time_s in times]


def _timed_step(model: Any, x: torch.Tensor) -> float:
    dist.barrier()
    start_s = time.perf_counter()
    model(x).square().mean().backward()
    return time.perf_counter() - start_s


# --- loopback ------------------------------------------------------------------------------------------------------


def _loopback_body() -> dict[str, list[float]]:
    gloo = dist.new_group(backend="gloo")
    x = torch.randn(4, 2048)

    def model() -> nn.Module:
        return nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(6)))

    models = {
        "tradewind": DistributedDataParallel(model(), gradient_as_bucket_view=True),
        "gloo": DistributedDataParallel(model(), process_group=gloo, gradient_as_bucket_view=True),
    }
    times: dict[str, list[float]] = {name: [] for name in models}
    for step in range(LOOPBACK_STEPS + 2):
        for name in sorted(models, reverse=bool(step % 2)):
            seconds = _timed_step(models[name], x)
            if step >= 2:
                times[name].append(seconds)
    return {name: _slowest(seconds) for name, seconds in times.items()}


def _loopback(out: TextIO) -> None:
    times = _launch(4, _loopback_body)
    ours, gloo = (statistics.median(times[name]) for name in ("tradewind", "gloo"))
    out.write("| loopback, 4 ranks, 25 M parameters | Tradewind | Gloo | ratio | aim |\n|---|---|---|---|---|\n")
    out.write(f"| median step of {LOOPBACK_STEPS} | {ours:.3f} s | {gloo:.3f} s | {ours / gloo:.2f} | 1.05 |\n\n")


# --- beside a computation ------------------------------------------------------------------------------------------


def _compute(model: nn.Module, x: torch.Tensor, until_s: float) -> tuple[int, float]:
    """The number of forward and backward passes until then, and the processor time of all other threads meanwhile."""
    count, others_s = 0, time.process_time() - time.thread_time()
    while time.perf_counter() < until_s:
        model(x).square().mean().backward()
        count += 1
    return count, time.process_time() - time.thread_time() - others_s


def _computation_body() -> dict[str, list[float]]:
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1024))
    x, array = torch.randn(128, 1024), torch.ones(BACKGROUND_BYTES // 4)
    dist.all_reduce(array)
    carried = [0]

    def reduce_on_and_on() -> None:
        due_s = time.perf_counter()
        for _ in range(int(WINDOW_S / BACKGROUND_EVERY_S)):
            dist.all_reduce(array, dist.ReduceOp.MAX)
            carried[0] += 1
            due_s += BACKGROUND_EVERY_S
            time.sleep(max(0.0, due_s - time.perf_counter()))

    seen: dict[str, list[float]] = {"alone": [], "beside": [], "background": [], "gbps": []}
    for _ in range(WINDOWS):
        for kind in ("alone", "beside"):
            dist.barrier()
            background = threading.Thread(target=reduce_on_and_on)
            start_s = time.perf_counter()
            if kind == "beside":
                background.start()
            count, others_s = _compute(model, x, start_s + WINDOW_S)
            seen[kind].append(WINDOW_S / count)
            if kind == "beside":
                background.join()
                seen["background"].append(others_s / WINDOW_S)
                seen["gbps"].append(8e-9 * BACKGROUND_BYTES * carried[0] / (time.perf_counter() - start_s))
                carried[0] = 0
    return seen


def _computation(out: TextIO) -> None:
    seen = _launch(2, _computation_body)
    slower = statistics.median(b / a for a, b in zip(seen["alone"], seen["beside"], strict=True)) - 1
    share, rate = statistics.median(seen["background"]), statistics.median(seen["gbps"])
    out.write(
        "| beside a computation, 2 ranks | sent a process | slowdown | background | aim |\n|---|---|---|---|---|\n"
    )
    out.write(
        f"| median of {WINDOWS} pairs of {WINDOW_S:g} s | {rate:.2f} Gbit/s | {slower:.0%} | {share:.0%} | 10% |\n\n"
    )


# --- shaped mesh ---------------------------------------------------------------------------------------------------


def _mesh_body() -> dict[str, list[float]]:
    x = torch.randn(4, MESH_WIDTH)
    times: dict[str, list[float]] = {}
    for planner, steps in PLANNERS.items():
        options = tradewind.torch.Options(planner=planner)
        group = dist.new_group(list(range(SITES)), pg_options=options)
        layers = nn.Sequential(*(nn.Linear(MESH_WIDTH, MESH_WIDTH) for _ in range(8)))
        model = DistributedDataParallel(layers, process_group=group, gradient_as_bucket_view=True)
        dist.all_reduce(torch.ones(1), group=group)  # connects
        times[planner] = _slowest([_timed_step(model, x) for _ in range(steps)])
    return times


def _mesh(out: TextIO) -> None:
    network = load_network("mesh", n=SITES).scaled(MESH_SCALE)
    nbytes = 4 * 8 * (MESH_WIDTH + 1) * MESH_WIDTH
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mesh.json"
        path.write_bytes(network_to_json(network))
        shape = {"TRADEWIND_NETWORK": str(path), "TRADEWIND_SHAPE": str(path)}
        times = _launch(SITES, _mesh_body, shape)
    best = statistics.median(times["optimal"])
    out.write(f"| shaped mesh, {SITES} sites, {nbytes / 4e6:.1f} M parameters | median step | predicted transfer ")
    out.write("| Tradewind is faster by | aim |\n|---|---|---|---|---|\n")
    for planner, aim in (("optimal", ""), ("multi-star", "2.5"), ("ring", "6")):
        plan = make_plan(planner, network, nbytes)
        assert plan.predicted is not None
        step = statistics.median(times[planner])
        out.write(f"| {planner} | {step:.2f} s | {plan.predicted.seconds:.2f} s | {step / best:.2f} | {aim} |\n")
