"""`--codec` of plan, compare and simulate: encoded bytes, and whether a codec is faster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import succeed, succeed_json, tradewind


def refused(*arguments: object) -> str:
    result = tradewind(*arguments)
    assert result.exit_code == 2, result.stdout
    return " ".join(result.stderr.split())


MESH = ("mesh", "--option", "n=4", "--bytes", "40MB")


def test_plan_says_how_much_faster_a_codec_is() -> None:
    text = succeed("plan", *MESH, "--planner", "multi-star", "--codec", "int8")
    assert "int8: 40 MB of float32 are sent as 10.2 MB" in " ".join(text.split())
    assert "times as fast as float32" in " ".join(text.split())
    coded, plain = (json.loads(succeed("plan", *MESH, "--json", *more)) for more in (("--codec", "int4"), ()))
    assert coded["bytes"] == 5_156_252 and plain["bytes"] == 40_000_000


def test_plan_compare_and_simulate_know_how_sparse_sums_grow() -> None:
    text = " ".join(succeed("plan", *MESH, "--planner", "multi-star", "--codec", "topk").split())
    assert "topk: 40 MB of float32 are sent as 1.08 MB (expected; 215 kB before they are summed)" in text
    plan = json.loads(succeed("plan", *MESH, "--planner", "star", "--codec", "topk", "--json"))
    assert plan["sum_sizes"][-1] == 1.0 and plan["sum_sizes"][0] < 0.25
    compared = succeed_json("compare", *MESH, "--planners", "ring,multi-star", "--codec", "topk")
    assert all(0 < each["efficiency"] <= 1 for each in compared["planners"])
    simulated = succeed_json("simulate", *MESH, "--codec", "topk", "--seconds", "5", "--compute", "100ms")
    assert simulated[0]["wire_bytes"] == plan["bytes"]


def test_plan_says_when_a_codec_is_slower(tmp_path: Path) -> None:
    path = tmp_path / "fast.csv"
    path.write_text(",a,b\na,0,10000000\nb,10000000,0\n")  # Mbps
    text = " ".join(succeed("plan", path, "--bytes", "1GB", "--planner", "star", "--codec", "fp16-stochastic").split())
    assert "times as long as float32" in text
    auto = " ".join(succeed("plan", path, "--bytes", "1GB", "--planner", "star", "--codec", "auto").split())
    assert "auto: no codec is clearly faster than float32" in auto


def test_compare_and_simulate_count_encoded_bytes() -> None:
    plain = succeed_json("compare", *MESH, "--planners", "ring,multi-star")
    coded = succeed_json("compare", *MESH, "--planners", "ring,multi-star", "--codec", "int8")
    assert coded["bytes"] < plain["bytes"] / 3.9
    for before, after in zip(plain["planners"], coded["planners"], strict=True):
        assert after["seconds"] < before["seconds"] / 3
    simulated = succeed_json("simulate", *MESH, "--codec", "bf16", "--seconds", "5", "--compute", "100ms")
    assert simulated[0]["wire_bytes"] == 20_000_000 and simulated[0]["bytes"] == 40_000_000
    assert "40 MB sent as 20 MB" in succeed("simulate", *MESH, "--codec", "bf16", "--seconds", "5")


@pytest.mark.parametrize("verb", ["plan", "compare", "simulate"])
def test_an_unknown_codec_is_refused(verb: str) -> None:
    assert "unknown codec 'int7'" in refused(verb, *MESH, "--codec", "int7")


def test_auto_is_for_one_plan() -> None:
    assert "--codec auto is decided for one plan" in refused("compare", *MESH, "--codec", "auto")
