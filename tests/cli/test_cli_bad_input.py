"""Every kind of bad input ends in exit code 2 or 3 and one clear message: no traceback, nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import succeed, tradewind
from messages import problems_of

SITES = [{"name": "a"}, {"name": "b"}, {"name": "c"}]


def link(src: str, dst: str, bandwidth_mbps: float = 100) -> dict[str, object]:
    return {"src": src, "dst": dst, "bandwidth_mbps": bandwidth_mbps}


def both(*pairs: str) -> list[dict[str, object]]:
    return [link(src, dst) for pair in pairs for src, dst in (tuple(pair), tuple(reversed(pair)))]


BAD_NETWORKS: dict[str, tuple[object, str]] = {
    "not an object": ([1, 2], "network.json"),
    "missing sites": ({"name": "x"}, "sites"),
    "no sites": ({"name": "x", "sites": []}, "no sites"),
    "unknown key": ({"name": "x", "sites": SITES, "link": []}, "link"),
    "zero bandwidth": ({"name": "x", "sites": SITES, "links": [link("a", "b", 0)]}, "a->b"),
    "negative bandwidth": ({"name": "x", "sites": SITES, "links": [link("a", "b", -5)]}, "a->b"),
    "endless bandwidth": ({"name": "x", "sites": SITES, "links": [link("a", "b", 1e305)]}, "a->b"),
    "bandwidth is text": ({"name": "x", "sites": SITES, "links": [link("a", "b", "fast")]}, "bandwidth_mbps"),  # type: ignore[arg-type]
    "self-link": ({"name": "x", "sites": SITES, "links": [link("a", "a")]}, "itself"),
    "duplicate site": ({"name": "x", "sites": [*SITES, {"name": "a"}], "links": []}, "'a' is given twice"),
    "duplicate link": ({"name": "x", "sites": SITES, "links": [link("a", "b"), link("a", "b")]}, "given twice"),
    "link to nowhere": ({"name": "x", "sites": SITES, "links": [link("a", "z")]}, "'z'"),
}


def refused(code: int, *arguments: object, saying: str = "") -> None:
    result = tradewind(*arguments)
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    assert "Traceback" not in result.output and "InternalError" not in result.output, result.output
    said = " ".join(result.stderr.split())
    assert saying in said, result.stderr
    assert not (problems := problems_of(said)), f"{said}: {problems}"


@pytest.mark.parametrize("case", BAD_NETWORKS)
def test_bad_network_files(tmp_path: Path, case: str) -> None:
    content, saying = BAD_NETWORKS[case]
    path = tmp_path / "network.json"
    path.write_text(json.dumps(content))
    for arguments in (("network", path), ("plan", path, "--planner", "ring"), ("compare", path)):
        refused(2, *arguments, saying=saying)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cut.json", '{"name": "x", "sites": [{"name":'),
        (
            "nan.json",
            '{"name": "x", "sites": [{"name": "a"}], "links": [{"src": "a", "dst": "a", "bandwidth_mbps": NaN}]}',
        ),
        ("empty.json", ""),
        ("ragged.csv", ",a,b\na,0\nb,1,2,3\n"),
        ("nan.csv", ",a,b\na,0,nan\nb,1,0\n"),
        ("negative.csv", ",a,b\na,0,-1\nb,1,0\n"),
        ("broken.graphml", "<graphml><graph>"),
        ("broken.gml", "graph [ node [ id"),
        ("what.yaml", "name: x"),
    ],
)
def test_malformed_files(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    refused(2, "plan", path, "--planner", "ring", saying=name)


def test_binary_garbage_is_not_a_network_or_plan(tmp_path: Path) -> None:
    for suffix in (".json", ".csv", ".graphml", ".gml"):
        path = tmp_path / f"garbage{suffix}"
        path.write_bytes(bytes(range(256)) * 20)
        refused(2, "network", path, saying="garbage")
    refused(2, "check", "gscale", tmp_path / "garbage.json", saying="not a plan")


def test_disconnected_members_are_an_impossible_problem(tmp_path: Path) -> None:
    path = tmp_path / "apart.json"
    path.write_text(json.dumps({"name": "apart", "sites": SITES, "links": both("ab")}))
    for verb in (("plan", path, "--planner", "ring"), ("compare", path)):
        refused(3, *verb, saying="DisconnectedMembers: 'a' and 'c' cannot reach each other")
    succeed("plan", path, "--planner", "ring", "--members", "a,b")


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        (("network", "gscal"), "Did you mean 'gscale'"),
        (("network", "no-such-file.json"), "no such file"),
        (("network", "."), "BadNetwork"),
        (("network", ""), "unknown network ''"),
        (("network", "mesh", "--seed", "-1"), "seed"),
        (("network", "mesh", "--seed", "x"), "--seed"),
        (("network", "mesh", "--option", "n"), "KEY=VALUE"),
        (("network", "mesh", "--option", "n=three"), "n"),
        (("network", "mesh", "--option", "size=3"), "no option 'size'"),
        (("network", "mesh", "--option", "n=3", "--option", "n=4"), "twice"),
        (("network", "mesh", "--option", "min_mbps=nan"), "min_mbps"),
        (("network", "gscale", "--default-bandwidth", "1Gbps"), "catalog network"),
        (("network", "gscale", "--seed", "1"), "no option 'seed'"),
        (("planners", "rign"), "Did you mean 'ring'"),
        (("plan", "--planner", "ring"), "NETWORK"),
        (("plan", "gscale", "--planner", "rign"), "Did you mean 'ring'"),
        (("plan", "gscale", "--planner", "ring", "--members", "AS1,MARS"), "unknown site 'MARS'"),
        (("plan", "gscale", "--planner", "ring", "--members", "AS1"), "at least two members"),
        (("plan", "gscale", "--planner", "ring", "--members", "AS1,AS1"), "twice"),
        (("plan", "gscale", "--planner", "ring", "--members", "AS1,,AS2"), "empty name"),
        (("plan", "gscale", "--planner", "ring", "--members", ""), "empty name"),
        (("plan", "gscale", "--planner", "ring", "--bytes", "10PB"), "10PB"),
        (("plan", "gscale", "--planner", "ring", "--bytes", "0"), "at least one byte"),
        (("plan", "gscale", "--planner", "ring", "--bytes", "-1GB"), "at least one byte"),
        (("plan", "gscale", "--planner", "ring", "--bytes", "nan"), "not a size"),
        (("plan", "gscale", "--planner", "ring", "--bytes", "1e999GB"), "1e999GB"),
        (("plan", "gscale", "--planner", "ring", "--bytes", "3 apples"), "apples"),
        (("plan", "gscale", "--planner", "ring", "--max-tres", "3"), "no option 'max_tres'"),
        (("plan", "gscale", "--planner", "ring", "--order", "best"), "order"),
        (("plan", "gscale", "--planner", "ring", "--order"), "needs a value"),
        (("plan", "gscale", "--planner", "ring", "--order", "exact", "--order", "given"), "twice"),
        (("plan", "gscale", "--planner", "star", "--root", "MARS"), "MARS"),
        (("plan", "gscale", "--planner", "mtree", "--max-trees", "many"), "max_trees"),
        (("plan", "gscale", "--planner", "ring", "one-too-many"), "one-too-many"),
        (("compare", "gscale", "--planners", "ring,rign"), "Did you mean 'ring'"),
        (("compare", "gscale", "--planners", ""), "empty name"),
        (("compare", "gscale", "--out", "picture.jpg.exe"), ".png"),
        (("check", "gscale", "no-such-plan.json"), "cannot be read"),
        (("draw", "gscale"), "--out"),
        (("draw", "gscale", "--out", "picture"), ".png"),
        (("draw", "gscale", "--out", "x.png", "--shard", "0"), "PLAN.json"),
        (("fly", "gscale"), "fly"),
        (("networks", "--fast"), "--fast"),
    ],
)
def test_bad_arguments(
    arguments: tuple[str, ...], saying: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(2, *arguments, saying=saying)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--latency", "--seed", "--option", "--default-bandwidth"])
def test_flags_that_would_be_ignored_are_refused(tmp_path: Path, flag: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"name": "x", "sites": SITES, "links": both("ab", "bc")}))
    value = {"--latency": path, "--seed": 1, "--option": "n=3", "--default-bandwidth": "1Gbps"}[flag]
    refused(2, "network", path, flag, value)


def test_a_plan_for_another_network_is_refused(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    succeed("plan", "netstorm9", "--planner", "star", "--out", plan)
    refused(2, "check", "gscale", plan, saying="BadPlan")
    refused(2, "draw", "gscale", plan, "--out", tmp_path / "x.png", saying="'dc1' is not a site of 'gscale'")
    refused(2, "draw", "netstorm9", plan, "--out", tmp_path / "x.png", "--shard", 5, saying="shards 0 to 0")
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    "verb",
    [("plan", "netstorm9", "--planner", "star"), ("compare", "netstorm9", "--planners", "star"), ("draw", "netstorm9")],
)
def test_unwritable_out_is_refused_before_anything_is_done(tmp_path: Path, verb: tuple[str, ...]) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder.png").mkdir()
    for out in (tmp_path / "file" / "x.png", tmp_path / "folder.png", "/proc/nowhere/x.png"):
        refused(2, *verb, "--out", out, saying="cannot write")
    refused(2, *verb, "--out", tmp_path / "a\0b.png", saying="null byte")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.png"]


def test_out_replaces_whole_files_and_leaves_nothing_else_behind(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    out.write_text("old")
    linked = tmp_path / "linked.json"
    linked.symlink_to(out)
    succeed("plan", "netstorm9", "--planner", "star", "--out", linked)
    assert linked.is_symlink() and json.loads(out.read_text())["planner"] == "star"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["linked.json", "plan.json"]


def test_text_that_looks_like_markup_is_shown_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    sites = [{"name": "[red]a[/red]"}, {"name": "$b$:smile:"}, {"name": "[/]"}]
    pairs = [("[red]a[/red]", "$b$:smile:"), ("$b$:smile:", "[/]")]
    links = [link(src, dst) for a, b in pairs for src, dst in ((a, b), (b, a))]
    path.write_text(json.dumps({"name": "[bold]$x", "sites": sites, "links": links}))
    text = succeed(
        "plan", path, "--planner", "star", "--root", "[red]a[/red]", "--explain", "--out", tmp_path / "p.json"
    )
    assert "[red]a[/red]" in text and "$b$:smile:" in text
    assert "[bold]$x" in succeed("network", path)
    succeed("draw", path, tmp_path / "p.json", "--out", tmp_path / "x.png")
    succeed("compare", path, "--egress", "--out", tmp_path / "x.png")
