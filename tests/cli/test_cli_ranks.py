"""`--ranks-per-site`, and networks whose file says how many ranks a site has."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import succeed, succeed_json, tradewind

MESH = ("mesh", "--option", "n=3", "--bytes", "20MB")
FILE = """{"name": "pair", "sites": [{"name": "fra", "ranks": 2}, {"name": "nyc"}],
 "links": [{"src": "fra", "dst": "nyc", "bandwidth_mbps": 100}, {"src": "nyc", "dst": "fra", "bandwidth_mbps": 80}]}"""


def test_plan_and_compare_send_as_much_between_sites_as_with_one_rank_a_site() -> None:
    alone, shared = (
        succeed_json("compare", *MESH, "--planners", "optimal,ring", "--ranks-per-site", ranks) for ranks in (1, 2)
    )
    assert shared["members"] == ["w1/0", "w1/1", "w2/0", "w2/1", "w3/0", "w3/1"]
    for one, two in zip(alone["planners"], shared["planners"], strict=True):
        assert two["egress_total_bytes"] == pytest.approx(one["egress_total_bytes"])
        assert two["seconds"] == pytest.approx(one["seconds"], rel=0.05)
    plan = succeed_json("plan", *MESH, "--planner", "optimal", "--ranks-per-site", 2)
    assert plan["members"] == shared["members"]


def test_a_file_says_how_many_ranks_a_site_has(tmp_path: Path) -> None:
    file, made = tmp_path / "pair.json", tmp_path / "plan.json"
    file.write_text(FILE)
    plan = succeed_json("plan", file, "--planner", "star", "--bytes", "8MB", "--out", made)
    assert plan["members"] == ["fra/0", "fra/1", "nyc"]
    assert "is valid" in succeed("check", file, made)
    between = succeed_json("plan", file, "--planner", "star", "--bytes", "8MB", "--ranks-per-site", 1)
    assert between["members"] == ["fra", "nyc"]


def test_simulate_trains_with_all_ranks_of_all_sites() -> None:
    text = succeed(
        "simulate", *MESH, "--scheme", "bsp+optimal", "--ranks-per-site", 2, "--seconds", 5, "--compute", "100ms"
    )
    assert "6 ranks, 20 MB" in text


@pytest.mark.parametrize("ranks", [0, 100_000])
def test_a_wrong_number_of_ranks_is_refused(ranks: int) -> None:
    assert tradewind("plan", *MESH, "--ranks-per-site", ranks).exit_code == 2
