"""Run every command that the documents show, and put its present output below it.

A command is a line `$ COMMAND` in a block marked `console`; what follows, up to the next command or the block's end, is
its output. `python docs/refresh.py` rewrites README.md and docs/*.md; `--check` only says what would change, with
times of planning left out, since no two runs agree on them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.DOTALL | re.MULTILINE)
DURATION = re.compile(r"\b\d+(\.\d+)? (ns|µs|ms|s|h)\b|planning_seconds\": [\d.e-]+")
SPACES = re.compile(r"[ ─]+")


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


def refreshed(text: str) -> str:
    """The document with present outputs."""

    def run_block(found: re.Match[str]) -> str:
        shown = (line for line in found[0].splitlines() if line.startswith("$ "))
        return "".join(f"{line}\n{output_of(line[2:])}" for line in shown)

    return BLOCK.sub(run_block, text)


def main() -> int:
    """Refresh, or check."""
    only_check = "--check" in sys.argv[1:]
    stale = 0
    for path in documents():
        before = path.read_text()
        after = refreshed(before)
        same = [SPACES.sub(" ", DURATION.sub("", text)) for text in (before, after)]
        if same[0] != same[1]:
            stale += 1
            print(f"{path.relative_to(ROOT)}: {'out of date' if only_check else 'refreshed'}")
        if not only_check and after != before:
            path.write_text(after)
    return 1 if only_check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
