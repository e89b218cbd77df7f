"""What a person reads: tables on a narrow terminal and in a pipe, help, counts, and why a plan is not faster."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli import succeed, succeed_json, tradewind
from tradewind.catalog import load_network
from tradewind.cli import app
from tradewind.cli.output import console, show, table
from tradewind.cli.show_plan import connections_sentence
from tradewind.comparison import compare_planners
from tradewind.formats import network_to_json
from tradewind.network import Network, Site
from tradewind.planning import make_plan, planner_names
from tradewind.planning.cost import cost
from tradewind.planning.host import FREE_HOST
from tradewind.planning.shortfall import explain_shortfall

EGRESS = ("compare", "netstorm9", "--planners", "ring,star,multi-star,spanning-tree,balanced-tree,all-to-all,fapt,psld")


def on_terminal(columns: int, *arguments: str) -> list[str]:
    """The lines that a command writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "tradewind", *arguments]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env={**environment, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # the kernel's way to say that the other end is closed
            while chunk := os.read(ours, 65536):
                written += chunk
        assert process.wait(60) == 0
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode())
    return text.replace("\r", "").splitlines()


def cells(lines: list[str]) -> dict[str, list[str]]:
    """Rows that begin with a name: their other cells, of all tables in order."""
    rows: dict[str, list[str]] = {}
    for line in lines:
        name, *rest = re.split(r"  +", line.strip())
        rows.setdefault(name, []).extend(rest)
    return rows


def test_compare_egress_shows_every_site_and_planner_on_80_columns() -> None:
    lines = on_terminal(80, *EGRESS, "--egress")
    assert max(map(len, lines)) <= 80
    expected = {entry["planner"]: entry["egress_bytes"] for entry in succeed_json(*EGRESS)["planners"]}
    start = lines.index(next(line for line in lines if line.startswith("Egress of each site")))
    shown = cells(lines[start + 1 :])
    assert shown["site"] == list(expected)
    for site in load_network("netstorm9").names:
        assert len(shown[site]) == len(expected), f"{site} has {shown[site]}"


def test_compare_shows_all_its_columns_on_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = cells(succeed(*EGRESS).splitlines())
    monkeypatch.setenv("COLUMNS", "80")
    narrow = cells(succeed(*EGRESS).splitlines())
    assert narrow["planner"] == wide["planner"]
    for name in EGRESS[3].split(","):
        assert narrow[name][:-1] == wide[name][:-1]  # the last is the time of planning


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "skyplane", "--planner", "star", "--explain"),
        ("simulate", "gscale", "--scheme", "bsp-ring,bsp-optimal", "--seconds", "10", "--links"),
        ("network", "skyplane"),
        ("networks",),
        ("planners",),
        ("planners", "mtree"),
        ("reproduce", "--list"),
        ("config",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_tables_fit_80_columns_and_lose_nothing(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = succeed(*arguments).splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("\u2026" in line for line in lines), "nothing may be cut off"


def test_in_a_pipe_a_table_is_as_wide_as_it_has_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    made = table("site", *(f">planner{k}" for k in range(40)))
    made.add_row("a", *(f"{k} MB" for k in range(40)))
    show(console(), made)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert len(lines) == 3 and lines[0].split() == ["site", *(f"planner{k}" for k in range(40))]
    assert re.split("  +", lines[2].strip()) == ["a", *(f"{k} MB" for k in range(40))]


def test_the_columns_that_tell_rows_apart_are_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    made = table("processes", ">bytes", ">median", ">of gloo")
    made.add_row("4", "40 MB", "120 ms", "0.91")
    show(console(), made, keys=2)
    heads = [line.split() for line in capsys.readouterr().out.splitlines() if "processes" in line]
    assert heads == [["processes", "bytes", "median"], ["processes", "bytes", "of", "gloo"]]


def help_pages() -> list[tuple[str, ...]]:
    from tradewind.cli import lab

    verbs = [(str(command.name),) for command in app.registered_commands]
    return [(), ("lab",), *verbs, *(("lab", str(command.name)) for command in lab.app.registered_commands)]


@pytest.mark.parametrize("page", help_pages(), ids=" ".join)
def test_help_shows_flags_without_values(page: tuple[str, ...]) -> None:
    text = succeed(*page, "--help")
    assert "bool" not in text.lower() and "[[" not in text
    assert re.search(r"--help\s+-h\s+Show this message", text)


def test_plan_says_why_the_limit_and_why_the_plan() -> None:
    text = " ".join(succeed("plan", "netstorm9", "--planner", "star").split())
    assert "why this limit what must cross between the parts needs 1.46 s;" in text
    assert "in 6 parts every element crosses 10 times" in text
    found = re.search(r"why no faster (.*?) egress", text)
    assert found is not None
    assert found[1].startswith("8.4 s more than the limit: 8.17 s by bandwidth (link dc2->dc5 is busy for 9.6 s")
    assert "1 tree uses 16 of 26 links" in found[1]


@pytest.mark.parametrize(
    ("network", "planner", "nbytes", "options", "cause"),
    [
        ("netstorm9", "star", 10**8, {}, "bandwidth"),
        ("swan", "spanning-tree", 10**5, {}, "latency"),
        ("netstorm9", "mtree", 10**8, {}, "chunk size"),
        ("ds-sync-racks", "star", 10**9, {}, "bandwidth"),
    ],
)
def test_the_largest_cause_of_a_slow_plan_is_named_first(
    network: str, planner: str, nbytes: int, options: dict[str, Any], cause: str
) -> None:
    found = load_network(network)
    plan = make_plan(planner, found, nbytes, **options)
    assert plan.predicted is not None
    why = explain_shortfall(plan, found, cost(plan, found), plan.predicted)
    assert re.match(rf"[\d.]+ m?s more than the limit: [\d.]+ m?s by {cause} ", why), why


def test_causes_add_up_to_what_is_missing() -> None:
    found = load_network("netstorm9")
    for contender in compare_planners(found, 10**8, planners=("optimal", "mtree", "ring", "star")).contenders:
        predicted = contender.predicted
        times = re.findall(r"([\d.]+) (ms|s) (more than|by)", contender.why_slower(found))
        seconds = [float(number) / (1000 if unit == "ms" else 1) for number, unit, _ in times]
        assert seconds[0] == pytest.approx(predicted.seconds - predicted.bound_seconds, rel=0.01)
        assert sum(seconds[1:]) == pytest.approx(seconds[0], rel=0.11)  # causes of less than 5% each are left out


def test_a_limit_that_latency_sets_says_so() -> None:
    text = " ".join(succeed("compare", "swan", "--bytes", "100kB", "--planners", "star").split())
    assert "limit: 148 ms (8.96 Gbps: 89.3 µs, the rest is latency): what HK sends to BA needs 148 ms" in text
    small = succeed_json("compare", "swan", "--bytes", "100kB", "--planners", "optimal")["limit"]
    large = succeed_json("compare", "swan", "--bytes", "1GB", "--planners", "optimal")["limit"]
    assert "what HK sends to BA" in small["argument"] and "cross between the parts" in large["argument"]


def test_a_plan_at_the_limit_says_so() -> None:
    text = " ".join(succeed("plan", "gscale", "--planner", "optimal", "--bytes", "100GB").split())
    assert "why no faster it is as fast as the limit" in text


@pytest.mark.parametrize("name", planner_names())
def test_one_of_a_thing_is_not_several(name: str) -> None:
    for network, members in (("swan", "NY,FL"), ("netstorm9", "dc1,dc2")):
        result = tradewind("plan", network, "--planner", name, "--members", members, "--explain")
        text = " ".join(result.stdout.split())
        assert not re.search(
            r"(?<![\d.,:])\b1 (more )?(trees|shards|roots|aggregators|links|groups|slices|sites)\b", text
        )


def test_a_trace_that_cannot_be_written_is_named_by_its_own_flag(tmp_path: Path) -> None:
    arguments = ("simulate", "gscale", "--scheme", "bsp-ring", "--seconds", "1000000000")
    for path, said in ((tmp_path / "t.txt", "the suffix decides"), (tmp_path / "d.csv", "is a directory")):
        (tmp_path / "d.csv").mkdir(exist_ok=True)
        result = tradewind(*arguments, "--trace", path)  # would take hours if it began
        assert result.exit_code == 2 and said in result.stderr
        assert "--trace" in result.stderr and "--out" not in result.stderr


def test_an_option_without_a_value_is_named_by_its_own_flag() -> None:
    for flag in ("--policy-option", "--planner-option", "--option"):
        result = tradewind("simulate", "gscale", "--scheme", "bsp-ring", flag, "p")
        assert result.exit_code == 2 and f"{flag} 'p': expected KEY=VALUE" in result.stderr


def test_a_page_that_cannot_be_written_is_named_by_its_own_flag(tmp_path: Path) -> None:
    result = tradewind("reproduce", "mtree/fig6", "--quick", "--page", tmp_path)
    assert result.exit_code == 2 and "--page" in result.stderr


@pytest.mark.parametrize("arguments", [("wire",), ("wan", "mesh")])
def test_bench_refuses_a_picture_that_it_would_not_draw(arguments: tuple[str, ...], tmp_path: Path) -> None:
    result = tradewind("bench", *arguments, "--out", tmp_path / "x.png")
    assert result.exit_code == 2 and "--out" in result.stderr


def test_compare_in_json_says_why_each_plan_is_slower() -> None:
    data = json.loads(succeed("compare", "gscale", "--planners", "ring,star", "--json"))
    assert all("more than the limit" in entry["why_slower"] for entry in data["planners"])


def test_a_plan_for_slow_processors_names_them_as_the_bottleneck() -> None:
    problem = ("plan", "mesh", "--option", "n=4", "--bytes", "1MB", "--planner", "optimal", "--explain")
    by_processor = [
        "bottleneck      processor of " in tradewind(*problem, *flags).stdout for flags in ((), ("--frame-s", "0.05"))
    ]
    assert by_processor == [False, True]


def test_a_plan_for_a_fast_network_names_cores_and_connections(tmp_path: Path) -> None:
    fast = tmp_path / "fast.json"
    fast.write_bytes(network_to_json(Network("fast", [Site("a"), Site("b")], 40e9 * (1 - np.eye(2)))))
    problem = ("plan", fast, "--bytes", "800MB", "--planner", "optimal", "--explain")
    said = [
        " ".join(succeed(*problem, *flags).split())
        for flags in ((), ("--rank-cores", "16"), ("--rank-cores", "16", "--connections", "1"), ("--rank-cores", "inf"))
    ]
    assert "on 1 core (--rank-cores)" in said[0] and "on inf cores (--rank-cores)" in said[3]
    assert "bottleneck processor of a" in said[0] and "peer: 1, as a run opens" in said[0]
    assert "bottleneck link a->b" in said[1] and "peer: 4, as a run opens" in said[1]
    assert "processor of a (2 threads on 16 cores)" in said[2] and "peer: 1, as given" in said[2]


def test_a_plan_for_small_buffers_names_connections_as_the_bottleneck() -> None:
    limits = ("--connections", "1", "--stream-bytes", "1e6")
    said = " ".join(succeed("plan", "gscale", "--planner", "optimal", "--bytes", "1GB", *limits, "--explain").split())
    assert "bottleneck the connections " in said and " by connections (the connections " in said
    assert "(of what connections carry)" in said


@pytest.mark.parametrize(
    ("mbps", "says"), [(50, ""), (2_000, "opens them by what it measures"), (20_000, "at most 16")]
)
def test_the_explanation_counts_the_connections_of_long_links(mbps: float, says: str) -> None:
    """A connection has 4 MiB in flight: 40 ms there and back carry 839 Mbps."""
    links = 1 - np.eye(2)
    network = Network("far", [Site("a"), Site("b")], mbps * 1e6 * links, 0.02 * links)
    plan = make_plan("star", network, 10**10)
    sentence = connections_sentence(cost(plan, network, host=FREE_HOST), network)
    assert says in sentence and bool(sentence) == bool(says)
