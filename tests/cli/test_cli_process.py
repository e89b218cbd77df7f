"""The command as a real process: streams, pipes, exit codes, and what it loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "tradewind")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "160", **environment},
        timeout=120,
        check=False,
    )


def test_data_goes_to_stdout_and_diagnostics_to_stderr(tmp_path: Path) -> None:
    done = run("compare", "netstorm9", "--planners", "ring,star", "--json", "--out", str(tmp_path / "x.png"))
    assert done.returncode == 0 and done.stderr == ""
    assert len(json.loads(done.stdout)["planners"]) == 2


def test_errors_are_one_message_on_stderr() -> None:
    done = run("plan", "gscale", "--planner", "ring", "--members", "AS1,MARS")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("UnknownName: unknown site 'MARS'.") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("networks",), ("network", "gscale", "--json"), ("planners", "--json"), ("--help",)]
)
def test_a_reader_that_closes_the_pipe_early_causes_no_message(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([*COMMAND, *arguments], stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


BUG = """
import sys
import tradewind.planning.baselines.ring as ring
def broken(*_): raise RuntimeError("the ring is cursed")
ring._ring_order = broken
sys.argv = ["tradewind", *{arguments!r}]
from tradewind.cli import main
main()
"""


@pytest.mark.parametrize(
    ("flags", "environment", "traceback"),
    [((), {}, False), (("--debug",), {}, True), ((), {"TRADEWIND_DEBUG": "1"}, True)],
)
def test_a_bug_says_that_it_is_one(flags: tuple[str, ...], environment: dict[str, str], traceback: bool) -> None:
    program = BUG.format(arguments=[*flags, "plan", "gscale", "--planner", "ring"])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )
    assert done.returncode == 1 and "the ring is cursed" in done.stderr
    assert ("Traceback" in done.stderr) == traceback
    assert ("bug in Tradewind" in done.stderr) != traceback


def test_a_bug_in_one_planner_does_not_hide_the_others() -> None:
    program = BUG.format(arguments=["compare", "netstorm9", "--planners", "ring,star", "--json"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    data = json.loads(done.stdout)
    assert done.returncode == 1 and "the ring is cursed" in done.stderr
    assert [entry["planner"] for entry in data["planners"]] == ["star"]
    assert [(entry["planner"], entry["error"]) for entry in data["failed"]] == [("ring", "InternalError")]


def loaded_by(program: str) -> set[str]:
    code = f"{program}\nimport sys\nprint(' '.join(name.split('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_importing_tradewind_loads_nothing_heavy() -> None:
    assert not loaded_by("import tradewind") & {"numpy", "scipy", "matplotlib", "typer", "rich", "msgspec"}


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    assert not loaded_by("import tradewind.cli") & {"numpy", "scipy", "matplotlib", "msgspec"}


EXTRAS = ("matplotlib", "typer", "rich")


@pytest.mark.parametrize(
    "program", ["import tradewind", "import tradewind; tradewind.connect", "import tradewind.torch"]
)
def test_a_rank_needs_no_extra(program: str, tmp_path: Path) -> None:
    if program.endswith("torch"):
        pytest.importorskip("torch")
    assert done_without(EXTRAS, tmp_path, "-c", program) == (0, "")


def test_the_command_without_its_packages_says_what_to_install(tmp_path: Path) -> None:
    code, said = done_without(EXTRAS, tmp_path, "-m", "tradewind", "networks")
    assert code == 2 and said.count("\n") == 1
    assert "typer and rich" in said and "pip install 'tradewind[cli]'" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("draw", "gscale", "--out", "x.png"),
        ("compare", "gscale", "--bytes", "1GB", "--out", "x.svg"),
        ("timeline", "no-such-trace.jsonl", "--out", "x.pdf"),
        ("reproduce", "mtree/fig6", "--out", "."),
        ("demo", "--out", "x.html"),
        ("bench", "wan", "gscale", "--backend", "auto", "--out", "x.png"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_picture_without_matplotlib_is_refused_before_any_work(arguments: tuple[str, ...], tmp_path: Path) -> None:
    code, said = done_without(("matplotlib",), tmp_path, "-m", "tradewind", *arguments)
    assert code == 2 and said.count("\n") == 1 and "pip install 'tradewind[plot]'" in said


def test_the_command_needs_matplotlib_for_pictures_only(tmp_path: Path) -> None:
    assert done_without(("matplotlib",), tmp_path, "-m", "tradewind", "compare", "gscale", "--planners", "star") == (
        0,
        "",
    )


def done_without(packages: tuple[str, ...], folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit code, and what is said on stderr, where these packages are not installed."""
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({packages!r}))\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_lab_does_not_load_what_only_its_sites_need() -> None:
    assert not loaded_by("import tradewind.lab.session") & {"scipy", "torch", "matplotlib"}


def test_the_interpreter_runs_the_package() -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("tradewind 0.")
    assert "Usage: python -m tradewind" in run("--help").stdout


def test_planning_does_not_load_matplotlib() -> None:
    assert "matplotlib" not in loaded_by("import tradewind.comparison, tradewind.cli.show_plan, tradewind.catalog")
