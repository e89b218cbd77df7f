"""Whole simulations: what ranks do, what policies receive, what is measured."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tradewind.catalog import load_compute_times, load_network, load_trace
from tradewind.errors import BadOption, InfeasiblePlan, InputError, UnknownName
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.cost import cost
from tradewind.planning.host import FREE_HOST
from tradewind.runtime.options import RunOptions
from tradewind.schemes import make_scheme, scheme_names
from tradewind.sim import ConstantSteps, simulate
from tradewind.sim.fluid.capacity import misjudged
from tradewind.trace import encode_trace

LSTM = load_compute_times("lstm").rescaled(0.05, 0.2)
MESH = load_network("mesh", n=6, seed=1)
CREW = load_network("crew-n2", n=20, seed=1)
SMALL = 10_000_000


def test_a_straggler_computes_longer_and_holds_up_bsp_only() -> None:
    slower = {"w6": 5.0}
    free, bsp = (
        simulate(MESH, scheme, 60, compute=0.5, nbytes=1000, policy_options=options, slower=slower)
        for scheme, options in (("opr", {"p": 2}), ("bsp-ring", {}))
    )
    assert {worker.steps for worker in bsp.workers} == {23, 24} or {worker.steps for worker in bsp.workers} == {24}
    steps = {worker.name: worker.steps for worker in free.workers}
    assert steps["w6"] == pytest.approx(24, abs=1) and min(steps[name] for name in steps if name != "w6") > 60


@pytest.mark.parametrize("slower", [{"w6": 0.0}, {"w6": float("inf")}])
def test_impossible_slowness_is_refused(slower: dict[str, float]) -> None:
    with pytest.raises(BadOption, match="slower must be above 0 and finite"):
        simulate(MESH, "opr", 1, slower=slower)


def test_a_straggler_must_be_a_site() -> None:
    with pytest.raises(UnknownName, match="w99"):
        simulate(MESH, "opr", 1, slower={"w99": 2.0})


def test_bsp_with_equal_workers_runs_in_step() -> None:
    """Every round takes one step and one synchronisation, and no rank waits."""
    round_s = cost(make_plan("ring", MESH, SMALL), MESH, host=FREE_HOST).seconds
    result = simulate(MESH, "bsp-ring", 20, compute=0.5, nbytes=SMALL)
    assert result.finished_rounds == int(20 / (0.5 + round_s))
    assert {worker.rounds for worker in result.workers} == {result.finished_rounds}
    assert result.average_sync_s == pytest.approx(round_s, rel=0.05), "a live run cuts larger chunks than a planner"
    assert result.average_wait_s == 0.0
    assert result.average_scale == 6.0


def test_a_worker_spends_its_time_computing_waiting_and_synchronising() -> None:
    result = simulate(CREW, "crew", 20, compute=LSTM, nbytes=SMALL, policy_options={"p": 4})
    for worker in result.workers:
        assert worker.compute_s + worker.wait_s + worker.sync_s == pytest.approx(20)


def test_links_carry_what_the_plans_of_finished_rounds_need() -> None:
    result = simulate(MESH, "bsp-ring", 20, compute=0.5, nbytes=SMALL)
    whole = cost(make_plan("ring", MESH, SMALL), MESH).link_bytes
    unfinished = result.link_bytes - result.finished_rounds * whole
    assert (unfinished >= -1).all()
    assert (unfinished <= whole + 1).all()


def test_partial_rounds_overlap_and_all_workers_aggregate() -> None:
    result = simulate(CREW, "crew", 20, compute=LSTM, nbytes=SMALL, policy_options={"p": 4}, record="flows")
    assert result.average_scale == 4.0
    rounds = [r for r in result.rounds if r.outcome == "finished"]
    assert any(a.start_s < b.start_s < a.end_s for a, b in pairwise(rounds))
    assert result.trace is not None
    aggregators = {flow.peer for flow in result.trace.kind("flow") if flow.round == 0 and flow.phase == "reduce"}
    assert aggregators >= set(CREW.names) - set(rounds[0].members)


def test_members_use_a_result_only_when_all_of_them_hold_it() -> None:
    result = simulate(CREW, "crew", 10, compute=LSTM, nbytes=SMALL, policy_options={"p": 4}, record="rounds")
    assert result.trace is not None
    ends = {r.round: r.end_s for r in result.trace.kind("round")}
    assert all(s.end_s == ends[s.round] for s in result.trace.kind("sync") if s.round is not None)


def test_a_controller_far_away_costs_each_round_two_round_trips_at_most() -> None:
    near, far = (simulate(MESH, "bsp-ring", 20, compute=0.5, nbytes=SMALL, control_s=s) for s in (0.0, 0.1))
    assert 0.2 <= far.average_wait_s <= 0.3
    assert near.average_sync_s < far.average_sync_s <= near.average_sync_s + 0.3


def test_crew_beats_original_partial_reduce_which_beats_all_to_all() -> None:
    rounds = [
        simulate(CREW, scheme, 30, compute=LSTM, nbytes=SMALL, policy_options={"p": 4}).rounds_per_worker
        for scheme in ("crew", "opr", "a2a")
    ]
    assert rounds[0] > 1.5 * rounds[1] > 1.5 * rounds[2]


@pytest.mark.parametrize("scheme", ["crew", "crew-non-blocking", "selective", "ds-sync", "partial+multi-star"])
def test_the_same_seed_gives_the_same_trace_byte_for_byte(scheme: str) -> None:
    one, same, other = (
        simulate(MESH, scheme, 5, seed, compute=LSTM, nbytes=SMALL, noise=0.2, record="flows") for seed in (1, 1, 2)
    )
    traces = []
    for result in (one, same, other):
        assert result.trace is not None
        traces.append(encode_trace(result.trace, ".jsonl"))
    assert traces[0] == traces[1] != traces[2]


def test_recording_does_not_change_what_happens() -> None:
    results = [
        simulate(MESH, "crew", 5, 3, compute=LSTM, nbytes=SMALL, record=r) for r in ("nothing", "rounds", "flows")
    ]
    assert results[0].rounds == results[1].rounds == results[2].rounds
    assert results[0].trace is None


def test_inputs_and_results_travel_between_processes() -> None:
    scheme = pickle.loads(pickle.dumps(make_scheme("crew", policy_options={"p": 3})))
    result = simulate(MESH, scheme, 5, compute=LSTM, nbytes=SMALL, record="flows")
    copy = pickle.loads(pickle.dumps(result))
    assert copy.rounds == result.rounds
    assert copy.trace == result.trace
    assert np.array_equal(copy.link_bytes, result.link_bytes)


def test_noise_misleads_planners_but_transfers_run_on_the_truth() -> None:
    """An even split does not look at bandwidths, so noise must not change it; a network-aware one suffers."""

    def sync_s(noise: float, weights: str) -> float:
        options = {"weights": weights}
        return simulate(
            CREW, "crew", 20, compute=1.0, nbytes=SMALL, noise=noise, policy_options={"p": 5}, planner_options=options
        ).average_sync_s

    assert sync_s(0.5, "even") == sync_s(0.0, "even")
    assert sync_s(0.5, "network-aware") > 1.1 * sync_s(0.0, "network-aware")


def test_noise_on_workers_behind_nics_is_noise_on_their_nics() -> None:
    network = load_network("selective-nics", n=6)
    seen = misjudged(network, 0.3, np.random.default_rng(0))(network)
    assert not np.array_equal(seen.egress_bps, network.egress_bps)
    assert np.array_equal(seen.egress_bps / network.egress_bps, seen.ingress_bps / network.ingress_bps)
    np.testing.assert_allclose(
        seen.bandwidth_bps[network.bandwidth_bps > 0],
        np.minimum.outer(seen.egress_bps, seen.ingress_bps)[network.bandwidth_bps > 0],
    )


@pytest.mark.mechanism("CREW IV-A2, blocks of a round cut from the default splitting")
def test_non_blocking_scatter_sends_before_the_round_is_known_and_counts_what_it_discards() -> None:
    result = simulate(CREW, "crew-non-blocking", 20, 1, compute=LSTM, policy_options={"p": 8}, record="flows")
    assert result.trace is not None
    starts = {r.round: r.start_s for r in result.trace.kind("round")}
    scatters = [f for f in result.trace.kind("flow") if f.phase == "reduce" and f.round is not None]
    assert any(f.start_s < starts[f.round] for f in scatters)
    assert 0 < result.discarded_bytes < 0.05 * result.total_bytes
    assert simulate(CREW, "crew", 20, 1, compute=LSTM, policy_options={"p": 8}).discarded_bytes == 0


def test_nothing_is_sent_early_where_aggregators_may_keep_nothing() -> None:
    scheme = "crew-non-blocking"
    result = simulate(CREW, scheme, 20, 1, compute=LSTM, record="flows", scatter_buffer_bytes=1)
    assert result.trace is not None
    starts = {r.round: r.start_s for r in result.trace.kind("round")}
    assert all(f.round is not None and f.start_s >= starts[f.round] for f in result.trace.kind("flow"))


def test_rates_that_change_change_the_rounds() -> None:
    moving = load_trace("netstorm9")
    network = moving.network_at(0)
    still = simulate(network, "bsp-ring", 1000, compute=1.0, nbytes=SMALL)
    moved = simulate(network, "bsp-ring", 1000, compute=1.0, nbytes=SMALL, rates=moving)
    assert len({round(r.seconds, 6) for r in still.finished}) == 1
    assert len({round(r.seconds, 6) for r in moved.finished}) > 3
    assert not np.array_equal(still.link_capacity_bytes, moved.link_capacity_bytes)


def test_a_planner_that_measures_follows_changing_rates_better() -> None:
    moving = load_trace("netstorm9")
    runs = [
        simulate(
            moving.network_at(0), "netstorm-std", 1800, compute=1.0, nbytes=50_000_000, rates=moving, measure_every_s=s
        )
        for s in (0.0, None)
    ]
    assert runs[0].average_sync_s < runs[1].average_sync_s


def test_selective_reduce_makes_faster_and_larger_rounds_than_partial_reduce() -> None:
    network = load_network("selective-nics", n=40, seed=2)
    compute = load_compute_times("transformer")
    partial, selective = (
        simulate(network, scheme, 60, 1, compute=compute, nbytes=500_000_000)
        for scheme in ("partial-ring", "selective")
    )
    assert selective.average_sync_s < partial.average_sync_s
    assert selective.average_scale >= partial.average_scale
    assert partial.wasted_wait_s == 0.0 <= selective.wasted_wait_s < 1.0


def test_waiting_without_a_new_member_is_wasted() -> None:
    """Every slot of 0.1 s after which a group starts without a new member counts, for the members of that group."""
    network = load_network("selective-nics", n=20)
    options = {"probability": "conditional", "horizon_s": 0.1}
    result = simulate(network, "selective", 60, 1, nbytes=500_000_000, policy_options=options, record="rounds")
    wasted = {worker.name: worker.wasted_wait_s for worker in result.workers}
    assert max(wasted.values()) > 0
    assert all(wait_s * 10 == pytest.approx(round(wait_s * 10)) for wait_s in wasted.values())
    assert all(wasted[worker.name] <= worker.wait_s for worker in result.workers)


def test_asynchronous_workers_exchange_with_a_server_one_by_one() -> None:
    result = simulate(MESH, "asp+star", 10, compute=LSTM, nbytes=1_000_000)
    assert result.average_scale == 1.0
    assert {r.scope for r in result.rounds} == {"server"}
    assert all(worker.steps > 5 for worker in result.workers)


def test_a_simulation_can_end_after_a_number_of_rounds() -> None:
    result = simulate(MESH, "crew", 1000, compute=LSTM, nbytes=SMALL, stop_after_rounds=7)
    assert result.finished_rounds == 7
    assert result.seconds < 1000


def test_progress_is_reported_and_changes_nothing() -> None:
    seen: list[float] = []
    with_progress = simulate(MESH, "crew", 10, compute=LSTM, nbytes=SMALL, progress=seen.append)
    assert with_progress.rounds == simulate(MESH, "crew", 10, compute=LSTM, nbytes=SMALL).rounds
    assert seen == sorted(seen)
    assert len(seen) == 99


def test_the_limit_is_below_what_any_scheme_takes() -> None:
    for scheme in ("crew", "opr", "partial-ring"):
        result = simulate(CREW, scheme, 10, compute=LSTM, nbytes=SMALL, policy_options={"p": 4})
        limit_s, took_s = result.limit_s(CREW)
        assert 0 < limit_s < took_s


def test_only_some_sites_may_train_and_the_others_still_aggregate() -> None:
    workers = CREW.names[:6]
    result = simulate(CREW, "crew", 10, compute=LSTM, nbytes=SMALL, workers=workers, policy_options={"p": 3})
    assert {worker.name for worker in result.workers} == set(workers)
    assert result.link_bytes[: len(workers), len(workers) :].any()


@pytest.mark.parametrize("name", scheme_names())
def test_every_scheme_runs(name: str) -> None:
    result = simulate(MESH, name, 20, compute=LSTM, nbytes=SMALL)
    assert result.finished_rounds > 2
    assert result.scheme.summary


def test_any_policy_runs_with_any_planner() -> None:
    for name in ("selective+scatter", "shuffle+multi-star", "gossip+star", "hierarchical+multi-star", "ssp+star"):
        assert simulate(MESH, name, 10, compute=LSTM, nbytes=1_000_000).finished_rounds > 2


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(UnknownName, match="unknown scheme 'krew'"):
        simulate(MESH, "krew")
    with pytest.raises(UnknownName, match="unknown planner 'rung'"):
        simulate(MESH, "partial+rung")
    with pytest.raises(UnknownName, match="unknown discipline"):
        simulate(MESH, "crew", discipline="lifo", compute=0.1)
    with pytest.raises(BadOption, match="orders single flows"):
        simulate(MESH, "bsp-ring", discipline="task-fcfs")
    with pytest.raises(BadOption, match="needs single flows"):
        simulate(MESH, "crew-non-blocking", execution="pipelined")
    with pytest.raises(BadOption, match="blocks go directly to"):
        simulate(MESH, make_scheme("crew-non-blocking", planner="ring"))
    with pytest.raises(BadOption, match="noise must be"):
        simulate(MESH, "crew", noise=1.5)
    with pytest.raises(BadOption, match="has no option 'q'"):
        simulate(MESH, "crew", policy_options={"q": 1})
    with pytest.raises(InputError, match="at least two sites that train"):
        simulate(MESH, "crew", workers=MESH.names[:1])
    with pytest.raises(InfeasiblePlan, match="no site that may aggregate"):
        simulate(load_network("gscale"), "crew", compute=0.1)


def test_a_step_of_constant_length_is_what_it_says() -> None:
    steps = ConstantSteps(0.25)
    assert steps.sample(np.random.default_rng(0), 3).tolist() == [0.25] * 3
    assert (steps.cdf(0.2), steps.cdf(0.25)) == (0.0, 1.0)


def test_two_sites_are_enough() -> None:
    pair = Network("pair", [Site("a"), Site("b")], [[0, 8e6], [8e6, 0]])
    result = simulate(pair, "bsp-ring", 10, compute=0.5, nbytes=1_000_000)
    assert result.finished_rounds > 3


def test_the_scheme_crew_serves_flows_in_order_of_arrival_in_the_simulator_as_live() -> None:
    """CREW IV-C: with task-level order, its Fig. 7's TL, the same run ends fewer rounds or ends them later."""
    compute = load_compute_times("lstm").rescaled(0.05, 0.2)
    network = load_network("crew-n2", n=12, seed=1)
    how: dict[str, Any] = {"compute": compute, "nbytes": 40_000_000, "policy_options": {"p": 4}}
    published = simulate(network, "crew", 10, 1, **how)
    by_flow, by_round = (simulate(network, "crew", 10, 1, discipline=d, **how) for d in ("fcfs", "task-fcfs"))
    assert published.average_sync_s == by_flow.average_sync_s != by_round.average_sync_s
    assert RunOptions(scheme="crew").discipline == make_scheme("crew").order == "fcfs"
    assert RunOptions(scheme="tradewind").discipline == "task-fcfs"
