"""Random kills, cuts, heals and restarts of real processes: no rank hangs, diverges, or fails to rejoin."""

from __future__ import annotations

from pathlib import Path

import pytest

from live_storm import Weather, live_storm

EVERYTHING = {"kill", "restart", "cut", "heal", "controller kill", "controller restart"}


@pytest.mark.slow
def test_two_hundred_random_events_among_eight_workers(tmp_path: Path) -> None:
    with live_storm(tmp_path, world=8, seed=8, weather=Weather(gap_s=0.3)) as storm:
        report = storm.run(200)
    print(report)
    assert report.events.total() == 200 and set(report.events) == EVERYTHING, "every fault must have fired"
    assert report.repaired and report.terms > 1, "rounds must have been repaired, and controllers replaced"
    assert report.fetched, "a restarted rank must have received the model"


def test_a_few_random_events_among_four_workers(tmp_path: Path) -> None:
    with live_storm(tmp_path, world=4, seed=3, weather=Weather(gap_s=0.15)) as storm:
        report = storm.run(15)
    assert report.events.total() == 15 and set(report.events) == EVERYTHING, "every fault must have fired"
