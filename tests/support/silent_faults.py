"""One fault without a sign in a simulated run: how long the round that it hits takes."""

from __future__ import annotations

import statistics

import numpy as np

from tradewind.network import Network, Site
from tradewind.sim.chunks.storm import Storm, StormRun

PATIENCE_S = 3.0


def run_one_fault(seed: int, kinds: tuple[str, ...]) -> tuple[StormRun, float, float]:
    """One fault in a run of 4 or 8 ranks: the run, its longest round after the fault, and the median before it."""
    random = np.random.default_rng([seed, 20])
    world = (4, 8)[seed % 2]
    storm = Storm(
        Network("cut", [Site(f"s{n}") for n in range(world)], 1e7 * (1 - np.eye(world)), np.full((world, world), 5e-3)),
        str(random.choice(["ring", "multi-star", "scatter", "fapt", "balanced-tree"])),
        "bsp",
        seed=seed,
        events=1,
        gap_s=3.0,
        items=20_000,
        train_s=0.1,
        patience_s=PATIENCE_S,
        kinds=(str(random.choice(kinds)),),
    )
    run = StormRun(storm)
    run.run()
    (fault_s,) = run.fault_times_s
    begun: dict[int | None, float] = {}
    ended: dict[int | None, float] = {}
    for step in run.step_times:
        assert step.round is not None, "no rank goes on alone: all can reach each other"
        begun[step.round] = max(begun.get(step.round, 0.0), step.asked_s)
        ended[step.round] = max(ended.get(step.round, 0.0), step.ended_s)
    seconds = {number: ended[number] - begun[number] for number in begun}
    after = [seconds[number] for number in seconds if ended[number] > fault_s]
    return run, max(after), statistics.median(seconds[number] for number in seconds if ended[number] <= fault_s)
