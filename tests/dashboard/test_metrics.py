"""The metrics, and the Grafana dashboard that draws them."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from importlib import resources

import pytest

from tradewind.catalog import load_network
from tradewind.dashboard import RunModel
from tradewind.dashboard.metrics import encode_families, encode_metrics
from tradewind.runtime.rank_metrics import rank_families
from tradewind.runtime.stats import GroupStats, PeerStats
from tradewind.sim import simulate
from tradewind.trace.records import Record


def names(metrics: bytes) -> set[str]:
    """The names of metrics that have a sample."""
    lines = metrics.decode().splitlines()
    return {re.split(r"[{ ]", line, maxsplit=1)[0] for line in lines if not line.startswith("#")}


def drawn() -> set[str]:
    """The names of metrics in the queries of the dashboard."""
    dashboard = json.loads(resources.files("tradewind.dashboard").joinpath("grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return {name for query in queries for name in re.findall(r"tradewind_\w+", query)}


def model_with_everything() -> RunModel:
    """A run with a price, an expected end, a prediction, a host's report and a slow round."""
    model = RunModel()
    model.add(Record("run", 0, 0, "net", "bsp", round=100))
    model.add(Record("link", 0, 0, "a", "b", phase="given", rate_bps=8e6, usd_per_gb=0.09))
    model.add(Record("host", 0, 1, "a", load=0.5, rate_bps=0.0))
    model.add(Record("tree", 0, 0, "a", step=1, phase="star", members=("b>a", "a>b")))
    for number in range(5):
        at_s, end_s = 10.0 * number, 10.0 * number + (9.0 if number == 4 else 1.0)
        model.add(Record("wait", at_s - 0.1, at_s, "a", round=number))
        model.add(Record("wait", at_s - 0.05, at_s, "b", round=number))
        model.add(Record("flow", at_s, end_s, "a", "b", number, sent_bytes=1e6, outcome="delivered", retransmits=1))
        about = {"members": ("a", "b"), "nbytes": 1e6, "outcome": "finished", "step": 1}
        model.add(Record("round", at_s, end_s, round=number, predicted_s=1.0, **about))  # type: ignore[arg-type]
    return model


def test_the_grafana_dashboard_draws_every_exported_metric_and_no_other() -> None:
    pytest.importorskip("prometheus_client")
    peer = PeerStats("b", 1, "tcp", False, 0, 1, 1, 1, 1, 0, bandwidth_bps=1e8, latency_s=0.01)
    numbers = {field.name: 1 for field in fields(GroupStats)}
    others = {"name": "a", "members": ("a", "b"), "host": "h", "peers": (peer,), "controller": None, "trace": None}
    of_rank = encode_families(rank_families(GroupStats(**{**numbers, **others})))[0]  # type: ignore[arg-type]
    assert names(encode_metrics(model_with_everything())[0]) | names(of_rank) == drawn()


def test_metrics_of_a_simulation_count_its_rounds() -> None:
    pytest.importorskip("prometheus_client")
    result = simulate(load_network("mesh", n=4), "bsp+star", 5, 1, compute=0.1, nbytes=2_000_000, record="flows")
    assert result.trace is not None
    text = encode_metrics(RunModel.of(result.trace))[0].decode()
    assert f"tradewind_rounds_total {float(result.finished_rounds)}" in text
