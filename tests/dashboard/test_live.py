"""The page of live runs, over HTTP: its values are those of `Group.stats()`, and losses appear."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from contextlib import closing
from threading import Event
from typing import Any

import numpy as np
import pytest

from ranks import free_port, run_ranks
from tradewind.catalog import load_network
from tradewind.dashboard import Diagnosis
from tradewind.dashboard.sources import fetch_view
from tradewind.errors import BadOption
from tradewind.network import Link, Network, Site
from tradewind.runtime.group import Group

LONGEST_S = 30.0


def until(found: Callable[[], Any]) -> Any:
    """What `found` returns, once it is true."""
    end_s = time.monotonic() + LONGEST_S
    while not (value := found()):
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.05)
    return value


def get(port: int, path: str, host: str = "localhost") -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST_S)) as connection:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_the_page_shows_the_bytes_and_rounds_of_stats_and_prometheus_the_same() -> None:
    pytest.importorskip("prometheus_client")
    page = free_port()

    def body(group: Group) -> Any:
        for _ in range(5):
            group.all_reduce(np.ones(100_000, np.float32))
        if group.rank:
            group.barrier()
            return group.stats().sent_bytes
        own = group.stats()
        view = until(lambda: _with_bytes(page, own.name, own.sent_bytes))
        assert view["rounds_finished"] >= 5 and {site["name"] for site in view["sites"]} == {"rank0", "rank1", "rank2"}
        status, metrics = get(page, "/metrics")
        assert status == 200
        lines = dict(line.rsplit(" ", 1) for line in metrics.decode().splitlines() if not line.startswith("#"))
        assert float(lines['tradewind_egress_bytes_total{rank="rank0"}']) == own.sent_bytes
        assert float(lines['tradewind_rank_up{rank="rank1"}']) == 1.0
        assert get(page, "/", host="evil.example")[0] == 403
        assert b"<title>Tradewind</title>" in get(page, "/")[1]
        diagnosis = group.diagnose()
        assert diagnosis is None or isinstance(diagnosis, Diagnosis)
        group.barrier()
        return view

    results = run_ranks(3, body, dashboard=f":{page}")
    assert not [r for r in results if isinstance(r, Exception)], results
    view = results[0]
    assert view["rounds_other"] == 0
    assert [plan["reason"] for plan in view["plans"]] and all(plan["trees"] for plan in view["plans"])
    assert {kind for site in view["sites"] for kind, *_ in site["activity"]} == {"compute", "wait", "sync"}


def test_rounds_on_a_known_network_have_a_prediction() -> None:
    page = free_port()

    def body(group: Group) -> Any:
        for _ in range(3):
            group.all_reduce(np.ones(100_000, np.float32))
        found = until(lambda: fetch_view(f":{page}")["rounds"]) if not group.rank else None
        group.barrier()
        return found

    network = load_network("mesh", n=3)
    rounds = run_ranks(3, body, dashboard=f":{page}", network=network)[0]
    assert rounds[-1]["predicted_s"] > 0 and rounds[-1]["plan"] is not None


def test_money_and_forecasts_of_a_live_run_are_those_of_its_network() -> None:
    pytest.importorskip("prometheus_client")
    page, rounds = free_port(), 40
    sites = [Site("a", lat=50.1, lon=8.7), Site("b", lat=1.3, lon=103.8)]
    links = [Link("a", "b", 1e9, 0.0, usd_per_gb=0.09), Link("b", "a", 1e9, 0.0, usd_per_gb=0.02)]

    def body(group: Group) -> Any:
        for _ in range(4):
            group.all_reduce(np.ones(100_000, np.float32))
        sent = group.stats().sent_bytes
        if group.rank:
            group.barrier()
            return sent
        view = until(lambda: (found := _with_bytes(page, "a", sent)) and found["forecast"] and found)
        metrics = get(page, "/metrics")[1].decode()
        group.barrier()
        return view, metrics, sent

    network = Network.from_links("two", sites, links)
    (view, metrics, sent), other = run_ranks(2, body, dashboard=f":{page}", network=network, expected_rounds=rounds)
    costs = {(link["src"], link["dst"]): link["cost"] for link in view["links"] if link["bytes"]}
    assert costs["a", "b"] == pytest.approx(sent * 0.09e-9)
    assert view["egress_cost"] == pytest.approx(sum(costs.values()))
    forecast, grows = view["forecast"], rounds / view["rounds_finished"]
    assert forecast["rounds"] == rounds and forecast["remaining_s"] > 0
    assert forecast["egress_bytes"] == pytest.approx(view["egress_bytes"] * grows)
    assert forecast["egress_cost"] == pytest.approx(view["egress_cost"] * grows)
    lines = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert float(lines['tradewind_egress_priced_bytes_total{usd_per_gb="0.09"}']) == sent and other > 0
    assert float(lines["tradewind_expected_rounds"]) == rounds
    assert {site["name"]: site["place"] for site in view["sites"]} == {"a": [50.1, 8.7], "b": [1.3, 103.8]}


def _with_bytes(page: int, name: str, nbytes: int) -> dict[str, Any] | None:
    view = fetch_view(f":{page}")
    shown = sum(link["bytes"] for link in view["links"] if link["src"] == name)
    return view if shown == nbytes else None


def test_a_lost_rank_appears_on_the_page() -> None:
    page, seen = free_port(), Event()

    def body(group: Group) -> Any:
        group.all_reduce(np.ones(100_000, np.float32))
        if group.rank == 2:
            return None  # leaves
        if group.rank == 1:
            return seen.wait(LONGEST_S)
        try:
            return until(lambda: _state_of(page, "rank2") == "lost")
        finally:
            seen.set()

    results = run_ranks(3, body, each=[{}, {}, {}], dashboard=f":{page}", tolerant=True)
    assert results[0] is True, results


def _state_of(page: int, name: str) -> str:
    sites = {site["name"]: site["down_at_s"] for site in fetch_view(f":{page}")["sites"]}
    return "unknown" if name not in sites else "present" if sites[name] is None else "lost"


def test_an_open_page_gets_events() -> None:
    page = free_port()

    def body(group: Group) -> Any:
        if group.rank:
            group.barrier()
            return None
        with closing(http.client.HTTPConnection("127.0.0.1", page, timeout=LONGEST_S)) as connection:
            connection.request("GET", "/events", headers={"Host": "localhost"})
            with connection.getresponse() as answer:
                lines = [answer.readline() for _ in range(2)]
        group.barrier()
        return lines

    lines = run_ranks(2, body, dashboard=f":{page}")[0]
    assert lines[0].startswith(b"id: ") and json.loads(lines[1].removeprefix(b"data: "))["live"]


def test_diagnose_needs_the_page() -> None:
    def body(group: Group) -> Any:
        with pytest.raises(BadOption, match="dashboard="):
            group.diagnose()
        return True

    assert run_ranks(2, body) == [True, True]


@pytest.mark.parametrize("address", ["8080x", "host", "1.2.3.4:99999"])
def test_bad_addresses_are_refused(address: str) -> None:
    from tradewind.runtime.options import RunOptions

    with pytest.raises(BadOption):
        RunOptions(dashboard=address)
