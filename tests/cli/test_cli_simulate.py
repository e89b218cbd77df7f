"""`tradewind simulate` and `tradewind timeline`: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import succeed, succeed_json, tradewind
from tradewind.catalog import load_compute_times, load_network
from tradewind.planning.host import HostCost
from tradewind.sim import simulate
from tradewind.trace import read_trace

QUICK = (
    "mesh",
    "--option",
    "n=6",
    "--bytes",
    "4MB",
    "--seconds",
    "5",
    "--compute",
    "lstm",
    "--compute-range",
    "50ms,200ms",
)


def test_simulate_prints_the_metrics_of_every_scheme_in_one_table() -> None:
    text = succeed("simulate", *QUICK, "--scheme", "crew,opr,a2a,bsp-ring", "--p", 3)
    assert "6 ranks, 4 MB, 5 s of training, seed 0" in text
    for word in ("rounds", "scale", "sync", "of limit", "wasted", "busiest"):
        assert word in text
    for scheme in ("crew", "opr", "a2a", "bsp-ring"):
        assert f"\n {scheme} " in text


def test_simulate_gives_the_same_numbers_as_the_library() -> None:
    (document,) = succeed_json("simulate", *QUICK, "--scheme", "crew", "--p", 3, "--seed", 4)
    compute = load_compute_times("lstm").rescaled(0.05, 0.2)
    result = simulate(
        load_network("mesh", n=6), "crew", 5, 4, compute=compute, nbytes=4_000_000, policy_options={"p": 3}
    )
    assert document["rounds_per_worker"] == result.rounds_per_worker
    assert document["average_sync_seconds"] == result.average_sync_s
    assert document["sent_bytes"] == result.total_bytes
    assert sum(document["link_bytes"].values()) == pytest.approx(result.total_bytes)
    assert document["share_of_limit"] < 1
    assert [w["name"] for w in document["workers"]] == ["w1", "w2", "w3", "w4", "w5", "w6"]


def test_hosts_cost_what_the_flags_say() -> None:
    (free,) = succeed_json("simulate", *QUICK, "--scheme", "bsp+optimal")
    (measured,) = succeed_json("simulate", *QUICK, "--scheme", "bsp+optimal", "--frame-s", "80us")
    (slow,) = succeed_json("simulate", *QUICK, "--scheme", "bsp+optimal", "--byte-s", "5e-8")
    (shared,) = succeed_json("simulate", *QUICK, "--scheme", "bsp+optimal", "--byte-s", "5e-8", "--cores", "1")
    result = simulate(
        load_network("mesh", n=6),
        "bsp+optimal",
        5,
        compute=load_compute_times("lstm").rescaled(0.05, 0.2),
        nbytes=4_000_000,
        host=HostCost(byte_s=5e-8),
        planner_options={"byte_s": 5e-8},
    )
    assert free["average_sync_seconds"] < measured["average_sync_seconds"] < slow["average_sync_seconds"]
    assert slow["average_sync_seconds"] == result.average_sync_s < shared["average_sync_seconds"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--frame-s", "-1"), "frame_s must be >= 0"),
        (("--cores", "two"), "could not convert"),
        (("--rank-cores", "0"), "rank_cores must be >= 1"),
        (("--frame-s", "80us", "--execution", "chunked"), "counts no processor time"),
    ],
)
def test_hosts_that_cannot_be_simulated_are_refused(flags: tuple[str, ...], message: str) -> None:
    result = tradewind("simulate", *QUICK, "--scheme", "bsp-ring", *flags)
    assert result.exit_code == 2 and message in result.stderr


def test_options_go_to_the_schemes_that_take_them() -> None:
    crew, bsp = succeed_json(
        "simulate", *QUICK, "--scheme", "crew,bsp-ring", "--policy-option", "p=2", "--planner-option", "weights=even"
    )
    assert crew["average_scale"] == 2
    assert bsp["average_scale"] == 6


def test_a_policy_and_a_planner_make_a_scheme() -> None:
    by_name, by_parts = succeed_json("simulate", *QUICK, "--scheme", "partial+opr,tradewind", "--policy", "partial")
    assert (by_name["policy"], by_name["planner"]) == ("partial", "opr")
    assert (by_parts["policy"], by_parts["planner"]) == ("partial", "relay")
    (replaced,) = succeed_json("simulate", *QUICK, "--scheme", "crew", "--planner", "multi-star")
    assert replaced["planner"] == "multi-star"


def test_discipline_execution_noise_and_faults_reach_the_simulation() -> None:
    (document,) = succeed_json(
        "simulate",
        *QUICK,
        "--scheme",
        "crew",
        "--discipline",
        "fs",
        "--noise",
        0.3,
        "--faulty-links",
        3,
        "--detect",
        "10ms",
    )
    assert document["discipline"] == "fs"
    (chunked,) = succeed_json("simulate", *QUICK, "--scheme", "crew", "--execution", "chunked")
    assert chunked["execution"] == "chunked"
    (moving,) = succeed_json(
        "simulate", "netstorm9", "--scheme", "bsp-ring", "--rates", "netstorm9", "--seconds", 400, "--bytes", "10MB"
    )
    assert moving["rounds"] > 3


def test_links_shows_the_busiest_links() -> None:
    text = succeed("simulate", *QUICK, "--scheme", "crew", "--links")
    assert "crew: busiest links" in text
    assert "->" in text


def test_the_same_command_writes_the_same_trace(tmp_path: Path) -> None:
    for suffix in (".jsonl", ".csv", ".json"):
        one, other = tmp_path / f"one{suffix}", tmp_path / f"other{suffix}"
        for path in (one, other):
            succeed("simulate", *QUICK, "--scheme", "crew", "--trace", path, "--flows", "--seed", 3)
        assert one.read_bytes() == other.read_bytes()
    assert "traceEvents" in json.loads(one.read_text())
    kinds = {record.kind for record in read_trace(tmp_path / "one.jsonl").records}
    assert {"flow", "round", "wait", "decision"} <= kinds


def test_a_trace_without_flows_is_small(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    succeed("simulate", *QUICK, "--scheme", "crew", "--trace", path)
    assert not any(read_trace(path).kind("flow"))


def test_timeline_exports_the_records_that_it_read(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    succeed(
        "simulate",
        "mesh",
        "--option",
        "n=3",
        "--seconds",
        "3",
        "--compute",
        "100ms",
        "--bytes",
        "1MB",
        "--trace",
        trace,
        "--flows",
    )
    for suffix in (".csv", ".jsonl"):
        out = tmp_path / f"exported{suffix}"
        succeed("timeline", trace, "--export", out)
        assert read_trace(out) == read_trace(trace)
    perfetto = tmp_path / "exported.json"
    succeed("timeline", trace, "--export", perfetto)
    assert json.loads(perfetto.read_text())["traceEvents"]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_timeline_draws_a_picture(tmp_path: Path, suffix: str) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / f"timeline{suffix}"
    succeed("simulate", *QUICK, "--scheme", "crew", "--trace", trace, "--faulty-links", 1)
    succeed("timeline", trace, "--out", out, "--to", "3s")
    assert out.stat().st_size > 5000
    first = out.read_bytes()
    succeed("timeline", trace, "--out", out, "--to", "3s")
    assert out.read_bytes() == first


def test_timeline_sums_up_what_ranks_did(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    succeed("simulate", *QUICK, "--scheme", "crew", "--trace", trace)
    rows = succeed_json("timeline", trace, "--from", "1s", "--to", "4s", "--workers", "w3,w1")
    assert [row["worker"] for row in rows] == ["w3", "w1"]
    for row in rows:
        spent = row["compute_seconds"] + row["wait_seconds"] + row["sync_seconds"] + row["down_seconds"]
        assert spent == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulate", *QUICK, "--scheme", "krew"), "unknown scheme 'krew'"),
        (("simulate", *QUICK, "--scheme", "crew", "--policy", "no"), "unknown policy 'no'"),
        (("simulate", *QUICK, "--scheme", "crew", "--policy-option", "q=1"), "takes an option 'q'"),
        (("simulate", *QUICK, "--scheme", "crew", "--policy-option", "p=x"), "Expected `int"),
        (("simulate", *QUICK, "--scheme", "crew", "--p", "99"), "p must be between 2 and 6 with 6 ranks, got 99"),
        (("simulate", *QUICK, "--scheme", "crew", "--discipline", "lifo"), "unknown discipline 'lifo'"),
        (("simulate", *QUICK, "--scheme", "crew", "--execution", "magic"), "unknown execution model 'magic'"),
        (("simulate", *QUICK, "--scheme", "crew", "--faulty-links", "999"), "links that fail must be in [0, "),
        (("simulate", *QUICK, "--scheme", "crew", "--flows"), "Give a file with --trace"),
        (("simulate", *QUICK, "--scheme", "crew,opr", "--trace", "x.jsonl"), "several are given"),
        (("simulate", *QUICK, "--scheme", "crew", "--trace", "x.txt"), "the suffix decides"),
        (("simulate", "mesh", "--scheme", "crew", "--compute", "100ms", "--compute-range", "1ms,2ms"), "Leave it out"),
        (("simulate", "mesh", "--scheme", "crew", "--compute-range", "1ms"), "give two times"),
        (("simulate", "mesh", "--scheme", "crew", "--compute", "nothing"), "unknown compute-time trace"),
        (("simulate", "mesh", "--scheme", "crew", "--rates", "netstorm9"), "expected one with the sites of"),
        (("timeline", "missing.jsonl", "--json"), "cannot read"),
        (("timeline", "missing.jsonl"), "nothing to do"),
    ],
)
def test_bad_input_is_refused_with_one_message(arguments: tuple[str, ...], message: str) -> None:
    result = tradewind(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_scheme_that_cannot_work_on_a_network_is_an_impossible_problem() -> None:
    result = tradewind("simulate", "gscale", "--scheme", "crew")
    assert result.exit_code == 3
    assert "InfeasiblePlan" in result.stderr


def test_a_timeline_of_nothing_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("")
    assert "has no records of ranks" in tradewind("timeline", trace, "--json").stderr
    succeed("simulate", *QUICK, "--scheme", "crew", "--trace", trace)
    assert "unknown rank 'w9'" in tradewind("timeline", trace, "--json", "--ranks", "w9").stderr
    assert "must be before" in tradewind("timeline", trace, "--json", "--from", "9s", "--to", "3s").stderr
