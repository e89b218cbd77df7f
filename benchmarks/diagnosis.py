"""Causes of slow rounds: how often the right one is named, after one seeded fault in a simulated run.

A wide-area network of 4 to 8 sites with ordinary losses, a planner, a size and the time of steps are drawn from the
seed, then a fault of each kind: its place, strength and time. It is drawn again until it matters: in each of the first
three rounds that start after it began, the round itself, or the wait for its last member, takes at least half of the
usual round longer than usual. That rule follows from the definition of a slow round and not from what is diagnosed. The
last sentence about these three rounds must name the kind of the fault and its link or rank, at the latest when hosts
have reported their counters once more, which they do every second as in a live run.

The simulator gives a lossy link the rate that TCP has in the long run from the first segment on. TCP itself becomes
slower only when a segment was lost, and halves its window at most once for each: a link that carries 16 times less has
lost at least four. Faults that the counters of no host could have noticed, because the link would have lost fewer in
all three rounds together than its slowdown takes, are drawn again.

No rule was made or changed with the seeds that are reported. Seeds 0 to 99 showed that retransmissions were compared
with a fixed number, which was changed then; seeds 100 to 199 were looked at after that. With seeds 200 to 299 lossy
links were named in 94 of 100 runs, before faults that TCP excludes were drawn again: the six that were missed had lost
2 segments at most, of the 3 to 5 that their slowdown takes. All other kinds were named in 100 of 100. No rule was
changed then. Without drawing again, seeds 300 to 399 have 95 for lossy links and 100 for each other kind.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from tradewind.catalog import load_network
from tradewind.dashboard import RunModel
from tradewind.dashboard.diagnosis import SLOW_FACTOR, last_ready
from tradewind.network import Network
from tradewind.sim import Background, BusyProcessor, LossyLink, SlowLink, SlowRank, simulate
from tradewind.sim.faults import SEGMENT_BYTES, Fault
from tradewind.trace.records import Trace

PLANNERS = ("star", "ring", "mtree", "fapt", "optimal")
BEFORE, WITHIN = 10, 3
"""Rounds before the fault, and rounds within which it must be named."""
LATER = 5
"""More rounds, so that hosts report once more."""
REPORT_S = 1.0
MOST_DRAWS, MOST_RUNS = 100, 10
SEEDS = range(300, 300 + int(os.environ.get("SEEDS", "100")))
"""Seeds that no rule was made or changed with."""
AIM = 0.97


@dataclass(frozen=True)
class NoisySteps:
    """Steps with 5% noise."""

    seconds: float

    def sample(self, rng: np.random.Generator, size: int) -> npt.NDArray[np.float64]:
        return self.seconds * rng.uniform(0.95, 1.05, size)


@dataclass(frozen=True)
class Case:
    """A drawn run: a wide-area network with ordinary losses, a planner, a size and a time of steps."""

    network: Network
    planner: str
    nbytes: int
    step_s: float
    seed: int

    def traced(self, rounds: int, *faults: Fault) -> Trace:
        result = simulate(
            self.network,
            f"bsp+{self.planner}",
            1e4,
            self.seed,
            compute=NoisySteps(self.step_s),
            nbytes=self.nbytes,
            execution="chunked",
            record="flows",
            faults=faults,
            count_every_s=REPORT_S,
            stop_after_rounds=rounds,
        )
        assert result.trace is not None
        return result.trace


def case_of(seed: int, again: int = 0) -> Case:
    """The run of a seed; with `again`, another one."""
    rng = np.random.default_rng((seed, 1, again) if again else (seed, 1))
    mesh = load_network("mesh", n=int(rng.integers(4, 9)), seed=seed)
    loss = np.where(mesh.bandwidth_bps > 0, rng.uniform(0, 1e-4, mesh.bandwidth_bps.shape), 0.0)
    latency_s = np.where(mesh.bandwidth_bps > 0, rng.uniform(0.01, 0.1, loss.shape), 0.0)
    network = Network(mesh.name, mesh.sites, mesh.bandwidth_bps, latency_s, loss)
    return Case(network, str(rng.choice(PLANNERS)), int(rng.uniform(1e6, 10e6)), float(rng.uniform(0.2, 2.0)), seed)


Drawn = tuple[Fault, str, str]
"""A fault, and the cause and culprit that must be named."""


def between(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def a_link(case: Case, rng: np.random.Generator, healthy: Trace) -> tuple[str, str, float]:
    """A link of the plan, and its rate."""
    used = sorted({(flow.site, flow.peer) for flow in healthy.kind("flow")})
    src, dst = used[int(rng.integers(len(used)))]
    index = case.network.index
    return src, dst, float(case.network.bandwidth_bps[index[src], index[dst]])


def slow_link(case: Case, rng: np.random.Generator, healthy: Trace, at_s: float) -> Drawn:
    src, dst, _ = a_link(case, rng, healthy)
    return SlowLink(src, dst, between(rng, 0.05, 0.7), at_s), "slow link", f"{src} -> {dst}"


def other_traffic(case: Case, rng: np.random.Generator, healthy: Trace, at_s: float) -> Drawn:
    src, dst, rate_bps = a_link(case, rng, healthy)
    taken_bps = rate_bps * (1 - between(rng, 0.05, 0.7))
    return Background(src, dst, taken_bps, at_s), "other traffic", f"{src} -> {dst}"


def lossy_link(case: Case, rng: np.random.Generator, healthy: Trace, at_s: float) -> Drawn:
    src, dst, _ = a_link(case, rng, healthy)
    return LossyLink(src, dst, between(rng, 5e-4, 0.05), at_s), "retransmissions", f"{src} -> {dst}"


def slow_rank(case: Case, rng: np.random.Generator, _: Trace, at_s: float) -> Drawn:
    name = str(rng.choice(case.network.names))
    return SlowRank(name, between(rng, 1.5, 20), at_s), "late rank", name


def busy_processor(case: Case, rng: np.random.Generator, _: Trace, at_s: float) -> Drawn:
    name, computes = str(rng.choice(case.network.names)), bool(rng.random() < 0.5)
    share = between(rng, 0.05, 0.7) if computes else between(rng, 0.001, 0.05)
    return BusyProcessor(name, share, at_s, computes=computes), "processor", name


Draw = Callable[[Case, np.random.Generator, Trace, float], Drawn]
FAULTS: dict[str, Draw] = {
    "slow link": slow_link,
    "slow rank": slow_rank,
    "lossy link": lossy_link,
    "busy processor": busy_processor,
    "other traffic": other_traffic,
}


def first_rounds(trace: Trace, at_s: float) -> list[int]:
    """The rounds that start after the fault began, up to the limit."""
    return [r.round for r in trace.kind("round") if r.start_s >= at_s and r.round is not None][:WITHIN]


def lateness_s(trace: Trace) -> dict[int, float]:
    """By how much the last member of each round was later than the one before it."""
    ready: dict[int, dict[str, float]] = {}
    for wait in trace.kind("wait"):
        if wait.round is not None:
            ready.setdefault(wait.round, {})[wait.site] = wait.start_s
    return {number: last_ready(at_s)[1] for number, at_s in ready.items()}


def matters(trace: Trace, at_s: float) -> bool:
    took = {r.round: r.seconds for r in trace.kind("round") if r.round is not None}
    late, numbers = lateness_s(trace), first_rounds(trace, at_s)
    before = [number for number in took if number < min(numbers)][:BEFORE]
    usual_s = statistics.median(took[number] for number in before)
    usual_late_s = statistics.median(late[number] for number in before)
    longer = [max(took[number] - usual_s, late[number] - usual_late_s) for number in numbers]
    return min(longer) >= (SLOW_FACTOR - 1) * usual_s


def is_possible(case: Case, fault: Fault, trace: Trace, at_s: float) -> bool:
    """Whether TCP could be as slow as the simulated link by the end of the first rounds."""
    if not isinstance(fault, LossyLink):
        return True
    link = tuple(case.network.index[name] for name in (fault.src, fault.dst))
    slowdown = case.network.bandwidth_bps[link] / fault.rate_bps(float(case.network.latency_s[link]))
    flows = [flow for flow in trace.kind("flow") if (flow.site, flow.peer) == (fault.src, fault.dst)]
    numbers = first_rounds(trace, at_s)
    sent_bytes = sum(flow.sent_bytes or flow.nbytes for flow in flows if flow.round in numbers)
    return bool(fault.loss * sent_bytes / SEGMENT_BYTES >= math.log2(slowdown))


def faulty(kind: str, seed: int) -> tuple[Trace, float, str, str]:
    """The trace of a run with a fault of this kind that matters, when it began, and what must be named.

    Where none does, such as a slow rank whose steps are short beside the rounds, another run is drawn.
    """
    rng = np.random.default_rng((seed, sorted(FAULTS).index(kind)))
    for again in range(MOST_RUNS):
        case = case_of(seed, again)
        healthy = case.traced(BEFORE)
        at_s = max(r.end_s for r in healthy.kind("round")) + float(rng.uniform(0.0, 0.5))
        for _ in range(MOST_DRAWS):
            fault, cause, about = FAULTS[kind](case, rng, healthy, at_s)
            trace = case.traced(BEFORE + 1 + WITHIN + LATER, fault)
            if matters(trace, at_s) and is_possible(case, fault, trace, at_s):
                return trace, at_s, cause, about
    raise AssertionError(f"no {kind} of seed {seed} matters")


def diagnosed(trace: Trace, at_s: float) -> tuple[str, str]:
    """The cause and culprit that the last sentence about the first rounds names, a report after the third has ended."""
    last = max(first_rounds(trace, at_s))
    end_s = next(r.end_s for r in trace.kind("round") if r.round == last) + REPORT_S
    model = RunModel.of(Trace(tuple(r for r in trace.records if r.end_s <= end_s or r.kind == "run")))
    said = [found for found in model.diagnoses if found.round <= last]
    return (said[-1].cause, said[-1].about) if said else ("", "")


def wrongly_said(kind: str, seed: int) -> str | None:
    """What is said of a fault, with what should be; None if it is named."""
    trace, at_s, *expected = faulty(kind, seed)
    cause, about = diagnosed(trace, at_s)
    if [cause, about] == expected:
        return None
    return f"{cause or 'nothing'} {about} instead of {' '.join(expected)}"


def run(out: TextIO) -> dict[str, Any]:
    """Draw a fault of each kind for each seed, write a table, and return what was missed."""
    out.write("| fault | runs | named | aim | missed: seed and what was said |\n|---|---:|---:|---|---|\n")
    missed: dict[str, list[tuple[int, str]]] = {}
    with ProcessPoolExecutor(int(os.environ.get("JOBS", os.cpu_count() or 1))) as pool:
        said_of = {kind: list(pool.map(partial(wrongly_said, kind), SEEDS)) for kind in FAULTS}
    for kind, said_by_seed in said_of.items():
        found = [(seed, said) for seed, said in zip(SEEDS, said_by_seed, strict=True) if said is not None]
        missed[kind] = found
        named = 1 - len(found) / len(SEEDS)
        verdict = "holds" if named >= AIM else "missed"
        listed = "; ".join(f"{seed}: {said}" for seed, said in found)
        out.write(f"| {kind} | {len(SEEDS)} | {named:.0%} | {AIM:.0%}: {verdict} | {listed} |\n")
    return {"seeds": [SEEDS[0], SEEDS[-1]], "missed": missed}
