"""The experiments: the framework, and a tiny run of each of MTREE's figures."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cli import succeed, tradewind
from experiments import check_experiment
from tradewind.errors import InternalError, UnknownName
from tradewind.experiments.papers import Experiment, Setting, experiment, experiment_names, resolve_experiments
from tradewind.experiments.papers.report import Claim, Outcome, Verdict, as_csv, verdict_of
from tradewind.experiments.papers.saved import load
from tradewind.experiments.papers.work import Workers

FIGURES = [name for name in experiment_names() if name.startswith("mtree/")]


@pytest.fixture(scope="module")
def quick() -> Setting:
    """One setting for all figures, so that they share their trials."""
    return Setting(Workers(), trials=1, quick=True)


# --- the figures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_gives_numbers_curves_and_a_verdict_on_every_claim(name: str, quick: Setting, tmp_path: Path) -> None:
    check_experiment(name, quick, tmp_path)


def test_no_scheme_exceeds_the_limit_and_optimal_reaches_it(quick: Setting) -> None:
    outcome = experiment("mtree/fig6").outcome(quick)
    for _, _, *schemes, ours, limit in outcome.rows:
        assert isinstance(limit, float)
        assert isinstance(ours, float)
        assert all(isinstance(value, float) and value <= limit * (1 + 1e-6) for value in schemes)
        assert ours == pytest.approx(limit, rel=1e-3)


def test_pipelining_never_slows_a_scheme_down(quick: Setting) -> None:
    outcome = experiment("mtree/fig8").outcome(quick)
    column = outcome.columns.index
    for row in outcome.rows:
        for scheme in ("MTREE", "BLINK", "TOPOADOPT"):
            assert float(row[column(f"{scheme} pipelined")]) <= float(row[column(scheme)])


# --- the framework ----------------------------------------------------------------------------------------


def test_names_may_be_figures_or_whole_papers() -> None:
    assert resolve_experiments([]) == experiment_names()
    assert resolve_experiments(["mtree"]) == tuple(FIGURES)
    assert resolve_experiments(["mtree/fig9", "mtree/fig6", "mtree/fig9"]) == ("mtree/fig6", "mtree/fig9")
    with pytest.raises(UnknownName, match="mtree/fig6"):
        resolve_experiments(["mtree/fig66"])


def test_equal_trials_run_once_and_results_are_in_order() -> None:
    seen: list[int] = []
    said: list[tuple[str, int, int]] = []

    def square(number: int) -> int:
        seen.append(number)
        return number * number

    with ThreadPoolExecutor(2) as pool:
        for workers in (Workers(progress=lambda *x: said.append(x)), Workers(pool)):
            seen.clear()
            assert workers.map(square, [(3,), (1,), (3,)], "squares") == [9, 1, 9]
            assert workers.map(square, [(1,), (2,)], "squares") == [1, 4]
            assert sorted(seen) == [1, 2, 3]
    assert said == [("squares", k, 2) for k in (0, 1, 2)] * 2


def test_a_failing_trial_fails_the_experiment() -> None:
    with ThreadPoolExecutor(2) as pool:
        for workers in (Workers(), Workers(pool)):
            with pytest.raises(ZeroDivisionError):
                workers.map(divmod, [(1, 1), (1, 0)], "division")


def test_an_experiment_must_judge_the_claims_that_it_names() -> None:
    empty = Outcome(("x",), ((1,),), (), (Claim("another", "1", Verdict.HOLDS),))
    with pytest.raises(InternalError, match="judge"):
        Experiment("a/b", "title", ("one",), lambda _: empty).outcome(Setting(Workers()))


def test_quick_means_fewer_trials_unless_told() -> None:
    assert len(Setting(Workers()).trial_numbers()) == 20
    assert len(Setting(Workers(), quick=True).trial_numbers()) == 1
    assert len(Setting(Workers(), trials=7, quick=True).trial_numbers()) == 7


def test_verdicts_and_numbers() -> None:
    assert [verdict_of(cases) for cases in ([True], [True, False], [False])] == list(Verdict)
    assert as_csv(Outcome(("a", "b"), (("x,y", 0.123456),), (), ())) == b'a,b\n"x,y",0.1235\n'


# --- the verb ---------------------------------------------------------------------------------------------


def test_the_verb_lists_runs_and_writes(tmp_path: Path) -> None:
    assert [entry["name"] for entry in json.loads(succeed("reproduce", "mtree", "--list", "--json"))] == FIGURES
    assert "mtree/fig13" in succeed("reproduce", "mtree", "--list")
    (found,) = json.loads(succeed("reproduce", "mtree/fig10", "--quick", "--out", tmp_path / "new", "--json"))
    assert set(found) == {"name", "title", "columns", "rows", "claims", "switched", "notes", "files"}
    assert {claim["verdict"] for claim in found["claims"]} == {None}, "a quick run judges nothing"
    stored = load(tmp_path / "new")["mtree/fig10"]
    assert {claim.verdict for claim in stored.claims} == {None}
    assert [Path(file).exists() for file in found["files"]] == [True, True]
    text = succeed("reproduce", "mtree/fig10", "--quick", "--out", tmp_path / "new")
    assert "ours:" in text and "NO VERDICT, QUICK RUN" in text and "HOLD" not in text
    judged = json.loads(succeed("reproduce", "netstorm/fig1", "--trials", "2", "--out", tmp_path, "--json"))
    assert {claim["verdict"] for claim in judged[0]["claims"]} <= {str(verdict) for verdict in Verdict}


@pytest.mark.parametrize("arguments", [("nothing/fig1",), ("--trials", "0"), ("--jobs", "-1"), ("--jobs", "many")])
def test_bad_arguments_are_refused(arguments: tuple[str, ...]) -> None:
    assert tradewind("reproduce", *arguments).exit_code == 2


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = tradewind("reproduce", "mtree", "--out", tmp_path / "file" / "folder")
    assert result.exit_code == 2
    assert "cannot write" in result.stderr
