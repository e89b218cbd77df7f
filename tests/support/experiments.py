"""What every reproduced figure must give, whichever paper it is of."""

from __future__ import annotations

from pathlib import Path

from tradewind.experiments.papers import Setting, experiment
from tradewind.experiments.papers.report import write_files


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def check_experiment(name: str, setting: Setting, folder: Path) -> None:
    """Numbers, something to draw, files that can be read, and a verdict on every claim."""
    each = experiment(name)
    outcome = each.outcome(setting)
    assert [claim.text for claim in outcome.claims] == list(each.claims)
    assert all(claim.ours for claim in outcome.claims)
    assert outcome.rows and all(len(row) == len(outcome.columns) for row in outcome.rows)
    assert outcome.panels
    for panel in outcome.panels:
        assert all(len(series.x) == len(series.y) > 0 for series in panel.series)
        assert all(len(series.x) == len(panel.categories) for series in panel.series if panel.categories)
    numbers, picture = write_files(each.name, each.title, outcome, folder, _write)
    assert len(numbers.read_text().splitlines()) == len(outcome.rows) + 1
    assert picture.read_bytes().startswith(b"\x89PNG")
