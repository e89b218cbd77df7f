"""Progress on stderr: with the time left in a terminal, and nothing with --json or without a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tradewind.catalog import load_network
from tradewind.cli.progress import progress, set_silent, time_left
from tradewind.comparison import timed_plan
from tradewind.planning.bound import bound

VERB = [sys.executable, "-m", "tradewind", "simulate", "mesh", "--option", "n=5", "--scheme", "bsp-ring"]
SHORT = ["--seconds", "200", "--bytes", "2MB"]


def said_to_a_terminal(*more: str) -> tuple[str, str]:
    """What a verb writes to stdout, and to a terminal that is its stderr."""
    ours, theirs = pty.openpty()
    done = subprocess.run([*VERB, *SHORT, *more], stdout=subprocess.PIPE, stderr=theirs, timeout=120, check=True)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65536):
            said += part
    except OSError:  # the other end is closed and everything has been read
        pass
    os.close(ours)
    return done.stdout.decode(), said.decode()


def test_a_long_verb_shows_in_a_terminal_how_long_it_still_takes() -> None:
    table, said = said_to_a_terminal()
    assert "simulating bsp-ring" in said and " of 200" in said and " left" in said
    assert "bsp-ring" in table and "left" not in table


def test_a_planner_with_a_time_limit_says_how_much_of_it_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tradewind.comparison.REPORT_S", 0.0)
    reported: list[tuple[float, float]] = []
    network = load_network("mesh", n=5)
    members = network.names

    def note(done: float, total: float) -> None:
        reported.append((done, total))

    timed_plan("auto", network, 10_000_000, members, bound(network, members, 10_000_000), progress=note)
    assert reported and all(0 < done <= total == 20.0 for done, total in reported)


def test_nothing_is_shown_with_json() -> None:
    data, said = said_to_a_terminal("--json")
    assert data.startswith("[") and said == ""


def test_nothing_is_shown_without_a_terminal() -> None:
    done = subprocess.run([*VERB, *SHORT], capture_output=True, timeout=120, check=True)
    assert done.stderr == b""


@pytest.mark.parametrize("silent", [False, True])
def test_reports_are_accepted_whether_they_are_shown_or_not(silent: bool) -> None:
    set_silent(silent)
    try:
        with progress("first") as report:
            report("first", 1, 2)
            report("second")
            report("second", 5)
    finally:
        set_silent(False)


def test_large_totals_are_shares() -> None:
    assert time_left(2.5e9, 5e9, 10.0) == "50%, 10 s left"
