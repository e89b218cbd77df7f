"""NetStorm's systems on virtual time: the turns of the lab, chunk by chunk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tradewind.experiments.papers.netstorm.live import EPOCH_S, LITE, PRO, STD, TRADEWIND, Played, System, Turn
from tradewind.experiments.papers.netstorm.live_systems import NETSTORM_PRO, OURS, PUBLISHED, judge_changing
from tradewind.experiments.papers.netstorm.live_trials import Measured
from tradewind.experiments.papers.netstorm.virtual import Links, TurnDriver, play_virtual
from tradewind.experiments.papers.report import Verdict

SMALL = 1_600_000


def turn(system: System, **other: object) -> Turn:
    return replace(Turn(system, "static", 1, 4.0, SMALL), **other)  # type: ignore[arg-type]


def test_a_turn_has_as_many_rounds_as_fit_and_ends() -> None:
    found = play_virtual(turn(LITE))
    assert len(found.ends_s) >= 2 and 2.0 < found.ends_s[-1] < 8.0
    assert play_virtual(turn(LITE)) == found, "the result depends on the turn alone"


def test_multi_root_trees_are_faster_than_the_star_and_latency_costs_time() -> None:
    lite, star = (play_virtual(turn(system)).rate for system in (LITE, System("star")))
    assert lite > 1.5 * star
    assert play_virtual(turn(LITE), Links(latency_s=0.05)).rate < lite


def test_auxiliary_queues_are_used_by_pro_only() -> None:
    detoured = {}
    for name, system in (("std", STD), ("pro", PRO)):
        driver = TurnDriver(turn(system))
        driver.play()
        detoured[name] = driver.detoured
    assert detoured["std"] == 0 < detoured["pro"]


def test_links_may_lose_packets_limit_connections_and_buffer_chunks() -> None:
    plain, *others = (
        play_virtual(turn(LITE), links).rate
        for links in (Links(), Links(loss=0.002), Links(most_bps=1e6), Links(most_bps=1e9), Links(buffered=True))
    )
    lossy, capped, uncapped, buffered = others
    assert lossy < plain and capped < 0.6 * plain and uncapped == plain
    assert buffered == pytest.approx(plain, rel=0.02), "it matters to auxiliary queues only when a chunk has left"
    assert play_virtual(turn(PRO), Links(buffered=True)) != play_virtual(turn(PRO))


def test_a_model_in_one_part_is_synchronised_as_well() -> None:
    driver = TurnDriver(turn(LITE, parts=1))
    rounds = len(driver.play().ends_s)
    assert all(rounds <= len(worker.results) <= rounds + 2 for worker in driver.workers.values())


@pytest.mark.slow
def test_following_a_changing_network_pays() -> None:
    """One draw a turn, beginning with the plan for the draw before: the longer it stays, the more it costs."""
    follows, stays = (
        play_virtual(turn(system, kind="dynamic", seconds=EPOCH_S, nbytes=2_440_000)).rate
        for system in (TRADEWIND, replace(TRADEWIND, follows=False))
    )
    assert follows > 1.1 * stays


def test_our_aim_is_judged_against_the_best_published_variant() -> None:
    def measured(ours: float, queue_of_1: float) -> Measured:
        rates = {NETSTORM_PRO: 1.0, f"{NETSTORM_PRO}, queue of 1": queue_of_1, "NetStorm-std": 0.9, OURS: ours}
        assert set(rates) == {*PUBLISHED, OURS}
        return Measured({("dynamic", n): [Played((1 / rate,), 1.0)] for n, rate in rates.items()}, ())

    assert judge_changing(measured(1.35, 1.0))[0].verdict is Verdict.HOLDS
    assert judge_changing(measured(1.35, 1.1))[0].verdict is Verdict.FAILS
