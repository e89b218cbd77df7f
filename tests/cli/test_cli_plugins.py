"""Planners and policies from outside: files and entry points on the command line, and their mistakes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli import succeed, succeed_json, tradewind
from tradewind.planning import PLANNERS
from tradewind.policy import POLICIES
from tradewind.schemes import scheme_names

ROOT = Path(__file__).parents[2]
LINE = f"{ROOT / 'examples' / 'plugin_planner.py'}:plan_line"
MAJORITY = f"{ROOT / 'examples' / 'plugin_policy.py'}:Majority"
IN_A_RUN = ("simulate", "mesh", "--option", "n=3", "--bytes", "1MB", "--seconds", 1, "--compute", "100ms")

PLANNER = """
from dataclasses import dataclass
from tradewind import Network, Plan
from tradewind.registry import NoOptions

def plan(network: Network, members: tuple[str, ...], nbytes: int, options: NoOptions) -> Plan:
    {body}
"""

POLICY = """
from tradewind import Network
from tradewind.policy import Machine
from tradewind.registry import NoOptions

class Mine(Machine):
    def __init__(self, network, workers, options: NoOptions, *, seed, now_s):
        super().__init__(network, workers, seed=seed, now_s=now_s)

    def decide(self):
        {body}
"""


def test_a_planner_in_a_file_plans_with_its_own_options() -> None:
    given, wide = (
        succeed_json("plan", "gscale", "--planner", LINE, "--bytes", "1GB", *flags)
        for flags in ((), ("--order", "bandwidth"))
    )
    assert given["planner"] == wide["planner"] == "line" and given["shards"] != wide["shards"]
    [option] = succeed_json("planners", LINE)["options"]
    assert (option["option"], option["flag"], option["default"]) == ("order", "--order", "given") and option["meaning"]
    compared = succeed_json("compare", "gscale", "--planners", f"ring,{LINE}")
    assert {entry["planner"] for entry in compared["planners"]} == {"ring", "line"}


def test_a_policy_and_a_planner_in_files_make_a_scheme() -> None:
    [chosen] = succeed_json(*IN_A_RUN, "--policy", MAJORITY, "--planner", LINE, "--policy-option", "wait_s=0.2")
    [paired] = succeed_json(*IN_A_RUN, "--scheme", f"{MAJORITY}+{LINE}")
    assert chosen["rounds"] >= 1 and paired["rounds"] >= 1
    assert (paired["policy"], paired["planner"]) == (MAJORITY, LINE)
    assert succeed_json("policies", MAJORITY)["options"][0]["option"] == "wait_s"
    assert succeed_json("bench", "wan", "mesh", "--option", "n=2", "--bytes", "20kB", "--rounds", 1, "--planner", LINE)


def test_lists_say_where_each_entry_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # a narrow table wraps summaries
    for verb, kind, registry in (("planners", "planner", PLANNERS), ("policies", "policy", POLICIES)):
        listed = succeed_json(verb)
        assert [entry[kind] for entry in listed] == list(registry.built_in)
        assert {entry["origin"] for entry in listed} == {"built in"}
        shown = succeed(verb)
        assert all(" ".join(entry["summary"].split()[:3]) in shown for entry in listed)
    listed = succeed_json("schemes")
    assert [entry["scheme"] for entry in listed] == list(scheme_names())
    for entry in listed:
        assert entry["policy"] in POLICIES.built_in
        assert entry["planner"] in PLANNERS.built_in or (entry["scheme"], entry["planner"]) == ("tradewind", None)
        assert entry["scheme"] in succeed("schemes")


@pytest.mark.parametrize("name", POLICIES.built_in)
def test_every_option_of_every_policy_has_a_meaning(name: str) -> None:
    for option in succeed_json("policies", name)["options"]:
        assert option["meaning"], f"{name}: {option['option']} does not say what it means"
    succeed("policies", name)


def blamed(path: Path, name: str, *arguments: object, saying: str) -> None:
    """It fails as the plug-in's mistake, and says which plug-in and why."""
    result = tradewind(*arguments)
    assert result.exit_code == 2, (result.exit_code, result.output)
    assert "InternalError" not in result.output and "bug in Tradewind" not in result.output
    said = " ".join(result.stderr.split())
    assert said.startswith("BadPlugin: ") and f"'{path}:{name}'" in said and saying in said, result.stderr


PLANNER_MISTAKES = {
    "raises": ("raise KeyError('fra')", "plan raised KeyError: 'fra'"),
    "asks for a site that is not there": ("network.site('mars')", "raised UnknownName: unknown site 'mars'"),
    "returns nothing": ("pass", "returned NoneType, expected a tradewind.Plan"),
    "returns another size": ("return Plan('p', network.name, members, 1, ())", "a plan of 1 bytes among"),
    "returns an invalid plan": ("return Plan('p', network.name, members, nbytes, ())", "invalid plan"),
    "returns nonsense in a plan": ("return Plan('p', network.name, members, nbytes, 7)", "raised TypeError"),
    "a name that is none": ("return Plan(3, network.name, members, nbytes, ())", "`planner` or `reason` is not text"),
    "a very long reason": ("raise KeyError('x' * 10**5)", "xxx ..."),
    "exits": ("raise SystemExit(0)", "plan raised SystemExit"),
}


@pytest.mark.parametrize("mistake", PLANNER_MISTAKES)
def test_a_planner_that_fails_is_to_blame_itself(mistake: str, tmp_path: Path) -> None:
    body, saying = PLANNER_MISTAKES[mistake]
    file = tmp_path / "mine.py"
    file.write_text(PLANNER.format(body=body))
    blamed(file, "plan", "plan", "gscale", "--planner", f"{file}:plan", saying=saying)
    blamed(file, "plan", "compare", "gscale", "--planners", f"ring,{file}:plan", saying=saying)
    blamed(file, "plan", *IN_A_RUN, "--planner", f"{file}:plan", saying=saying)


FILES = {
    "missing module": ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
    "syntax": ("def plan(:", "mine.py, line 1)"),
    "raises": ("x = 1\n1 / 0", "raised ZeroDivisionError: division by zero"),
    "line": ("x = 1\n1 / 0", "mine.py, line 2)"),
    "no such name": ("", "defines no 'plan'"),
    "not a function": ("plan = 3", "it is int, not a function"),
    "too few parameters": ("def plan(network): ...", "cannot be called as Tradewind does (too many positional"),
    "no annotation": ("def plan(network, members, nbytes, options): ...", "`options` of plan is not annotated"),
    "annotation": ("def plan(a, b, c, options: 'Gone'): ...", "name 'Gone' is not defined"),
    "one more parameter": ("def plan(a, b, c, options, more): ...", "missing a required argument: 'more'"),
}


@pytest.mark.parametrize("mistake", FILES)
def test_a_file_that_cannot_be_loaded_says_why(mistake: str, tmp_path: Path) -> None:
    content, saying = FILES[mistake]
    file = tmp_path / "mine.py"
    file.write_text(content)
    blamed(file, "plan", "plan", "gscale", "--planner", f"{file}:plan", "--flag", saying=saying)
    blamed(file, "plan", "planners", f"{file}:plan", saying=saying)


def test_a_file_that_is_not_there_and_one_without_a_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    blamed(file, "plan", "plan", "gscale", "--planner", f"{file}:plan", saying="cannot be read (No such file")
    result = tradewind("plan", "gscale", "--planner", file)
    assert result.exit_code == 2 and f"Write {file}:NAME" in result.stderr


OPTIONS = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Options:
    {fields}
def plan(network, members, nbytes, options: Options): ...
"""


def test_options_of_a_plugin_are_refused_like_ours_and_a_broken_dataclass_is_its_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OPTIONS.format(fields="depth: int"))
    needed = tradewind("plan", "gscale", "--planner", f"{file}:plan")
    assert needed.exit_code == 2 and needed.stderr.startswith("BadOption") and "depth" in needed.stderr
    assert succeed_json("planners", f"{file}:plan")["options"][0]["default"] == "(must be given)"
    wrong = tradewind("plan", "gscale", "--planner", f"{file}:plan", "--depth", "deep")
    assert wrong.exit_code == 2 and wrong.stderr.startswith("BadOption")
    other = tmp_path / "other.py"
    other.write_text(OPTIONS.format(fields="x: int = 0\n    def __post_init__(self): self.y.z"))
    blamed(other, "plan", "plan", "gscale", "--planner", f"{other}:plan", saying="Options(...) raised AttributeError")


POLICY_MISTAKES = {
    "raises": ("raise KeyError('fra')", "Mine.decide raised KeyError: 'fra'"),
    "starts with members that are not ready": (
        "self.start(self.roster.live, 'now')",
        "'w2' is to start a round, but it is training, not ready",
    ),
    "weights": ("self.start(self.roster.queue, 'now', weights=[2])", "Mine.decide failed: weights of"),
    "wakes at once": ("self.set_timer('t', self.now_s, 'now')", "expected a later time"),
    "a time that is none": ("self.set_timer('t', 'soon', 'now')", "raised TypeError"),
    "a reason that is none": ("self.set_timer('t', 9.0, 1)", "must be a string, got 1"),
    "handle": (
        "pass\n    def handle(self, event, now_s): return [1]",
        "returned [1], expected a tuple of actions",
    ),
    "handle raises": ("pass\n    def handle(self, event, now_s): 1 / 0", "raised ZeroDivisionError"),
    "observe": ("pass\n    def observe(self, event): 1 / 0", "raised ZeroDivisionError"),
    "planner": (
        "if len(self.roster.queue) == 3: self.start(self.roster.queue, 'all', plan_hint='rings')",
        "plan_hint, but unknown planner 'rings'",
    ),
}


@pytest.mark.parametrize("mistake", POLICY_MISTAKES)
def test_a_policy_that_fails_is_to_blame_itself(mistake: str, tmp_path: Path) -> None:
    body, saying = POLICY_MISTAKES[mistake]
    file = tmp_path / "mine.py"
    file.write_text(POLICY.format(body=body))
    blamed(file, "Mine", *IN_A_RUN, "--policy", f"{file}:Mine", saying=saying)


@pytest.mark.parametrize(
    ("content", "saying"),
    [
        ("Mine = 3", "not a subclass of tradewind.policy.Machine"),
        ("class Mine: ...", "not a subclass of tradewind.policy.Machine"),
        ("from tradewind.policy import Machine\nclass Mine(Machine): ...", "does not define decide"),
        (
            "from tradewind.policy import Machine\nclass Mine(Machine):\n    def decide(self): ...",
            "Expected __init__(self, network, workers, options: SomeDataclass, *, seed, now_s)",
        ),
        (POLICY.format(body="pass").replace("super().__init__(", "1 / 0; super().__init__("), "Mine.__init__ raised"),
    ],
)
def test_a_class_that_is_not_a_policy_is_reported_with_the_reason(content: str, saying: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(content)
    blamed(file, "Mine", *IN_A_RUN, "--policy", f"{file}:Mine", saying=saying)


def test_the_traceback_of_a_plugin_is_shown_on_demand(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PLANNER.format(body="raise KeyError('fra')"))
    shown = tradewind("--debug", "plan", "gscale", "--planner", f"{file}:plan")
    assert shown.exit_code == 2 and "Traceback" in shown.stderr and "KeyError: 'fra'" in shown.stderr


def installed(folder: Path, name: str, entry_points: str, module: str) -> None:
    """A distribution as pip leaves it: its module and its metadata."""
    folder.mkdir(exist_ok=True)
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(entry_points)
    (folder / f"{name}.py").write_text(module)


def with_installed(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "tradewind", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_installed_distributions_offer_planners_and_policies(tmp_path: Path) -> None:
    examples = (ROOT / "examples" / "plugin_planner.py").read_text() + "\n\n"
    policies = (ROOT / "examples" / "plugin_policy.py").read_text().replace("from __future__ import annotations", "")
    points = (
        "[tradewind.planners]\nline = lines:plan_line\nring = lines:plan_line\n"
        "[tradewind.policies]\nmajority = lines:Majority\n"
    )
    installed(tmp_path, "lines", points, examples + policies)
    installed(tmp_path, "broken", "[tradewind.planners]\nbroken = broken:plan\n", "import nothing_of_that_name")
    listed = with_installed(tmp_path, "planners", "--json")
    assert listed.returncode == 0
    assert '"entry point lines:plan_line of lines 1.2"' in listed.stdout
    assert "cannot be loaded: planner 'broken' is a plug-in (entry point broken:plan of broken 1.2)" in listed.stdout
    assert "planner 'ring' of entry point lines:plan_line of lines 1.2 is not used" in listed.stderr
    planned = with_installed(tmp_path, "plan", "gscale", "--planner", "line", "--order", "bandwidth")
    assert planned.returncode == 0 and "line on gscale" in planned.stdout, planned.stderr
    ran = with_installed(tmp_path, *IN_A_RUN, "--scheme", "majority+line", "--json")
    assert ran.returncode == 0 and '"policy": "majority"' in ran.stdout, ran.stderr
    failed = with_installed(tmp_path, "plan", "gscale", "--planner", "broken")
    assert failed.returncode == 2 and "importing broken:plan raised ModuleNotFoundError" in failed.stderr
    compared = with_installed(tmp_path, "compare", "swan", "--json")
    assert compared.returncode == 0 and '"BadPlugin"' in compared.stdout and '"line"' in compared.stdout


def test_two_distributions_with_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        installed(tmp_path, name, f"[tradewind.planners]\nline = {name}:plan\n", "")
    failed = with_installed(tmp_path, "plan", "gscale", "--planner", "line")
    assert failed.returncode == 2 and "of one 1.2 and entry point two:plan of two 1.2 use" in failed.stderr
