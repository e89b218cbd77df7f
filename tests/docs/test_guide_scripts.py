"""Scripts and manifests of the guides for schedulers, whose syntax is checked here; Slurm's runs with stand-ins."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from ranks import free_port
from tradewind.cli import app

ROOT = Path(__file__).parents[2]
FOLDERS = ("guides", "start", "concepts")
GUIDES = [
    ROOT / "docs" / "runtime.md",
    *(page for name in FOLDERS for page in sorted((ROOT / "docs" / name).glob("*.md"))),
]
BLOCK = re.compile(r"^```(bash|sh|yaml|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LITERAL = re.compile(r"^(\w+): \|\n((?:  .*\n|\n)+)", re.MULTILINE)
FOLDED = re.compile(r">-\n((?: {14}.*\n)+)")


def blocks(language: str) -> list[tuple[str, str]]:
    return [(page.name, text) for page in GUIDES for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def shell_scripts() -> list[tuple[str, str]]:
    """Every shell script of the guides, those inside manifests included."""
    inside = [(page, script) for page, text in blocks("yaml") for _, script in LITERAL.findall(text)]
    inside += [(page, script) for page, text in blocks("yaml") for script in FOLDED.findall(text)]
    return [*blocks("bash"), *blocks("sh"), *inside]


@pytest.mark.parametrize(("page", "script"), shell_scripts(), ids=lambda value: str(value)[:30])
def test_shell_scripts_parse(page: str, script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"{page}: {done.stderr}"


def commands() -> list[tuple[str, str]]:
    """Arguments of `tradewind` in scripts that do not run here."""
    shown = re.compile(r"^(?:\w+=\S+ )*tradewind (.*?)(?: #.*)?$", re.MULTILINE)
    return [(page, line) for page, script in shell_scripts() for line in shown.findall(script)]


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_that_do_not_run_here_have_valid_arguments(page: str, line: str) -> None:
    command: Any = get_command(app)
    words = shlex.split(line)
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"{page}: tradewind {line}"
        command = command.commands[words.pop(0)]
    command.make_context("tradewind", words)  # raises what the command line would say


def test_scripts_of_all_schedulers_are_looked_at() -> None:
    assert {"slurm.md", "kubernetes.md", "skypilot.md"} <= {page for page, _ in shell_scripts()}


@pytest.mark.parametrize(("page", "text"), blocks("yaml"), ids=lambda value: str(value)[:20])
def test_manifests_have_no_tabs_and_even_indentation(page: str, text: str) -> None:
    """What `make docs` parses as YAML, as far as it can be checked without a parser."""
    assert "\t" not in text, page
    assert all((len(line) - len(line.lstrip(" "))) % 2 == 0 for line in text.splitlines() if line.strip()), page


def test_pages_say_why_commands_outside_console_blocks_do_not_run_here() -> None:
    for page in GUIDES:
        text = page.read_text()
        if any(kind in ("sh", "bash") for kind, _ in BLOCK.findall(text)):
            assert re.search(r"Not run:|CI runs|CI does not", text), f"{page.name} does not say what CI runs of it"


@pytest.mark.parametrize(("page", "source"), blocks("python"), ids=lambda value: str(value)[:30])
def test_python_parses(page: str, source: str) -> None:
    if ">>> " not in source:
        compile(source, page, "exec")


def test_the_example_without_pytorch_runs(capsys: pytest.CaptureFixture[str]) -> None:
    source = next(text for page, text in blocks("python") if page == "runtime.md")
    exec(compile(source.replace(":4000", f":{free_port()}"), "runtime.md", "exec"), {})
    assert capsys.readouterr().out.startswith("('rank0',)")


@pytest.mark.slow
def test_the_slurm_script_trains_with_stand_ins_for_the_scheduler(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = next(text for page, text in blocks("bash") if page == "slurm.md" and "scontrol" in text)
    for name, body in {"scontrol": "echo 127.0.0.1", "srun": 'SLURM_NODEID=0 exec "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "train.sbatch").write_text(script)
    source = (ROOT / "examples" / "ddp_gloo.py").read_text().replace('"gloo"', '"tradewind"')
    (tmp_path / "train.py").write_text(source)
    torchrun = shutil.which("torchrun", path=str(Path(sys.executable).parent))
    assert torchrun is not None
    path = os.pathsep.join([str(tmp_path), str(Path(torchrun).parent), os.environ["PATH"]])
    slurm = {"SLURM_JOB_NODELIST": "n[0]", "SLURM_NNODES": "1", "SLURM_CPUS_PER_TASK": "1"}
    done = subprocess.run(
        ["bash", "train.sbatch"],
        cwd=tmp_path,
        env={**os.environ, **slurm, "PATH": path},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0 and "epoch 4: loss" in done.stdout, done.stdout + done.stderr
