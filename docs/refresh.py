"""Run every command that the documents show, and put its present output below it.

A command is a line `$ COMMAND` in a block marked `console`; what follows, up to the next command or the block's end, is
its output. Blocks that show no output are left to the tests. `python docs/refresh.py` rewrites README.md and all pages.
`--computed` leaves out what measures the machine (demo, bench, lab, doctor), which belongs on a quiet one. `--check`
changes nothing and names the commands that print something else now: times of planning are not compared, and of what is
measured only the form, since no two runs agree on the numbers. Other arguments name the documents to look at.

Tables of options, between `<!-- options GROUP -->` and `<!-- end -->`, are made from the dataclasses.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = re.compile(r"<!-- options (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.DOTALL | re.MULTILINE)
DURATION = re.compile(r"\b\d+(\.\d+)? (ns|µs|ms|s|h)\b|planning_seconds\": ?[\d.e-]+")
MEASURED = re.compile(r"tradewind (demo|bench|lab|doctor|secret)\b|local_sgd")
MEASUREMENT = re.compile(r"\S+->\S+|[\d.]+(e-?\d+)?%?x?( (ns|µs|ms|s|h|[kMG]?bps))?")
SPACES = re.compile(r"[\s─]+")


def documents() -> list[Path]:
    """The documents that show commands."""
    return [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if path.exists()]


def commands(text: str) -> list[str]:
    """All commands that a document shows, in order."""
    return [line[2:] for block in BLOCK.findall(text) for line in block.splitlines() if line.startswith("$ ")]


def output_of(command: str) -> str:
    """What the command prints, errors included, run in the repository with its own Python first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "COLUMNS": "118"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return "".join(f"{line}\n" for line in lines if line)


def entries(block: str) -> list[tuple[str, str]]:
    """Commands of a block with the outputs that it shows.

    >>> entries("$ true\n$ echo a\na\n")
    [('true', ''), ('echo a', 'a\\n')]
    """
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def options_table(group: str) -> str:
    """The options of a group of `RunOptions`, or (`run`) of `RunOptions` itself, as a Markdown table."""
    from tradewind.cli.planner_flags import run_option_meanings
    from tradewind.runtime.options import GROUPS, RunOptions, option_paths, value_at

    lines = ["| option | variable | default | meaning |", "|---|---|---|---|"]
    for path in option_paths():
        of, _, field = path.rpartition(".")
        if of == (group if group in GROUPS else ""):
            default = value_at(RunOptions(), path)
            shown = "" if default is None or default == {} else f"`{default}`"
            lines.append(f"| `{field}` | `TRADEWIND_{field.upper()}` | {shown} | {run_option_meanings()[path]} |")
    return "\n".join(lines) + "\n"


def form(command: str, output: str) -> str:
    """What must be the same in every run of a command."""
    lasting = DURATION.sub("", output)
    if MEASURED.search(command):
        lasting = MEASUREMENT.sub("#", lasting)
    return SPACES.sub(" ", lasting)


def refreshed(text: str, computed_only: bool) -> tuple[str, list[str]]:
    """The document with present outputs, and the commands that print something else than it says."""
    stale = []

    def run_block(found: re.Match[str]) -> str:
        if not any(shown for _, shown in entries(found[0])):
            return found[0]
        lines = []
        for command, shown in entries(found[0]):
            measured = MEASURED.search(command) is not None
            present = shown if computed_only and measured else output_of(command)
            if form(command, present) != form(command, shown):
                stale.append(command)
            elif not measured:
                present = shown  # only times of planning differ
            lines.append(f"$ {command}\n{present}")
        return "".join(lines)

    def make_table(found: re.Match[str]) -> str:
        made = options_table(found[1])
        if made != found[2]:
            stale.append(f"table of options: {found[1]}")
        return f"<!-- options {found[1]} -->\n{made}<!-- end -->"

    return TABLE.sub(make_table, BLOCK.sub(run_block, text)), stale


def main() -> int:
    """Refresh, or check."""
    flags = {argument for argument in sys.argv[1:] if argument.startswith("--")}
    if flags - {"--check", "--computed"}:
        print(f"unknown: {', '.join(sorted(flags))}; known: --check, --computed")
        return 2
    chosen = [Path(argument).resolve() for argument in sys.argv[1:] if argument not in flags] or documents()
    any_stale = False
    for path in chosen:
        before = path.read_text()
        after, stale = refreshed(before, "--computed" in flags)
        for command in stale:
            any_stale = True
            print(f"{path.relative_to(ROOT)}: {'out of date' if '--check' in flags else 'refreshed'}: {command}")
        if "--check" not in flags and after != before:
            path.write_text(after)
    return 1 if "--check" in flags and any_stale else 0


if __name__ == "__main__":
    sys.exit(main())
