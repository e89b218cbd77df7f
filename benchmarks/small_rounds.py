"""Small all-reduces: inline through the controller, by a plan between members, and over Gloo.

- **loopback**: real processes, all three in the same ones, round by round in turn after a barrier of another group; a
  round takes as long as its slowest process. On a shared machine only ratios are meaningful. Gloo is left out where
  torch is missing.
- **far away**: four sites in a lab whose links all have 25 ms of latency, the controller at one of them. A site without
  the controller waits for two one-way delays in an inline round; by a plan it waits for four and for the exchange
  between members.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import numpy as np

from tradewind.errors import TradewindError
from tradewind.experiments.contests.loopback import ask_ranks
from tradewind.lab.processes import call_sites
from tradewind.lab.session import Lab
from tradewind.lab.site import Place
from tradewind.network import Network, Site
from tradewind.runtime.addresses import LOOPBACK
from tradewind.runtime.group import Group, connect
from tradewind.runtime.options import Transport
from tradewind.wire.messages import MAX_INLINE_BYTES

PROCESSES, SIZES = (2, 4, 8), (4, 4_000, 16_000, 64_000)
ROUNDS, WARM_UP_ROUNDS = 40, 3
LONGEST_S = 120.0
INLINE, PLANNED = Transport(inline_bytes=MAX_INLINE_BYTES), Transport(inline_bytes=0)
FAR_SITES, FAR_LATENCY_S, FAR_BPS, FAR_ROUNDS = 4, 0.025, 100e6, 15


def run(out: TextIO) -> None:
    """Measure both cases, and write the tables."""
    out.write(f"Load at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n\n")
    out.write("| processes | bytes | in messages | by a plan | Gloo | in messages / Gloo | by a plan / Gloo |\n")
    out.write("|---:|---:|---:|---:|---:|---:|---:|\n")
    for processes in PROCESSES:
        for nbytes, medians in _loopback(processes).items():
            inline_s, planned_s, *gloo_s = medians
            cells = [f"{1e3 * s:.2f} ms" for s in (inline_s, planned_s, *gloo_s)] + ["none"] * (not gloo_s)
            cells += [f"{s / gloo_s[0]:.2f}" if gloo_s else "" for s in (inline_s, planned_s)]
            out.write(f"| {processes} | {nbytes} | {' | '.join(cells)} |\n")
    out.write(f"\nFour sites, {1e3 * FAR_LATENCY_S:g} ms from any to any, at a load of {os.getloadavg()[0]:.1f}:\n\n")
    _far(out)


def _turns(group: Group, nbytes: int, rounds: int, ways: Sequence[Callable[[Any], object]]) -> list[float]:
    """The median time of a round by each of `ways`, in turn."""
    array = np.ones(max(1, nbytes // 4), np.float32)
    seconds = np.zeros((len(ways), rounds))
    for number in range(-WARM_UP_ROUNDS, rounds):
        for way in range(len(ways)):
            turn = (way + number) % len(ways)
            array.fill(1.0)
            group.barrier()
            start_s = time.perf_counter()
            ways[turn](array)
            seconds[turn, number] = time.perf_counter() - start_s  # times of warm-up rounds are overwritten
            if not (array == group.world).all():
                raise SystemExit("the sum is wrong")
    slowest = group.all_reduce(seconds, "max")
    return [statistics.median(of) for of in slowest.tolist()]


def _in_place(group: Group, array: Any) -> None:
    group.all_reduce(array, out=array)


# --- loopback ------------------------------------------------------------------------------------------------------


def _loopback(processes: int) -> dict[int, list[float]]:
    """The median times of each way, by size."""
    return {int(nbytes): medians for nbytes, medians in ask_ranks(__name__, processes, 4).items()}


def _worker(rank: int, waiting_port: str, inline_port: str, planned_port: str, gloo_port: str, world: int) -> None:
    with (
        connect(f"{LOOPBACK}:{waiting_port}", rank, world) as waiting,
        connect(f"{LOOPBACK}:{inline_port}", rank, world, transport=INLINE) as inline,
        connect(f"{LOOPBACK}:{planned_port}", rank, world, transport=PLANNED) as planned,
    ):
        gloo = _gloo(rank, gloo_port, world)
        ways: list[Callable[[Any], object]] = [functools.partial(_in_place, group) for group in (inline, planned)]
        every = [*ways, gloo] if gloo is not None else ways
        answer = {nbytes: _turns(waiting, nbytes, ROUNDS, every) for nbytes in SIZES}
        if rank == 0:
            print(json.dumps(answer))
        for group in (inline, planned, waiting):
            group.barrier()


def _gloo(rank: int, port: str, world: int) -> Callable[[Any], object] | None:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{LOOPBACK}:{port}", rank=rank, world_size=world)
    return lambda array: dist.all_reduce(torch.from_numpy(array))


# --- far away ------------------------------------------------------------------------------------------------------


def _far(out: TextIO) -> None:
    apart = 1 - np.eye(FAR_SITES)
    sites = [Site(f"site{number}") for number in range(FAR_SITES)]
    network = Network("far", sites, FAR_BPS * apart, FAR_LATENCY_S * apart)
    try:
        with Lab(network, "delay", calibrate=False) as lab:
            answers = call_sites(network, far_site, groups=3, deadline_s=LONGEST_S, inside=lab)
    except TradewindError as error:
        out.write(f"Not run: {error}\n")
        return
    out.write("| bytes | in messages | by a plan |\n|---:|---:|---:|\n")
    for nbytes, inline_s, planned_s in answers[0]:
        out.write(f"| {nbytes} | {1e3 * inline_s:.0f} ms | {1e3 * planned_s:.0f} ms |\n")


def far_site(place: Place) -> list[list[float]]:
    """Run in a site's process (`call_sites`)."""
    with (
        place.connect(0) as waiting,
        place.connect(1, transport=INLINE) as inline,
        place.connect(2, transport=PLANNED) as planned,
    ):
        ways = [functools.partial(_in_place, inline), functools.partial(_in_place, planned)]
        times = [[nbytes, *_turns(waiting, nbytes, FAR_ROUNDS, ways)] for nbytes in SIZES]
        for group in (inline, planned, waiting):
            group.barrier()
    return times


if __name__ == "__main__":
    given = sys.argv[1:]
    _worker(int(given[0]), given[1], given[2], given[3], given[4], int(given[5]))
