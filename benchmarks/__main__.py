"""Run benchmarks: `python -m benchmarks` for all, `python -m benchmarks NAME ...` for some.

Each prints its tables and writes them to docs/benchmarks/NAME.md; `--dry` only prints.
"""

from __future__ import annotations

import argparse
import inspect
import io
import os
import platform
import sys
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parent / "docs" / "benchmarks"


def names() -> list[str]:
    """All benchmarks, by name."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))


def report(name: str) -> str:
    """Run one benchmark; returns its report as Markdown."""
    module = import_module(f"benchmarks.{name}")
    title, _, rest = (inspect.getdoc(module) or name).partition("\n")
    tables = io.StringIO()
    module.run(tables)
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    intro = f"# {title.rstrip('.')}\n\n{rest.strip()}\n\n" if rest.strip() else f"# {title.rstrip('.')}\n\n"
    return f"{intro}`python -m benchmarks {name}`, {machine}.\n\n{tables.getvalue().strip()}\n"


def main() -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run benchmarks.")
    parser.add_argument("name", nargs="*", help=f"one or more of: {', '.join(names())}; all by default")
    parser.add_argument("--dry", action="store_true", help="only print, write no files")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.name) - set(names()))
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; expected one of: {', '.join(names())}")
    for name in arguments.name or names():
        print(f"running {name} ...", file=sys.stderr, flush=True)
        text = report(name)
        print(text, flush=True)
        if not arguments.dry:
            RESULTS.mkdir(parents=True, exist_ok=True)
            (RESULTS / f"{name}.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
