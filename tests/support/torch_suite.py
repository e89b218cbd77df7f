"""Runs PyTorch's own backend tests over Gloo and over Tradewind, and keeps both results for the documentation.

    python tests/support/torch_suite.py .venv-torch-2.15.0                 # make torch-suite TORCH=2.15.0
    python tests/support/torch_suite.py .venv-torch-2.15.0 test_barrier    # these again

Results are in docs/reference/torch_suite.json, by version of PyTorch; tests that run again replace their results.
`python docs/generate.py` makes the table in docs/reference/compatibility.md from them. The exit code is 1 if a test
passes over Gloo and not over Tradewind.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "reference" / "torch_suite.json"
TESTS = Path(__file__).with_name("torch_suite_tests.py")
BACKENDS = ("gloo", "tradewind")
NEEDED = "expecttest"
"""A package that PyTorch's tests import."""
WORLD = 3
"""Ranks of every test, as in PyTorch's CI for Gloo."""
PASSED = "passed"
OUTCOME = re.compile(r".*::(test_\w+) (PASSED|FAILED|SKIPPED|ERROR)")
FAILURE = re.compile(r"E  +\w*(Error|Lost|Exception)")


def outcomes(python: Path, backend: str, names: list[str]) -> dict[str, str]:
    """The outcome of every test over one backend, by name; those for GPUs are left out where there is none."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "BACKEND": "gloo",
            "SUITE_BACKEND": backend,
            "WORLD_SIZE": str(WORLD),
            "TEMP_DIR": folder,
            "OMP_NUM_THREADS": "1",
        }
        command: list[str | Path] = [python, "-m", "pytest", "-v", "-c", os.devnull, "--rootdir", folder, TESTS]
        chosen = " or ".join(names) or "not cuda and not nccl and not gpu"
        ranks = subprocess.Popen(
            [*command, "-k", chosen], env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        found: dict[str, str] = {}
        assert ranks.stdout is not None
        for line in ranks.stdout:  # as they come, so that a run that is ended has told what it knew
            if match := OUTCOME.match(line):
                found[match[1]] = match[2].lower()
                print(f"{backend}: {match[1]} {found[match[1]]}", flush=True)
            elif FAILURE.match(line):
                print(f"{backend}: {line.strip()}", flush=True)
        ranks.wait()
    return found


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
        print(f"{name}: {text}; passes over Gloo")
    passed = [sum(outcome == PASSED for outcome in run[backend].values()) for backend in BACKENDS]
    print(f"passed: Gloo {passed[0]}, Tradewind {passed[1]}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
