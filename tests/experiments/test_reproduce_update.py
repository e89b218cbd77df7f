"""Runs that continue earlier ones, and several experiments at a time."""

from __future__ import annotations

import json
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from cli import tradewind
from tradewind.errors import BadOption, InputError
from tradewind.experiments.papers import Experiment, Setting, experiment
from tradewind.experiments.papers.report import Claim, Outcome, Verdict
from tradewind.experiments.papers.runner import needed, run_each
from tradewind.experiments.papers.saved import file_name, load, to_json
from tradewind.experiments.papers.trial_store import TrialStore
from tradewind.experiments.papers.work import Workers


def counted(number: int, log: Path) -> int:
    """A trial that says that it ran."""
    with log.open("a") as file:
        file.write(f"{number}\n")
    return number * number


def runs(log: Path) -> list[str]:
    return sorted(log.read_text().split())


def squares(name: str, numbers: tuple[int, ...], log: Path) -> Experiment:
    def run(setting: Setting) -> Outcome:
        found = setting.workers.map(counted, [(number, log) for number in numbers], name)
        return Outcome(("sum",), ((sum(found),),), (), (Claim("It is a sum.", "so", Verdict.HOLDS),))

    return Experiment(name, name, ("It is a sum.",), run)


def test_trials_in_the_store_are_not_run_again_until_the_code_changes(tmp_path: Path) -> None:
    log, file = tmp_path / "log", tmp_path / "trials.sqlite"
    for code, again in (("old", ["1", "2"]), ("old", ["1", "2"]), ("new", ["1", "1", "2", "2"])):
        with TrialStore(file, code) as store:
            assert Workers(store=store).map(counted, [(1, log), (2, log)], "squares") == [1, 4]
        assert runs(log) == again


def test_trials_before_an_interruption_are_kept(tmp_path: Path) -> None:
    log, file = tmp_path / "log", tmp_path / "trials.sqlite"
    with TrialStore(file, "code") as store, pytest.raises(TypeError):
        Workers(store=store).map(counted, [(1, log), ("no number", log)], "squares")
    with TrialStore(file, "code") as store:
        assert Workers(store=store).map(counted, [(1, log), (2, log)], "squares") == [1, 4]
    assert runs(log).count("1") == 1


def test_a_file_that_holds_no_trials_is_named(tmp_path: Path) -> None:
    (tmp_path / "trials.sqlite").write_text("something else, and long enough to be no empty database")
    with pytest.raises(InputError, match=r"trials\.sqlite"):
        TrialStore(tmp_path / "trials.sqlite", "code")


def test_experiments_at_the_same_time_share_their_trials(tmp_path: Path) -> None:
    log = tmp_path / "log"
    chosen = [squares("x/a", (1, 2, 3), log), squares("x/b", (2, 3, 4), log), squares("x/c", (1, 4), log)]
    with ThreadPoolExecutor(2) as executor:
        found = {each.name: outcome for each, outcome in run_each(chosen, Setting(Workers(executor)), at_a_time=3)}
    assert {name: one.rows for name, one in found.items() if isinstance(one, Outcome)} == {
        "x/a": ((14,),),
        "x/b": ((29,),),
        "x/c": ((17,),),
    }
    assert runs(log) == ["1", "2", "3", "4"]


def test_experiments_end_when_their_executor_is_shut_down() -> None:
    begun, may_end = Event(), Event()

    def trial(number: int) -> int:
        begun.set()
        may_end.wait(30)
        return number

    executor = ThreadPoolExecutor(1)
    with ThreadPoolExecutor(1) as threads:
        mapped = threads.submit(Workers(executor).map, trial, [(1,), (2,), (3,)], "trials")
        assert begun.wait(30)
        executor.shutdown(wait=False, cancel_futures=True)
        may_end.set()
        with pytest.raises((CancelledError, RuntimeError)):  # the latter if not all trials were submitted by then
            mapped.result(timeout=30)


@pytest.mark.parametrize("at_a_time", [1, 2])
def test_an_experiment_that_fails_does_not_end_the_others(tmp_path: Path, at_a_time: int) -> None:
    def fail(_: Setting) -> Outcome:
        raise BadOption("a data set is missing.")

    log = tmp_path / "log"
    chosen = [Experiment("x/a", "x/a", (), fail), squares("x/b", (1,), log)]
    with ThreadPoolExecutor(2) as executor:
        found = {each.name: one for each, one in run_each(chosen, Setting(Workers(executor)), at_a_time)}
    assert isinstance(found["x/a"], BadOption) and isinstance(found["x/b"], Outcome)


def test_what_has_a_current_result_is_not_needed(tmp_path: Path) -> None:
    names = ("selective/fig3", "mtree/fig9", "mtree/fig10", "netstorm/fig1")
    fig3, current, quick, old = (experiment(name) for name in names)
    full, fast = Setting(Workers()), Setting(Workers(), quick=True)
    for each, setting in ((current, full), (quick, fast), (old, full)):
        outcome = Outcome((), (), (), tuple(Claim(text, "", Verdict.HOLDS) for text in each.claims))
        content = json.loads(to_json(each, outcome, setting))
        if each is old:
            content["code"] = "before"
        (tmp_path / file_name(each.name)).write_text(json.dumps(content))
    found = needed([fig3, old, current, quick], load(tmp_path), full)
    assert [each.name for each in found] == ["selective/fig3", "mtree/fig10", "netstorm/fig1"], "no full result: first"
    assert current in needed([current], load(tmp_path), Setting(Workers(), trials=3))


def test_an_update_runs_nothing_twice(tmp_path: Path) -> None:
    first = tradewind("reproduce", "selective/fig3", "mtree/fig9", "--quick", "--update", "--out", tmp_path)
    assert first.exit_code == 0 and "selective/fig3: 2 of 2 done" in first.stderr
    stored = (tmp_path / "selective-fig3.json").stat().st_mtime_ns
    second = tradewind("reproduce", "selective/fig3", "--quick", "--update", "--out", tmp_path)
    assert second.exit_code == 0 and "1 of 1 have a current result" in second.stderr
    assert (tmp_path / "selective-fig3.json").stat().st_mtime_ns == stored
