"""Progress on stderr: with the time left in a terminal, and nothing with --json or without a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tradewind.catalog import load_network
from tradewind.cli.progress import progress, set_silent, time_left
from tradewind.comparison import timed_plan
from tradewind.planning.bound import bound

SIMULATE = ["simulate", "mesh", "--option", "n=5", "--scheme", "bsp-ring", "--seconds", "200", "--bytes", "2MB"]
PRICED = ["skyplane", "--bytes", "1GB", "--option", "regions=aws:us-east-1,aws:us-west-2,azure:eastus,gcp:us-east4-a"]
LONG = {
    "simulate": (SIMULATE, "simulating bsp-ring"),
    "plan": (["plan", *PRICED, "--planner", "star", "--objective", "mix"], "planning cheap trees"),
    "pareto": (["pareto", *PRICED, "--planner", "star"], "planning mixtures"),
    "compare": (["compare", "mesh", "--option", "n=20", "--planners", "star,optimal"], "planning: optimal"),
    "bench": (
        ["bench", "wan", "mesh", "--option", "n=3", "--bytes", "100kB", "--planner", "star,ring", "--rounds", "2"],
        "3 ranks on mesh",
    ),
    "lab": (["lab", "run", "mesh", "--option", "n=3", "--scale", "0.01", "--", "true"], ": calibrating"),
    "reproduce": (["reproduce", "mtree/fig6", "mtree/fig7", "--quick", "--trials", "1", "--out", "OUT"], "mtree/fig7"),
}
"""Verbs that may take long, and what they are doing at some time."""
SLOW = ("bench", "lab", "reproduce")


def said_to_a_terminal(*verb: str) -> tuple[str, str]:
    """What a verb writes to stdout, and to a terminal that is its stderr."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tradewind", *verb]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # the other end is closed and everything has been read
        while part := os.read(ours, 65536):
            said += part
    os.close(ours)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said.decode()
    return out.decode(), said.decode()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in LONG]
)
def test_a_long_verb_shows_in_a_terminal_what_it_does_and_how_long_it_still_takes(name: str, tmp_path: Path) -> None:
    verb, doing = LONG[name]
    table, said = said_to_a_terminal(*(str(tmp_path) if word == "OUT" else word for word in verb))
    assert doing in said and " left" in said, said
    assert " left" not in table


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
    data, said = said_to_a_terminal(*SIMULATE, "--json")
    assert data.startswith("[") and said == ""


def test_nothing_is_shown_without_a_terminal() -> None:
    done = subprocess.run([sys.executable, "-m", "tradewind", *SIMULATE], capture_output=True, timeout=120, check=True)
    assert done.stderr == b""


@pytest.mark.parametrize("silent", [False, True])
def test_reports_are_accepted_whether_they_are_shown_or_not(silent: bool) -> None:
    set_silent(silent)
    try:
        with progress("first") as report:
            report("first", 1, 2)
            report("second")
            report("second", 5)
            report("second", 6, 7, "a part of it")
    finally:
        set_silent(False)


def test_large_totals_are_shares() -> None:
    assert time_left(2.5e9, 5e9, 10.0) == "50%, 10 s left"
