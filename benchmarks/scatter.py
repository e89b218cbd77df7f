"""Blocking and non-blocking scatter in real processes and in the simulator (CREW IV-A2, Fig. 6).

Eight sites on a shaped mesh, a process each, all of which train: step times are those of the catalog's LSTM,
compressed, and the first four ready ranks average. Both kinds of scatter take turns, on the same links and with the
same step times. A round takes from when the controller has decided, right after its last member is ready, to its end;
what is sent before shortens it. The simulator runs CREW's scheme on the same network, with the same sizes and
distribution of step times.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any, TextIO

import numpy as np

from tradewind.catalog import load_compute_times, load_network
from tradewind.lab.processes import call_sites
from tradewind.lab.site import Place
from tradewind.sim import simulate

SITES, SCALE, RATES = 8, 4, 0.25
SECONDS, TURNS = 6.0, 3
"""The seconds of a turn, and the number of turns of each kind."""
COMPRESSION = 4.0
CASES = (500_000, 2_000_000)
"""Bytes of the model."""
KINDS = {"blocking": "crew", "non-blocking": "crew-non-blocking"}


def run(out: TextIO) -> None:
    """Measure both, and write one table."""
    network = load_network("mesh", n=SITES).scaled(RATES)
    load = os.getloadavg()[0]
    out.write(f"Load before: {load:.1f} on {os.cpu_count()} cores. {TURNS} turns of {SECONDS:g} s each, p = {SCALE}, ")
    out.write(f"links of 20 to 155 Mbps times {RATES:g}, steps of {step_times().mean_s:.2f} s on average.\n\n")
    out.write("| bytes | scatter | steps per rank | a round | waiting for it | sent before it | simulated steps |\n")
    out.write("|---:|---|---:|---:|---:|---:|---:|\n")
    said = []
    for nbytes in CASES:
        given = {"nbytes": nbytes, "turns": list(KINDS) * TURNS}
        answers = call_sites(network, train_at, given, groups=2 * TURNS + 1, deadline_s=150.0)
        steps, rounds_s = {}, {}
        for kind, scheme in KINDS.items():
            turns = [turn for answer in answers for turn in answer if turn[0] == kind]
            outcomes = [outcome for turn in turns for outcome in turn[1]]
            rounds, waited, early = zip(*outcomes, strict=True)
            steps[kind] = len(outcomes) / SITES / TURNS
            rounds_s[kind] = statistics.median(rounds)
            simulated = simulate(
                network, scheme, 20 * SECONDS, compute=step_times(), nbytes=nbytes, policy_options={"p": SCALE}
            )
            out.write(
                f"| {nbytes} | {kind} | {steps[kind]:.1f} | {1e3 * rounds_s[kind]:.0f} ms | "
                f"{1e3 * statistics.fmean(waited):.0f} ms | {statistics.fmean(early) / nbytes:.0%} | "
                f"{simulated.rounds_per_worker / 20:.1f} |\n"
            )
        faster, more = rounds_s["blocking"] / rounds_s["non-blocking"], steps["non-blocking"] / steps["blocking"]
        said.append(f"{nbytes / 1e6:g} MB: rounds {faster:.2f} times as fast, {more:.2f} times the steps.")
    out.write(f"\nNon-blocking against blocking: {' '.join(said)}\n")


def step_times() -> Any:
    """The distribution of step times."""
    return load_compute_times("lstm").scaled(1 / COMPRESSION)


def train_at(place: Place, nbytes: int, turns: list[str]) -> list[tuple[str, list[tuple[float, float, int]]]]:
    """Run in a site's process; returns the kind of every turn, and the duration of every round and the wait for it."""
    answers = []
    with place.connect(0) as all_ranks:
        for number, kind in enumerate(turns):
            options: dict[str, Any] = {
                "policy": "partial",
                "policy_options": {"p": SCALE},
                "planner": "scatter",
                "scatter": kind,
            }
            random = np.random.default_rng([number // len(KINDS), place.rank])
            with place.connect(number + 1, **options) as group:
                array = np.full(nbytes // 4, float(place.rank), np.float32)
                group.all_reduce(array)  # connections
                all_ranks.barrier()
                answers.append((kind, _turn(group, array, random)))
                group.barrier()
    return answers


def _turn(group: Any, array: Any, random: np.random.Generator) -> list[tuple[float, float, int]]:
    until_s, outcomes = time.monotonic() + SECONDS, []
    while time.monotonic() < until_s:
        time.sleep(float(step_times().sample(random, 1)[0]))
        handle = group.average_async(array)
        handle.wait()
        if not handle.outcome.alone:
            outcomes.append((handle.outcome.seconds, handle.outcome.waited_s, handle.outcome.early_bytes))
    return outcomes
