"""Run benchmarks: `python -m benchmarks` for all, `python -m benchmarks NAME ...` for some.

Each prints its tables, stores what it measured in docs/benchmarks/data/NAME.json and makes docs/benchmarks/NAME.md from
it; `--dry` only prints, and `--beside` keeps what the page shows of another machine, and adds this below it. `--render`
measures nothing and makes all pages from what is stored.
"""

from __future__ import annotations

import argparse
import inspect
import io
import os
import sys
from importlib import import_module
from pathlib import Path

from benchmarks._pages import Result, blocks_of, header_of_this_run, render_all, write

FOLDER = Path(__file__).parent
SETTINGS = (
    "N",
    "FIRST",
    "CODED",
    "ROUNDS",
    "PARTS",
    "SECONDS",
    "SEEDS",
    "STARTS",
    "PAIRS",
    "SITES",
    "NETWORKS",
    "TRIES",
    "TRANSPORTS",
)
"""Environment variables that make a benchmark longer or shorter; a page shows those that were set and that it reads."""


def names() -> list[str]:
    """All benchmarks, by name."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))


def measure(name: str) -> Result:
    """Run one benchmark; returns its result."""
    module = import_module(f"benchmarks.{name}")
    title, _, about = (inspect.getdoc(module) or name).partition("\n")
    read = [setting for setting in SETTINGS if f'"{setting}"' in inspect.getsource(module)]
    given = [f"{setting}={os.environ[setting]}" for setting in read if setting in os.environ]
    header = header_of_this_run(" ".join([*given, f"python -m benchmarks {name}"]))
    tables = io.StringIO()
    data = module.run(tables)
    return Result(title.rstrip("."), about.strip(), header, blocks_of(tables.getvalue()), data or {})


def main() -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run benchmarks.")
    parser.add_argument("name", nargs="*", help=f"one or more of: {', '.join(names())}; all by default")
    parser.add_argument("--dry", action="store_true", help="only print, write no files")
    parser.add_argument(
        "--beside", action="store_true", help="keep the page's result, of another machine, and add this"
    )
    parser.add_argument("--render", action="store_true", help="measure nothing; make all pages from the stored data")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.name) - set(names()))
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; expected one of: {', '.join(names())}")
    if arguments.render:
        print("\n".join(str(path) for path in render_all()) or "all pages are as their data say")
        return 0
    for name in arguments.name or names():
        print(f"running {name} ...", file=sys.stderr, flush=True)
        result = measure(name)
        print(result.markdown(), flush=True)
        if not arguments.dry:
            write(name, result, beside=arguments.beside)
    return 0


if __name__ == "__main__":
    sys.exit(main())
