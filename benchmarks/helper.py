"""What helping costs a worker's own training.

Sites a and b average in rounds whose sums are made at h1, then at h2, then at h1 again, and so on: 100 Mbps on every
link, so that a helper takes in up to twice that, and sends out as much. h1 and h2 train all the time, on one thread.

Wall time says nothing on a busy machine with few cores, so processor time is counted: of the thread that trains, for a
step, and of all other threads of its process, for a second. A worker with a core to spare loses what its steps take
longer; one without loses the other threads' share, too. Waiting for the interpreter's lock is in wall time only, and
not seen here.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any, TextIO

import numpy as np

from tradewind.lab.processes import call_sites
from tradewind.lab.site import Place
from tradewind.network import Network, Site

RATE_BPS = 100e6
NBYTES = 2_500_000
PHASES, ROUNDS_A_PHASE = 24, 5
HELPERS = ("h1", "h2")


def run(out: TextIO) -> None:
    """Measure, and write one table."""
    names = ("a", "b", *HELPERS)
    network = Network("helpers", [Site(name) for name in names], RATE_BPS * (1 - np.eye(len(names))))
    load = os.getloadavg()[0]
    answers = call_sites(network, work_at, groups=len(HELPERS) + 1, deadline_s=120.0)
    phases, steps = answers[0], dict(zip(HELPERS, answers[2:], strict=True))
    trains_s, others_s, wall_s = ({True: [], False: []} for _ in range(3))
    for helper, start_s, end_s in phases:
        for who in HELPERS:
            inside = [step for step in steps[who] if start_s <= step[0] and step[0] + step[1] <= end_s]
            for kind, values in zip((wall_s, trains_s, others_s), list(zip(*inside, strict=True))[1:], strict=True):
                kind[who == helper] += values
    rate = statistics.median(8 * NBYTES * 2 * ROUNDS_A_PHASE / (end - start) for _, start, end in phases)
    out.write(
        f"Load before: {load:.1f} on {os.cpu_count()} cores. A helper takes in {rate / 1e6:.0f} Mbps and sends as"
    )
    out.write(" much.\n\n")
    out.write("| a worker that | steps | processor time of a step | other threads |\n|---|---:|---:|---:|\n")
    share = {helps: sum(others_s[helps]) / sum(wall_s[helps]) for helps in (False, True)}
    for helps, what in ((False, "only trains"), (True, "helps as well")):
        step_ms = 1e3 * statistics.fmean(trains_s[helps])
        out.write(f"| {what} | {len(trains_s[helps])} | {step_ms:.2f} ms | {share[helps]:.3f} of a core |\n")
    at_rate = (share[True] - share[False]) * RATE_BPS / rate
    out.write(
        f"\nFor {RATE_BPS / 1e6:g} Mbps in and out that is {at_rate:.3f} of a core: training without a core to spare "
        f"takes {1 / (1 - at_rate):.3f} times as long.\n"
    )


def work_at(place: Place) -> list[Any]:
    """In a site's process: rounds in turn through one helper or the other, or training."""
    groups = [
        place.connect(k, planner="star", planner_options={"root": helper}, policy="partial", policy_options={"p": 2})
        for k, helper in enumerate(HELPERS)
    ]
    end = place.connect(len(HELPERS))
    train = _training() if place.site in HELPERS else None
    end.barrier()
    if train is None:
        answer = rounds_through(groups)
        end.all_reduce(np.ones(1, np.int32))
    else:
        answer = steps_until(end.all_reduce_async(np.ones(1, np.int32)), train)
    end.barrier()
    for group in (*groups, end):
        group.close()
    return answer


def rounds_through(groups: list[Any]) -> list[Any]:
    """Rounds in phases: which helper, from when to when."""
    array = np.ones(NBYTES // 4, np.float32)
    out = np.empty_like(array)
    for group in groups:
        group.average(array, out=out)  # connections
    phases = []
    for phase in range(PHASES):
        which = phase % len(groups)
        start_s = time.monotonic()
        for _ in range(ROUNDS_A_PHASE):
            groups[which].average(array, out=out)
        phases.append((HELPERS[which], start_s, time.monotonic()))
    return phases


def _training() -> Any:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(128, 256), torch.randint(0, 10, (128,))

    def step() -> None:
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return step


def steps_until(over: Any, step: Any) -> list[tuple[float, float, float, float]]:
    """Train until the others are done. Of every step: when it began, how long it took, and the processor time of its
    thread and of all others."""
    steps = []
    while not over.done:
        began_s, thread_s, process_s = time.monotonic(), time.thread_time(), time.process_time()
        step()
        own_s = time.thread_time() - thread_s
        steps.append((began_s, time.monotonic() - began_s, own_s, time.process_time() - process_s - own_s))
    return steps
