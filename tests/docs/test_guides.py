"""Guides that show whole files show the real ones, and their commands print the output on the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tradewind.planning import PLANNERS, planner

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (GUIDES / "plugins.md").read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", ["plugin_planner.py", "plugin_policy.py"])
def test_the_guide_to_plugins_shows_the_examples_as_they_are(example: str) -> None:
    assert (ROOT / "examples" / example).read_text() in python_blocks()


def test_the_registration_that_the_guide_shows_works() -> None:
    [block] = [block for block in python_blocks() if "register_planner(" in block]
    try:
        exec(compile(block, "docs/guides/plugins.md", "exec"), {"__name__": "guide"})
        assert planner("first").origin == "registered by guide"
    finally:
        PLANNERS.forget("first")


def test_the_commands_of_the_guide_to_plugins_print_what_it_says() -> None:
    (ROOT / "build").mkdir(exist_ok=True)
    command = [sys.executable, "docs/refresh.py", "--check", "--computed", "docs/guides/plugins.md"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
