"""The page of all claims: one row a claim, verdicts by one rule, and marks for results that say less."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tradewind.experiments.papers import experiment
from tradewind.experiments.papers.judged_code import judged_code
from tradewind.experiments.papers.page import OLD, counts_sentence, reproduction_page, rows_of
from tradewind.experiments.papers.report import Verdict, pooled, verdict_of, verdict_of_gains, verdict_of_range
from tradewind.experiments.papers.saved import SavedOutcome, load

H, P, F = Verdict.HOLDS, Verdict.IN_PART, Verdict.FAILS


@pytest.mark.parametrize(
    ("gains", "verdict", "up_to"),
    [
        ([0.8, 3.0], H, H),
        ([0.79, 0.81], P, H),
        ([0.1, 0.85], P, H),
        ([0.5, 0.4], P, P),
        ([0.5, 0.4, 0.4], F, P),
        ([0.9, -0.1], P, P),  # not in every case
        ([0.9, -0.1, -0.1], F, F),
        ([0.4, 0.4], F, F),
        ([math.nan], F, F),  # never reached
    ],
)
def test_a_gain_counts_by_its_share_of_the_claimed_one(gains: list[float], verdict: Verdict, up_to: Verdict) -> None:
    assert verdict_of_gains(gains, 1.0) is verdict
    assert verdict_of_gains(gains, 1.0, up_to=True) is up_to
    assert verdict_of_gains([10 * gain for gain in gains], [10.0] * len(gains)) is verdict


def test_a_range_needs_its_least_everywhere_and_its_most_once() -> None:
    assert verdict_of_range([0.3, 0.6], 0.3, 0.65) is H
    assert verdict_of_range([0.3, 0.4], 0.3, 0.65) is P
    assert verdict_of_range([0.05, 0.6], 0.3, 0.65) is P
    assert verdict_of_range([0.05, 0.2], 0.3, 0.65) is F


def test_half_of_the_cases_is_the_least_for_in_part() -> None:
    assert [verdict_of([True] * k + [False] * (4 - k)) for k in range(5)] == [F, F, P, P, H]
    assert [pooled(found) for found in ([H, H], [H, P], [P, F], [H, F, F])] == [H, P, P, F]


def saved(folder: Path, name: str, verdict: str = "holds", **changes: object) -> dict[str, SavedOutcome]:
    claims = [{"text": text, "ours": f"seen by {name}", "verdict": verdict} for text in experiment(name).claims]
    document: dict[str, object] = {
        "trials": None,
        "quick": False,
        "columns": [],
        "rows": [],
        "name": name,
        "title": name,
    }
    document |= {"claims": claims, "code": judged_code(name)} | changes
    (folder / f"{name.replace('/', '-')}.json").write_text(json.dumps(document))
    return load(folder)


def row_of(found: dict[str, SavedOutcome], text: str) -> list[str]:
    (line,) = (line for line in reproduction_page(found).splitlines() if line.startswith(f"| {text} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_claim_with_a_computed_and_a_live_experiment_is_one_row(tmp_path: Path) -> None:
    saved(tmp_path, "netstorm/fig16")
    found = saved(tmp_path, "netstorm/fig16/live", "does not hold")
    (text,) = experiment("netstorm/fig16").claims
    assert row_of(found, text)[1:3] == ["**holds**", "**does not hold**"]
    assert "Reason not tested." in row_of(found, text)[4]
    assert len(rows_of(found)) == 1 and counts_sentence(found).startswith("Of 1 claims judged, 0 hold, 1 hold in part")


def test_a_tested_reason_stands_in_the_remarks(tmp_path: Path) -> None:
    (text,) = experiment("netstorm/fig16").claims
    told = {"text": text, "ours": "x", "verdict": "does not hold", "reason": "R.", "tested": "Off: Y."}
    assert row_of(saved(tmp_path, "netstorm/fig16", claims=[told]), text)[4] == "R. Off: Y."


def test_a_quick_run_gives_no_verdict(tmp_path: Path) -> None:
    found = saved(tmp_path, "netstorm/fig16", quick=True)
    assert row_of(found, experiment("netstorm/fig16").claims[0])[1] == "to be run again"
    assert counts_sentence(found).startswith("Of 0 claims judged")


def test_a_result_older_than_its_code_is_marked(tmp_path: Path) -> None:
    found = saved(tmp_path, "netstorm/fig16", code="0" * 12)
    assert row_of(found, experiment("netstorm/fig16").claims[0])[1] == f"**holds**{OLD}"
    assert judged_code("mtree/fig6") != judged_code("netstorm/fig16") != judged_code("netstorm/fig16/live")


def test_a_claim_of_ds_sync_stands_with_ds_sync_wherever_it_is_judged(tmp_path: Path) -> None:
    saved(tmp_path, "ds-sync/training/live")
    found = saved(tmp_path, "tradewind/stragglers/live")
    (row,) = (row for row in rows_of(found) if row.text.startswith("DS-Sync reaches"))
    assert row.paper == "ds-sync" and len(row.seen) == 2
