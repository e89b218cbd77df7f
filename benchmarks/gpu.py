"""CUDA tensors: collectives checked, DDP steps of a GPT beside Gloo, hidden staging, and averages on the device.

All ranks share one GPU, so `inner="gloo"`, and computing takes longer the more ranks there are. Times are medians of
the slowest rank; ways take turns in the same processes.

- **DDP**: steps of a GPT of 100 M parameters in float32, with Gloo, with Tradewind, and without communication. What is
  over the last is exposed. *Alone* is an all-reduce of the same bytes with nothing to overlap with; *hidden* is the
  share of it that does not show in a step.
- **staging**: one step recorded by PyTorch's profiler: how long copies to and from pinned memory took at rank 0, and
  which share of that a kernel of the same rank ran beside.
- **averages**: `Synchronizer` averages the same model once, with its average on the device, and with all of it on the
  host, as a model that is copied there first.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tradewind.torch
from tradewind.runtime.addresses import LOOPBACK, listen_on
from tradewind.torch.models import VOCABULARY, make_gpt

WORLDS = (2, 4)
WIDTH, LAYERS, HEADS, CONTEXT, BATCH = 768, 14, 12, 128, 8
STEPS, WARM = 9, 2
AVERAGES = 5
LONGEST_S = 300.0 if os.environ.get("BENCHMARK_GPU_SMALL") else 70.0
"""Of one number of ranks."""
OURS, GLOO, ALONE = "tradewind", "gloo", "alone"
SMALL = bool(os.environ.get("BENCHMARK_GPU_SMALL"))
"""For a trial on the CPU: a small model, and few steps."""


def say(text: str) -> None:
    """Print progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def device_of_ranks() -> torch.device:
    """The GPU, or the CPU for a trial."""
    return torch.device("cpu") if SMALL else torch.device("cuda", 0)


def make_model(device: torch.device) -> nn.Module:
    """The GPT that is trained."""
    torch.manual_seed(1)
    return (make_gpt(64, 2, 2, 32) if SMALL else make_gpt(WIDTH, LAYERS, HEADS, CONTEXT)).to(device)


# --- one rank ------------------------------------------------------------------------------------------------------


def check_collectives(device: torch.device) -> list[str]:
    """The collectives whose results on the device are right; raises for a wrong one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    own, items = torch.full((100_003,), rank + 1.0, device=device), 100_003
    total = world * (world + 1) / 2
    summed = own.clone()
    dist.all_reduce(summed)
    assert (summed == total).all(), "all_reduce"
    gathered = torch.empty(world * items, device=device)
    dist.all_gather_into_tensor(gathered, own)
    assert torch.equal(gathered, torch.arange(1.0, world + 1, device=device).repeat_interleave(items)), "all_gather"
    part = torch.empty(items, device=device)
    dist.reduce_scatter_tensor(part, own.repeat(world))
    assert (part == total).all(), "reduce_scatter"
    sent = own.clone()
    dist.broadcast(sent, world - 1)
    assert (sent == world).all(), "broadcast"
    swapped = torch.empty(3 * world, device=device)
    dist.all_to_all_single(swapped, torch.full((3 * world,), float(rank), device=device))
    assert torch.equal(swapped, torch.arange(float(world), device=device).repeat_interleave(3)), "all_to_all"
    return ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "all_to_all_single"]


def wait_for(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(device: torch.device, body: Callable[[], Any]) -> float:
    """Seconds of the slowest rank for something that all ranks do."""
    dist.barrier()
    wait_for(device)
    began_s = time.perf_counter()
    body()
    wait_for(device)
    taken = torch.tensor([time.perf_counter() - began_s], dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken)


def ddp_steps(device: torch.device) -> dict[str, Any]:
    """Times of steps and of the all-reduces alone, by way; and the staging of one step."""
    gloo = dist.new_group(backend="gloo")
    plain = make_model(device)
    models: dict[str, nn.Module] = {
        OURS: DistributedDataParallel(make_model(device), gradient_as_bucket_view=True),
        GLOO: DistributedDataParallel(make_model(device), process_group=gloo, gradient_as_bucket_view=True),
        ALONE: plain,
    }
    length = 32 if SMALL else CONTEXT
    x = torch.randint(VOCABULARY, (BATCH, length), device=device)

    def step(model: nn.Module) -> None:
        nn.functional.cross_entropy(model(x).reshape(-1, VOCABULARY), x.reshape(-1)).backward()

    buckets = [torch.ones(25 * 2**18, device=device) for _ in range(max(1, parameters(plain) // (25 * 2**18)))]

    def reduce_alone(group: Any) -> None:
        for work in [dist.all_reduce(bucket, dist.ReduceOp.MAX, group, async_op=True) for bucket in buckets]:
            work.wait()

    found: dict[str, list[float]] = {name: [] for name in (*models, "reduce tradewind", "reduce gloo")}
    count = 2 if SMALL else STEPS
    for turn in range(count + WARM):
        for name in sorted(models, reverse=bool(turn % 2)):
            found[name].append(timed(device, partial(step, models[name])))
        for name, group in (("reduce tradewind", None), ("reduce gloo", gloo)):
            found[name].append(timed(device, partial(reduce_alone, group)))
    made: dict[str, Any] = {"seconds": {name: seconds[WARM:] for name, seconds in found.items()}}
    made |= {"parameters": parameters(plain), "bytes alone": sum(bucket.nbytes for bucket in buckets)}
    dist.barrier()
    made["staging"] = staging_of(lambda: step(models[OURS]), device)
    return made


def parameters(model: nn.Module) -> int:
    """How many parameters a model has."""
    return sum(parameter.numel() for parameter in model.parameters())


def staging_of(body: Callable[[], None], device: torch.device) -> dict[str, float] | None:
    """Milliseconds of copies between device and host, and the share of these beside a kernel; None on the CPU."""
    if device.type != "cuda":
        body()
        return None
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        body()
        torch.cuda.synchronize(device)
    spans: dict[str, list[tuple[float, float]]] = {"copies": [], "kernels": []}
    for event in profiler.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            is_copy = "DtoH" in event.name or "HtoD" in event.name
            if is_copy or not event.name.startswith(("Memcpy", "Memset")):
                spans["copies" if is_copy else "kernels"].append((event.time_range.start, event.time_range.end))
    whole, beside = overlap_of(spans["copies"], spans["kernels"])
    return {"copies_ms": whole / 1e3, "hidden": beside / whole if whole else 0.0, "copies": len(spans["copies"])}


def overlap_of(ours: list[tuple[float, float]], others: list[tuple[float, float]]) -> tuple[float, float]:
    """Total length of spans, and how much of it others cover.

    >>> overlap_of([(0.0, 2.0), (5.0, 6.0)], [(1.0, 3.0), (1.5, 5.5)])
    (3.0, 1.5)
    """
    merged: list[list[float]] = []
    for start, end in sorted(others):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    covered = sum(max(0.0, min(end, e) - max(start, s)) for start, end in ours for s, e in merged)
    return sum(end - start for start, end in ours), covered


def averages(device: torch.device) -> dict[str, list[float]]:
    """Times of one average of the model: on the device, and with the model on the host."""
    found: dict[str, list[float]] = {}
    for name, place in (("device", device), ("host", torch.device("cpu"))):
        model = make_model(device)
        copy = model if place == device else make_model(place)
        with tradewind.torch.Synchronizer(copy, policy="bsp") as sync:

            def average(model: nn.Module = model, copy: nn.Module = copy, sync: Any = sync) -> None:
                if copy is not model:
                    copy.load_state_dict(model.state_dict())
                sync.step()
                if copy is not model:
                    model.load_state_dict(copy.state_dict())

            found[name] = [timed(device, average) for _ in range(2 if SMALL else AVERAGES)][1:]
            alike = torch.cat([parameter.detach().reshape(-1)[:1000] for parameter in model.parameters()]).cpu()
            highest, lowest = alike.clone(), alike.clone()
            dist.all_reduce(highest, dist.ReduceOp.MAX)
            dist.all_reduce(lowest, dist.ReduceOp.MIN)
            assert torch.equal(highest, lowest), "ranks have different averages"
    return found


def rank_main(rank: int, world: int, port: str, kept: str) -> None:
    """One rank: measures everything, and lets rank 0 keep each result at once."""
    os.environ.update(MASTER_ADDR=LOOPBACK, MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    device = device_of_ranks()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("tradewind", pg_options=tradewind.torch.Options(inner="gloo"))
    found: dict[str, Any] = {}
    for name, measure in (("checked", check_collectives), ("ddp", ddp_steps), ("averages", averages)):
        found[name] = measure(device)
        if rank == 0:
            Path(kept).write_text(json.dumps(found))
            say(f"{world} ranks: {name} done")
    dist.destroy_process_group()


# --- all of them ---------------------------------------------------------------------------------------------------


def measure_with(world: int) -> dict[str, Any]:
    """What rank 0 of this many ranks has kept, also if a rank failed or took too long."""
    with listen_on(LOOPBACK, 0) as probe:
        port = str(probe.getsockname()[1])
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "found.json"
        ranks = [context.Process(target=rank_main, args=(rank, world, port, str(kept))) for rank in range(world)]
        for process in ranks:
            process.start()
        until_s = time.monotonic() + LONGEST_S
        for process in ranks:
            process.join(max(0.1, until_s - time.monotonic()))
        codes = [process.exitcode for process in ranks]
        for process in ranks:
            process.kill()
        found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    return found if codes == [0] * world else {**found, "failed": f"exit codes {codes} within {LONGEST_S:g} s"}


def run(out: TextIO) -> dict[str, Any]:
    """Measure with each number of ranks, write the tables, and return all numbers."""
    if not SMALL and not torch.cuda.is_available():
        raise SystemExit("python -m benchmarks gpu needs a CUDA device; BENCHMARK_GPU_SMALL=1 is a trial on the CPU.")
    where = "the CPU" if SMALL else torch.cuda.get_device_name(0)
    say(f"PyTorch {torch.__version__} on {where}")
    answers: dict[str, Any] = {}
    for ranks in WORLDS:
        answers[str(ranks)] = measure_with(ranks)
        Path("build").mkdir(exist_ok=True)
        Path("build/gpu.json").write_text(json.dumps(answers, indent=1))
    out.write(f"PyTorch {torch.__version__}, all ranks on {where}; load before {os.getloadavg()[0]:.1f}.\n\n")
    write_ddp(out, answers)
    out.write("| averages of the model by `Synchronizer` | on the device | through a model on the host |\n")
    out.write("|---|---:|---:|\n")
    for world, found in answers.items():
        if "averages" in found:
            device, host = (1e3 * statistics.median(found["averages"][name]) for name in ("device", "host"))
            out.write(f"| {world} ranks | {device:.0f} ms | {host:.0f} ms |\n")
    for world, found in answers.items():
        if "failed" in found:
            out.write(f"\n{world} ranks: {found['failed']}.\n")
    return answers


def write_ddp(out: TextIO, answers: dict[str, Any]) -> None:
    """Write the tables of steps and of staging."""
    steps = [(world, found["ddp"]) for world, found in answers.items() if "ddp" in found]
    out.write("| DDP | no communication | Tradewind | Gloo | over Gloo's | all-reduce alone | hidden | Gloo hides |\n")
    out.write("|---|---:|---:|---:|---:|---:|---:|---:|\n")
    for world, ddp in steps:
        median = {name: 1e3 * statistics.median(seconds) for name, seconds in ddp["seconds"].items()}
        share = ddp["parameters"] * 4 / ddp["bytes alone"]
        hidden = {
            name: max(0.0, 1 - max(0.0, median[name] - median[ALONE]) / (median[f"reduce {name}"] * share))
            for name in (OURS, GLOO)
        }
        out.write(f"| {world} ranks, {ddp['parameters'] / 1e6:.0f} M parameters | {median[ALONE]:.0f} ms ")
        out.write(f"| {median[OURS]:.0f} ms | {median[GLOO]:.0f} ms | {median[OURS] / median[GLOO]:.2f} ")
        out.write(f"| {median['reduce tradewind'] * share:.0f} ms | {hidden[OURS]:.0%} | {hidden[GLOO]:.0%} |\n")
    out.write("\n| staging of a step at rank 0 | copies | in all | beside a kernel |\n|---|---:|---:|---:|\n")
    for world, ddp in steps:
        if (staging := ddp["staging"]) is not None:
            out.write(f"| {world} ranks | {staging['copies']} | {staging['copies_ms']:.1f} ms ")
            out.write(f"| {staging['hidden']:.0%} |\n")
    checked = [", ".join(f"`{name}`" for name in found["checked"]) for found in answers.values() if "checked" in found]
    out.write(f"\nResults on the device were right, with {len(checked)} of {len(WORLDS)} numbers of ranks: ")
    out.write(f"{checked[0] if checked else 'none'}.\n\n")
