"""Faults of what carries a run, on virtual time: changed bytes, lost packets, expired certificates, clock jumps."""

from __future__ import annotations

from collections import Counter

import pytest

from tradewind.sim.chunks.storm import CARRIER_KINDS, StormRun, carrier_storm_of


def sweep(seeds: range) -> tuple[Counter[str], int]:
    """The faults, and how many changed payloads were noticed."""
    faults: Counter[str] = Counter()
    noticed = 0
    for seed in seeds:
        run = StormRun(carrier_storm_of(seed))
        faults.update(run.run().faults)
        noticed += run.pairs.changes_noticed
    return faults, noticed


def test_after_faults_of_carriers_every_rank_synchronises_again_and_none_diverges() -> None:
    faults, noticed = sweep(range(8))
    assert set(faults) == set(CARRIER_KINDS), "every fault must have fired"
    assert noticed > 5, "changed payloads must have been noticed"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(25))
def test_five_hundred_storms_of_carriers(block: int) -> None:
    assert sum(sweep(range(1000 + 20 * block, 1020 + 20 * block))[0].values()) == 400
