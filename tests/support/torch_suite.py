"""Runs PyTorch's own backend tests over Gloo and over Tradewind, and keeps both results for the documentation.

    python tests/support/torch_suite.py .venv-torch-2.15.0                 # make torch-suite TORCH=2.15.0
    python tests/support/torch_suite.py .venv-torch-2.15.0 test_barrier    # these again

Results are in docs/reference/torch_suite.json, by version of PyTorch; tests that run again replace their results.
`python docs/generate.py` makes the table in docs/reference/compatibility.md from them. The exit code is 1 if a test
passes over Gloo and not over Tradewind, unless PyTorch refuses it for every other backend (`REFUSED`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "reference" / "torch_suite.json"
TESTS = Path(__file__).with_name("torch_suite_tests.py")
BACKENDS = ("gloo", "tradewind")
NEEDED = "expecttest"
"""A package that PyTorch's tests import."""
WORLD = 3
"""Ranks of every test, as in PyTorch's CI for Gloo."""
PASSED = "passed"
REFUSED: dict[str, str] = {}
"""Tests that no backend but Gloo can pass, and why."""


def outcomes(python: Path, backend: str, names: list[str]) -> dict[str, str]:
    """The outcome of every test over one backend, by name: passed, skipped, or the first line of its error."""
    with tempfile.TemporaryDirectory() as folder:
        report, temporary = Path(folder) / "report.xml", Path(folder) / "ranks"
        temporary.mkdir()
        environment = {
            **os.environ,
            "BACKEND": "gloo",
            "SUITE_BACKEND": backend,
            "WORLD_SIZE": str(WORLD),
            "TEMP_DIR": str(temporary),
            "OMP_NUM_THREADS": "1",
        }
        command: list[str | Path] = [
            python,
            "-m",
            "pytest",
            "-q",
            "-c",
            os.devnull,
            "--rootdir",
            folder,
            f"--junitxml={report}",
            TESTS,
        ]
        chosen = ["-k", " or ".join(names)] if names else []
        subprocess.run([*command, *chosen], env=environment, cwd=folder, check=False)
        return {str(case.get("name")): outcome_of(case) for case in ElementTree.parse(report).iter("testcase")}


def outcome_of(case: ElementTree.Element) -> str:
    """Passed, skipped, or the first line of the error of a test."""
    if case.find("skipped") is not None:
        return "skipped"
    failure = case.find("failure") if case.find("failure") is not None else case.find("error")
    return PASSED if failure is None else f"failed: {str(failure.get('message')).splitlines()[0][:160]}"


def missing(run: dict[str, dict[str, str]]) -> dict[str, str]:
    """The tests that pass over Gloo and not over Tradewind, with what these said."""
    gloo, ours = (run[backend] for backend in BACKENDS)
    return {name: ours[name] for name in sorted(gloo) if gloo[name] == PASSED and ours.get(name) != PASSED}


def main(environment: Path, names: list[str]) -> int:
    """Run the tests over both backends and keep the results; returns the exit code."""
    python = environment.absolute() / "bin" / "python"
    said = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    commit = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", NEEDED], check=True)
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    run: dict[str, Any] = kept.setdefault(said.stdout.strip(), {})
    run |= {"date": datetime.now(UTC).date().isoformat(), "commit": commit.stdout.strip(), "world": WORLD}
    with ThreadPoolExecutor() as pool:  # both at once, so that load affects them alike
        running = {pool.submit(outcomes, python, backend, names): backend for backend in BACKENDS}
        for done in as_completed(running):
            run[running[done]] = run.get(running[done], {}) | done.result()
            KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    worse = missing(run)
    for name, text in worse.items():
        print(f"{name}: {text}; {REFUSED.get(name, 'passes over Gloo')}")
    passed = [sum(outcome == PASSED for outcome in run[backend].values()) for backend in BACKENDS]
    print(f"passed: Gloo {passed[0]}, Tradewind {passed[1]}")
    return 1 if set(worse) - set(REFUSED) else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
