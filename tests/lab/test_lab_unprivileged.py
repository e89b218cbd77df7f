"""Without root and without namespaces: everything still runs, on `inproc`, and says why in a sentence.

The commands here are real processes that have no capability and whose kernel refuses them every new user namespace.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NO_NAMESPACES = (
    "unshare",
    "--user",
    "--map-root-user",
    "sh",
    "-c",
    "echo 0 > /proc/sys/user/max_user_namespaces && "
    'exec setpriv --inh-caps=-all --ambient-caps=-all --bounding-set=-all --no-new-privs "$@"',
    "sh",
)
SLOW_PAIR = ("mesh", "--option", "n=2", "--option", "min_mbps=2", "--option", "max_mbps=4")
SENTENCE = (
    "htb and delay cannot run here: namespaces need root, or user namespaces, which this machine does not allow "
    "(user.max_user_namespaces is used up)."
)
LONGEST_S = 120


@pytest.fixture(scope="module", autouse=True)
def no_namespaces() -> None:
    if not (shutil.which("unshare") and shutil.which("setpriv")):
        pytest.skip("needs unshare and setpriv to give up what we may do")
    tried = subprocess.run([*NO_NAMESPACES, "unshare", "--user", "true"], capture_output=True, text=True)
    if "No space left" not in tried.stderr:
        pytest.skip(f"namespaces cannot be forbidden here: {tried.stderr.strip() or 'they still work'}")


def tradewind(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*NO_NAMESPACES, sys.executable, "-m", "tradewind", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S)


def test_lab_run_falls_back_to_inproc_and_says_why() -> None:
    said = tradewind("lab", "run", *SLOW_PAIR, "--", "sh", "-c", "echo $TRADEWIND_SITE")
    assert said.returncode == 0, said.stderr
    assert sorted(said.stdout.splitlines()) == ["[w1] w1", "[w2] w2"]
    assert "on inproc" in said.stderr and said.stderr.count(SENTENCE) == 1


def test_lab_up_says_what_to_use_instead() -> None:
    said = tradewind("lab", "up", *SLOW_PAIR)
    assert said.returncode == 3 and "Traceback" not in said.stderr
    assert SENTENCE in said.stderr and "Use tradewind lab run" in said.stderr


def test_a_backend_that_was_asked_for_is_refused_and_not_replaced() -> None:
    said = tradewind("lab", "run", *SLOW_PAIR, "--backend", "htb", "--", "true")
    assert said.returncode == 3 and "htb cannot run here: namespaces need root" in said.stderr


def test_bench_wan_measures_without_a_lab() -> None:
    arguments = ("--bytes", "40kB", "--rounds", "1", "--planner", "ring", "--json")
    said = tradewind("bench", "wan", *SLOW_PAIR, "--backend", "auto", *arguments)
    assert said.returncode == 0, said.stderr
    (row,) = json.loads(said.stdout)["rows"]
    assert row["system"] == "tradewind ring" and row["seconds"] > 0
    assert SENTENCE in said.stderr and "inproc" in said.stderr


@pytest.mark.slow
def test_the_demo_needs_no_namespaces(tmp_path: Path) -> None:
    arguments = ("--numpy", "--sites", "3", "--steps", "1", "--json", "--out", str(tmp_path / "page.html"))
    said = tradewind("demo", *arguments)
    assert said.returncode == 0, said.stderr
    assert (tmp_path / "page.html").exists()


def test_live_figures_say_that_they_cannot_be_made(tmp_path: Path) -> None:
    said = tradewind("reproduce", "netstorm/fig18", "--live", "--quick", "--out", str(tmp_path))
    assert said.returncode == 3 and SENTENCE.removeprefix("htb and ") in said.stderr
