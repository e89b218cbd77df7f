"""Selective Reduce's figures: a tiny run of each, and their metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments import check_experiment
from tradewind.experiments.papers import Setting, experiment, experiment_names
from tradewind.experiments.papers.report import Verdict
from tradewind.experiments.papers.selective import trials as selective_trials
from tradewind.experiments.papers.selective.trials import (
    ALL,
    OURS,
    PARTIAL,
    SELECTIVE,
    Case,
    falls,
    rises,
    selective_trial,
)
from tradewind.experiments.papers.work import Workers

FIGURES = [name for name in experiment_names() if name.startswith("selective/")]


@pytest.fixture(scope="module")
def tiny() -> Iterator[Setting]:
    """A setting with a few simulated seconds, shared by all figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selective_trials, "SECONDS", 12.0)
        yield Setting(Workers(), trials=1, quick=True)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_gives_numbers_curves_and_a_verdict_on_every_claim(name: str, tiny: Setting, tmp_path: Path) -> None:
    check_experiment(name, tiny, tmp_path)


def test_all_figures_of_the_paper_are_there() -> None:
    assert [f"selective/fig{k}" for k in (3, *range(5, 15))] + ["selective/options", "selective/training"] == FIGURES


def test_the_example_of_figure_3_comes_out_as_printed(tiny: Setting) -> None:
    outcome = experiment("selective/fig3").run(tiny)
    seen = {row[0]: row[2:] for row in outcome.rows}
    assert seen["(b) all reduce"] == (10.0, 5.0)
    assert seen["(c) partial reduce"] == (10.0, 2.0)
    assert seen["(e) selective"] == (6.0, 2.0)
    assert [claim.verdict for claim in outcome.claims].count(Verdict.HOLDS) == 3


def test_partial_reduce_takes_exactly_p_and_selective_reduce_at_least_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selective_trials, "SECONDS", 60.0)
    partial, selective, ours = (
        selective_trial(Case("", "CNN", 20, share=0.4).of(scheme), 0) for scheme in (PARTIAL, SELECTIVE, OURS)
    )
    assert partial.scale == 8
    assert selective.scale >= 8 and ours.scale >= 8
    assert selective.sync_s < partial.sync_s
    assert ours.iterations > selective.iterations > partial.iterations


def test_schemes_share_trials_that_do_not_depend_on_what_varies() -> None:
    strict, loose = Case("", "CNN", 40, slack=0.1, gain=5.0), Case("", "CNN", 40, slack=0.8, cold=True)
    assert strict.of(PARTIAL) == loose.of(PARTIAL)
    assert strict.of(ALL) == Case("", "CNN", 40, share=0.5).of(ALL)
    assert strict.of(SELECTIVE) != loose.of(SELECTIVE)
    assert Case("", "CNN", 40, floor=0.2).of(ALL) != strict.of(ALL)


def test_rising_and_falling_forgive_small_steps_back() -> None:
    assert rises([1.0, 2.0, 1.99, 3.0]) and not rises([1.0, 2.0, 1.5, 3.0]) and not rises([2.0, 2.0])
    assert falls([3.0, 2.0, 2.01, 1.0]) and not falls([3.0, 1.0, 2.0]) and not falls([2.0, 2.0])
