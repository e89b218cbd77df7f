"""The cause of slow rounds: seeded faults in the simulator, and made-up facts for what it has no model of."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from tradewind.catalog import load_network
from tradewind.dashboard import RunModel, diagnose
from tradewind.dashboard.diagnosis import HostFacts, LinkFacts, RoundFacts
from tradewind.network import Network
from tradewind.sim import Background, simulate
from tradewind.trace.records import Record, Trace

SITES = 5
FAULT_S = 10.0


@dataclass
class OneLateRank:
    """Steps of 0.2 s with 5% noise, and from step 20 on 1 s more for one of the ranks, in the order of first steps."""

    late: int
    order: list[int] = field(default_factory=list)
    steps: dict[int, int] = field(default_factory=dict)

    def sample(self, rng: np.random.Generator, size: int) -> npt.NDArray[np.float64]:
        if id(rng) not in self.order:
            self.order.append(id(rng))
        done = self.steps.get(id(rng), 0)
        self.steps[id(rng)] = done + size
        extra = (np.arange(done, done + size) >= 20) * (self.order.index(id(rng)) == self.late)
        return 0.2 * rng.uniform(0.95, 1.05, size) + extra


def traced(network: Network, seed: int, **options: object) -> Trace:
    more: dict[str, object] = {"compute": OneLateRank(-1), **options}
    result = simulate(network, "bsp+star", 40, seed, nbytes=2_000_000, execution="chunked", record="flows", **more)  # type: ignore[arg-type]
    assert result.trace is not None
    return result.trace


def is_named(cause: str, about: str, trace: Trace, begin_s: float) -> bool:
    """Whether a diagnosis of the three rounds that end after the one of `begin_s` names this cause."""
    model = RunModel.of(trace)
    numbers = [r["number"] for r in model.rounds if r["end_s"] > begin_s][:4]
    return any((d.cause, d.about) == (cause, about) for d in model.diagnoses if d.round in numbers)


def slow_link(network: Network, seed: int) -> tuple[str, Trace]:
    """A link of the plan that carries, after a while, 40% of what the slowest one does, so that rounds take longer."""
    rng = np.random.default_rng(seed)
    hub = star_hub(traced(network, seed))
    other = str(rng.choice([name for name in network.names if name != hub]))
    src, dst = (other, hub) if rng.random() < 0.5 else (hub, other)
    k, rates_bps = network.index[hub], network.bandwidth_bps
    others = [i for i in range(len(network)) if i != k]
    slowest_bps = min(rates_bps[k, others].min(), rates_bps[others, k].min())
    taken_bps = float(rates_bps[network.index[src], network.index[dst]] - 0.4 * slowest_bps)
    trace = traced(network, seed, faults=(Background(src, dst, taken_bps, FAULT_S),))
    return f"{src} -> {dst}", trace


def star_hub(trace: Trace) -> str:
    return next(trace.kind("tree")).site


def network_of(seed: int) -> Network:
    return load_network("mesh", n=SITES, seed=seed)


def check_slow_link(seed: int) -> bool:
    about, trace = slow_link(network_of(seed), seed)
    return is_named("slow link", about, trace, FAULT_S)


def check_other_traffic(seed: int) -> bool:
    about, trace = slow_link(network_of(seed), seed)
    src = about.split(" -> ")[0]
    seen = [Record("host", s, s + 1, src, load=0.3, rate_bps=0.0 if s < FAULT_S else 1e9) for s in range(40)]
    return is_named("other traffic", about, Trace.of([*trace.records, *seen]), FAULT_S)


def check_late_rank(seed: int) -> bool:
    network, late = network_of(seed), seed % SITES
    trace = traced(network, seed, compute=OneLateRank(late))
    name = network.names[late]
    begun_s = next(r.end_s for r in trace.kind("compute") if r.site == name and r.seconds > 1)
    return is_named("late rank", name, trace, begun_s)


FAULTS = {"slow link": check_slow_link, "other traffic": check_other_traffic, "late rank": check_late_rank}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_culprit_of_a_seeded_fault_is_named_within_three_rounds(fault: str) -> None:
    assert all(FAULTS[fault](seed) for seed in range(2))


@pytest.mark.slow
def test_the_culprit_is_named_in_97_of_100_seeded_faults() -> None:
    named = [FAULTS[fault](seed) for fault in FAULTS for seed in range(34)]
    assert sum(named) >= 0.97 * len(named), f"{sum(named)} of {len(named)}"


@pytest.mark.parametrize("seed", range(3))
def test_a_run_without_a_fault_has_no_slow_round(seed: int) -> None:
    assert not RunModel.of(traced(network_of(seed), seed)).diagnoses


SLOW = LinkFacts(20e6, 100e6)


@pytest.mark.parametrize(
    ("link", "hosts", "cause", "about"),
    [
        (SLOW, {}, "slow link", "a -> b"),
        (LinkFacts(20e6, 100e6, retransmits=40), {}, "retransmissions", "a -> b"),
        (SLOW, {"b": HostFacts(0.1, 60e6)}, "other traffic", "a -> b"),
        (SLOW, {"b": HostFacts(0.99)}, "processor", "b"),
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
