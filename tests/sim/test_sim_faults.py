"""Outages, recovery, failover and background traffic. Every test also proves that its fault did happen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tradewind.catalog import load_compute_times, load_network
from tradewind.errors import BadOption, UnknownName
from tradewind.network import Network, Site
from tradewind.planning.flows.splitting import replacement
from tradewind.schemes import ExecutionModel
from tradewind.sim import (
    Background,
    BusyProcessor,
    LinkOutage,
    LossyLink,
    SimulationResult,
    SlowLink,
    SlowRank,
    WorkerOutage,
    random_link_outages,
    random_outages,
    simulate,
)
from tradewind.sim.checkers import check_run
from tradewind.sim.faults import HOST_BPS, Fault
from tradewind.trace import Record

LSTM = load_compute_times("lstm").rescaled(0.05, 0.2)
CREW = load_network("crew-n2", n=12, seed=1)
BYTES = 40_000_000


def run(*faults: Fault, scheme: str = "crew", nbytes: int = BYTES, **more: Any) -> SimulationResult:
    """Twenty seconds of CREW with p = 4, checked."""
    options: dict[str, Any] = {"policy_options": {"p": 4}} if scheme.startswith(("crew", "partial")) else {}
    options |= more
    result = simulate(CREW, scheme, 20, 1, compute=LSTM, nbytes=nbytes, faults=faults, record="flows", **options)
    assert check_run(result, CREW, faults) == ()
    return result


def records(result: SimulationResult, kind: str) -> list[Record]:
    assert result.trace is not None
    return [record for record in result.trace.records if record.kind == kind]


def test_an_aggregator_that_dies_mid_scatter_is_replaced_and_only_its_shard_moves() -> None:
    quiet = run()
    first = next(r for r in quiet.rounds if r.number == 0)
    victim = next(name for name in CREW.names if name not in first.members)
    result = run(WorkerOutage(victim, first.start_s + 0.1))
    again = next(r for r in result.rounds if r.number == 0)
    assert (again.members, again.outcome, again.moved_shards) == (first.members, "finished", 1)
    assert again.seconds > first.seconds
    alive = CREW.subnetwork([name for name in CREW.names if name != victim])
    share = 1 / 12  # about; the replacement does not hang on it
    expected = replacement(alive, first.members, [], share, dict.fromkeys(alive.names, share))
    again_s = first.start_s + 0.1
    scattered = [f for f in records(result, "flow") if f.round == 0 and f.start_s >= again_s and f.phase == "reduce"]
    roots = [f.peer for f in scattered if f.site == first.members[0]]
    assert sorted({root for root in roots if roots.count(root) > 1} - {first.members[0]}) == [expected]
    assert victim not in roots
    assert result.lost_bytes > 0


def test_a_link_that_breaks_is_planned_around_until_it_is_restored() -> None:
    cut = LinkOutage("w01", "w02", 5.0, 10.0)
    result = run(cut)
    over = [f for f in records(result, "flow") if (f.site, f.peer) == ("w01", "w02")]
    assert any(f.start_s < 5.0 for f in over)
    assert not any(5.0 < f.start_s < 10.0 for f in over)
    assert any(f.start_s > 10.0 for f in over)
    assert [(f.site, f.peer, f.start_s, f.end_s) for f in records(result, "failure")] == [("w01", "w02", 5.0, 10.0)]


def test_before_a_failure_is_detected_flows_wait_for_the_link() -> None:
    slow, quick = (run(WorkerOutage("w03", 5.0, 9.0), detect_s=s) for s in (2.0, 0.0))
    assert slow.average_sync_s > quick.average_sync_s
    stuck = [f for f in records(slow, "flow") if f.peer == "w03" and f.start_s < 5.0 and f.outcome == "lost"]
    assert all(f.end_s == 7.0 for f in stuck)
    assert stuck


def test_a_lost_member_leaves_its_round_and_joins_again() -> None:
    quiet = run()
    first = quiet.rounds[0]
    victim = first.members[0]
    result = run(WorkerOutage(victim, first.start_s + 0.05, 8.0))
    left = next(r for r in result.rounds if r.number == 0)
    assert (left.members, left.outcome) == (tuple(m for m in first.members if m != victim), "finished")
    assert left.repairs == 1
    assert any(victim in r.members for r in result.finished if r.start_s > 8.0)
    assert not any(victim in r.members for r in result.rounds if first.start_s < r.start_s < 8.0)
    assert any(r.phase == "repair" and r.site == victim for r in records(result, "decision"))


def test_what_is_final_at_all_members_is_not_sent_again_after_a_loss() -> None:
    """The last receiver's link from an aggregator breaks: shards that every member holds stay as they are."""
    quiet = run()
    results = [f for f in records(quiet, "flow") if f.round == 0 and f.phase == "broadcast"]
    last = max(results, key=lambda flow: flow.end_s)
    cut_s = last.end_s - 0.005
    unfinished = {f.shard for f in results if f.end_s > cut_s}
    assert 0 < len(unfinished) < 12
    result = run(LinkOutage(last.site, last.peer, cut_s))
    sent_again = {f.shard for f in records(result, "flow") if f.round == 0 and f.start_s >= cut_s}
    assert sent_again == unfinished
    assert (result.rounds[0].repairs, result.rounds[0].outcome) == (1, "finished")


def test_without_a_replacement_the_round_is_replanned() -> None:
    """A ring has no aggregator to replace: the round goes on with the rest on another ring."""
    quiet = run(scheme="bsp-ring")
    used = next(zip(*quiet.link_bytes.nonzero(), strict=True))
    src, dst = (CREW.names[k] for k in used)
    result = run(LinkOutage(src, dst, quiet.rounds[0].start_s + 1.0), scheme="bsp-ring")
    assert (result.rounds[0].repairs, result.rounds[0].outcome) == (1, "finished")
    assert result.link_bytes[used] < quiet.link_bytes[used]


def test_a_round_that_cannot_be_repaired_fails_and_its_members_try_again() -> None:
    """Three sites in a line: without one link the ends cannot reach each other; when it is restored they can."""
    line = Network("line", [Site(s) for s in "abc"], [[0, 8e6, 0], [8e6, 0, 8e6], [0, 8e6, 0]])
    faults = (LinkOutage("a", "b", 1.0, 5.0), LinkOutage("b", "a", 1.0, 5.0))
    result = simulate(line, "bsp-ring", 20, compute=0.1, nbytes=2_000_000, faults=faults, record="flows")
    assert check_run(result, line, faults) == ()
    assert [r for r in result.rounds if r.outcome == "failed"]
    assert any(r.start_s > 5.0 for r in result.finished)
    reasons = [r.reason for r in records(result, "round") if r.outcome == "failed"]
    assert all("cannot reach" in reason or "no route left" in reason for reason in reasons)


def test_the_last_worker_alive_trains_on_alone() -> None:
    pair = Network("pair", [Site("a"), Site("b")], [[0, 8e6], [8e6, 0]])
    result = simulate(pair, "bsp-ring", 10, compute=0.5, nbytes=1_000_000, faults=[WorkerOutage("b", 2.0)])
    a, b = result.workers
    assert a.steps > 15
    assert b.steps < 4


def test_background_traffic_slows_down_what_shares_its_link() -> None:
    quiet, busy = run(), run(*(Background(link.src, link.dst, 0.5 * link.bandwidth_bps) for link in CREW.links))
    assert busy.average_sync_s == pytest.approx(2 * quiet.average_sync_s, rel=0.2)


def test_background_traffic_ends_when_it_should() -> None:
    whole = [Background(link.src, link.dst, 2 * link.bandwidth_bps, 5.0, 10.0) for link in CREW.links]
    result = run(*whole)
    assert not any(5.0 < r.end_s < 10.0 for r in result.finished)
    assert any(r.end_s > 10.0 for r in result.finished)


@pytest.mark.parametrize("execution", ["store-and-forward", "chunked", "pipelined"])
@pytest.mark.parametrize("kind", ["slow link", "lossy link", "busy processor"])
def test_what_slows_a_transfer_down_ends_when_it_should(kind: str, execution: ExecutionModel) -> None:
    mesh = load_network("mesh", n=4, seed=1)
    hub, other = "w1", "w2"
    rate_bps = float(mesh.bandwidth_bps.max())
    faults: dict[str, Fault] = {
        "slow link": SlowLink(other, hub, 0.1, 10.0, 20.0),
        "lossy link": LossyLink(other, hub, 0.9, 10.0, 20.0),
        "busy processor": BusyProcessor(other, 0.1 * rate_bps / HOST_BPS / 10, 10.0, 20.0),
    }
    fault = faults[kind]
    if isinstance(fault, LossyLink):  # far enough away for losses to matter
        far_s = np.where(mesh.bandwidth_bps > 0, 0.05, 0.0)
        mesh = Network(mesh.name, mesh.sites, mesh.bandwidth_bps, far_s)
    result = simulate(mesh, "bsp+all-to-all", 40, 1, compute=0.1, nbytes=2_000_000, execution=execution, faults=[fault])
    took_s = [(r.start_s, r.end_s - r.start_s) for r in result.finished]
    before, after = [s for at_s, s in took_s if at_s + s < 10.0], [s for at_s, s in took_s if at_s > 20.0]
    meanwhile = [s for at_s, s in took_s if at_s < 20.0 < at_s + s or 10.0 < at_s < 20.0]
    assert max(before) == pytest.approx(min(before)) == pytest.approx(min(after)) == pytest.approx(max(after))
    assert min(meanwhile) > 1.5 * max(before)


@pytest.mark.parametrize(
    "fault", [SlowRank("w2", 5.0, 10.0, 20.0), BusyProcessor("w2", 0.2, 10.0, 20.0, computes=True)]
)
def test_a_slow_rank_takes_longer_for_its_steps_and_for_the_rest_of_the_present_one(fault: Fault) -> None:
    mesh = load_network("mesh", n=4, seed=1)
    result = simulate(mesh, "bsp+all-to-all", 40, 1, compute=1.0, nbytes=1000, record="rounds", faults=[fault])
    assert result.trace is not None
    steps = [(r.start_s, r.seconds) for r in result.trace.kind("compute") if r.site == "w2" and r.end_s < 39]
    whole = [s for at_s, s in steps if at_s >= 10.0 and at_s + s <= 20.0]
    assert whole == pytest.approx([5.0] * len(whole)) and whole
    assert all(s == pytest.approx(1.0) for at_s, s in steps if at_s + s < 10.0 or at_s > 20.0)
    cut = [s for at_s, s in steps if at_s < 10.0 < at_s + s]
    assert all(1.0 < s < 5.0 for s in cut)


def test_counters_of_hosts_follow_from_faults() -> None:
    mesh = load_network("mesh", n=4, seed=1)
    faults: list[Fault] = [
        Background("w1", "w2", 1e6, 10.0, 10.5),
        BusyProcessor("w3", 0.5, 20.0),
        LossyLink("w1", "w4", 0.01, 15.0, 16.0),
    ]
    more: dict[str, Any] = {"record": "flows", "count_every_s": 1.0}
    result = simulate(mesh, "bsp+all-to-all", 30, 1, compute=0.01, nbytes=2_000_000, faults=faults, **more)
    assert result.trace is not None
    hosts = {(r.site, r.start_s): (r.load, r.rate_bps) for r in result.trace.kind("host")}
    assert hosts["w1", 9.0] == (0.0, 0.0) and hosts["w1", 10.0] == hosts["w2", 10.0] == (0.0, 0.5e6)
    assert hosts["w3", 19.0] == (0.0, 0.0) and hosts["w3", 20.0] == (1.0, 0.0)
    again = [(r.site, r.peer, r.start_s) for r in result.trace.kind("link") if r.retransmits]
    assert again and {(src, dst) for src, dst, _ in again} == {("w1", "w4")}


@pytest.mark.parametrize(
    "fault",
    [SlowLink("w1", "w2", 0.0), LossyLink("w1", "w2", 1.0), SlowRank("w1", 0.0), BusyProcessor("w1", 1.5)],
)
def test_faults_without_a_meaning_are_refused(fault: Fault) -> None:
    with pytest.raises(BadOption, match="must be"):
        simulate(load_network("mesh", n=4), "bsp+all-to-all", 1, faults=[fault])


@pytest.mark.parametrize("scheme", ["crew", "crew-non-blocking", "opr", "a2a", "partial-ring", "bsp-ring", "ds-sync"])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_breaks_under_random_outages(scheme: str, seed: int) -> None:
    faults = random_outages(CREW, seed, 20, link_mean_s=0.5, worker_mean_s=3.0, down_s=1.0)
    assert len(faults) > 20
    result = run(*faults, scheme=scheme, nbytes=BYTES // 10, detect_s=0.1)
    assert result.finished_rounds > 0
    assert sum(r.repairs + r.moved_shards for r in result.rounds) > 0
    assert len(records(result, "failure")) == sum(1 for f in faults if f.at_s < 20)


def test_more_faulty_links_cost_rounds_but_do_not_stop_crew() -> None:
    rounds = [run(*random_link_outages(CREW, count, seed=3)).rounds_per_worker for count in (0, 4, 24)]
    assert rounds[0] > rounds[2] > 1


def test_random_faults_come_from_their_seed() -> None:
    links = random_link_outages(CREW, 7, seed=1)
    assert links == random_link_outages(CREW, 7, seed=1) != random_link_outages(CREW, 7, seed=2)
    assert len(set(links)) == 7
    none = random_outages(CREW, 1, 50, link_mean_s=math.inf, worker_mean_s=math.inf, down_s=1)
    assert none == ()


def test_impossible_faults_are_refused() -> None:
    with pytest.raises(UnknownName, match="unknown site 'mars'"):
        run(WorkerOutage("mars", 1.0))
    with pytest.raises(BadOption, match="must begin"):
        run(LinkOutage("w01", "w02", 3.0, 2.0))
    with pytest.raises(BadOption, match="rate"):
        run(Background("w01", "w02", -5.0))
    with pytest.raises(BadOption, match="links that fail must be in"):
        random_link_outages(CREW, 10**6, seed=1)
