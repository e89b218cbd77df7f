"""What each verb prints and writes when all is well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_type_hints

import pytest
from typer.main import get_command

from cli import succeed, succeed_json, tradewind
from tradewind.catalog import list_networks, load_network
from tradewind.cli import app
from tradewind.cli.planner_flags import OWN_FLAGS, option_meanings
from tradewind.formats import network_from_json
from tradewind.planning import planner, planner_names
from tradewind.planning.check import check
from tradewind.planning.plan import plan_from_json

VERBS = ("networks", "network", "planners", "plan", "check", "compare", "draw")


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    out = tmp_path / "plan.json"
    succeed("plan", "netstorm9", "--planner", "spanning-tree", "--out", out)
    return out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    text = succeed(verb, "--help")
    assert f"Example: tradewind {verb}" in " ".join(text.split())


def test_help_names_every_verb_and_the_exit_codes() -> None:
    text = " ".join(succeed("--help").split())
    for verb in VERBS:
        assert f" {verb} " in text
    assert "0 ok, 1 failed, 2 bad usage or input, 3 impossible problem" in text


def test_networks_lists_the_whole_catalog() -> None:
    listed = succeed_json("networks")
    assert [entry["network"] for entry in listed] == [entry.name for entry in list_networks()]
    assert set(listed[0]) == {"network", "sites", "links", "description", "source", "options"}
    assert "gscale" in succeed("networks")


def test_network_json_reads_back_as_the_same_network() -> None:
    assert network_from_json(succeed("network", "gscale", "--json")) == load_network("gscale")


def test_network_takes_catalog_options_and_seed() -> None:
    text = succeed("network", "mesh", "--seed", 7, "--option", "n=5", "--json")
    assert network_from_json(text) == load_network("mesh", n=5, seed=7)


def test_network_table_shows_links_of_equal_directions_once() -> None:
    text = succeed("network", "netstorm9")
    assert "dc1 <-> dc2" in text
    assert "dc2 <-> dc1" not in text


def test_a_file_in_the_working_directory_does_not_change_what_a_catalog_name_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gscale").write_text("not a network")
    assert network_from_json(succeed("network", "gscale", "--json")) == load_network("gscale")
    assert tradewind("network", "./gscale").exit_code == 2


def test_catalog_names_with_a_slash_are_found() -> None:
    assert network_from_json(succeed("network", "sndlib/abilene", "--json")).name == "sndlib/abilene"


def test_csv_network_takes_a_latency_file(tmp_path: Path) -> None:
    bandwidth, latency = tmp_path / "bw.csv", tmp_path / "lat.csv"
    bandwidth.write_text(",a,b\na,0,100\nb,50,0\n")
    latency.write_text(",a,b\na,0,10\nb,20,0\n")
    network = network_from_json(succeed("network", bandwidth, "--latency", latency, "--json"))
    assert network.link("b", "a").latency_s == pytest.approx(0.02)


def test_graph_network_takes_a_default_bandwidth(tmp_path: Path) -> None:
    graph = tmp_path / "pair.gml"
    graph.write_text('graph [ node [ id 0 label "a" ] node [ id 1 label "b" ] edge [ source 0 target 1 ] ]')
    network = network_from_json(succeed("network", graph, "--default-bandwidth", "1Gbps", "--json"))
    assert network.link("a", "b").bandwidth_bps == 1e9


def test_planners_lists_every_planner() -> None:
    assert [entry["planner"] for entry in succeed_json("planners")] == list(planner_names())
    text = succeed("planners")
    for name in planner_names():
        assert name in text


@pytest.mark.parametrize("name", planner_names())
def test_every_option_of_every_planner_has_a_meaning(name: str) -> None:
    shown = succeed_json("planners", name)
    assert [option["option"] for option in shown["options"]] == [f.name for f in planner(name).option_fields]
    for option in shown["options"]:
        assert set(option) == {"option", "flag", "type", "default", "meaning"}
        assert option["meaning"], f"{name}: {option['option']} does not say what it means"
    succeed("planners", name)


def test_plan_json_is_the_plan_file_and_holds_the_documented_keys(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "plan.json"
    printed = succeed("plan", "gscale", "--planner", "ring", "--bytes", "1GB", "--out", out, "--json")
    assert printed == out.read_text()
    data = json.loads(printed)
    assert {"planner", "network", "members", "bytes", "shards", "predicted", "planning_seconds"} <= set(data)
    assert set(data["predicted"]) == {
        "seconds",
        "rate_mbps",
        "bound_seconds",
        "bound_rate_mbps",
        "efficiency",
        "bound_argument",
    }
    assert check(plan_from_json(printed), load_network("gscale")) == ()


def test_plan_table_shows_the_plan_beside_the_limit() -> None:
    text = succeed("plan", "netstorm9", "--planner", "star", "--explain")
    for word in ("shard", "root", "share", "height", "fan-out", "chunk", "predicted", "limit", "efficiency"):
        assert word in text
    assert "bottleneck" in text and "busiest links" in text and "certificate" in text


def test_plan_members_may_be_some_of_the_sites() -> None:
    data = json.loads(succeed("plan", "gscale", "--planner", "star", "--members", "EU1, AS1", "--json"))
    assert data["members"] == ["AS1", "EU1"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("gscale", "--planner", "ring", "--order", "exact"),
        ("gscale", "--planner", "ring", "--order=exact"),
        ("--planner", "ring", "--order", "exact", "gscale"),
        ("--order", "exact", "gscale", "--planner=ring"),
    ],
)
def test_planner_flags_may_stand_anywhere(arguments: tuple[str, ...]) -> None:
    assert "exact order" in json.loads(succeed("plan", *arguments, "--json"))["reason"]


def test_a_planners_option_with_the_name_of_a_flag_is_reached_with_a_prefix() -> None:
    plans = [
        json.loads(succeed("plan", "mesh", "--seed", 5, "--planner", "topoadopt", "--planner-seed", seed, "--json"))
        for seed in (1, 2)
    ]
    assert plans[0]["network"] == plans[1]["network"] == "mesh-8-seed5"
    assert plans[0]["shards"] != plans[1]["shards"]
    assert [o["flag"] for o in succeed_json("planners", "topoadopt")["options"]][-1] == "--planner-seed"


def test_the_prefix_is_needed_for_exactly_the_flags_of_the_verb() -> None:
    command = get_command(app).commands["plan"]  # type: ignore[attr-defined]
    flags = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    assert {"--" + name.replace("_", "-") for name in OWN_FLAGS} == flags


def test_numbers_are_never_cut_off_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = succeed("compare", "idn40-like", "--planners", "star,ring", "--egress")
    assert "…" not in text and "gcp:southamerica-west1-a" in text


def test_output_is_the_same_every_time() -> None:
    first, second = (json.loads(succeed("plan", "idn40-like", "--planner", "blink", "--json")) for _ in range(2))
    del first["planning_seconds"], second["planning_seconds"]
    assert first == second


def test_check_accepts_what_plan_wrote(plan_file: Path) -> None:
    data = succeed_json("check", "netstorm9", plan_file)
    assert data["valid"] is True and data["problems"] == []
    assert data["predicted"] == json.loads(plan_file.read_text())["predicted"]
    assert "is valid on netstorm9" in succeed("check", "netstorm9", plan_file)


def test_check_names_every_problem_and_exits_with_2(plan_file: Path) -> None:
    plan = json.loads(plan_file.read_text())
    plan["shards"][0]["fraction"] = 0.5
    plan["shards"][0]["reduce"].pop()
    plan_file.write_text(json.dumps(plan))
    result = tradewind("check", "netstorm9", plan_file, "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == 2 and data["valid"] is False
    assert {"shards", "shard 0 reduce"} <= {problem["where"] for problem in data["problems"]}
    assert "BadPlan" in result.stderr
    assert "not to 1" in tradewind("check", "netstorm9", plan_file).stdout


def test_compare_lists_all_planners_fastest_first() -> None:
    data = succeed_json("compare", "netstorm9")
    assert set(data) == {"network", "members", "bytes", "collective", "limit", "planners", "failed"}
    assert set(data["limit"]) == {"seconds", "rate_mbps", "exact", "argument", "parts"}
    seconds = [entry["seconds"] for entry in data["planners"]]
    assert seconds == sorted(seconds) and seconds[0] >= data["limit"]["seconds"]
    tried = {entry["planner"] for entry in data["planners"]} | {entry["planner"] for entry in data["failed"]}
    assert tried == set(planner_names()) - {"auto"}
    best = data["planners"][0]
    assert set(best) == {
        "planner",
        "seconds",
        "rate_mbps",
        "efficiency",
        "trees",
        "height",
        "fan_out",
        "bottleneck",
        "why_slower",
        "egress_bytes",
        "egress_total_bytes",
        "egress_most_bytes",
        "egress_usd",
        "planning_seconds",
        "reason",
    }
    assert sum(best["egress_bytes"].values()) == pytest.approx(best["egress_total_bytes"])


def test_compare_takes_a_choice_of_planners_and_shows_egress() -> None:
    text = succeed("compare", "netstorm9", "--planners", "ring,star", "--egress")
    assert "ring" in text and "star" in text and "blink" not in text
    assert "Egress of each site" in text and "dc9" in text


def test_compare_says_why_a_planner_failed_and_goes_on() -> None:
    # the parameter server's balanced tree needs both directions; a one-way ring of links has none
    from tradewind.comparison import compare_planners
    from tradewind.network import Link, Network, Site

    names = ("a", "b", "c")
    links = [Link(src, dst, 1e8) for src, dst in (("a", "b"), ("b", "c"), ("c", "a"))]
    one_way = Network.from_links("one-way", [Site(name) for name in names], links)
    comparison = compare_planners(one_way, 10**6)
    assert comparison.contenders and comparison.failures
    assert not any(failure.is_bug for failure in comparison.failures)


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG\r\n"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_draw_writes_a_picture(plan_file: Path, tmp_path: Path, suffix: str, magic: bytes) -> None:
    out = tmp_path / f"picture{suffix}"
    succeed("draw", "netstorm9", plan_file, "--out", out)
    picture = out.read_bytes()
    assert picture.startswith(magic) and len(picture) > 10_000
    succeed("draw", "netstorm9", plan_file, "--out", out)
    assert out.read_bytes() == picture, "the same input must give the same picture"


def test_draw_json_and_shards(plan_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "one.png"
    data = succeed_json("draw", "netstorm9", plan_file, "--out", out, "--shard", 0)
    assert data == {
        "out": str(out),
        "network": "netstorm9",
        "plan": str(plan_file),
        "file_bytes": out.stat().st_size,
    }


def test_compare_draws_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "compare.svg"
    succeed("compare", "gscale", "--planners", "ring,star", "--out", out)
    assert b"<svg" in out.read_bytes()


def test_version() -> None:
    assert succeed("--version").startswith("tradewind ")


def test_meanings_cover_the_fields() -> None:
    options = planner("ring").options
    assert set(option_meanings(options)) == set(get_type_hints(options))
