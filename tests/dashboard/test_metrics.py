"""The metrics, and the Grafana dashboard that draws them."""

from __future__ import annotations

import json
import re
from importlib import resources

import pytest

from tradewind.catalog import load_network
from tradewind.dashboard import RunModel
from tradewind.dashboard.metrics import encode_metrics
from tradewind.sim import simulate


def test_every_metric_of_the_grafana_dashboard_is_exported() -> None:
    pytest.importorskip("prometheus_client")
    result = simulate(load_network("mesh", n=4), "bsp+star", 5, 1, compute=0.1, nbytes=2_000_000, record="flows")
    assert result.trace is not None
    model = RunModel.of(result.trace)
    model.rounds[-1]["predicted_s"] = 1.0
    text = encode_metrics(model)[0].decode()
    known = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    drawn = json.loads(resources.files("tradewind.dashboard").joinpath("grafana.json").read_text())
    used = {
        name for panel in drawn["panels"] for t in panel["targets"] for name in re.findall(r"tradewind_\w+", t["expr"])
    }
    assert used <= known, used - known
    assert f"tradewind_rounds_total {float(result.finished_rounds)}" in text
