"""Rules for the project's packaging: one version, help and completion for every verb, the same checks in CI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import tradewind
from cli import succeed
from tradewind.cli import app, lab

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
VERBS = [[command.name or ""] for command in app.registered_commands]
LAB_VERBS = [["lab", command.name or ""] for command in lab.app.registered_commands]


def test_the_version_stands_in_one_place() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"] and "version" not in PROJECT["project"]
    home = ROOT / PROJECT["tool"]["hatch"]["version"]["path"]
    assert re.findall(r'^__version__ = "(.*)"$', home.read_text(), re.M) == [tradewind.__version__]
    assert succeed("--version").strip() == f"tradewind {tradewind.__version__}"
    assert metadata.version("tradewind") == tradewind.__version__, "install again: make clean test"
    literal = f'"{tradewind.__version__}"'
    assert [path for path in (ROOT / "src").rglob("*.py") if literal in path.read_text()] == [home]


@pytest.mark.parametrize("verb", [[], ["lab"], *VERBS, *LAB_VERBS], ids=" ".join)
def test_every_verb_has_help_by_its_short_flag(verb: list[str]) -> None:
    assert len(VERBS) > 15 and LAB_VERBS
    assert "Usage: tradewind" in succeed(*verb, "-h")


def completing(**environment: str) -> str:
    program = "import sys; sys.argv = ['tradewind']; from tradewind.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_a_script_for_completion(shell: str) -> None:
    script = completing(_TRADEWIND_COMPLETE=f"source_{shell}")
    assert "tradewind" in script and f"complete_{shell}" in script


def test_verbs_are_completed() -> None:
    found = completing(_TRADEWIND_COMPLETE="complete_bash", COMP_WORDS="tradewind pl", COMP_CWORD="1")
    assert {"plan", "planners"} == set(found.split())


def test_the_workflow_runs_what_ci_runs_with_every_supported_python() -> None:
    assert re.search(r"- run: \.ci/run$", WORKFLOW, re.M) and "make test" in (ROOT / ".ci" / "run").read_text()
    matrix = re.search(r"python: \[(.*)\]", WORKFLOW)
    assert matrix is not None
    supported = [
        found[1]
        for line in PROJECT["project"]["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))
    ]
    assert re.findall(r'"(3\.\d+)"', matrix[1]) == supported


def test_hooks_run_the_checks_of_make_check() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"^  - repo: (.*)$", hooks, re.M)) == {"local"}, "hooks must work without a network"
    checks = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert checks is not None
    for command in re.findall(r"\$\(BIN\)/([a-z]+(?: [a-z]+)?(?: --check)?)", checks[1]):
        assert f"entry: .venv/bin/{command}" in hooks, command


def test_decisions_are_numbered_and_have_their_parts() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    numbers = [int(page.name[:4]) for page in pages]  # with gaps while several are being written
    assert numbers[0] == 1 and len(numbers) == len(set(numbers)) >= 15
    for page in pages[7:]:  # the first ones have another format
        assert page.read_text().startswith(f"# {int(page.name[:4])}. "), page.name
        parts = re.findall(r"^## (.*)$", page.read_text(), re.M)
        assert parts == ["Context", "Decision", "Alternatives", "Consequences"], page.name
