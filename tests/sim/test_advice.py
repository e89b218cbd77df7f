"""Advice: what is recommended meets its target by its own prediction, and a slower network gets less to send."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli import tradewind
from tradewind.advice import MEASURED, Problem, Way, advise, blocked_seconds, offer_of, round_cost, ways
from tradewind.errors import BadOption, ImpossibleProblem
from tradewind.network import Network, Site

RATE_BPS = 100e6
ROOT = Path(__file__).parents[2]


def network(rates_bps: list[float], latency_s: float = 0.0, usd_per_gb: float = 0.0) -> Network:
    """Sites whose links have the rate of the slower of both."""
    n = len(rates_bps)
    links = np.minimum.outer(rates_bps, rates_bps) * (1 - np.eye(n))
    sites = [Site(f"s{k}", egress_bps=rate, ingress_bps=rate) for k, rate in enumerate(rates_bps)]
    away = latency_s * (1 - np.eye(n))
    return Network("star", sites, links, away, usd_per_gb=usd_per_gb * (1 - np.eye(n)))


def problem(net: Network, parameters: int = 10**7, step_s: float = 1.0, utilisation: float = 0.95) -> Problem:
    return Problem(net, parameters, step_s, utilisation, planner="ring")


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    rates=st.lists(st.sampled_from([20e6, 50e6, 100e6, 400e6]), min_size=2, max_size=4),
    slower=st.sampled_from([1.5, 3.0, 10.0, 100.0]),
    step_s=st.sampled_from([0.05, 0.5, 5.0]),
    utilisation=st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_a_recommendation_meets_its_target_and_a_slower_network_gets_no_more_bytes(
    rates: list[float], slower: float, step_s: float, utilisation: float
) -> None:
    try:
        fast = advise(problem(network(rates, 0.01), step_s=step_s, utilisation=utilisation), simulated=False)
    except ImpossibleProblem:
        return  # see below
    assert fast.recommended.utilisation >= utilisation
    assert fast.recommended in fast.offers
    assert all(
        offer.step_bytes <= fast.recommended.step_bytes for offer in fast.offers if offer.utilisation >= utilisation
    )
    try:
        slow = advise(
            problem(network([rate / slower for rate in rates], 0.01), step_s=step_s, utilisation=utilisation),
            simulated=False,
        )
    except ImpossibleProblem:
        return
    assert slow.recommended.step_bytes <= fast.recommended.step_bytes
    assert slow.recommended.utilisation >= utilisation


def test_an_impossible_target_says_what_comes_nearest_and_what_limits_it() -> None:
    with pytest.raises(ImpossibleProblem, match=r"no way .* 99.90% .* the best, .* limited by .* larger slowdown"):
        advise(problem(network([1e6, 1e6]), parameters=10**9, step_s=0.001, utilisation=0.999))


def test_predictions_follow_from_the_time_of_a_round() -> None:
    """Two sites: each sends the whole tensor once, half of it as a part that it sums and half as the other's."""
    asked = problem(network([RATE_BPS, RATE_BPS], usd_per_gb=0.1))
    members = ("s0", "s1")
    cost = round_cost(asked, members, Way("synchronous"))
    assert cost.busiest_bytes == pytest.approx(4 * 10**7)
    sync = offer_of(asked, Way("synchronous"), cost)
    assert sync.utilisation == pytest.approx(1 / (1 + cost.seconds))
    assert sync.peak_bps == pytest.approx(8 * 4 * 10**7 / cost.seconds) and sync.peak_bps <= RATE_BPS
    assert sync.mean_bps == pytest.approx(sync.peak_bps * (1 - sync.utilisation))
    assert sync.egress_usd_per_hour == pytest.approx(sync.egress_bytes_per_hour / 1e9 * 0.1)
    way = Way("streaming-diloco", "int4", every=100, fragments=4, overlap=5)
    assert way.interval == 25
    assert blocked_seconds(asked, way, 7.0) == 2.0 and blocked_seconds(asked, way, 3.0) == 0.0
    streamed = offer_of(asked, way, round_cost(asked, members, way))
    assert streamed.utilisation == 1.0
    assert streamed.peak_bps == pytest.approx(8 * way.round_bytes(asked.parameters, len(members)) / 5.0), (
        "spread over five steps"
    )


def test_the_simulator_agrees_with_the_prediction() -> None:
    asked = problem(network([RATE_BPS, RATE_BPS, RATE_BPS], latency_s=0.02))
    advice = advise(asked)
    assert advice.simulated_utilisation == pytest.approx(advice.recommended.utilisation, abs=0.03)


def test_every_way_names_its_evidence_and_how_to_use_it() -> None:
    for way in ways():
        assert "measured" in way.evidence or "claim of" in way.evidence
        assert ("Synchronizer(" if way.every > 1 else "init_process_group") in way.arguments
        assert (way.codec in way.arguments) is (way.codec not in ("none", "topk", "topk-256")), "which the preset has"


@pytest.mark.parametrize("wrong", [{"utilisation": 1.0}, {"step_s": 0.0}, {"parameters": 0}])
def test_problems_without_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadOption, match="must"):
        problem(network([1e6, 1e6]), **wrong)  # type: ignore[arg-type]


def test_the_verb_prints_a_table_and_json_and_exits_with_3_if_nothing_helps() -> None:
    base = ["advise", "mesh", "--option", "n=3", "--parameters", "1M", "--step", "100ms"]
    shown = tradewind(*base)
    assert shown.exit_code == 0 and "use " in shown.stdout and "accuracy " in shown.stdout
    found = json.loads(tradewind(*base, "--json").stdout)
    assert found["recommended"]["utilisation"] >= found["target_utilisation"] == 0.95
    assert found["recommended"] in found["offers"] and found["simulated_utilisation"] > 0.9
    impossible = tradewind(*base[:4], "--parameters", "900B", "--step", "1ms", "--slowdown", "1.001", "--no-simulate")
    assert impossible.exit_code == 3 and "no way to synchronise" in impossible.stderr
    for wrong in (["--bytes", "1GB"], ["--slowdown", "1"], ["--slowdown", "1.1", "--utilisation", "0.9"]):
        assert tradewind(*base, *wrong).exit_code == 2


def test_measured_losses_are_those_of_the_page() -> None:
    stored = json.loads((ROOT / "docs" / "benchmarks" / "data" / "compression_evidence.json").read_text())
    names = {
        ("compressed", "bf16"): "ddp bf16",
        ("compressed", "int8"): "ddp int8 + feedback",
        ("compressed", "int4"): "ddp int4 + feedback",
        ("diloco", "none"): "diloco",
        ("diloco", "int8"): "diloco int8",
        ("sparseloco", "topk"): "sparseloco",
        ("sparseloco-256", "topk-256"): "sparseloco topk-256, H / 4, lr 2",
        ("streaming-diloco", "int4"): "streaming-diloco int4",
    }
    assert names.keys() == MEASURED.keys()
    tables = [block for block in stored["blocks"] if isinstance(block, dict) and "beside DDP" in block["columns"]]
    lines = [block[0] for block in stored["blocks"] if isinstance(block, list)]
    models = [line.partition(":")[0].strip("*") for line in lines if "replicas on" in line]
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for model, table in zip(models, tables, strict=True):
        for method, _, _, _, beside, error, *_ in table["rows"]:
            found.setdefault(method, {})[model] = float(beside.rstrip("%")), float(error.rstrip("%"))
    for way, method in names.items():
        assert {each.model: (each.percent, each.error) for each in MEASURED[way]} == found[method], method


def test_ways_that_lost_much_and_those_that_were_not_tried_say_so() -> None:
    assert "lost 87.2% beside DDP on cnn-cpu" in Way("sparseloco", "topk", 30).caution
    assert Way("streaming-diloco", "int8", 100, 5, 5).caution.endswith("was not measured")
    assert Way("sparseloco-256", "topk-256", 5).caution == Way("synchronous").caution == ""


def test_encoding_takes_time() -> None:
    asked = problem(network([1e12, 1e12]), parameters=10**8)
    seconds = [round_cost(asked, ("s0", "s1"), Way("compressed", codec)).seconds for codec in ("none", "int4")]
    assert seconds[1] > seconds[0] / 7, "the bytes alone would take an eighth of the time"
