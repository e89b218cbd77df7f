"""`bench wan` in a lab: all systems use the same links in turn, and their results are checked."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from cli import succeed, tradewind
from lab_traffic import open_lab
from tradewind.catalog import load_network
from tradewind.errors import UnknownName
from tradewind.experiments.contests.contest import GLOO, GLOO_BEST, TurnFailed, take_turn
from tradewind.experiments.contests.wan import gloo_order, plans_of, run_contest, taking_part
from tradewind.figures import render
from tradewind.figures.contest import Entry, contest_figure
from tradewind.lab.inproc import run_inproc
from tradewind.lab.site import Place
from tradewind.network import Network, Site
from tradewind.runtime.group import Group

HAS_TORCH = importlib.util.find_spec("torch") is not None


def widest_along(network: Network, order: list[str]) -> float:
    """The slowest link of the ring in which every rank sends to the rank below, as Gloo does."""
    index = [network.index[name] for name in order]
    return min(float(network.bandwidth_bps[index[k], index[k - 1]]) for k in range(len(index)))


def test_the_best_order_for_gloo_is_the_widest_ring_in_its_direction() -> None:
    fast, slow = 100e6, 10e6
    bandwidth = np.full((4, 4), slow) - np.diag([slow] * 4)
    for src, dst in ((0, 2), (2, 1), (1, 3), (3, 0)):  # fast one way only
        bandwidth[src, dst] = fast
    network = Network("one-way", [Site(name) for name in "abcd"], bandwidth)
    assert widest_along(network, gloo_order(network)) == fast
    assert widest_along(network, list(network.names)) == slow


def test_a_planner_that_cannot_plan_here_leaves_the_others_alone() -> None:
    slow = load_network("mesh", n=3, max_mbps=20).scaled(0.1)  # below the least rate of mtree
    plans, refused = plans_of([GLOO, "star", "mtree"], slow, 10**6)
    assert list(plans) == ["star"] and len(refused) == 1 and refused[0].startswith("mtree: ")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="needs torch for Gloo")
def test_gloo_sends_to_the_rank_below() -> None:
    """The premise of Gloo's best rank order, checked with the links' byte counters."""
    with open_lab(load_network("mesh", n=3), "htb") as lab:
        run_contest(lab, [GLOO], 600_000, 1, [])
        carried = dict(zip(((x.src, x.dst) for x in lab.network.links), lab.status().sent_bytes, strict=True))
    downwards = [("w3", "w2"), ("w2", "w1"), ("w1", "w3")]
    assert min(carried[pair] for pair in downwards) > 5 * max(carried[dst, src] for src, dst in downwards)


@pytest.mark.slow
def test_all_systems_take_turns_in_one_run(tmp_path: Path) -> None:
    with open_lab(load_network("mesh", n=3), "htb"):
        pass
    common = ("bench", "wan", "mesh", "--option", "n=3", "--backend", "htb", "--no-calibrate", "--bytes", "200kB")
    picture = tmp_path / "wan.svg"
    chosen = ("--planner", "star,optimal", "--rounds", "2", "--peers", "gloo", "--out", picture)
    answer = json.loads(succeed(*common, *chosen, "--json"))
    systems = [row["system"] for row in answer["rows"]]
    expected = ["tradewind star", "tradewind optimal"]
    assert systems == ([GLOO, GLOO_BEST, *expected] if HAS_TORCH else expected)
    for row in answer["rows"]:
        assert len(row["all_seconds"]) == 2 and row["seconds"] > 0 and 0 < row["of_limit"] < 1.2
    assert answer["congestion_control"] and answer["calibration"] == "not calibrated"
    assert b"tradewind optimal" in picture.read_bytes()
    shown = succeed(*common, "--planner", "ring", "--rounds", "1", "--peers", "none")
    assert "tradewind ring" in shown and "\n gloo" not in shown


def test_we_run_in_a_lab_without_peers_too() -> None:
    with open_lab(load_network("mesh", n=3), "htb") as lab:
        contest = run_contest(lab, ["optimal"], 200_000, 2, ["gloo: not asked for"])
    (ours,) = contest.times
    assert len(ours.seconds) == 2 and ours.predicted_s is not None and ours.median_s >= 0.8 * contest.limit_s


def test_a_system_that_is_not_installed_is_left_out_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    systems, skipped = taking_part(("gloo", "hivemind"), ("optimal",))
    assert systems == ["optimal"]
    assert skipped == ["gloo: torch is not installed", "hivemind: hivemind is not installed"]


class Elsewhere:
    """A fake foreign system: it knows the sum for 3 sites, and fails at one of them in one of its steps."""

    def __init__(self, group: Group, fails: str) -> None:
        self._fails = fails if group.rank == 1 else ""

    def prepare(self, array: np.ndarray) -> None:
        del array
        if self._fails == "prepare":
            raise TurnFailed("it did not find its group")

    def all_reduce(self, array: np.ndarray) -> None:
        array[:] = 6
        if self._fails == "all_reduce":
            raise TurnFailed("it took too long")
        if self._fails == "sum":
            array[0] += 1

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        ("prepare", "did not find"),
        ("all_reduce", "took too long"),
        ("sum", "w2 has 7.0 instead of 6.0 in 1 of 1000 items"),
    ],
)
def test_a_turn_that_fails_at_one_site_fails_for_all_and_they_continue(fails: str, says: str) -> None:
    network = load_network("mesh", n=3)

    def body(group: Group) -> tuple[str, int]:
        place = Place(group.rank, 3, network.names[group.rank], network, ())
        reason = "never"
        try:
            take_turn(place, Elsewhere(group, fails), 4000, 400, group)
        except TurnFailed as error:
            reason = str(error)
        return reason, len(take_turn(place, Elsewhere(group, ""), 4000, 400, group))

    reasons, turns = zip(*run_inproc(network, body, None, planner="star"), strict=True)
    assert turns == (2, 2, 2) and says in reasons[1] and reasons[0] == reasons[2] == ""


def test_unknown_peers_and_planners_are_refused_before_anything_starts() -> None:
    with pytest.raises(UnknownName, match="nccl"):
        taking_part(("nccl",), ())
    done = tradewind("bench", "wan", "mesh", "--backend", "htb", "--planner", "nope")
    assert done.exit_code == 2 and "nope" in done.stderr
    done = tradewind("bench", "wan", "mesh", "--backend", "htb", "--out", "x.txt")
    assert done.exit_code == 2 and "suffix" in done.stderr


def test_the_picture_shows_the_quickest_first_and_the_limit() -> None:
    entries = [Entry("slow", 4.0, 3.5, 5.0, ours=False), Entry("quick", 1.1, 1.0, 1.2, ours=True)]
    picture = render(contest_figure("title", "subtitle", entries, 1.0), ".svg").decode()
    assert "quick" in picture and "(91%)" in picture and "(25%)" in picture
