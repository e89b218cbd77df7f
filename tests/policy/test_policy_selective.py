"""Partial and selective reduce: which ranks start, which wait, and the paper's own example."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_driver import mesh
from tradewind.network import Network, Site
from tradewind.policy import make_policy
from tradewind.policy.actions import CancelTimer, SetTimer, StartRound
from tradewind.policy.bandwidth import WorkerBandwidth
from tradewind.policy.events import (
    LinkLost,
    LinkMeasured,
    RoundFailed,
    RoundFinished,
    TimerFired,
    WorkerLost,
    WorkerReady,
)
from tradewind.policy.grouping import (
    Candidate,
    Group,
    Launch,
    Prospect,
    Verdict,
    Wait,
    WaitAndReplace,
    group_by_bandwidth,
    judge_waiting,
)
from tradewind.policy.readiness import LearntReadiness, ready_soon
from tradewind.policy.weights import staleness_weights
from tradewind.schemes import make_scheme
from tradewind.sim import ConstantSteps

# Figure 3: five workers, a model of 5 units, slow workers at 1 unit/s and fast ones at 5. A unit is a byte here.
READY_S = {"w1": 1.0, "w2": 2.0, "w3": 3.0, "w4": 3.0, "w5": 13.0}
BANDWIDTH_BPS = {"w1": 8.0, "w2": 40.0, "w3": 8.0, "w4": 40.0, "w5": 40.0}
NBYTES = 5


class Fig3:
    """Figure 3(a): runs a policy until the straggler is ready, and writes down who started when."""

    def __init__(self, name: str, **options: Any) -> None:
        names = sorted(READY_S)
        sites = [Site(w, egress_bps=BANDWIDTH_BPS[w], ingress_bps=BANDWIDTH_BPS[w]) for w in names]
        links = [[0.0 if a == b else 1e3 for b in names] for a in names]
        policy = make_policy(name, Network("fig3", sites, links), names, **options)
        self.rounds: list[tuple[float, tuple[str, ...]]] = []
        timers: dict[str, float] = {}
        agenda = sorted((at_s, worker) for worker, at_s in READY_S.items())
        while agenda and len([w for _, members in self.rounds for w in members]) < 4:
            at_s, worker = agenda[0]
            due = [timer for timer, timer_s in timers.items() if timer_s <= at_s]
            event = TimerFired(due[0]) if due else WorkerReady(worker, 1)
            now_s = timers.pop(due[0]) if due else at_s
            agenda = agenda if due else agenda[1:]
            for action in policy.handle(event, now_s):
                match action:
                    case StartRound(_, members):
                        self.rounds.append((now_s, members))
                    case SetTimer(timer, timer_s, _):
                        timers[timer] = timer_s
                    case CancelTimer(timer):
                        del timers[timer]

    @property
    def mean_seconds(self) -> float:
        times = [16 * NBYTES / min(BANDWIDTH_BPS[w] for w in members) for _, members in self.rounds]
        return sum(times) / len(times)

    @property
    def mean_scale(self) -> float:
        return sum(len(members) for _, members in self.rounds) / len(self.rounds)


def step_times() -> LearntReadiness:
    known = LearntReadiness()
    for step_s in READY_S.values():
        known.observe(step_s)
    return known


SELECTIVE = {"p": 2, "horizon_s": 1.0, "full_every": 0, "nbytes": NBYTES, "readiness": step_times()}


def test_figure_3b_all_reduce_waits_for_the_straggler() -> None:
    run = Fig3("bsp")
    assert run.rounds == [(13.0, ("w1", "w2", "w3", "w4", "w5"))]
    assert (run.mean_seconds, run.mean_scale) == (10.0, 5.0)


@pytest.mark.mechanism("CREW III, queue of ready workers: the first p start")
def test_figure_3c_partial_reduce_takes_pairs_as_they_come() -> None:
    run = Fig3("partial", p=2)
    assert run.rounds == [(2.0, ("w1", "w2")), (3.0, ("w3", "w4"))]
    assert (run.mean_seconds, run.mean_scale) == (10.0, 2.0)


@pytest.mark.mechanism("Selective Reduce III-D2 Algorithm 2 (BPAWR), wait if it saves more than theta dt")
@pytest.mark.mechanism("Selective Reduce III-C (BAG), slack eta")
def test_figure_3d_valuing_scale_takes_four_after_a_second() -> None:
    run = Fig3("selective", slack=0.8, value_scale=1.0, **SELECTIVE)
    assert run.rounds == [(3.0, ("w1", "w2", "w3", "w4"))]
    assert (run.mean_seconds, run.mean_scale) == (10.0, 4.0)


def test_figure_3d_is_out_of_reach_for_the_paper_s_own_rule() -> None:
    run = Fig3("selective", slack=0.8, **SELECTIVE)
    assert run.rounds[0] == (2.0, ("w1", "w2"))


@pytest.mark.mechanism("Selective Reduce III-C Algorithm 1 (BAG), the fastest group first")
def test_figure_3e_selective_reduce_waits_a_second_and_sorts_fast_from_slow() -> None:
    run = Fig3("selective", **SELECTIVE)
    assert run.rounds == [(3.0, ("w2", "w4")), (3.0, ("w1", "w3"))]
    assert (run.mean_seconds, run.mean_scale) == (6.0, 2.0)


def test_figure_3e_grouping_alone() -> None:
    ready = [Candidate(w, BANDWIDTH_BPS[w]) for w in ("w1", "w2", "w3", "w4")]
    assert [g.names for g in group_by_bandwidth(ready, p=2, slack=0.3)] == [("w2", "w4"), ("w1", "w3")]


# --- grouping -------------------------------------------------------------------------------------------------

candidates = st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0, 8.1, 10.0]), max_size=12).map(
    lambda rates: [Candidate(f"w{i}", rate) for i, rate in enumerate(rates)]
)


@pytest.mark.mechanism("Selective Reduce III-C (BAG), p workers at least")
@given(candidates, st.integers(2, 5), st.floats(0, 0.9))
def test_groups_hold_every_rank_once_and_only_the_last_is_small(ready: list[Candidate], p: int, slack: float) -> None:
    groups = group_by_bandwidth(ready, p, slack)
    assert sorted(name for g in groups for name in g.names) == sorted(c.name for c in ready)
    assert all(len(g.members) >= p for g in groups[:-1])
    for group in groups:
        rates = [member.bandwidth_bps for member in group.members]
        assert rates == sorted(rates, reverse=True)
        if len(rates) > p:
            assert rates[-1] >= rates[p - 1] * (1 - slack), "the slack bounds how much slower a group becomes"
    for faster, slower in pairwise(groups):
        assert slower.members[0].bandwidth_bps < faster.members[p - 1].bandwidth_bps * (1 - slack)


def judge(rates: list[float], prospects: list[tuple[float, float]], **changes: float) -> Verdict:
    group = Group(tuple(Candidate(f"g{i}", rate) for i, rate in enumerate(rates)))
    training = [Prospect(f"t{i}", rate, probability) for i, (rate, probability) in enumerate(prospects)]
    settings = {"p": 2, "slack": 0.3, "gain": 1.0, "horizon_s": 1.0, "nbytes": 5 / 8, **changes}
    return judge_waiting(group, training, **settings)  # type: ignore[arg-type]


def test_a_group_that_is_too_small_waits() -> None:
    assert isinstance(judge([5.0], []), Wait)


def test_a_group_that_no_expected_rank_would_speed_up_starts() -> None:
    assert isinstance(judge([5.0, 5.0], []), Launch)
    assert isinstance(judge([5.0, 1.0], [(5.0, 0.6)]), Launch)
    assert isinstance(judge([5.0, 1.0], [(0.9, 1.0)]), Launch)


@pytest.mark.mechanism("Selective Reduce III-D2 (BPAWR), slow members are replaced")
@pytest.mark.mechanism("Selective Reduce III-A Eq. (2), time of a ring")
def test_a_group_waits_for_a_fast_worker_that_is_expected_and_replaces_the_slow_one() -> None:
    verdict = judge([5.0, 1.0], [(5.0, 1.0), (0.5, 1.0)])
    assert isinstance(verdict, WaitAndReplace)
    assert (verdict.awaited, verdict.replaced, verdict.gain_s) == (("t0",), ("g1",), 8.0)


def test_a_wait_must_gain_more_than_gain_times_the_horizon() -> None:
    assert isinstance(judge([5.0, 1.0], [(5.0, 1.0)], gain=8.0), Launch)
    assert isinstance(judge([5.0, 1.0], [(5.0, 1.0)], gain=7.9), WaitAndReplace)


def test_a_worker_as_fast_as_the_slowest_counts_as_a_replacement() -> None:
    verdict = judge([5.0, 1.0], [(1.0, 0.5), (9.0, 0.5)])
    assert isinstance(verdict, WaitAndReplace)
    assert verdict.awaited == ("t0", "t1")


def test_a_group_of_which_no_member_would_remain_waits_as_published_and_starts_by_our_switch() -> None:
    """The extra launch rule is off in the scheme `selective`."""
    verdict = judge([1.0, 1.0], [(5.0, 1.0), (5.0, 1.0), (5.0, 1.0)])
    assert isinstance(verdict, WaitAndReplace) and verdict.replaced == ("g0", "g1")
    rates = {f"w{i}": 8e9 if i > 1 else 1e8 for i in range(5)}
    sites = [Site(name, egress_bps=rate, ingress_bps=rate) for name, rate in rates.items()]
    network = Network("nics", sites, [[0.0 if a == b else 1e10 for b in rates] for a in rates])
    for displaced in (False, True):
        policy = make_policy(
            "selective",
            network,
            network.names,
            p=2,
            full_every=0,
            nbytes=10**9,
            horizon_s=1.0,
            readiness=ConstantSteps(1.5),
            start_displaced=displaced,
        )
        policy.handle(WorkerReady("w0", 1), 1.0)
        started = [a for a in policy.handle(WorkerReady("w1", 1), 1.0) if isinstance(a, StartRound)]
        assert bool(started) is displaced
    assert not make_scheme("selective").policy_options, "as published"


# --- readiness and bandwidth ------------------------------------------------------------------------------------


@pytest.mark.mechanism("Selective Reduce III-D1 Eq. (4), probability to be ready soon")
def test_both_forms_of_equation_4() -> None:
    known = step_times()
    assert ready_soon(known, 2.0, 1.0, "printed") == 0.8
    assert ready_soon(known, 2.0, 1.0, "conditional") == pytest.approx(2 / 3)
    assert ready_soon(known, 3.0, 1.0, "conditional") == 0.0
    assert ready_soon(known, 99.0, 1.0, "conditional") == 0.0
    assert ready_soon(known, 99.0, 1.0, "printed") == 1.0


@pytest.mark.mechanism("Selective Reduce III-D1, distribution of steps learnt from a cold start")
def test_learnt_readiness_forgets_the_oldest_step() -> None:
    learnt = LearntReadiness(window=3)
    for step_s in (9.0, 1.0, 2.0, 3.0):
        learnt.observe(step_s)
    assert [learnt.cdf(t) for t in (0.5, 1.0, 2.0, 3.0)] == [0.0, 1 / 3, 2 / 3, 1.0]


@pytest.mark.mechanism("Selective Reduce III-A, bandwidth of a worker: its NIC, or the mean of its links")
def test_bandwidth_is_the_nic_or_the_mean_of_the_links_and_follows_measurements() -> None:
    nics = WorkerBandwidth(mesh(3, nic_bps=[3e8, 2e8, 1e8]), ["w0", "w1", "w2"])
    assert [nics.of(w) for w in ("w0", "w1", "w2")] == [3e8, 2e8, 1e8]
    nics.measured("w0", "w2", 1e8)
    nics.measured("w0", "w1", 1.5e8)
    assert nics.of("w0") == 1.5e8, "the best of the paths that were measured"
    assert nics.of("w2") == 1e8
    assert nics.of("w1") == 2e8, "one path of two may be slow because of its other end"

    links = Network("pairs", [Site("a"), Site("b"), Site("c")], [[0, 4, 2], [5, 0, 0], [7, 0, 0]])
    means = WorkerBandwidth(links, "abc")
    assert [means.of(w) for w in "abc"] == [3.0, 4.0, 2.0]
    means.measured("a", "c", 6.0)
    assert [means.of(w) for w in "abc"] == [5.0, 4.0, 6.0]
    means.measured("a", "b", 0.0)
    assert means.of("b") == 1.0, "no link leads to it"


# --- the policies ---------------------------------------------------------------------------------------------------


@pytest.mark.mechanism("Selective Reduce II-C, weights by staleness")
def test_stale_models_count_less_and_catch_up_when_they_are_averaged() -> None:
    network = mesh(3)
    policy = make_policy("partial", network, network.names, p=2, weights="staleness")
    policy.handle(WorkerReady("w0", 1), 1.0)
    (first,) = policy.handle(WorkerReady("w1", 1), 1.0)
    assert isinstance(first, StartRound) and first.weights == (0.5, 0.5)
    policy.handle(RoundFinished(0, ("w0", "w1"), 0.1), 1.1)
    policy.handle(WorkerReady("w0", 3), 2.0)
    (second,) = policy.handle(WorkerReady("w2", 1), 2.0)
    assert isinstance(second, StartRound)
    assert second.weights == staleness_weights([3, 1]) == pytest.approx((0.75, 0.25))
    policy.handle(RoundFinished(1, ("w0", "w2"), 0.1), 2.1)
    policy.handle(WorkerReady("w2", 2), 3.0)
    (third,) = policy.handle(WorkerReady("w0", 4), 3.0)
    assert isinstance(third, StartRound) and third.weights == (0.5, 0.5), "w2 holds the average: it is stale no more"


@pytest.mark.mechanism("Selective Reduce II-C, partial reduce with fewer than p workers left")
def test_partial_takes_all_ranks_when_fewer_than_p_remain() -> None:
    network = mesh(4)
    policy = make_policy("partial", network, network.names, p=3)
    policy.handle(WorkerReady("w0", 1), 1.0)
    policy.handle(WorkerReady("w1", 1), 1.0)
    assert policy.handle(WorkerLost("w2"), 1.5) == ()
    assert policy.handle(WorkerLost("w3"), 1.6) == (
        StartRound(0, ("w0", "w1"), (0.5, 0.5), "the first 2 ranks are ready", "all", staleness=(0, 0)),
    )


@pytest.mark.mechanism("Selective Reduce III-E Algorithm 3, full all-reduce every c rounds")
def test_a_full_round_comes_first_and_then_after_every_c_rounds() -> None:
    network = mesh(4, nic_bps=[1e8] * 4)
    policy = make_policy("selective", network, network.names, p=2, full_every=3, nbytes=1)
    scales = []
    for iteration in range(1, 13):
        started = [
            action
            for i in range(4)
            for action in policy.handle(WorkerReady(f"w{i}", iteration), float(iteration))
            if isinstance(action, StartRound)
        ]
        scales += [len(action.members) for action in started]
        for action in started:
            policy.handle(RoundFinished(action.round, action.members, 0.1), iteration + 0.5)
    assert scales[:9] == [4, 2, 2, 4, 2, 2, 4, 2, 2]


def test_a_full_round_that_failed_is_due_again() -> None:
    network = mesh(3)
    policy = make_policy("selective", network, network.names, p=2, full_every=50)
    for i in range(3):
        policy.handle(WorkerReady(f"w{i}", 1), 1.0)
    (timer,) = policy.handle(RoundFailed(0, "cut"), 1.5)
    assert isinstance(timer, SetTimer)
    (again,) = policy.handle(TimerFired(timer.timer), timer.at_s)
    assert isinstance(again, StartRound) and again.scope == "all"


@pytest.mark.mechanism("Selective Reduce III-E, a waiting group is judged again after dt")
def test_a_waiting_group_is_reconsidered_after_the_horizon_and_starts_when_waiting_gains_nothing() -> None:
    network = mesh(3, nic_bps=[5e8, 1e8, 5e8])
    known = LearntReadiness()
    for step_s in (1.0, 2.0, 2.0, 2.0):
        known.observe(step_s)
    policy = make_policy(
        "selective",
        network,
        network.names,
        p=2,
        horizon_s=1.0,
        full_every=0,
        nbytes=10**9,
        readiness=known,
        probability="conditional",
    )
    assert policy.handle(WorkerReady("w0", 1), 1.0) == ()
    (timer,) = policy.handle(WorkerReady("w1", 1), 1.0)
    assert isinstance(timer, SetTimer) and timer.at_s == 2.0
    (start,) = policy.handle(TimerFired(timer.timer), 2.0)
    assert isinstance(start, StartRound) and start.members == ("w0", "w1"), "w2 takes longer than any step known"


class Soon:
    """A distribution by which every rank is always about to be ready."""

    def cdf(self, t_s: float, /) -> float:
        return 1.0 if t_s > 0 else 0.0


@pytest.mark.mechanism("Selective Reduce III-E, replaced workers go with the next group")
@pytest.mark.mechanism("Selective Reduce III-E, awaited workers count for one group only")
def test_only_one_group_waits_for_the_same_worker_and_the_replaced_go_with_the_next_group() -> None:
    network = mesh(5, nic_bps=[10e8, 4e8, 2e8, 1e8, 10e8])
    policy = make_policy(
        "selective", network, network.names, p=2, full_every=0, nbytes=10**9, readiness=Soon(), probability="printed"
    )
    assert policy.handle(WorkerReady("w0", 1), 1.0) == ()
    policy.handle(WorkerReady("w1", 1), 1.0)
    assert not policy.state.running, "w0 and w1 wait for w4, which would replace w1"
    policy.handle(WorkerReady("w2", 1), 1.0)
    assert [running.members for running in policy.state.running] == [("w1", "w2")], "w4 is spoken for"
    policy.handle(WorkerReady("w4", 1), 1.1)
    assert [running.members for running in policy.state.running] == [("w1", "w2"), ("w0", "w4")]


def test_measured_bandwidth_changes_the_groups() -> None:
    network = mesh(4, nic_bps=[5e8, 5e8, 1e8, 5e8])
    groups = []
    for measured in (False, True):
        policy = make_policy(
            "selective", network, network.names, p=2, full_every=0, nbytes=10**9, readiness=step_times(), horizon_s=20
        )
        if measured:
            policy.handle(LinkMeasured("w1", "w0", 9e7), 0.1)
            policy.handle(LinkMeasured("w1", "w3", 8e7), 0.1)
            policy.handle(LinkLost("w3", "w1"), 0.2)
        for i in range(4):
            policy.handle(WorkerReady(f"w{i}", 1), 1.0)
        groups.append([running.members for running in policy.state.running])
    assert groups == [[("w0", "w1"), ("w2", "w3")], [("w0", "w3"), ("w1", "w2")]]


def test_the_size_of_the_model_is_learnt_from_how_long_rounds_take() -> None:
    network = mesh(3, nic_bps=[5e8, 1e8, 5e8])
    policy = make_policy("selective", network, network.names, p=2, horizon_s=0.5, full_every=100)
    for i in range(3):
        policy.handle(WorkerReady(f"w{i}", 1), 1.0)
    policy.handle(RoundFinished(0, ("w0", "w1", "w2"), 8.0), 9.0)
    policy.handle(WorkerReady("w0", 2), 10.0)
    # A slow pair takes 8 s; a step takes 1 s, so w2 is expected any moment, and 1.6 s with it is worth a wait.
    (timer,) = policy.handle(WorkerReady("w1", 2), 10.0)
    assert isinstance(timer, SetTimer) and timer.at_s == 10.5
    actions = policy.handle(WorkerReady("w2", 2), 10.2)
    assert [action.members for action in actions if isinstance(action, StartRound)] == [("w0", "w2")]
    assert CancelTimer(timer.timer, "no group waits for faster members") in actions
