"""The checkers over swept seeds, and that each of them notices what it is there to notice."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from tradewind.catalog import BandwidthTrace, load_compute_times, load_network, load_trace
from tradewind.network import Network
from tradewind.schemes import ExecutionModel, make_scheme
from tradewind.sim import Background, SimulationResult, random_outages, simulate
from tradewind.sim.checkers import check_run
from tradewind.sim.faults import Fault
from tradewind.sim.fluid.discipline import DISCIPLINES
from tradewind.trace import Record, Trace

LSTM = load_compute_times("lstm").rescaled(0.05, 0.2)
DIRECT = ("crew", "crew-non-blocking", "opr", "a2a")
ANYWHERE = (
    "partial-ring",
    "selective",
    "ds-sync",
    "bsp-ps",
    "asp+star",
    "ssp+star",
    "gossip+ring",
    "hierarchical+ring",
    "mtree",
    "partial+multi-star",
)


def drawn_network(rng: random.Random, seed: int) -> tuple[Network, BandwidthTrace | None]:
    match rng.choice(["mesh", "mesh", "crew", "nics", "racks", "gscale", "netstorm9"]):
        case "mesh":
            latency_ms = rng.choice([0, 10])
            return load_network("mesh", n=rng.randint(3, 8), seed=seed, latency_ms=latency_ms), None
        case "crew":
            return load_network("crew-n1", n=rng.randint(4, 9), seed=seed), None
        case "nics":
            return load_network("selective-nics", n=rng.randint(4, 7), seed=seed, max_gbps=0.5), None
        case "racks":
            return load_network("ds-sync-racks", link_gbps=0.5), None
        case "gscale":
            return load_network("gscale"), None
        case _:
            moving = load_trace("netstorm9")
            return moving.network_at(0), moving if rng.random() < 0.5 else None


def run_seed(seed: int) -> tuple[str, tuple[str, ...]]:
    """One random run: how to replay it, and what the checkers found."""
    rng = random.Random(seed)
    network, rates = drawn_network(rng, seed)
    direct = network.link_count == len(network) * (len(network) - 1)
    scheme = make_scheme(rng.choice(DIRECT + ANYWHERE if direct else ANYWHERE))
    execution: ExecutionModel = scheme.execution
    if scheme.scatter == "blocking" and rng.random() < 0.4:
        execution = rng.choice(["store-and-forward", "pipelined", "chunked"])
    discipline = rng.choice(["fs", "fcfs"] if execution == "pipelined" else list(DISCIPLINES))
    options = {"p": rng.randint(2, min(4, len(network)))} if scheme.policy in ("partial", "selective") else {}
    faults: tuple[Fault, ...] = ()
    if rng.random() < 0.7:
        link_mean_s, worker_mean_s = rng.choice([0.3, 2.0]), rng.choice([1.0, 4.0, 1e9])
        faults = random_outages(network, seed, 4, link_mean_s=link_mean_s, worker_mean_s=worker_mean_s, down_s=0.5)
    if rng.random() < 0.3:
        link = network.links[seed % network.link_count]
        faults = (*faults, Background(link.src, link.dst, link.bandwidth_bps * rng.choice([0.5, 2.0]), 1.0, 3.0))
    result = simulate(
        network,
        scheme,
        4,
        seed,
        compute=LSTM,
        nbytes=rng.choice([500_000, 4_000_000]),
        execution=execution,
        discipline=discipline,
        policy_options=options,
        faults=faults,
        noise=rng.choice([0.0, 0.3]),
        detect_s=rng.choice([0.0, 0.05, 0.5]),
        rates=rates,
        pieces=4,
        record="flows",
    )
    replay = f"run_seed({seed})  # {scheme.name} {execution} {discipline} on {network.name}, {len(faults)} faults"
    return replay, check_run(result, network, faults, rates)


def test_a_round_that_changes_to_another_plan_is_checked_by_the_shards_of_that_plan() -> None:
    """Seed 1596: repaired by seven shards, then rerouted to four, and repaired again."""
    _, problems = run_seed(1596)
    assert problems == ()


def sweep(seeds: range) -> None:
    for seed in seeds:
        replay, problems = run_seed(seed)
        assert not problems, f"replay: {replay}\n" + "\n".join(problems[:5])


@pytest.mark.parametrize("start", range(0, 36, 12))
def test_every_random_run_passes_all_checks(start: int) -> None:
    sweep(range(start, start + 12))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 1600, 50))
def test_every_random_run_passes_all_checks_for_long(start: int) -> None:
    sweep(range(start, start + 50))


# --- the checkers themselves ----------------------------------------------------------------------------------

MESH = load_network("mesh", n=6, seed=1)


@pytest.fixture(scope="module")
def good() -> SimulationResult:
    result = simulate(MESH, "crew", 5, 1, compute=LSTM, nbytes=4_000_000, policy_options={"p": 3}, record="flows")
    assert check_run(result, MESH) == ()
    return result


def tampered(result: SimulationResult, wanted: Callable[[Record], bool], **changes: object) -> SimulationResult:
    """The same run with the first such record changed; a change of None removes it."""
    assert result.trace is not None
    found = next(record for record in result.trace.records if wanted(record))
    kept = [record for record in result.trace.records if record is not found]
    changed = [msgspec.structs.replace(found, **changes)] if changes else []
    return replace(result, trace=Trace.of([*kept, *changed]))


def is_flow(phase: str) -> Callable[[Record], bool]:
    return lambda r: r.kind == "flow" and r.round == 1 and r.phase == phase and r.outcome == "delivered"


def test_bytes_that_vanish_are_noticed(good: SimulationResult) -> None:
    assert any("its flows sent" in p for p in check_run(tampered(good, is_flow("reduce")), MESH))


def test_a_flow_that_is_delivered_in_part_is_noticed(good: SimulationResult) -> None:
    half = tampered(good, is_flow("reduce"), sent_bytes=5.0)
    assert any("is delivered with 5.0 of" in p for p in check_run(half, MESH))


def test_loss_without_a_fault_is_noticed(good: SimulationResult) -> None:
    lost = tampered(good, is_flow("reduce"), outcome="lost")
    assert any("counted as lost" in p for p in check_run(lost, MESH))


def test_a_link_that_carries_too_much_is_noticed(good: SimulationResult) -> None:
    def long(record: Record) -> bool:
        return is_flow("reduce")(record) and record.service_s is not None and record.end_s - record.service_s > 0.01

    assert good.trace is not None
    flow = next(record for record in good.trace.records if long(record))
    assert flow.service_s is not None
    quick = tampered(good, long, service_s=(flow.service_s + flow.end_s) / 2)
    assert any("more than the" in p for p in check_run(quick, MESH))


def test_a_slower_network_than_the_run_used_is_noticed(good: SimulationResult) -> None:
    assert any("more than the" in p for p in check_run(good, MESH.scaled(0.9)))


def test_a_worker_in_two_rounds_is_noticed(good: SimulationResult) -> None:
    twice = tampered(good, lambda r: r.kind == "sync" and r.round == 1, end_s=4.9)
    assert any("does sync until 4.9 s" in p for p in check_run(twice, MESH))


def test_a_result_without_a_contribution_is_noticed(good: SimulationResult) -> None:
    without = tampered(good, is_flow("reduce"))
    assert any("without" in p for p in check_run(without, MESH))


def test_a_result_that_never_arrived_is_noticed(good: SimulationResult) -> None:
    never = tampered(good, is_flow("broadcast"))
    assert any("without" in p for p in check_run(never, MESH))
