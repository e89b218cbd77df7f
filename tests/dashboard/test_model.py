"""The state of a run that the page shows, from records."""

from __future__ import annotations

import msgspec
import pytest

from tradewind.catalog import load_network
from tradewind.dashboard import RunModel
from tradewind.dashboard.model import KEPT_ROUNDS
from tradewind.network import Network
from tradewind.runtime.live import LiveFeed
from tradewind.sim import LinkOutage, SimulationResult, simulate
from tradewind.trace import Trace
from tradewind.trace.records import Record
from tradewind.wire import messages as m


@pytest.fixture(scope="module")
def result() -> SimulationResult:
    network = load_network("mesh", n=5, seed=1)
    faults = [LinkOutage("w1", "w2", 1.0, 2.0)]
    return simulate(network, "bsp+mtree", 6, 1, compute=0.1, nbytes=2_000_000, faults=faults, record="flows")


@pytest.fixture
def trace(result: SimulationResult) -> Trace:
    assert result.trace is not None
    return result.trace


def test_the_model_of_a_simulation_agrees_with_its_result(result: SimulationResult, trace: Trace) -> None:
    model = RunModel.of(trace)
    assert model.finished_rounds == result.finished_rounds
    assert sum(model.sent_bytes().values()) == pytest.approx(result.total_bytes, rel=1e-6)
    waited = {worker.name: worker.wait_s for worker in result.workers}
    assert {name: site.spent_s["wait"] for name, site in model.sites.items()} == pytest.approx(waited)
    network = load_network("mesh", n=5, seed=1)
    assert model.links["w1", "w3"].limit_bps == network.bandwidth_bps[0, 2]


def test_every_wait_is_for_the_rank_that_was_ready_last(trace: Trace) -> None:
    model = RunModel.of(trace)
    late = {one["late"] for one in model.rounds if one["late"]}
    assert {culprit for _, culprit in model.waits} <= late


def test_plans_have_their_trees_and_reasons_and_failures_are_events(trace: Trace) -> None:
    view = RunModel.of(trace).view()
    assert view["plans"][-1]["trees"] and all(plan["reason"] for plan in view["plans"])
    told = [event["what"] for event in view["events"]]
    assert "link lost" in told and "link back" in told


def test_a_live_page_says_how_long_a_rank_was_away_that_is_back() -> None:
    """Without a controller it averaged alone meanwhile, which no record of the controller can tell."""
    feed, model = LiveFeed(), RunModel()
    model.is_live = True
    roster = m.Roster((m.Address(0, "fra", "host", 1), m.Address(1, "nyc", "host", 2)), 30.0)
    feed.sent(roster, 0.0)
    feed.sent(m.Lost("nyc", "it was silent"), 10.0)
    feed.sent(roster, 52.0)
    for record in feed.drain():
        assert isinstance(record, Record)
        model.add(record)
    told = [(event["what"], event["about"], event["reason"]) for event in model.view()["events"]]
    assert told == [("rank lost", "nyc", "it was silent"), ("rank back", "nyc", "after 42 s")]


def test_plans_say_why_they_replaced_others() -> None:
    model = RunModel()
    for record in (
        Record("decision", 1, 1, phase="adopt plan", step=2, reason="a -> b fell from 90 Mbps to 22 Mbps"),
        Record("decision", 1, 1, phase="plan", step=2, reason="version 2: optimal, 3 trees"),
    ):
        model.add(record)
    (plan,) = model.view()["plans"]
    assert (plan["why"], plan["reason"]) == ("a -> b fell from 90 Mbps to 22 Mbps", "version 2: optimal, 3 trees")


def test_views_of_changes_add_up_to_the_whole_view(trace: Trace) -> None:
    model, seen = RunModel(live=True), 0
    parts = []
    for number, record in enumerate(sorted(trace.records, key=lambda record: record.end_s)):
        model.add(record)
        if number % 50 == 0:
            parts.append(model.view(seen))
            seen = parts[-1]["version"]
    parts.append(model.view(seen))
    whole = model.view()
    for section in ("rounds", "events"):
        assert [one["version"] for part in parts for one in part[section]] == [one["version"] for one in whole[section]]
    activity = {site["name"]: site["activity"] for site in whole["sites"]}
    for name, done in activity.items():
        told = [one for part in parts for site in part["sites"] if site["name"] == name for one in site["activity"]]
        assert told == done
    links = {(link["src"], link["dst"]): link["bytes"] for part in parts for link in part["links"]}
    assert links == {(link["src"], link["dst"]): link["bytes"] for link in whole["links"]}
    assert msgspec.json.encode(whole)


def test_a_live_rate_is_the_mean_over_the_last_seconds() -> None:
    model = RunModel(live=True)
    model.add(Record("flow", 0, 10, "a", "b", nbytes=10e6))
    model.add(Record("flow", 10, 20, "a", "b", nbytes=20e6))
    assert model.view()["links"][0]["rate_bps"] == pytest.approx(16e6)
    assert model.view(now_s=25.0)["links"][0]["rate_bps"] == pytest.approx(8e6)


def test_a_live_rate_counts_the_time_in_which_rounds_ran() -> None:
    model = RunModel(live=True)
    model.add(Record("flow", 10, 20, "a", "b", nbytes=10e6))
    for number, (start_s, end_s) in enumerate(((5, 10.5), (12, 14), (13, 15))):
        model.add(Record("round", start_s, end_s, round=number, outcome="finished"))
    assert model.view(now_s=20.0)["links"][0]["rate_bps"] == pytest.approx(10e6 * 8 / 3.5)
    model.add(Record("decision", 18, 18, round=9, phase="start"))
    assert model.view(now_s=20.0)["links"][0]["rate_bps"] == pytest.approx(10e6 * 8 / 5.5), "a round runs since 18 s"


def test_rates_of_a_thinned_trace_count_the_time_of_rounds_that_are_only_summed_up() -> None:
    model = RunModel()
    model.add(Record("flow", 0, 1, "a", "b", 0, sent_bytes=1e6, outcome="delivered"))
    model.add(Record("round", 0, 1, round=0, nbytes=1e6, outcome="finished"))
    model.add(Record("total", 0, 10, "a", "b", phase="flow", count=3, spent_s=3.0, sent_bytes=3e6))
    model.add(Record("total", 0, 10, phase="round", outcome="finished", count=3, spent_s=3.0, sent_bytes=3e6))
    assert model.rate_bps(model.links["a", "b"]) == pytest.approx(8e6)


def test_rates_of_a_long_trace_count_the_time_of_all_of_its_rounds() -> None:
    model, rounds = RunModel(), KEPT_ROUNDS + 500
    for number in range(rounds):
        model.add(Record("round", 2 * number, 2 * number + 1, round=number, nbytes=1e6, outcome="finished"))
        model.add(Record("flow", 2 * number, 2 * number + 1, "a", "b", sent_bytes=1e6))
    assert model.rate_bps(model.links["a", "b"]) == pytest.approx(8e6)


def test_the_summary_names_the_busiest_link_and_the_latest_rank() -> None:
    model = RunModel()
    for record in (
        Record("link", 0, 0, "a", "b", phase="given", rate_bps=10e6),
        Record("link", 0, 0, "b", "a", phase="given", rate_bps=1e6),
        Record("wait", 0, 3, "a", round=1),
        Record("wait", 3, 3, "b", round=1),
        Record("flow", 3, 4, "a", "b", 1, nbytes=5e5, outcome="delivered"),
        Record("flow", 3, 4, "b", "a", 1, nbytes=1e5, outcome="delivered"),
        Record("round", 3, 4, round=1, members=("a", "b"), outcome="finished"),
    ):
        model.add(record)
    assert "busiest link is b -> a, 80% of 1 Mbps used" in model.summary()
    assert "waited longest for rank b, 3 s" in model.summary()


def test_a_trace_of_a_priced_network_shows_what_its_egress_cost() -> None:
    network = load_network("skyplane", regions="aws:us-east-1,aws:eu-west-1,gcp:us-east4-a")
    result = simulate(network, "bsp+star", 5, 1, compute=0.1, nbytes=20_000_000, record="flows")
    assert result.trace is not None
    view = RunModel.of(result.trace).view()
    assert view["egress_cost"] == pytest.approx(network.egress_usd(result.link_bytes)) and view["egress_cost"] > 0
    assert {site["name"]: tuple(site["place"]) for site in view["sites"]} == {
        site.name: (site.lat, site.lon) for site in network.sites
    }


def test_without_prices_and_expected_rounds_there_is_neither_cost_nor_forecast(trace: Trace) -> None:
    view = RunModel.of(trace).view()
    assert view["egress_cost"] is None and view["forecast"] is None


def test_a_forecast_follows_the_pace_of_the_last_rounds() -> None:
    model = RunModel()
    model.add(Record("run", 0, 0, "net", "bsp", round=1000))
    for number in range(500):
        at_s = number * 10.0 if number < 200 else 2000.0 + (number - 200)
        model.add(Record("round", at_s, at_s + 0.5, round=number, outcome="finished"))
    forecast = model.forecast()
    assert forecast is not None and forecast["remaining_s"] == pytest.approx(500.0)


def test_causes_change_when_hosts_report_after_the_round() -> None:
    model = RunModel(live=True)
    for number in range(6):
        at_s, slow = float(number), number == 5
        rate_bps = 20e6 if slow else 100e6
        model.add(Record("link", at_s, at_s, "a", "b", phase="sample", rate_bps=rate_bps))
        took_s = 0.9 if slow else 0.1
        model.add(Record("round", at_s, at_s + took_s, round=number, nbytes=1, members=("a", "b"), outcome="finished"))
        if not slow:
            model.add(Record("host", at_s, at_s + 1, "a", load=0.2, rate_bps=0.0))
    assert [(found.round, found.cause) for found in model.diagnoses] == [(5, "slow link")]
    model.add(Record("host", 5.0, 6.0, "a", load=0.2, rate_bps=60e6))
    assert [(found.round, found.cause) for found in model.diagnoses] == [(5, "other traffic")]
    assert [event["reason"].startswith("round 5 took") for event in model.events] == [True, True]


def test_egress_of_more_than_100_sites_has_its_price() -> None:
    """Their links are too many to record all: those that plans use are."""
    mesh = load_network("mesh", n=104, seed=0)
    network = Network(mesh.name, mesh.sites, mesh.bandwidth_bps, usd_per_gb=0.02 * (mesh.bandwidth_bps > 0))
    done = simulate(network, "bsp+star", 100, 1, compute=0.1, nbytes=100_000, record="flows", stop_after_rounds=2)
    assert done.trace is not None
    view = RunModel.of(done.trace).view()
    assert view["egress_cost"] == pytest.approx(network.egress_usd(done.link_bytes)) and view["egress_cost"] > 0
    assert all(link["limit_bps"] for link in view["links"] if link["bytes"])


def test_a_lost_rank_stays_lost_when_the_round_ends_that_it_was_lost_in() -> None:
    """The end of a round is an activity of all of its members, and comes after the loss of one."""
    model = RunModel(live=True)
    for name in ("a", "b"):
        model.add(Record("decision", 0, 0, name, phase="join", reason="it joined"))
    model.add(Record("failure", 1, 1, "b", phase="rank", outcome="down", reason="killed"))
    for name in ("a", "b"):
        model.add(Record("sync", 0.5, 1.5, name, round=1))
    assert {site["name"]: site["down_at_s"] for site in model.view()["sites"]} == {"a": None, "b": 1}
    model.add(Record("failure", 2, 2, "b", phase="rank", outcome="up"))
    assert model.view()["sites"][1]["down_at_s"] is None
