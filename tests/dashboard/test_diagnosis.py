"""The cause of slow rounds: seeded faults of five kinds in the simulator, and made-up facts for the rules.

The sweep's rule for a fault that matters is fixed by the definition of a slow round and not by what is diagnosed: in
each of the first three rounds that start after the fault began, the round itself, or the wait for its last member,
takes at least half of the usual round longer than usual. Kind, place and strength are drawn from the seed, and drawn
again until the fault matters. The last sentence about these three rounds must name it, at the latest when hosts have
reported their counters once more, which they do every second as in a live run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from tradewind.catalog import load_network
from tradewind.dashboard import RunModel, diagnose
from tradewind.dashboard.diagnosis import SLOW_FACTOR, HostFacts, LinkFacts, RoundFacts, last_ready
from tradewind.network import Network
from tradewind.sim import Background, BusyProcessor, LossyLink, SlowLink, SlowRank, simulate
from tradewind.sim.faults import Fault
from tradewind.trace.records import Trace

PLANNERS = ("star", "ring", "mtree", "fapt", "optimal")
BEFORE, WITHIN = 10, 3
"""Rounds before the fault, and rounds within which it must be named."""
LATER = 5
"""More rounds, so that hosts report once more."""
REPORT_S = 1.0
MOST_DRAWS = 100
SWEPT = range(100, 200)
"""Seeds that no rule was made or changed with: those below 100 showed that counts were compared with a fixed number."""


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


def case_of(seed: int) -> Case:
    rng = np.random.default_rng((seed, 1))
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


def faulty(kind: str, seed: int) -> tuple[Trace, float, str, str]:
    """The trace of a run with a fault of this kind that matters, when it began, and what must be named."""
    case, rng = case_of(seed), np.random.default_rng((seed, sorted(FAULTS).index(kind)))
    healthy = case.traced(BEFORE)
    at_s = max(r.end_s for r in healthy.kind("round")) + float(rng.uniform(0.0, 0.5))
    for _ in range(MOST_DRAWS):
        fault, cause, about = FAULTS[kind](case, rng, healthy, at_s)
        trace = case.traced(BEFORE + 1 + WITHIN + LATER, fault)
        if matters(trace, at_s):
            return trace, at_s, cause, about
    raise AssertionError(f"no {kind} of seed {seed} matters")


def diagnosed(trace: Trace, at_s: float) -> tuple[str, str]:
    """The cause and culprit that the last sentence about the first rounds names, a report after the third has ended."""
    last = max(first_rounds(trace, at_s))
    end_s = next(r.end_s for r in trace.kind("round") if r.round == last) + REPORT_S
    model = RunModel.of(Trace(tuple(r for r in trace.records if r.end_s <= end_s or r.kind == "run")))
    said = [found for found in model.diagnoses if found.round <= last]
    return (said[-1].cause, said[-1].about) if said else ("", "")


def is_named(kind: str, seed: int) -> bool:
    trace, at_s, *expected = faulty(kind, seed)
    return diagnosed(trace, at_s) == tuple(expected)


@pytest.mark.parametrize("kind", FAULTS)
def test_the_culprit_of_a_seeded_fault_is_named_within_three_rounds(kind: str) -> None:
    assert all(is_named(kind, seed) for seed in range(2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_the_culprit_is_named_in_97_of_100_seeded_faults(kind: str) -> None:
    missed = [seed for seed in SWEPT if not is_named(kind, seed)]
    assert len(missed) <= 3, f"{kind}: missed with seeds {missed}"


@pytest.mark.parametrize("seed", range(3))
def test_a_run_without_a_fault_has_no_slow_round(seed: int) -> None:
    assert not RunModel.of(case_of(seed).traced(20)).diagnoses


SLOW = LinkFacts(20e6, 100e6)


@pytest.mark.parametrize(
    ("link", "hosts", "cause", "about"),
    [
        (SLOW, {}, "slow link", "a -> b"),
        (LinkFacts(20e6, 100e6, retransmits=40), {}, "retransmissions", "a -> b"),
        (SLOW, {"b": HostFacts(0.1, 60e6)}, "other traffic", "a -> b"),
        (LinkFacts(20e6, 100e6, 40, sent_bytes=1e9), {}, "slow link", "a -> b"),
        (LinkFacts(20e6, 100e6, 40, 1e7, usual_retransmits=700, usual_bytes=1e8), {}, "slow link", "a -> b"),
        (LinkFacts(20e6, 100e6, 2, 3e6, usual_retransmits=0, usual_bytes=1e7), {}, "retransmissions", "a -> b"),
        (LinkFacts(20e6, 100e6, 2, 3e6, usual_retransmits=2, usual_bytes=1e7), {}, "slow link", "a -> b"),
        (LinkFacts(20e6, 100e6, 1, 1e6, usual_retransmits=0, usual_bytes=1e7), {}, "slow link", "a -> b"),
        (SLOW, {"b": HostFacts(0.1, 60e6, usual_other_bps=55e6)}, "slow link", "a -> b"),
        (SLOW, {"b": HostFacts(0.99)}, "processor", "b"),
        (SLOW, {"b": HostFacts(0.99, usual_load=0.98)}, "slow link", "a -> b"),
        (LinkFacts(99e6, 100e6), {"c": HostFacts(0.99)}, "processor", "c"),
        (LinkFacts(99e6, 100e6), {}, "unknown", ""),
    ],
)
def test_counters_of_hosts_say_why_a_link_is_slow(
    link: LinkFacts, hosts: dict[str, HostFacts], cause: str, about: str
) -> None:
    found = diagnose(RoundFacts(1, 5.0, 1.0, "predicted", links={("a", "b"): link}, hosts=hosts))
    assert found is not None and (found.cause, found.about) == (cause, about)
    assert "instead of the predicted 1 s" in found.sentence


def test_a_round_as_long_as_predicted_needs_no_explanation() -> None:
    assert diagnose(RoundFacts(1, 1.2, 1.0, "predicted", links={("a", "b"): SLOW})) is None


@pytest.mark.parametrize(("usual_load", "cause"), [(0.3, "processor"), (1.0, "late rank")])
def test_a_late_rank_on_full_processors_is_put_down_to_them_unless_they_always_are(
    usual_load: float, cause: str
) -> None:
    hosts = {"b": HostFacts(1.0, usual_load=usual_load)}
    found = diagnose(RoundFacts(1, 1.0, 1.0, "usual", ready_s={"a": 0.0, "b": 5.0}, hosts=hosts))
    assert found is not None and (found.cause, found.about) == (cause, "b")
