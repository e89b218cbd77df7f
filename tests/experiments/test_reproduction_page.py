"""The page of all claims: one row a claim, verdicts by one rule, and marks for results that say less."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tradewind.experiments.papers import every_name, experiment
from tradewind.experiments.papers.judged_code import judged_code
from tradewind.experiments.papers.page import OLD, causes_sentence, counts_sentence, reproduction_page, rows_of
from tradewind.experiments.papers.report import (
    Finding,
    Switched,
    Verdict,
    pooled,
    verdict_of,
    verdict_of_gains,
    verdict_of_range,
)
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


def switched(claim: str, before: float, after: float, needed: float, at_most: bool = False) -> dict[str, object]:
    told = {"claim": claim, "cause": "Links are slow.", "off": "fast links", "measure": "the gain is"}
    return told | {"before": before, "after": after, "needed": needed, "at_most": at_most}


@pytest.mark.parametrize(
    ("before", "after", "needed", "at_most", "finding"),
    [
        (1.0, 1.8, 2.0, False, Finding.EXPLAINS),
        (1.0, 1.79, 2.0, False, Finding.PARTLY),
        (1.0, 1.19, 2.0, False, Finding.REFUTED),
        (1.0, 0.5, 2.0, False, Finding.REFUTED),  # the wrong way
        (2.0, 3.0, 2.0, False, Finding.ABSENT),
        (2.0, 1.1, 1.0, True, Finding.EXPLAINS),
        (2.0, 2.5, 1.0, True, Finding.REFUTED),
        (0.9, 0.5, 1.0, True, Finding.ABSENT),
    ],
)
def test_a_cause_counts_by_how_much_of_the_difference_goes_with_it(
    before: float, after: float, needed: float, at_most: bool, finding: Finding
) -> None:
    assert Switched("c", "x", "y", "z", before, after, needed, at_most).finding is finding


@pytest.mark.parametrize(
    ("after", "verdict", "remark", "counted"),
    [
        (0.2, "does not hold", "explains it.", "explains 1, and 0 in part; 0 have"),
        (0.1, "holds in part", "explains part of it.", "explains 0, and 1 in part; 0 have"),
        (0.01, "does not hold", "refuted. The cause is unknown.", "0 in part; 1 have"),
    ],
)
def test_a_switched_cause_stands_in_the_remarks(
    tmp_path: Path, after: float, verdict: str, remark: str, counted: str
) -> None:
    (text,) = experiment("netstorm/fig16").claims
    told = {"text": text, "ours": "x", "verdict": verdict, "reason": "R. Links are slow."}
    saved(tmp_path, "netstorm/fig16", claims=[told])
    assert row_of(load(tmp_path), text)[4] == "R. Links are slow. Reason not tested."
    found = saved(tmp_path, "reasons/netstorm", switched=[switched(text, 0.0, after, 0.2)])
    assert row_of(found, text)[4] == (
        f"R. Links are slow. Tested with fast links: the gain is {after:g} instead of 0, at least 0.2 needed: {remark}"
    )
    assert counted in causes_sentence(found)


def test_a_difference_that_the_experiment_does_not_show_is_no_test(tmp_path: Path) -> None:
    (text,) = experiment("netstorm/fig16").claims
    saved(tmp_path, "netstorm/fig16", "does not hold")
    found = saved(tmp_path, "reasons/netstorm", switched=[switched(text, 0.3, 0.4, 0.2)])
    assert row_of(found, text)[4].endswith("not seen in this experiment. Reason not tested.")
    found = saved(tmp_path, "reasons/netstorm", quick=True, switched=[switched(text, 0.0, 0.2, 0.2)])
    assert row_of(found, text)[4] == "Reason not tested."


def test_stored_causes_are_of_claims_that_an_experiment_judges() -> None:
    stored = load(Path(__file__).parents[2] / "docs" / "benchmarks" / "data" / "reproduction")
    known = {text for name in every_name() for text in experiment(name).claims}
    named = {one.claim for outcome in stored.values() for one in outcome.switched}
    assert named and named <= known


def test_a_quick_run_gives_no_verdict(tmp_path: Path) -> None:
    found = saved(tmp_path, "netstorm/fig16", quick=True)
    assert row_of(found, experiment("netstorm/fig16").claims[0])[1] == "to be run again"
    assert counts_sentence(found).startswith("Of 0 claims judged")


def test_a_result_older_than_its_code_is_marked(tmp_path: Path) -> None:
    found = saved(tmp_path, "netstorm/fig16", code="0" * 12)
    assert row_of(found, experiment("netstorm/fig16").claims[0])[1] == f"**holds**{OLD}"
    assert "0 of 1 stored results are full runs of the present code." in reproduction_page(found)
    assert judged_code("mtree/fig6") != judged_code("netstorm/fig16") != judged_code("netstorm/fig16/live")


def test_a_claim_of_ds_sync_stands_with_ds_sync_wherever_it_is_judged(tmp_path: Path) -> None:
    saved(tmp_path, "ds-sync/training/live")
    found = saved(tmp_path, "tradewind/stragglers/live")
    (row,) = (row for row in rows_of(found) if row.text.startswith("DS-Sync reaches"))
    assert row.paper == "ds-sync" and len(row.seen) == 2
