"""The table of the papers' mechanisms: every row has a test, and an edit that disables the mechanism still applies."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tradewind.experiments.papers import LIVE, experiment_names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mechanisms_script", ROOT / "docs" / "mechanisms.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_mechanism_has_a_test_and_an_edit_that_applies(table: ModuleType) -> None:
    rows, edits = table.mechanisms(), table.edits()
    assert len(rows) >= 60 and {row.text for row in rows} == set(table.marked_tests())
    for row in rows:
        edit = edits[row.text]
        found = (table.PACKAGE / edit["module"]).read_text().count(edit["replace"])
        assert found == 1, f"{row.text}: correct docs/disabled_mechanisms.toml, its text occurs {found} times"


def test_live_figures_of_mechanisms_exist(table: ModuleType) -> None:
    named = {row.live for row in table.mechanisms() if row.live}
    assert named and {f"{name}{LIVE}" for name in named} <= set(experiment_names(live=True))
    assert "`netstorm/fig17/live`" in table.page() and "`netstorm/fig17`" not in table.page()


def test_a_mechanism_without_a_test_is_refused(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    (missing, _), *_ = table.marked_tests().items()
    kept = {text: test for text, test in table.marked_tests().items() if text != missing}
    monkeypatch.setattr(table, "marked_tests", lambda: {**kept, "CREW IV-Z, nothing": "tests/x.py::test_x"})
    with pytest.raises(ValueError, match="IV-Z") as refused:
        table.page()
    assert missing in str(refused.value)
