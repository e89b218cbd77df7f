"""All-gather and reduce-scatter on emulated wide-area links against their own limits and Gloo, and FSDP2 steps.

Four sites are processes in a lab with kernel-shaped links (`htb`). Tradewind and PyTorch's own Gloo take turns on the
same links, in the same processes; a turn lasts from the moment when the last site began until the last one has its
result, and every result is checked. The limit is the least time that any plan of that collective can take, divided by
the share of a link that TCP's headers leave. An FSDP2 step is a forward and a backward pass of a small model whose
parameters are sharded over the four sites. Times are medians.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any, TextIO

SITES, NBYTES, ROUNDS = 4, 40_000_000, 5
WIDTH, LAYERS, STEPS = 1024, 4, 5
KINDS = ("all-gather", "reduce-scatter")
DEADLINE_S = 900.0


def turns_at_site(place: Any, nbytes: int, rounds: int, steps: int) -> dict[str, list[list[float]]]:
    """Run all turns at one site; returns start and end of each on the machine's clock, by what was run."""
    import torch
    import torch.distributed as dist

    import tradewind.torch

    torch.set_num_threads(1)
    options = tradewind.torch.Options(network=place.network, site=place.site)
    os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.world))
    dist.init_process_group("tradewind", pg_options=options)
    gloo = dist.new_group(backend="gloo")
    part = nbytes // 4 // place.world
    whole, own = torch.empty(part * place.world), torch.empty(part)

    def gather(group: Any) -> None:
        own.fill_(place.rank + 1.0)
        dist.all_gather_into_tensor(whole, own, group=group)
        assert whole[-1] == place.world

    def scatter(group: Any) -> None:
        whole.fill_(place.rank + 1.0)
        dist.reduce_scatter_tensor(own, whole, group=group)
        assert own[0] == place.world * (place.world + 1) / 2

    bodies: dict[str, Callable[[], None]] = {
        "all-gather": lambda: gather(None),
        "all-gather, gloo": lambda: gather(gloo),
        "reduce-scatter": lambda: scatter(None),
        "reduce-scatter, gloo": lambda: scatter(gloo),
        "fsdp2 step": sharded_step(None, place.world, "tradewind"),
        "fsdp2 step, gloo": sharded_step(gloo, place.world, "gloo"),
    }
    times: dict[str, list[list[float]]] = {name: [] for name in bodies}
    for number in range(max(rounds, steps) + 1):
        names = list(bodies)[number % len(bodies) :] + list(bodies)[: number % len(bodies)]
        for name in names:
            if number > (steps if name.startswith("fsdp2") else rounds):
                continue
            dist.barrier()
            began_s = time.monotonic()
            bodies[name]()
            if number:  # the first turn connects and plans
                times[name].append([began_s, time.monotonic()])
    dist.barrier()
    dist.destroy_process_group()
    return times


def sharded_step(_: Any, world: int, backend: str) -> Callable[[], None]:
    """A forward and backward pass of a model that FSDP2 shards over all sites."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    override: Any = {"all": backend}
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("all",), backend_override=override)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    def step() -> None:
        model(torch.ones(2, WIDTH)).square().mean().backward()
        model.zero_grad()

    return step


def measure(nbytes: int = NBYTES, rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, Any]:
    """The medians of all turns, and the limits, in seconds."""
    from tradewind.catalog import load_network
    from tradewind.lab.processes import call_sites
    from tradewind.lab.session import Lab
    from tradewind.planning.bound import bound
    from tradewind.planning.collective import Collective

    network = load_network("mesh", n=SITES)
    with Lab(network, "htb") as lab:
        arguments = {"nbytes": nbytes, "rounds": rounds, "steps": steps}
        answers = call_sites(network, turns_at_site, arguments, groups=1, deadline_s=DEADLINE_S, inside=lab)
        share = lab.payload_share
    found: dict[str, Any] = {"load": os.getloadavg()[0], "seconds": {}, "limit_s": {}}
    for name in answers[0]:
        turns = zip(*(answer[name] for answer in answers), strict=True)
        seconds = [max(end for _, end in turn) - max(began for began, _ in turn) for turn in turns]
        found["seconds"][name] = statistics.median(seconds)
    for kind in KINDS:
        found["limit_s"][kind] = bound(network, network.names, nbytes, Collective.parse(kind)).seconds / share
    return found


def run(out: TextIO) -> dict[str, Any]:
    """Measure, write one table, and return all numbers."""
    found = measure()
    seconds, limits = found["seconds"], found["limit_s"]
    out.write(f"{SITES} sites of `mesh`, {NBYTES / 1e6:.0f} MB, load {found['load']:.1f} at the end.\n\n")
    out.write("| what | tradewind | Gloo | over Gloo | limit | of the limit |\n|---|---:|---:|---:|---:|---:|\n")
    for name in (*KINDS, "fsdp2 step"):
        ours, theirs, limit = seconds[name], seconds[f"{name}, gloo"], limits.get(name)
        shown = "| - | - |" if limit is None else f"| {limit:.2f} s | {100 * limit / ours:.0f}% |"
        out.write(f"| {name} | {ours:.2f} s | {theirs:.2f} s | {theirs / ours:.1f}x {shown}\n")
    return found
