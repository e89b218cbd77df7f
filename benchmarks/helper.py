"""The effect of helping on a rank's own training.

Sites a and b average in rounds whose sums are computed at h, at a rate at which h receives about 100 Mbps and sends as
much; then they pause for the same time; and so on. h trains all the time, on one thread. Everything runs on one
machine, so that a and b take processor time as well, which they would not on machines of their own.

Each phase in which h helps is compared with the pause after it. Two costs are measured: *wall time* of training steps,
which includes everything (other threads on the same cores, waiting for the interpreter's lock, and other load of the
machine), and *processor time* of the thread that trains and of all others of its process, which is the loss of a rank
without a spare core.
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

RATE_BPS = 60e6
"""The rate of each link; rounds follow each other with small gaps, so that two links carry a little less than twice
this.
"""
NBYTES = 1_500_000
PHASES, ROUNDS_A_PHASE = 24, 4
AIM_BPS = 100e6
HELPER = "h"

Step = tuple[float, float, float, float]
"""Start time, duration, and the processor time of its thread and of all others."""


def run(out: TextIO) -> None:
    """Measure, and write one table."""
    names = ("a", "b", HELPER)
    network = Network("helper", [Site(name) for name in names], RATE_BPS * (1 - np.eye(len(names))))
    load = os.getloadavg()[0]
    phases, _, steps = call_sites(network, work_at, groups=2, deadline_s=120.0)
    inside = [[step for step in steps if start_s <= step[0] < end_s] for _, start_s, end_s in phases]
    rates = [8 * NBYTES * 2 * ROUNDS_A_PHASE / (end_s - start_s) for helps, start_s, end_s in phases if helps]
    rate_bps = statistics.median(rates)
    out.write(
        f"Load before: {load:.1f} on {os.cpu_count()} cores. A helper takes in {rate_bps / 1e6:.0f} Mbps and sends as "
        f"much. {PHASES // 2} phases of each kind, in turn.\n\n"
    )
    out.write("| a rank that | steps | wall time of a step, median | mean | its processor time | other threads |\n")
    out.write("|---|---:|---:|---:|---:|---:|\n")
    share = {}
    for helps, what in ((False, "only trains"), (True, "helps as well")):
        own = [step for (kind, *_), some in zip(phases, inside, strict=True) if kind == helps for step in some]
        _, wall_s, thread_s, others_s = zip(*own, strict=True)
        share[helps] = sum(others_s) / sum(wall_s)
        times = [statistics.median(wall_s), statistics.fmean(wall_s), statistics.fmean(thread_s)]
        told = " | ".join(f"{1e3 * seconds:.2f} ms" for seconds in times)
        out.write(f"| {what} | {len(own)} | {told} | {share[helps]:.3f} of a core |\n")
    slower = [_mean_s(helping) / _mean_s(after) for helping, after in zip(inside[::2], inside[1::2], strict=True)]
    low, middle, high = (statistics.quantiles(slower, n=4)[k] for k in range(3))
    out.write(
        f"\nA phase's steps take {middle:.3f} times as long as those of the pause after it (median of {len(slower)} "
        f"pairs; half of them are between {low:.3f} and {high:.3f}). "
    )
    at_aim = (share[True] - share[False]) * AIM_BPS / rate_bps
    out.write(
        f"Other threads use {at_aim:.3f} of a core for {AIM_BPS / 1e6:g} Mbps: training without a core to spare takes "
        f"{1 / (1 - at_aim):.3f} times as long.\n"
    )


def _mean_s(steps: list[Step]) -> float:
    return statistics.fmean(step[1] for step in steps)


def work_at(place: Place) -> list[Any]:
    """Run in a site's process: rounds and pauses in turn, or training."""
    star: dict[str, Any] = {"planner": "star", "planner_options": {"root": HELPER}}
    group = place.connect(0, **star, policy="partial", policy_options={"p": 2})
    end = place.connect(1)
    train = _training() if place.site == HELPER else None
    end.barrier()
    if train is None:
        answer: list[Any] = rounds_and_pauses(group)
        end.all_reduce(np.ones(1, np.int32))
    else:
        answer = steps_until(end.all_reduce_async(np.ones(1, np.int32)), train)
    end.barrier()
    for joined in (group, end):
        joined.close()
    return answer


def rounds_and_pauses(group: Any) -> list[tuple[bool, float, float]]:
    """Run the phases; returns whether h helps in each, and its start and end."""
    array = np.ones(NBYTES // 4, np.float32)
    out = np.empty_like(array)
    group.average(array, out=out)  # connections
    phases: list[tuple[bool, float, float]] = []
    for phase in range(PHASES):
        helps, start_s = phase % 2 == 0, time.monotonic()
        if helps:
            for _ in range(ROUNDS_A_PHASE):
                group.average(array, out=out)
        else:
            time.sleep(phases[-1][2] - phases[-1][1])  # as long as the rounds before it
        phases.append((helps, start_s, time.monotonic()))
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


def steps_until(over: Any, step: Any) -> list[Step]:
    """Train until the other sites are done."""
    steps = []
    while not over.done:
        began_s, thread_s, process_s = time.monotonic(), time.thread_time(), time.process_time()
        step()
        own_s = time.thread_time() - thread_s
        steps.append((began_s, time.monotonic() - began_s, own_s, time.process_time() - process_s - own_s))
    return steps
