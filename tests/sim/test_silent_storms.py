"""Faults without a sign on virtual time: silent and one-way cuts, parts, flapping links, stopped ranks, black holes."""

from __future__ import annotations

from collections import Counter

import pytest

from silent_faults import PATIENCE_S, run_one_fault
from tradewind.sim.chunks.storm import SILENT_KINDS, run_storm, silent_storm_of


def sweep(seeds: range) -> Counter[str]:
    faults: Counter[str] = Counter()
    for seed in seeds:
        faults.update(run_storm(silent_storm_of(seed)).faults)
    return faults


def test_after_silent_faults_every_rank_synchronises_again_and_none_diverges() -> None:
    assert set(sweep(range(8))) == set(SILENT_KINDS), "every fault must have fired"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(50))
def test_a_thousand_silent_storms(block: int) -> None:
    assert sum(sweep(range(1000 + 20 * block, 1020 + 20 * block)).values()) == 400


def check_recovery(seeds: range) -> int:
    """The number of rounds that were hit; each ended in time."""
    hit = 0
    for seed in seeds:
        _, longest_s, normal_s = run_one_fault(seed, ("silent_cut", "one_way_cut"))
        hit += longest_s > PATIENCE_S / 5
        assert longest_s <= PATIENCE_S / 3 + 2 * normal_s, f"seed {seed}: {longest_s:.3f} s, normally {normal_s:.3f} s"
    return hit


def test_a_round_over_a_silently_cut_link_ends_within_a_third_of_the_patience_and_twice_its_time() -> None:
    assert check_recovery(range(10)) > 3, "cuts must have hit links in use"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(50))
def test_so_do_a_thousand_others(block: int) -> None:
    check_recovery(range(100 + 20 * block, 120 + 20 * block))


def check_swallowed(seeds: range) -> int:
    """The number of rounds that stood still; each was explained by the link that lost its chunks, and ended in time."""
    stood = 0
    for seed in seeds:
        run, longest_s, normal_s = run_one_fault(seed, ("swallow",))
        state = run.controllers[0].state
        assert state is not None
        decisions = state.snapshot(run.clock.now_s).decisions
        named = [decision for decision in decisions if decision.what == "waits end at"]
        (sender, receiver) = run.silences.swallowed[0]
        assert {decision.about for decision in named} <= {sender}, f"seed {seed}: {named}, but {sender} -> {receiver}"
        assert all(f"{receiver!r} waits for chunk" in decision.reason for decision in named), f"seed {seed}: {named}"
        assert bool(named) == (longest_s > PATIENCE_S), f"seed {seed}: {longest_s:.3f} s"
        assert longest_s <= 1.5 * PATIENCE_S + 2 * normal_s, f"seed {seed}: {longest_s:.3f} s, not {normal_s:.3f} s"
        stood += bool(named)
    return stood


def test_a_round_whose_chunks_get_lost_on_a_working_link_is_explained_and_repaired() -> None:
    assert check_swallowed(range(10)) > 3, "links in use must have lost chunks"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(50))
def test_so_are_a_thousand_other_rounds(block: int) -> None:
    check_swallowed(range(100 + 20 * block, 120 + 20 * block))
