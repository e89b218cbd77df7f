"""The page of limits says what the code does."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from tradewind.control.deadlines import Deadlines

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\|.*\| `([\w.]+)` \| ([\d.]+) \|$", PAGE, re.MULTILINE)
BOUNDED = [f"runtime.{name}" for name in ("listener", "control_reader", "peers", "state_transfer")]
BOUNDED += ["runtime.trace_file", "wire.frames", "wire.handshake", "wire.greetings", "wire.codecs"]
BOUNDED += ["node.engine.buffers", "node.engine.scatter", "control.network.flapping", "dashboard.server"]


def test_every_limit_on_the_page_is_that_of_the_code() -> None:
    assert len(ROWS) > 30
    for name, value in ROWS:
        module, _, constant = name.rpartition(".")
        where = importlib.import_module(f"tradewind.{module}") if module else Deadlines()
        assert getattr(where, constant) == float(value), name


def test_every_limit_of_the_code_is_on_the_page() -> None:
    listed = {name for name, _ in ROWS}
    for module in BOUNDED:
        source = Path(importlib.import_module(f"tradewind.{module}").__file__ or "").read_text(encoding="utf-8")
        for constant in re.findall(r"^((?:MAX|MOST)_\w+|LONGEST_HOLDS) =", source, re.MULTILINE):
            assert f"{module}.{constant}" in listed or constant == "MAX_REST_BYTES", f"{module}.{constant}"
